"""The way of requests to one launch of an engine: pooled connections, and one exchange at a time on each.

Reachable only through a `Lease`.
"""

import asyncio
from typing import Final, cast

from vllm_mm.domain.errors import UpstreamDied
from vllm_mm.engine.exchange import BodySource, Exchange, ResponseSink, Session, SessionSink, UpstreamRequest
from vllm_mm.engine.gathering import Outbox
from vllm_mm.engine.http1 import Connection, Traffic
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire.dial import connect_unix
from vllm_mm.engine.wire.websocket import open_session

JOIN_LIMIT: Final = 65536
"""Bodies up to this many bytes are joined to the head (one write); larger ones are never copied."""
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class _Exchange:
    """One request under way, over one connection or, after a stale one, two."""

    # What most requests never set stands here as a default of the class: making one is on everybody's path.
    _connection: Connection | None = None
    _dial: asyncio.Task[None] | None = None
    _feed: asyncio.Task[None] | None = None
    """Passes the body on, where that comes from a source."""
    _boundary = True
    _paused = False
    _retried = False
    _reused = False
    _sent = False

    def __init__(self, channel: "InferenceChannel", request: UpstreamRequest, sink: ResponseSink) -> None:
        self.done: Final = channel.loop.create_future()
        self._channel = channel
        self._request = request
        self._sink = sink

    # Exchange

    @property
    def at_boundary(self) -> bool:
        return self._boundary

    @property
    def sent_again(self) -> bool:
        return self._retried

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def abort(self, error: BaseException) -> None:
        # Whether `done` is resolved says nothing about the connection: who is cancelled while awaiting it cancels it too.
        connection, self._connection = self._connection, None
        if connection is not None:
            self._boundary = connection.ends_at_boundary()
            connection.let_go()
        if self._dial is not None:
            self._dial.cancel()
        self._stop_feeding()
        self._resolve(error)

    # Carrier

    def completed(self, connection: Connection, *, reusable: bool) -> None:
        self._connection = None
        fed = self._stop_feeding()
        self._channel.give_back(connection, reusable=reusable and fed)
        self._resolve(None)

    def failed(self, connection: Connection, reason: str) -> None:
        self._connection = None
        self._boundary = connection.ends_at_boundary()
        self._stop_feeding()
        if (
            not connection.began
            and not self._retried
            and self._request.source is None
            and (self._reused or connection.unsent or self._request.method in _IDEMPOTENT)
        ):
            self._retried = True
            self._sent = self._sent and not connection.unsent
            self.dial()
            return
        sent = self._sent and not (connection.unsent and self._request.source is None)
        self._resolve(UpstreamDied(reason, sent=sent, started=connection.started))

    # The channel's side

    def go(self, connection: Connection, *, reused: bool) -> None:
        self._connection = connection
        self._reused = reused
        self._sent = True
        request = self._request
        connection.begin(self, self._sink, no_body=request.method == b"HEAD")
        transport = cast("asyncio.Transport", connection.transport)
        parts = [request.method, b" ", request.target, self._channel.opening]
        for name, value in request.headers:
            parts += (name, b": ", value, b"\r\n")
        if request.source is not None:
            self._feed = self._channel.loop.create_task(self._pass_on(connection, parts, request.source))
            if self._paused:
                connection.pause()
            return
        body = request.body
        size = _size(body[0]) if len(body) == 1 else sum(map(_size, body))
        if size or request.method not in _IDEMPOTENT:
            parts += (b"content-length: ", b"%d" % size, b"\r\n\r\n")
        else:
            parts.append(b"\r\n")
        if size <= JOIN_LIMIT:
            transport.write(b"".join((*parts, *body)))
        else:
            transport.writelines((b"".join(parts), *body))
        if self._paused:
            connection.pause()

    async def _pass_on(self, connection: Connection, head: list[bytes], source: BodySource) -> None:
        """The body as it comes, no faster than the engine takes it."""
        transport = cast("asyncio.Transport", connection.transport)
        length = source.length
        head.append(b"transfer-encoding: chunked\r\n\r\n" if length is None else b"content-length: %d\r\n\r\n" % length)
        transport.write(b"".join(head))
        try:
            async for piece in source.pieces():
                transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n") if length is None else (piece,))
                await connection.writable()
                if transport.is_closing():
                    return
            if length is None:
                transport.write(b"0\r\n\r\n")
        except Exception as error:
            self._feed = None
            self.abort(error)
        else:
            self._feed = None

    def _stop_feeding(self) -> bool:
        """False when the body was not complete."""
        feed, self._feed = self._feed, None
        if feed is None:
            return True
        feed.cancel()
        return False

    def dial(self) -> None:
        self._dial = self._channel.loop.create_task(self._connect())

    async def _connect(self) -> None:
        channel = self._channel
        try:
            connection = await channel.connect()
        except OSError as error:  # TimeoutError is one
            why = (
                f"did not accept a connection within {channel.connect_timeout:g} s"
                if isinstance(error, TimeoutError)
                else str(error)
            )
            self._resolve(
                UpstreamDied(f"cannot reach the engine at {channel.address}: {why}", sent=self._sent, started=False)
            )
            return
        finally:
            self._dial = None
        if self.done.done():
            connection.let_go()
        else:
            self.go(connection, reused=False)

    def _resolve(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # whoever awaits gets it; if nobody does any more, that is no fault to report


def _size(buffer: bytes | bytearray | memoryview) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


class InferenceChannel:
    """Pooled keep-alive connections to one launch of one engine. Belongs to the running event loop."""

    def __init__(self, address: Address, *, limit: int, idle: float = 4.0, connect_timeout: float = 5.0) -> None:
        """`limit`: connections kept for reuse. `idle`: seconds after which an unused one is closed; stay below the
        engine's own keep-alive (vLLM: 5 s). `connect_timeout` in seconds."""
        self.address: Final = address
        self.opening: Final = b" HTTP/1.1\r\nhost: localhost\r\n" + (
            b"authorization: Bearer %b\r\n" % address.key.encode() if address.key else b""
        )
        """How every request's head goes on behind its target."""
        self.connect_timeout: Final = connect_timeout
        self.loop: Final = asyncio.get_running_loop()
        self._limit = limit
        self._idle_s = idle
        self._idle: list[Connection] = []
        self._traffic: Final = Traffic()
        self._outbox: Final = Outbox(self.loop.call_soon)
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def reads(self) -> int:
        """How often something came from the engine; when it stands still although requests are out, it may hang."""
        return self._traffic.reads

    @property
    def idle(self) -> int:
        """Connections that wait for reuse."""
        return len(self._idle)

    def send(self, request: UpstreamRequest, sink: ResponseSink) -> Exchange:
        """Begin at once; never waits. A pooled connection that turns out to be stale before any byte came back is
        replaced by a fresh one, once."""
        exchange = _Exchange(self, request, sink)
        # What comes from a source cannot be sent again, so not over a connection that may turn out to be stale.
        connection = self._take() if request.source is None else None
        if connection is None:
            exchange.dial()
        else:
            exchange.go(connection, reused=True)
        return exchange

    def converse(self, request: UpstreamRequest, sink: SessionSink) -> Session:
        """Begin to open a WebSocket on a connection of its own; never waits."""
        return open_session(self.address, self.opening, request, sink, self._traffic, self.connect_timeout)

    def close(self) -> None:
        """Drop idle connections; running exchanges are their lease's business."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    # For exchanges

    async def connect(self) -> Connection:
        """Raises OSError, of which TimeoutError is one."""
        loop, address = self.loop, self.address
        async with asyncio.timeout(self.connect_timeout):
            if address.socket is None:
                _, connection = await loop.create_connection(self._make, address.host, address.port)
            else:
                connected = await connect_unix(address.socket)
                _, connection = await loop.create_unix_connection(self._make, sock=connected)
            return connection

    def give_back(self, connection: Connection, *, reusable: bool) -> None:
        if not reusable or self._closed or len(self._idle) >= self._limit:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(self._idle_s, self._expire)

    def _make(self) -> Connection:
        return Connection(self._lost, self._traffic, self._outbox)

    def _take(self) -> Connection | None:
        """The one used last: the others grow old and are closed."""
        if not self._idle:
            return None
        connection = self._idle.pop()
        if connection.idle_since + self._idle_s > self.loop.time():
            return connection
        self._idle.append(connection)
        self._expire_now()
        return None

    def _expire(self) -> None:
        self._sweep = None
        self._expire_now()
        if self._idle:
            due = self._idle[0].idle_since + self._idle_s
            self._sweep = self.loop.call_at(due, self._expire)

    def _expire_now(self) -> None:
        limit = self.loop.time() - self._idle_s
        old = 0
        for connection in self._idle:
            if connection.idle_since > limit:
                break
            old += 1
        expired, self._idle = self._idle[:old], self._idle[old:]
        for connection in expired:
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
