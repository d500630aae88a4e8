"""The client's end of a realtime session: a WebSocket on the connection that uvicorn's protocol was asked to upgrade.

Frames are passed on one by one as they come; whole messages are never put together here. Pings are answered, and sent.
"""

import asyncio
import socket
from typing import Any, Final

from uvicorn.server import ServerState
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from vllm_mm.api.unparsed import refusal
from vllm_mm.domain.errors import ShuttingDown
from vllm_mm.engine import frames
from vllm_mm.engine.exchange import Frame
from vllm_mm.gateway.bodies import error_body
from vllm_mm.gateway.ports import Headers, Problem
from vllm_mm.gateway.realtime import Realtime
from vllm_mm.gateway.routes import REALTIME, Form

PING: Final = 20.0
"""Seconds without a byte of the client after which it is asked whether it is there; after as long again it is not."""
GOODBYE: Final = 2.0
"""Seconds for a client to answer a close."""
EARLY: Final = 65536
"""Bytes that may come behind a handshake before it is answered, which it is at once."""
LOOK: Final = 0.2
"""Seconds between two looks whether a client that is not read has left."""
REASON: Final = 123
"""Bytes of a close frame's reason (RFC 6455, 5.5)."""
_ESTABLISHED: Final = 1
"""The first byte of Linux' TCP_INFO, while neither side has closed."""


class WebSocketProtocol(asyncio.Protocol):
    """SessionClient. Takes over a transport; `head` is the request as it came, `rest` what came behind it."""

    def __init__(self, realtime: Realtime, state: ServerState, transport: asyncio.Transport) -> None:
        self.gone = False
        self._loop = asyncio.get_running_loop()
        self._realtime = realtime
        self._state = state
        self.transport = transport
        """uvicorn's shutdown, and tests, want it."""
        self._ws = ServerProtocol(max_size=realtime.rules.session_message, logger=frames.QUIET)
        self._response: Response | None = None
        self._early: bytearray | None = bytearray()
        """What came behind the handshake before that was answered."""
        self._paused = False
        self._ending = False
        """Nothing but the other side's goodbye is waited for."""
        self._touched = self._loop.time()
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None

    def begin(self, head: bytes, query: bytes, headers: Headers, rest: bytes) -> None:
        """Once, after the transport was given this protocol."""
        self._state.connections.add(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # uvicorn calls `shutdown` of it
        self._session = session = self._realtime.begin(self, query, headers)
        self._ws.receive_data(head)
        handshake = next((e for e in self._ws.events_received() if isinstance(e, Handshake)), None)
        response = self._ws.accept(handshake) if handshake is not None else None
        if response is None or response.status_code != 101:
            said = response.body.decode() if response is not None and response.body else "the head is not valid."
            problem = Problem(400, f"This is not a WebSocket handshake: {' '.join(said.split())}", "invalid_request")
            self.refuse(problem, [(b"x-request-id", session.id.encode())])
            return
        self._response = response
        task = self._loop.create_task(self._realtime.serve(session))
        self._state.tasks.add(task)  # so that uvicorn's shutdown waits for it
        task.add_done_callback(self._state.tasks.discard)
        self.data_received(rest)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._touched, self._pinged = self._loop.time(), False
        if self._early is not None:
            self._early += data  # before it was answered; whoever sends much there is no client
            if len(self._early) > EARLY:
                self.transport.abort()
            return
        self._ws.receive_data(data)
        for event in frames.come(self._ws.events_received()):
            if isinstance(event, Frame) and not self._ending:
                self._session.from_client(event)
        self._flush()
        wrong, goodbye = self._ws.parser_exc, frames.goodbye(self._ws)
        if wrong is not None:
            if not self._ending:
                self._session.client_failed(str(wrong))
            self._end()
        elif goodbye is not None:
            if not self._ending:
                self._session.client_closed(*goodbye)
            self._end()
            self.transport.close()

    def eof_received(self) -> None:
        """The transport closes; `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.gone = True
        self._state.connections.discard(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._session.client_gone()

    def pause_writing(self) -> None:
        self._session.client_full(True)

    def resume_writing(self) -> None:
        self._session.client_full(False)

    def shutdown(self) -> None:
        """uvicorn ends."""
        if self._ending:
            return
        self._session.stop(ShuttingDown("The server is shutting down. Connect again.", retry_after=5.0))

    # SessionClient

    def refuse(self, problem: Problem, headers: Headers) -> None:
        body = error_body(problem, Form.OPENAI, self._session.id)
        extra = [*self._state.default_headers, *headers, *problem.headers.items()]
        if problem.retry_after is not None:
            extra.append((b"retry-after", b"%d" % problem.retry_after))
        self.transport.write(refusal(problem.status, body, extra))
        self._end()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def accept(self, headers: Headers) -> None:
        response = self._response
        if response is None or self.gone:
            return
        for name, value in headers:
            response.headers[name.decode()] = value.decode("latin-1")
        self._ws.send_response(response)
        self._flush()
        self._timer = self._loop.call_later(PING, self._look)
        early, self._early = self._early, None
        if early:
            self.data_received(bytes(early))

    def send(self, frame: Frame) -> None:
        if self.gone or self._ws.state is not State.OPEN:
            return
        frames.send(self._ws, frame)
        self._flush()

    def close(self, code: int | None, reason: str) -> None:
        if self.gone or self._ws.state is not State.OPEN:
            return
        self._ws.send_close(code, _short(reason) if code is not None else "")
        self._flush()
        self._end()

    def pause(self) -> None:
        if not self._paused and not self._ending and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()
            self._watch = self._loop.call_later(LOOK, self._look_for_end)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
            if not self.transport.is_closing():
                self._touched = self._loop.time()
                self.transport.resume_reading()

    # Inside

    def _flush(self) -> None:
        closing = self.transport.is_closing()
        for data in self._ws.data_to_send():
            if closing:
                continue
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()

    def _end(self) -> None:
        """What was written goes out; the other side has a moment for its goodbye, during which it is read on: a close with unread
        bytes would reset the connection, and the client might lose the words that say why."""
        self._ending = True
        self.resume()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(GOODBYE, self.transport.abort)

    def _look(self) -> None:
        """Is somebody there? A client that is not read at the moment cannot answer."""
        silent = self._loop.time() - self._touched
        if self._paused or silent < PING:
            self._pinged = False
        elif self._pinged:
            self.transport.abort()
            return
        else:
            self._pinged = True
            self._ws.send_ping(b"")
            self._flush()
        left = PING if self._paused or self._pinged else PING - silent
        self._timer = self._loop.call_later(max(0.01, left), self._look)

    def _look_for_end(self) -> None:
        """A transport that is not read does not tell that the other side has closed."""
        self._watch = None
        sock: Any = self.transport.get_extra_info("socket")
        if sock is not None and _has_closed(sock):
            self.transport.abort()
            return
        self._watch = self._loop.call_later(LOOK, self._look_for_end)


def asks_for_session(url: bytes, headers: Headers) -> bool:
    """The head of a GET that wants to become something else wants to become a realtime session."""
    wanted = any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)
    return wanted and url.partition(b"?")[0] == REALTIME.path


def _has_closed(sock: socket.socket) -> bool:
    tcp = sock.family in {socket.AF_INET, socket.AF_INET6}
    return tcp and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED


def _short(reason: str) -> str:
    """As much as a close frame holds."""
    return reason.encode()[:REASON].decode(errors="ignore")
