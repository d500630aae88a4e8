"""The client half of HTTP/1.1, one connection: exact about where an answer ends, and no copying on the way there.

llhttp (httptools) decides what is a valid answer and where it ends; the bytes themselves go to the sink as they were
read. Anything that is not exactly one well-framed answer is an error, and such a block is never handed on.
"""

import asyncio
from typing import Protocol, cast

import httptools

from vllm_mm.engine.exchange import ResponseSink
from vllm_mm.engine.gathering import Gathering, Outbox

MAX_HEAD = 65536
"""Bytes of a response head; more is refused."""

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer", b"upgrade"}
)
"""Headers that end at the next hop (RFC 9110, 7.6.1); transfer-encoding and content-length are framing and told apart."""

_NO_BODY, _LENGTH, _CHUNKED, _UNTIL_EOF = range(4)


class Broken(Exception):
    """The engine's answer is not valid HTTP, or not exactly one answer. The message is for people."""


class Carrier(Protocol):
    """Who uses a connection: told about the end of what it carries, once per `begin`, and about its death."""

    def completed(self, connection: "Connection", *, reusable: bool) -> None: ...

    def failed(self, connection: "Connection", reason: str) -> None: ...


class Traffic:
    """Counts what comes from one engine; a counter and not a clock, because it is touched for every read."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        self.reads = 0


class Connection(asyncio.Protocol):
    """One connection to an engine, carrying one exchange at a time."""

    __slots__ = (
        "_carrier", "_chunked", "_complete", "_connection_options", "_eof", "_extra", "_headers", "_held",
        "_in_body", "_interim", "_keep", "_left", "_length", "_mode", "_no_body", "_on_idle_loss", "_outbox", "_parser",
        "_paused", "_previous", "_raw", "_relay", "_sink", "_traffic", "_unblocked", "began", "idle_since", "started", "transport", "unsent",
    )  # fmt: skip

    def __init__(self, on_idle_loss: "OnIdleLoss", traffic: Traffic, outbox: Outbox) -> None:
        self._outbox = outbox
        self._on_idle_loss = on_idle_loss
        self._traffic = traffic
        self.transport: Gathering | None = None
        self.idle_since = 0.0
        self.began = False
        """A byte of the answer arrived."""
        self.started = False
        """The sink has the head."""
        self.unsent = False
        """It broke while a part of the request was here still: nobody can have begun to work on that."""
        self._carrier: Carrier | None = None
        self._sink: ResponseSink | None = None
        self._relay = httptools.HttpResponseParser(self)
        self._parser = self._relay
        self._paused = False
        self._eof = False
        self._unblocked: asyncio.Future[None] | None = None
        """Resolved when the engine has read enough of what was sent."""
        self._reset()

    def _reset(self) -> None:
        self.began = self.started = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._connection_options: bytes | None = None
        self._held = b""
        self._in_body = self._interim = self._complete = self._extra = False
        self._chunked = False
        self._length: int | None = None
        self._mode = _NO_BODY
        self._left = 0
        self._previous = b""
        self._keep = False

    # What the carrier does with it.

    def begin(self, carrier: Carrier, sink: ResponseSink, *, no_body: bool) -> None:
        """The next bytes are an answer for `sink`. `no_body`: the request was HEAD."""
        self._reset()
        self._carrier = carrier
        self._sink = sink
        self._no_body = no_body
        self._raw = sink.raw
        if self._raw:
            self._parser = self._relay
        else:
            self._parser = httptools.HttpResponseParser(_Decoding(self, sink))

    def let_go(self) -> None:
        """Forget the exchange and close at once: the engine sees it and stops working."""
        self._carrier = self._sink = None
        self.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def ends_at_boundary(self) -> bool:
        """Whether the sink's bytes end between two chunks of the engine's framing (or have none, or were decoded).
        Only for a connection that is given up: the parser is asked, by feeding it an end, and is of no use afterwards."""
        if not self._in_body or not self._raw or self._mode != _CHUNKED:
            return True
        try:
            self._parser.feed_data(b"0\r\n\r\n")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return self._complete

    def pause(self) -> None:
        if not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.transport is not None:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = Gathering(cast("asyncio.Transport", transport), self._outbox)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # Bytes that nobody asked for: what they answer cannot be known, so nothing may follow on this connection.
            self._on_idle_loss(self)
            self.abort()
            return
        self.began = True
        self._traffic.reads += 1
        try:
            if self._in_body:
                self._parser.feed_data(data)
                if not self._complete and self._mode != _LENGTH and self._raw:
                    # Nearly every event of every stream.
                    sink.data(data)
                    self._previous = data if len(data) >= 5 else self._previous[-5:] + data
                    return
                body = data
                self._check_framing(body)
                if self._raw:
                    sink.data(body)
            else:
                fed = self._feed_head(data)
                if fed is None:
                    return
                body = fed
                self._check_framing(body)
                sink.data(body if self._raw else b"")
            self._previous = body if len(body) >= 5 else self._previous[-5:] + body
            if self._complete and self._carrier is not None:
                self._finish()
        except (Broken, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the engine's answer is not valid HTTP: {_why(error)}")

    def pause_writing(self) -> None:
        self._unblocked = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        unblocked, self._unblocked = self._unblocked, None
        if unblocked is not None and not unblocked.done():
            unblocked.set_result(None)

    async def writable(self) -> None:
        """Until the engine has read enough of what was sent, or the connection is gone."""
        if self._unblocked is not None:
            await self._unblocked

    def eof_received(self) -> None:
        self._eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.unsent = self._unblocked is not None or (self.transport is not None and self.transport.holds)
        self.resume_writing()
        carrier = self._carrier
        if carrier is None:
            self._on_idle_loss(self)
        elif exc is None and self._eof and self.started and self._mode == _UNTIL_EOF:
            self._finish()
        elif not self.began:
            self._fail(
                "the engine closed the connection before it answered"
                if exc is None
                else f"the connection to the engine broke: {exc}"
            )
        elif exc is not None:
            self._fail(f"the connection to the engine broke in the middle of an answer: {exc}")
        elif self._mode == _LENGTH:
            self._fail(
                f"the engine closed the connection with {self._left} of {self._length} bytes of the answer missing"
            )
        else:
            self._fail("the engine closed the connection in the middle of an answer")

    # Parser callbacks. Exceptions in them come out of feed_data.

    def on_message_begin(self) -> None:
        if self._complete:
            self._extra = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # a trailer: relayed with the framing, or dropped with it
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            if self._chunked or value.strip().lower() != b"chunked":
                raise Broken(f"transfer-encoding {value.decode('latin-1')!r} is not supported")
            self._chunked = True
        elif name in HOP_BY_HOP:
            if name == b"connection":
                previous = self._connection_options
                self._connection_options = value if previous is None else previous + b"," + value
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self._headers = []
            self._connection_options = self._length = None
            self._chunked = False
            return
        if self._complete or self._in_body:
            return  # a second answer in the same block: `_extra` is set, and the block is refused
        headers = self._headers
        if self._connection_options is not None:
            named = {token.strip().lower() for token in self._connection_options.split(b",")}
            headers = [h for h in headers if h[0] not in named]
        self._in_body = True
        if self._no_body:
            self._complete = True  # the parser cannot know; the connection is not used again
            self._mode = _NO_BODY
        elif status in {204, 304}:
            self._mode = _NO_BODY
        elif self._chunked:
            self._mode = _CHUNKED
        elif self._length is not None:
            self._mode = _LENGTH
            self._left = self._length
        else:
            self._mode = _UNTIL_EOF
        sink = cast("ResponseSink", self._sink)
        self.started = True
        sink.head(status, headers, chunked=self._mode == _CHUNKED, length=self._length)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self._complete = True
            self._keep = self._parser.should_keep_alive()

    # Inside

    def _feed_head(self, data: bytes) -> bytes | None:
        """Feed up to and including a final head; the bytes after it, or None while it is incomplete."""
        if self._held:
            data = self._held + data
            self._held = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0 or end > MAX_HEAD:
                if len(data) > MAX_HEAD:
                    raise Broken(f"its head is longer than {MAX_HEAD} bytes")
                self._held = data
                return None
            end += 4
            if data[9:10] != b"1":
                self._parser.feed_data(data)
                return data[end:]
            self._parser.feed_data(data[:end])
            data = data[end:]
            if not data:
                return None

    def _check_framing(self, body: bytes) -> None:
        """Raise Broken when `body` goes on after the answer's end. The parser skips line ends there; we do not."""
        exact = True
        if self._mode == _LENGTH:
            self._left -= len(body)
            exact = self._left >= 0
        elif self._mode == _NO_BODY:
            exact = not body
        elif self._complete and self._mode == _CHUNKED:
            # An answer ends with a line end after something, and an empty line; one more line end would show here.
            tail = body[-5:] if len(body) >= 5 else (self._previous + body)[-5:]
            exact = len(tail) == 5 and tail[1:] == b"\r\n\r\n" and tail[0] not in b"\r\n"
        if self._extra or not exact:
            raise Broken("it goes on after its end")

    def _finish(self) -> None:
        carrier = cast("Carrier", self._carrier)
        sink = cast("ResponseSink", self._sink)
        self._carrier = self._sink = None
        if self._paused:
            self.resume()
        transport = cast("asyncio.Transport", self.transport)
        # An answer that overtook its own request leaves a connection that nobody can use again.
        reusable = (
            self._keep and not self._no_body and not transport.is_closing() and transport.get_write_buffer_size() == 0
        )
        try:
            sink.end()
        finally:
            carrier.completed(self, reusable=reusable)

    def _fail(self, reason: str) -> None:
        carrier = self._carrier
        self._carrier = self._sink = None
        self.abort()
        if carrier is not None:
            carrier.failed(self, reason)


class OnIdleLoss(Protocol):
    """Told when a connection dies that carries nothing."""

    def __call__(self, connection: Connection) -> None: ...


class _Decoding:
    """The parser's listener when the sink wants the decoded body. Without an `on_body` (as in `Connection`) the parser
    makes no bytes objects of the body at all."""

    def __init__(self, connection: Connection, sink: ResponseSink) -> None:
        self.on_message_begin = connection.on_message_begin
        self.on_header = connection.on_header
        self.on_headers_complete = connection.on_headers_complete
        self.on_message_complete = connection.on_message_complete
        self.on_body = sink.data


def _why(error: BaseException) -> str:
    """The innermost reason: the parser wraps what its callbacks raise."""
    return str(error.__context__ or error)
