"""Captures: whole requests and answers, kept for a while for who looks for a fault. Off unless the settings name models or keys.

On a request's path only bytes are set aside, up to a bound; redaction and writing are behind it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vllm_mm.domain.keys import Key
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.exchange import Exchange
from vllm_mm.gateway.ports import Client, Framing, Headers
from vllm_mm.gateway.relay import Relay

ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Captured:
    """One request and its answer, as they passed; nothing is taken out yet."""

    record: RequestRecord
    method: str
    target: str
    headers: Headers
    body: bytes
    """The beginning of it."""
    body_size: int
    form: bool
    """Its body was a form, of which nothing is kept."""
    answer_headers: Headers
    answer: bytes
    """The beginning of the body."""
    answer_size: int


Keep = Callable[[Captured], None]
"""Takes a capture, at once and without failing."""


class Captures:
    """Whose requests are captured, and what becomes of them."""

    def __init__(self, models: frozenset[str], keys: frozenset[str], most: int, keep: Keep) -> None:
        """`models`: ids, or `*`. `keys`: ids or names, or `*`. `most`: bytes of each body that are kept."""
        self._models = models
        self._keys = keys
        self._most = most
        self._keep = keep

    def wants(self, key: Key, spec: ModelSpec) -> bool:
        """Either says so."""
        return not self._models.isdisjoint((ALL, spec.id)) or not self._keys.isdisjoint((ALL, key.id, key.name))

    def watch(self, relay: Relay) -> "Capture":
        """From now on."""
        capture = Capture(relay, self._most)
        relay.pass_to(capture)
        return capture

    def done(self, capture: "Capture", record: RequestRecord) -> None:
        """The request is over."""
        self._keep(capture.captured(record))


class Capture:
    """A client's end with an ear at it: passes everything on, and sets the beginning of the answer aside."""

    raw = False
    """Pieces come without their framing, so that they can be read."""

    def __init__(self, relay: Relay, most: int) -> None:
        call = relay.call
        self._client: Client = relay.client
        self._call = call
        self._most = most
        self._body = bytes(memoryview(call.body)[:most])
        self._body_size = len(call.body)
        self._headers: Headers = []
        self._answer = bytearray()
        self._answer_size = 0

    def captured(self, record: RequestRecord) -> Captured:
        call = self._call
        target = call.path + b"?" + call.query if call.query else call.path
        upload = call.upload
        return Captured(
            record, call.route.method.decode(), target.decode("latin-1"), list(call.headers), self._body,
            self._body_size if upload is None else upload.size, upload is not None,
            self._headers, bytes(self._answer), self._answer_size,
        )  # fmt: skip

    # Client

    @property
    def gone(self) -> bool:
        return self._client.gone

    def start(self, status: int, headers: Headers, framing: Framing, length: int | None = None) -> None:
        self._headers = list(headers)
        self._client.start(status, headers, framing, length)

    def data(self, chunk: bytes) -> None:
        room = self._most - len(self._answer)
        if room > 0:
            self._answer += memoryview(chunk)[:room]
        self._answer_size += len(chunk)
        self._client.data(chunk)

    def writer(self) -> Callable[[bytes], None]:
        return self.data

    def finish(self, trailers: Headers = []) -> None:  # noqa: B006  # never changed
        self._client.finish(trailers)

    def cut(self) -> None:
        self._client.cut()

    def bind(self, exchange: Exchange) -> None:
        self._client.bind(exchange)

    def interrupt(self) -> None:
        self._client.interrupt()

    def release(self) -> None:
        self._client.release()
