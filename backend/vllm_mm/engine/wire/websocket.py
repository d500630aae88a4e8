"""WebSockets to an engine: a connection of its own for each, its frames parsed as far as is needed to pass them on.

Reachable only through a `Lease` (`InferenceChannel.converse`), or the instance's own control channel, which probes with one.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from vllm_mm.domain.errors import UpgradeRefused, UpstreamDied, UpstreamTimeout
from vllm_mm.engine import frames
from vllm_mm.engine.exchange import Frame, Session, SessionSink, UpstreamRequest
from vllm_mm.engine.http1 import Traffic
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire.dial import connect_unix

MAX_MESSAGE: Final = 64 * 1024**2
"""Bytes of one message of an engine."""
HANDSHAKE: Final = 10.0
"""Seconds for an engine that accepted the connection to answer the handshake."""
GOODBYE: Final = 0.4
"""Seconds for an engine to answer a close; then the connection is simply closed."""


def open_session(
    address: Address, opening: bytes, request: UpstreamRequest, sink: SessionSink, traffic: Traffic, timeout: float
) -> Session:
    """`opening`: how a request's head goes on behind its target. `timeout`: seconds to connect."""
    session = _Session(opening, request, sink, traffic)
    session.dial(address, timeout)
    return session


class _Session(asyncio.Protocol):
    """One WebSocket, from the connection to the last byte."""

    def __init__(self, opening: bytes, request: UpstreamRequest, sink: SessionSink, traffic: Traffic) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: Final[asyncio.Future[None]] = self._loop.create_future()
        self._opening = opening
        self._request = request
        self._sink = sink
        self._traffic = traffic
        uri = parse_uri("ws://localhost/")  # the head is written by hand; the protocol wants one
        self._ws = ClientProtocol(uri, max_size=MAX_MESSAGE, logger=frames.QUIET)
        self._transport: asyncio.Transport | None = None
        self._dial: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._open = self._paused = self._saying_goodbye = False

    def dial(self, address: Address, timeout: float) -> None:
        self._dial = self._loop.create_task(self._connect(address, timeout))

    async def _connect(self, address: Address, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                if address.socket is None:
                    await self._loop.create_connection(lambda: self, address.host, address.port)
                else:
                    sock = await connect_unix(address.socket)
                    await self._loop.create_unix_connection(lambda: self, sock=sock)
        except OSError as error:  # TimeoutError is one
            why = f"did not accept a connection within {timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            self._resolve(UpstreamDied(f"cannot reach the engine at {address}: {why}", sent=False, started=False))
        finally:
            self._dial = None

    # Session

    def send(self, frame: Frame) -> None:
        if self._open and not self.done.done() and self._ws.state is State.OPEN:
            frames.send(self._ws, frame)
            self._flush()

    def close(self, code: int | None, reason: str = "") -> None:
        if self.done.done() or self._saying_goodbye:
            return
        if not self._open or self._ws.state is not State.OPEN:
            self._end(None)
            return
        self._saying_goodbye = True
        self._ws.send_close(code, reason)
        self._flush()
        self.resume()  # or its answer would never be read
        self._wait(GOODBYE, lambda: self._end(None))

    def pause(self) -> None:
        if not self._paused and not self._saying_goodbye:
            self._paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def abort(self, error: BaseException) -> None:
        self._end(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)
        if self.done.done():
            made.abort()
            return
        head = [b"GET ", self._request.target, self._opening]
        head.append(b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n")
        head.append(b"sec-websocket-key: %b\r\n" % self._ws.key.encode())
        for name, value in self._request.headers:
            head += (name, b": ", value, b"\r\n")
        made.write(b"".join((*head, b"\r\n")))
        late = UpstreamTimeout(f"The engine did not answer the WebSocket handshake within {HANDSHAKE:g} s.")
        self._wait(HANDSHAKE, lambda: self._end(late))

    def data_received(self, data: bytes) -> None:
        self._traffic.reads += 1
        self._ws.receive_data(data)
        self._step()

    def eof_received(self) -> None:
        self._ws.receive_eof()
        self._step()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done() and not self._saying_goodbye:
            how = "broke" if exc is not None else "was closed by the engine"
            where = "in the middle of a session" if self._open else "before it answered"
            self._resolve(UpstreamDied(f"the connection {how} {where}", sent=True, started=self._open))
        self._end(None)

    def pause_writing(self) -> None:
        if not self.done.done():
            self._sink.full(True)

    def resume_writing(self) -> None:
        if not self.done.done():
            self._sink.full(False)

    # Inside

    def _step(self) -> None:
        """What the parser has made of what came."""
        for event in frames.come(self._ws.events_received()):
            if self.done.done():
                return
            if isinstance(event, Response):
                self._answered(event)
            elif isinstance(event, Frame) and not self._saying_goodbye:
                self._sink.frame(event)
        self._flush()
        if self.done.done():
            return
        wrong, goodbye = self._ws.handshake_exc or self._ws.parser_exc, frames.goodbye(self._ws)
        if goodbye is not None:
            if not self._saying_goodbye:
                self._sink.closed(*goodbye)
            self._end(None)
        elif wrong is not None and not isinstance(wrong, EOFError):  # an end is told by `connection_lost`
            self._end(UpstreamDied(f"the engine's WebSocket is not valid: {wrong}", sent=True, started=self._open))

    def _answered(self, response: Response) -> None:
        wrong = self._ws.handshake_exc
        if wrong is None:
            self._open = True
            self._wait_no_more()
            self._sink.opened()
        elif isinstance(wrong, InvalidStatus):
            body = bytes(response.body or b"")
            message = f"The engine answered the WebSocket handshake with status {response.status_code}."
            self._end(UpgradeRefused(message, status=response.status_code, body=body))

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            self._ws.data_to_send()
            return
        for data in self._ws.data_to_send():
            if data:
                self._transport.write(data)

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        self._wait_no_more()
        self._timer = self._loop.call_later(seconds, then)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: BaseException | None) -> None:
        """A clean end lets out what was written; everything else is at once."""
        self._wait_no_more()
        if self._dial is not None:
            self._dial.cancel()
        if self._transport is not None:
            if error is None and self._ws.close_rcvd is not None:
                self._transport.close()
                self._loop.call_later(GOODBYE, self._transport.abort)
            else:
                self._transport.abort()
        self._resolve(error)

    def _resolve(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # whoever awaits gets it; if nobody does any more, that is no fault to report
