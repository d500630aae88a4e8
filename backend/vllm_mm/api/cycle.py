"""One data-plane request on a client's connection, and its answer on the way out."""

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from vllm_mm.api.framing import end_by_reset
from vllm_mm.domain.errors import MMError, RequestCut
from vllm_mm.engine.exchange import Exchange
from vllm_mm.gateway.ports import Framing, Headers
from vllm_mm.gateway.relay import Call

if TYPE_CHECKING:
    from vllm_mm.api.protocol import HotProtocol

JOIN: Final = 65536
"""Head and body are joined into one write up to this many bytes; above it they are never copied."""


class _NoEvent:
    """Stands where uvicorn's own cycles have an event to wait for the body on; here nobody waits."""

    def set(self) -> None:
        pass


_NO_EVENT: Final = _NoEvent()


class HotCycle:
    """One data-plane request of a connection and its answer: the gateway's `Client`, and to uvicorn a cycle."""

    # What most requests never set stands here as a default of the class: making one is on everybody's path.
    gone = False
    started = False
    """The gateway has it."""
    body_complete = False
    refused = False
    """Its body is not wanted; the connection closes after the answer."""
    wants_continue = False
    direct = 0
    """The size of a body that is read past the parser."""
    task: asyncio.Task[None] | None = None
    _exchange: Exchange | None = None
    _framing = Framing.EMPTY
    _head: list[bytes] | None = None
    # What uvicorn asks of a cycle.
    disconnected = False
    response_complete = False
    message_event = _NO_EVENT

    def __init__(self, protocol: "HotProtocol", call: Call, *, keep_alive: bool, http10: bool) -> None:
        self.call = call
        self.keep_alive = keep_alive
        self.raw = not http10
        self._protocol = protocol

    # Client

    def start(self, status: int, headers: Headers, framing: Framing, length: int | None = None) -> None:
        parts = [STATUS_LINE[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in self._protocol.server_state.default_headers:
            if name not in parts:
                parts += (name, b": ", value, b"\r\n")
        if framing is Framing.LENGTH or (framing is Framing.EMPTY and length is not None):
            parts.append(b"content-length: %d\r\n" % (length or 0))
        elif framing is not Framing.EMPTY:
            if not self.raw:
                self.keep_alive = False
                end_by_reset(
                    self._protocol.transport, True
                )  # should this process die in the middle, that is no end of the answer
            else:
                parts.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        elif not self.raw:  # a client of HTTP/1.0, which asked for it
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        self._head = parts
        self._framing = framing

    def data(self, chunk: bytes) -> None:
        if self.gone or self.response_complete:
            return
        transport = self._protocol.transport
        if self._framing is Framing.CHUNKED and self.raw and chunk:
            chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        head = self._head
        if head is None:
            transport.write(chunk)
        elif len(chunk) <= JOIN:
            self._head = None
            head.append(chunk)
            transport.write(b"".join(head))
        else:
            self._head = None
            transport.writelines((b"".join(head), chunk))

    def writer(self) -> Callable[[bytes], None]:
        return self.data if self._framing is Framing.CHUNKED else self._protocol.transport.write

    def finish(self, trailers: Headers = []) -> None:  # noqa: B006  # never changed
        if self._framing is Framing.CHUNKED and not self.raw and not self.gone:
            end_by_reset(self._protocol.transport, False)
        if self._framing is Framing.CHUNKED and self.raw and not self.gone:
            last = b"0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % field for field in trailers)
            self._protocol.transport.write(last if self._head is None else b"".join((*self._head, last)))
        elif self._head is not None and not self.gone:
            self._protocol.transport.write(b"".join(self._head))
        self._head = None
        self.response_complete = True
        self._protocol.answered(self)

    def cut(self) -> None:
        self.response_complete = True
        self._head = None
        self._protocol.cut(unframed=not self.raw and self._framing is Framing.CHUNKED)

    def cut_short(self, error: MMError) -> bool:
        """End it with `error`. False when it does not relay anything: then only the connection can be ended."""
        if self._exchange is None or self.response_complete:
            return False
        self._exchange.abort(error)
        return True

    def bind(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._protocol.flow.write_paused:
            exchange.pause()

    def interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def release(self) -> None:
        self._exchange = None
        if self.task is not None:
            self._protocol.tasks.discard(self.task)

    # The connection's side

    def leave(self) -> None:
        """The client closed the connection."""
        if self.response_complete:
            return
        self.gone = True
        if self._exchange is not None:
            # At once: not a byte more may be written to this transport.
            self._exchange.abort(RequestCut("the client closed its connection"))
        task = self.task
        # A task that has not begun would end without a row; it will see `gone` by itself.
        if task is not None and inspect.getcoroutinestate(cast("Any", task.get_coro())) != inspect.CORO_CREATED:
            task.cancel()

    def pause(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()
