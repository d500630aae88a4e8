"""The same requests to an engine directly and through the product, and where the answers may differ: one table, with reasons.

docs/differences.md shows that table; a test holds the two together.
"""

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from generated import Ask
from vllm_mm.gateway.routes import ROUTES, Form

SECONDS = 240.0
"""For one answer, on a machine that is busy."""


@dataclass(frozen=True)
class Answer:
    """What came back. Headers in lower case, without those of the moment; the body with ids and times made the same."""

    status: int
    headers: frozenset[tuple[str, str]]
    body: bytes
    sent: bytes = field(default=b"", compare=False)
    """The body as it came."""

    @property
    def told(self) -> Any:
        """The body as JSON, or None."""
        try:
            return json.loads(self.sent)
        except ValueError:
            return None


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


class Teller:
    """Sends requests, one at a time, over one connection: to a unix socket, or to HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._fresh = True
        """The last request opened the connection."""
        self._connection = (
            _OverSocket(address) if address.startswith("/") else http.client.HTTPConnection(address, timeout=SECONDS)
        )

    def ask(self, ask: Ask, number: int) -> Answer:
        """With an id of its own where it has none, so that the ids in both answers are the same."""
        try:
            return self._ask(ask, number)
        except ConnectionError:
            if self._fresh:
                raise
            self._connection.close()  # it was idle for longer than a server keeps it
            return self._ask(ask, number)

    def _ask(self, ask: Ask, number: int) -> Answer:
        connection = self._connection
        self._fresh = connection.sock is None
        connection.putrequest(ask.method, ask.path, skip_accept_encoding=True)
        for name, value in {"x-request-id": f"same-{number}", **ask.headers}.items():
            connection.putheader(name, value)
        if ask.body or ask.method == "POST":
            connection.putheader("content-length", str(len(ask.body)))
        try:
            connection.endheaders(ask.body)
            response = connection.getresponse()
            headers = [(name.lower(), value) for name, value in response.getheaders()]
            body = response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        kept = frozenset((n, v) for n, v in headers if n not in OF_THE_MOMENT and not n.startswith("x-vllm-mm-"))
        return Answer(response.status, kept, sameness(body), body)

    def close(self) -> None:
        self._connection.close()


OF_THE_MOMENT = frozenset({"date", "x-request-id"})
"""And all `x-vllm-mm-*`, which are ours."""
_OWN = re.compile(
    rb'"created(?:_at)?":\d+(?:\.\d+)?'
    rb'|"(?:resp|msg|rs|fc|call|chatcmpl-tool|modelperm)[-_][0-9a-f]{8,}"'
    rb'|(?<=chatcmpl-)[0-9a-f]{16,32}|(?<=cmpl-)[0-9a-f]{16,32}|\breq_[0-9a-f]{12}_\d+|0x[0-9a-f]{8,}'
)  # fmt: skip


def sameness(body: bytes) -> bytes:
    """Times and random ids made the same; as long as before, because lengths are compared too."""
    return _OWN.sub(lambda found: b"#" * len(found[0]), body)


@dataclass(frozen=True)
class Difference:
    """A way in which an answer through the product may differ from the engine's own."""

    name: str
    reason: str
    """For docs/differences.md: what differs, and why."""
    of: Callable[[Ask, Answer, Answer], bool]
    """Whether this request, this answer of the engine and this of ours are such a case, in every part."""


def _form(ask: Ask) -> Form:
    route = ROUTES.get(ask.path.partition("?")[0].encode())
    return Form.OPENAI if route is None else route.form


def _ours(ask: Ask, answer: Answer, status: int, code: str = "") -> bool:
    """Whether it is a refusal of our own, in the shape of the route's API."""
    told = answer.told
    if (
        answer.status != status
        or not isinstance(told, dict)
        or ("content-type", "application/json") not in answer.headers
    ):
        return False
    error = told.get("error")
    if not isinstance(error, dict) or not error.get("message"):
        return False
    if _form(ask) is Form.ANTHROPIC:
        return told.get("type") == "error"
    return not code or error.get("code") == code


def _model(ask: Ask) -> Any:
    return ask.told.get("model")


