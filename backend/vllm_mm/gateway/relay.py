"""One request under way: the sink of its answer, and all that its ledger row will say."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from vllm_mm.domain.body_edits import Edit
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.keys import Key
from vllm_mm.domain.limits import Standing
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import Outcome, RequestRecord, Usage
from vllm_mm.engine.exchange import Exchange, UpstreamRequest
from vllm_mm.gateway.asked_usage import UsageTaker
from vllm_mm.gateway.bodies import error_body, error_event
from vllm_mm.gateway.limits import told
from vllm_mm.gateway.meter import Meter
from vllm_mm.gateway.origins import may_read
from vllm_mm.gateway.ports import Client, Framing, Headers, LeaseView, Problem
from vllm_mm.gateway.refusals import next_number
from vllm_mm.gateway.rename import EventRewriter, JsonRewriter, Rewriter
from vllm_mm.gateway.routes import Route
from vllm_mm.gateway.told import ANNOUNCED, as_comment, at_the_end, waited

if TYPE_CHECKING:
    from vllm_mm.gateway.upload import Upload

CLIENT_GONE: Final = 499
"""What the ledger says when the client left before it had a status (nginx's convention)."""


_NO_USAGE: Final = Usage()
NO_ROUTE: Final = frozenset({404, 405, 501})
"""How an engine may say that it has no such route; 405 is what a server with pages of its own says."""
WITHHELD: Final = 4096
"""Bytes of such an answer that are held to see what it is."""


class Call:
    """A request as it came in."""

    __slots__ = ("arrived", "body", "headers", "query", "refused", "route", "subject", "upload")

    def __init__(self, route: Route, query: bytes, headers: Headers, arrived: float) -> None:
        self.route = route
        self.query = query
        self.headers = headers
        """Names in lower case."""
        self.arrived = arrived
        """Monotonic seconds."""
        self.body: bytes | bytearray = b""
        self.refused: MMError | None = None
        """Set when it was refused before its body was read."""
        self.subject = ""
        """The id of the stored response that it is about, where the path names one."""
        self.upload: Upload | None = None
        """Its body, where that is a form that is still on its way."""

    @property
    def path(self) -> bytes:
        """As the engine is asked for it."""
        if not self.subject:
            return self.route.path
        return self.route.path.replace(b"{id}", quote(self.subject, safe="").encode())


class _Nothing:
    """Swallows an answer that cannot be shown as it is."""

    def feed(self, chunk: bytes) -> bytes:
        return chunk[:0]

    def flush(self) -> bytes:
        return b""


class _Withheld:
    """An answer that may say that the engine has no such route."""

    def __init__(self, status: int, headers: Headers, *, chunked: bool, length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.chunked = chunked
        self.length = length
        self.pieces: list[bytes] = []
        self.size = 0


def says_no_route(body: bytes) -> bool:
    """A model's refusal has an error in it (of its model, an id, a parameter), in the form of any of the APIs; a server's
    word that it knows no such path has none (`{"detail":"Not Found"}`, a page, nothing)."""
    return b'"error"' not in body


class Relay:
    """Takes the engine's answer (ResponseSink) and passes it to the client, counting as it goes.

    What most requests never set stands here as a default of the class: making one is on everybody's path.
    """

    given: str | None = None
    """The client's own id."""
    origin: bytes | None = None
    key: Key | None = None
    spec: ModelSpec | None = None
    asked: str | None = None
    stream = False
    leased_at: float | None = None
    first_at: float | None = None
    generation: int | None = None
    frozen_s = 0.0
    reason: str | None = None
    edits: Sequence[Edit] = ()
    """What rules change in the body on its way to the engine."""
    entered = False
    """It came by the limits of its key, and has to leave there."""
    standing: Standing | None = None
    """How its key stood then, for the client; None where nothing limits it."""
    rules = b""
    """Their names, for the client."""
    status = 0
    head_sent = False
    counts: Callable[[bool], UsageTaker] | None = None
    """Makes what takes the usage out of its stream, told whether that is chunked; None where the client asked for it itself."""
    retried = False
    """It was sent to an engine once more."""
    ready_at = 0.0
    """When its engine had become ready, in monotonic seconds."""
    queued = False
    """It is one that may wait for a lease: who it was for may be told."""
    timings = False
    """The client is told at the end how long it took: by a comment in a stream..."""
    trailers = False
    """...or in trailers, for it can read them."""
    lease: LeaseView | None = None
    """While it is sent to its engine."""
    seen_size = 0
    seen_frozen = 0.0
    seen_at = 0.0
    """What the last look found (`stall`): bytes, seconds for which it stood still; and when that was new."""
    waiting = False
    """The head went out before the lease, with progress comments behind it."""
    events = False
    """The answer is an event stream."""
    muted = 0
    """The status of an engine's answer that does not fit behind the head that went out early; it is told as an event instead."""
    over = False
    """The answer is complete or cut: the connection may be another request's by now, before anybody else knows of the end."""
    no_route = False
    """The engine said that it has no such route; nothing of that was passed on."""
    outcome: Outcome | None = None
    error: str | None = None
    created: str | None = None
    """The id of the response that it made, when the engine has told it."""
    stopped: MMError | None = None
    """Why it has to end although nothing failed: an operator, or its deadline."""
    exchange: Exchange | None = None
    request: UpstreamRequest | None = None
    _rewriter: Rewriter | None = None
    _taker: UsageTaker | None = None
    _held_head: tuple[Headers, int | None] | None = None
    _withheld: _Withheld | None = None
    _inner: Rewriter | None = None
    """The rewriter of an answer that is withheld."""

    def __init__(self, call: Call, client: Client, own_id: str, now: Callable[[], float]) -> None:
        self.call = call
        self.client = client
        self.id = self.own_id = own_id
        self.raw = client.raw
        self.meter = Meter()
        self.size_in = len(call.body)
        self._write = client.data
        self.now = now

    def pass_to(self, client: Client) -> None:
        """Before anything was sent: the answer goes through `client`."""
        self.client = client
        self.raw = client.raw
        self._write = client.data

    def rename(self) -> None:
        """The answer has to show the name that was asked for, not the engine's: no raw relay."""
        self._rewriter = EventRewriter(self.asked or "")
        self.raw = False

    # ResponseSink

    def head(self, status: int, headers: Headers, *, chunked: bool, length: int | None) -> None:
        if self.request is not None:
            self.request.body = ()  # the engine answers: nobody needs it any more
            self.call.body = b""
        if status in NO_ROUTE:
            self._withheld = _Withheld(status, headers, chunked=chunked, length=length)
            self._inner, self._rewriter = self._rewriter, _Nothing()
        else:
            self._head(status, headers, chunked=chunked, length=length)

    def _head(self, status: int, headers: Headers, *, chunked: bool, length: int | None) -> None:
        events = False
        answer = self.own_headers()
        for field in headers:
            name = field[0]
            if name == b"content-type":
                events = field[1].startswith(b"text/event-stream")
            elif name == b"x-request-id":
                continue
            answer.append(field)
        if events:
            self.meter.time(self.call.route.token, self.now)
            if self.counts is not None:
                self._taker = self.counts(chunked and self.raw)
        if self.waiting:
            if status != 200 or not events:
                self.muted = status
                self._rewriter = _Nothing()
            return
        self.status = status
        self.events = events
        if self.trailers and status not in {204, 304}:
            answer.append(ANNOUNCED)
        if status in {204, 304}:
            self._start(answer, Framing.EMPTY, length)
        elif self._rewriter is not None:
            if events:
                self._start(answer, Framing.CHUNKED, None)
            else:
                self._rewriter = JsonRewriter(self.asked or "")
                self._held_head = (answer, length)
        elif chunked and self.raw:
            self._start(answer, Framing.RELAYED, None)
        elif length is not None and self._taker is None and not self.trailers:
            self._start(answer, Framing.LENGTH, length)
        else:
            self._start(answer, Framing.CHUNKED, None)

    def data(self, chunk: bytes) -> None:
        if chunk:
            self.meter.piece(chunk)
            if self.first_at is None:
                self.first_at = self.now()
                if self._rewriter is None:
                    self._write(chunk if self._taker is None else self._taker.feed(chunk))
                    self._write = self.client.writer()
                    return
        if self._rewriter is None:
            self._write(chunk if self._taker is None else self._taker.feed(chunk))
        elif not self.muted:
            self._data_renamed(self._rewriter, chunk)

    def end(self) -> None:
        withheld = self._withheld
        if withheld is not None:
            self.no_route = says_no_route(b"".join(withheld.pieces))
            if self.no_route:
                return
            self._pass_on(withheld)
        if self.muted:
            return
        left = self._taker.flush() if self._taker is not None else b""
        if self._rewriter is not None:
            left = (self._rewriter.feed(left) if left else b"") + self._rewriter.flush()
            self._release(self._rewriter)
        if left:
            self._write(left)
        self._finish()

    def _finish(self) -> None:
        if not self.timings:
            self.over = True
            self.client.finish()
            return
        times = at_the_end(self)
        if self.events and not self.trailers:
            self.comment(as_comment(times))
        self.over = True
        self.client.finish(times)

    def _pass_on(self, withheld: _Withheld) -> None:
        """It is an answer like any other."""
        self._withheld = None
        self._rewriter = self._inner
        self._head(withheld.status, withheld.headers, chunked=withheld.chunked, length=withheld.length)
        for piece in withheld.pieces:
            if self._rewriter is None:
                self._write(piece)
            elif not self.muted:
                self._data_renamed(self._rewriter, piece)

    def _data_renamed(self, rewriter: Rewriter, chunk: bytes) -> None:
        withheld = self._withheld
        if withheld is not None:
            withheld.pieces.append(chunk)
            withheld.size += len(chunk)
            if withheld.size > WITHHELD:
                self._pass_on(withheld)
            return
        out = rewriter.feed(chunk if self._taker is None else self._taker.feed(chunk))
        self._release(rewriter)
        if self._held_head is None:
            self._write(out)

    def _release(self, rewriter: Rewriter) -> None:
        """The head of a plain answer waits until its new length is known."""
        if self._held_head is not None and isinstance(rewriter, JsonRewriter) and rewriter.decided:
            (headers, length), self._held_head = self._held_head, None
            if length is None or self.trailers:
                self._start(headers, Framing.CHUNKED, None)
            else:
                self._start(headers, Framing.LENGTH, length + rewriter.delta)

    def _start(self, headers: Headers, framing: Framing, length: int | None) -> None:
        self.head_sent = True
        self.client.start(self.status, headers, framing, length)

    # The lease's holder

    def bind(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.client.bind(exchange)

    def stop(self, error: MMError) -> None:
        """End it with `error`, wherever it is."""
        self.stopped = error
        if self.exchange is not None:
            self.exchange.abort(error)
        else:
            self.client.interrupt()

    def ended(self) -> None:
        """The last call. An exchange knows its sink, so without this each request would leave a cycle of references."""
        self.exchange = None
        self.client.release()

    # Answers of our own

    def own_headers(self) -> Headers:
        headers: Headers = [(b"x-request-id", self.id.encode())]
        if self.spec is not None and (self.leased_at is not None or self.queued):
            headers += waited(self, self.spec.id)
        if self.rules:
            headers.append((b"x-vllm-mm-rules", self.rules))
        if self.standing is not None:
            headers += told(self.standing)
        if self.origin is not None:
            headers += may_read(self.origin)
        return headers

    def early_head(self) -> None:
        """The client asked for progress: its status goes out before there is an engine."""
        self.waiting = True
        self.raw = False
        self.events = True
        self.status = 200
        headers = self.own_headers()
        headers += ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
        self._start(headers, Framing.CHUNKED, None)

    @property
    def between_events(self) -> bool:
        """A comment would be seen for itself: whole events of a stream went out, or nothing at all so far. Not for an answer
        that is relayed with the engine's framing."""
        if self.over or self.raw or self.muted or self._withheld is not None or self._held_head is not None:
            return False
        return self.meter.ends_event() and (self.events or not self.head_sent)

    def comment(self, text: bytes) -> None:
        """Nothing after the end."""
        if not self.over:
            self.client.data(b": " + text + b"\n\n")

    def comment_before_next(self, text: bytes) -> Callable[[], None]:
        """Right before the answer goes on, whenever that is. Returns the way to have it written now, if it was not yet."""
        write = self._write

        def now() -> None:
            if self._write is then:
                self._write = write
                self.comment(text)

        def then(chunk: bytes) -> None:
            now()
            write(chunk)

        self._write = then
        return now

    def refuse(self, problem: Problem) -> None:
        """Tell the client that it went wrong: an error answer if it has no status yet, else an event and a cut."""
        client = self.client
        if client.gone:
            if not self.head_sent:
                self.status = CLIENT_GONE
            return
        if not self.head_sent:
            self.status = problem.status
            headers = self.own_headers()
            if problem.retry_after is not None:
                headers.append((b"retry-after", b"%d" % problem.retry_after))
            headers += problem.headers.items()
            headers.append((b"content-type", b"application/json"))
            body = error_body(problem, self.call.route.form, self.id)
            self._start(headers, Framing.LENGTH, len(body))
            client.data(body)
            self._finish()
            return
        if self.events and (self._taker is not None or self.exchange is None or self.exchange.at_boundary):
            event = error_event(problem, self.call.route.form, self.id, next_number(self))
            client.data(self._framed(event))
        self.over = True
        client.cut()

    def _framed(self, event: bytes) -> bytes:
        """As a chunk of its own when the client is in the middle of the engine's chunks."""
        if not self.meter.ends_event():
            event = b"\n\n" + event
        return b"%x\r\n%b\r\n" % (len(event), event) if self.raw else event

    # The ledger

    def row(self, now: float, wall: float) -> RequestRecord:
        call, spec, key = self.call, self.spec, self.key
        arrived = call.arrived
        return RequestRecord(  # by position: it is made for every request
            self.own_id,
            self.id,
            wall - (now - arrived),
            call.route.name,
            None if spec is None else spec.id,
            self.asked,
            None if key is None else key.id,
            self.stream or self.events,  # a form may say so after its model
            self.outcome or Outcome.INTERNAL,
            self.status,
            self.error,
            None if self.leased_at is None else self.leased_at - arrived,
            None if self.first_at is None else (self.meter.token_at or self.first_at) - arrived,
            now - arrived,
            self.size_in if call.upload is None else call.upload.size,
            self.meter.size,
            self.meter.usage(part=self.outcome is not Outcome.OK) if self.meter.size else _NO_USAGE,
            self.generation,
            self.frozen_s,
            self.reason,
            self.retried,
            self.meter.gaps(),
            None if self.leased_at is None else max(0.0, min(self.ready_at, self.leased_at) - arrived),
        )