def _is_json(ask: Ask) -> bool:
    try:
        json.loads(ask.body.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _listed(ask: Ask) -> bool:
    return ask.path.partition("?")[0].encode() in ROUTES


def _without_id(answer: Answer) -> Any:
    """All but the id, and the length that depends on it; headers are in it."""
    told = answer.told
    return {
        **(told if isinstance(told, dict) else {}),
        "id": "",
        "created": 0,
        "headers": {header for header in answer.headers if header[0] != "content-length"},
    }


DIFFERENCES: Sequence[Difference] = (
    Difference(
        "no model named",
        "A request without `model`, or with `null` or `\"\"`, gets 400. vLLM answers with its first model; here there are many, and none is first.",
        lambda ask, _engine, ours: ask.method == "POST" and _listed(ask) and _is_json(ask) and bool(ask.told)
        and _model(ask) in (None, "") and _ours(ask, ours, 400, "invalid_request"),
    ),
    Difference(
        "a name that is no text",
        "400 in our words: the model is found before there is an engine that could complain.",
        lambda ask, engine, ours: ask.method == "POST" and _model(ask) is not None and not isinstance(_model(ask), str)
        and engine.status == 400 and _ours(ask, ours, 400, "invalid_request"),
    ),
    Difference(
        "an unknown model",
        "404 as from vLLM, in our words: they name a similar model (whatever the case of its letters), or where all are listed.",
        lambda ask, engine, ours: isinstance(_model(ask), str) and _listed(ask) and engine.status in {400, 404} and _ours(ask, ours, 404, "model_not_found"),
    ),
    Difference(
        "a body that is no JSON",
        "400 as from vLLM, in our words: with line, column and character. That includes bytes that are no UTF-8, no body, levels without end, and what is no object.",
        lambda ask, engine, ours: ask.method == "POST" and _listed(ask) and not ask.told and engine.status in {400, 422}
        and _ours(ask, ours, 400, "invalid_request"),
    ),
    Difference(
        "UTF-16 and UTF-32",
        "400: JSON between programs is UTF-8 (RFC 8259, 8.1). vLLM guesses the encoding.",
        lambda ask, _engine, ours: ask.method == "POST" and _listed(ask) and not _is_json(ask)
        and ask.body[:2] in {b"\xff\xfe", b"\xfe\xff"} and _ours(ask, ours, 400, "invalid_request"),
    ),
    Difference(
        "`stream` that is no boolean",
        "400. vLLM takes 1, \"true\" and the like for true. Whether an answer is a stream has to be known before there is an engine.",
        lambda ask, _engine, ours: not isinstance(ask.told.get("stream"), bool | None) and _ours(ask, ours, 400, "invalid_request"),
    ),
    Difference(
        "a task that the model has not",
        "400 that names models that can. vLLM has no such route then, and says 404.",
        lambda ask, engine, ours: _listed(ask) and engine.status == 404 and _ours(ask, ours, 400, "model_cannot"),
    ),
    Difference(
        "a slash at the end",
        "The path means the same as without. vLLM redirects (307) to an address that is its own, which nobody outside can reach.",
        lambda ask, engine, ours: ask.path.endswith("/") and engine.status in {307, 404} and ours.status == 200,
    ),
    Difference(
        "a path that is not the data plane's",
        "404, also where vLLM would answer: /version, /load, /invocations, /sleep and the like are not for clients, and never reach an engine. "
        "`/health` and `/metrics` are our own.",
        lambda ask, _engine, ours: not _listed(ask) and (_ours(ask, ours, 404, "unknown_route") or (ask.path == "/health" and ours.status == 200)),
    ),
    Difference(
        "another method",
        "405 as from vLLM, as an error in the shape of the API and with `Allow`.",
        lambda ask, engine, ours: ask.method != "POST" and _listed(ask) and engine.status == 405
        and (_ours(ask, ours, 405) or (ask.method == "HEAD" and ours.status == 405 and not ours.body)),
    ),
    Difference(
        "a response that is unknown",
        "404 as from vLLM, in our words: they say why it may be gone. Which engine holds which response is known here, so none is asked.",
        lambda ask, engine, ours: isinstance(ask.told.get("previous_response_id"), str) and engine.status == 404
        and _ours(ask, ours, 404, "response_not_found"),
    ),
    Difference(
        "a strange `X-Request-Id`",
        "One with other letters than `A-Z a-z 0-9 . _ : / + = @ ~ -`, or of more than 128, is replaced by one of our own; vLLM repeats whatever it gets.",
        lambda ask, engine, ours: " " in ask.headers.get("x-request-id", "") and engine.status == ours.status
        and _without_id(engine) == _without_id(ours),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One request and both answers."""

    ask: Ask
    engine: Answer
    ours: Answer

    def __str__(self) -> str:
        def shown(answer: Answer) -> str:
            return f"{answer.status} {sorted(answer.headers)} {answer.body[:600]!r}"

        return f"{self.ask.name}\n  directly {shown(self.engine)}\n  through  {shown(self.ours)}"

    @property
    def same(self) -> bool:
        return self.engine == self.ours

    @property
    def difference(self) -> str | None:
        """The name of the entry that explains it, the first that does."""
        return next((d.name for d in DIFFERENCES if d.of(self.ask, self.engine, self.ours)), None)


TRIES = 8
"""For a stream: an engine puts tokens into one event when its server is slow to send them, and events are compared as they are."""


def compare(asks: Iterable[Ask], engine: str, ours: str) -> list[Pair]:
    """Each request to both, one after the other."""
    tellers = Teller(engine), Teller(ours)
    pairs: list[Pair] = []
    try:
        for number, ask in enumerate(asks):
            for _ in range(TRIES):
                directly, through = (teller.ask(ask, number) for teller in tellers)
                pair = Pair(ask, directly, through)
                if pair.same or b"data:" not in pair.engine.sent:
                    break
            pairs.append(pair)
    finally:
        for teller in tellers:
            teller.close()
    return pairs


def unexplained(pairs: Iterable[Pair]) -> list[Pair]:
    """Those that differ and are in no entry."""
    return [pair for pair in pairs if not pair.same and pair.difference is None]


def streamed(pairs: Iterable[Pair]) -> set[str]:
    """The paths of those that the engine answered with events."""
    return {pair.ask.path for pair in pairs if pair.engine.status == 200 and b"data:" in pair.engine.sent}


def documented() -> str:
    """The table as it is in docs/differences.md."""
    return "| what | how it differs, and why |\n|---|---|\n" + "".join(
        f"| {d.name} | {d.reason} |\n" for d in DIFFERENCES
    )
