"""The data plane inside uvicorn's own HTTP protocol: POSTs to our routes go from parser to gateway and back to the
transport, without ASGI in between; everything else is served as by any uvicorn.

Subclasses `HttpToolsProtocol` of uvicorn 0.54.0 (pinned) and leans on these of its inner workings: the parser callbacks,
`cycle`, `pipeline`, `flow`, `tasks`, `_start_asgi_task`, and that `shutdown` closes a connection whose `cycle` is
complete and else sets `cycle.keep_alive` to False.
"""

import asyncio
import socket
import struct
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from vllm_mm.api.openai import OpenAIApp, too_large
from vllm_mm.domain.errors import MMError, Unavailable
from vllm_mm.engine.exchange import Exchange
from vllm_mm.gateway.bodies import error_body
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.ports import Framing, Headers, Problem
from vllm_mm.gateway.relay import Call
from vllm_mm.gateway.routes import ROUTES, Form, Route

JOIN: Final = 65536
"""Head and body are joined into one write up to this many bytes; above it they are never copied."""
DIRECT: Final = 65536
"""A body announced to be larger is read straight into its place, past the parser."""
PIPELINED: Final = 8
"""Requests of one connection that may wait for their turn before it is read no further."""
LINGER: Final = 2.0
"""Seconds for which an unwanted body is read and dropped, so that the refusal reaches the client before the close."""
CLOSING: Final = 5.0
"""Seconds for which a cut answer's last bytes may take to leave."""
BODY_TIMEOUT: Final = 60.0
"""Seconds without a byte after which an unfinished request body is given up."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def hot_protocol(gateway: Gateway) -> type[asyncio.Protocol]:
    """The class for `uvicorn.Config(http=...)`. The configured application gets what is not the data plane's."""

    class BoundHotProtocol(HotProtocol):
        _gateway = gateway

    return BoundHotProtocol


class _NoEvent:
    """Stands where uvicorn's own cycles have an event to wait for the body on; here nobody waits."""

    def set(self) -> None:
        pass


_NO_EVENT: Final = _NoEvent()


class HotCycle:
    """One data-plane request of a connection and its answer: the gateway's `Client`, and to uvicorn a cycle."""

    __slots__ = (
        "_exchange", "_framing", "_head", "_http10", "_protocol", "body_complete", "call", "disconnected", "gone", "keep_alive",
        "message_event", "raw", "refused", "response_complete", "started", "wants_continue",
    )  # fmt: skip

    def __init__(self, protocol: "HotProtocol", call: Call, *, keep_alive: bool, http10: bool) -> None:
        self.call = call
        self._protocol = protocol
        self._http10 = http10
        self._exchange: Exchange | None = None
        self._framing = Framing.EMPTY
        self._head: list[bytes] | None = None
        self.raw = not http10
        self.gone = False
        self.started = False
        """The gateway has it."""
        self.body_complete = False
        self.refused = False
        """Its body is not wanted; the connection closes after the answer."""
        self.wants_continue = False
        # What uvicorn asks of a cycle.
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NO_EVENT

    # Client

    def start(self, status: int, headers: Headers, framing: Framing, length: int | None = None) -> None:
        parts = [STATUS_LINE[status]]
        dated = False
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
            if name == b"date":
                dated = True
        for name, value in self._protocol.server_state.default_headers:
            if name == b"date" and dated:
                continue
            parts += (name, b": ", value, b"\r\n")
        if framing is Framing.LENGTH or (framing is Framing.EMPTY and length is not None):
            parts.append(b"content-length: %d\r\n" % (length or 0))
        elif framing is not Framing.EMPTY:
            if self._http10:
                self.keep_alive = False
            else:
                parts.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        self._head = parts
        self._framing = framing

    def data(self, chunk: bytes) -> None:
        if self.gone:
            return
        transport = self._protocol.transport
        if self._framing is Framing.CHUNKED and not self._http10 and chunk:
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

    def finish(self) -> None:
        if self._framing is Framing.CHUNKED and not self._http10 and not self.gone:
            last = b"0\r\n\r\n"
            self._protocol.transport.write(last if self._head is None else b"".join((*self._head, last)))
        elif self._head is not None and not self.gone:
            self._protocol.transport.write(b"".join(self._head))
        self._head = None
        self.response_complete = True
        self._protocol.answered(self)

    def cut(self) -> None:
        self.response_complete = True
        self._head = None
        self._protocol.cut(self, unframed=self._http10 and self._framing is Framing.CHUNKED)

    def bind(self, exchange: Exchange | None) -> None:
        self._exchange = exchange
        if exchange is not None and self._protocol.flow.write_paused:
            exchange.pause()

    # The connection's side

    def pause(self) -> None:
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        if self._exchange is not None:
            self._exchange.resume()


class HotProtocol(HttpToolsProtocol):
    """Use `hot_protocol(gateway)`, which binds it to a gateway."""

    _gateway: Gateway

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._rules = self._gateway.rules
        self.app = OpenAIApp(self._gateway, fallback=cast("Any", self.app))  # pyright: ignore[reportAttributeAccessIssue]  # uvicorn's type names its own aliases
        self._hot: HotCycle | None = None
        """The request that the parser is in, when it is ours."""
        self._answering: HotCycle | None = None
        """The request of ours whose turn it is."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._direct: bytearray | None = None
        self._filled = 0
        self._dropping = False
        self._head_size = 0
        self._in_head = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._touched = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._touched = self.loop.time()
        self._idle_timer = self.loop.call_later(self._rules.header_timeout, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        waiting = [cycle for cycle, _ in self.pipeline if isinstance(cycle, HotCycle)]
        if self._hot is not None and self._hot not in waiting and not self._hot.started:
            waiting.append(self._hot)
        for cycle in waiting:
            # They asked, so they get their row; the gateway sees that they are gone and does nothing else.
            cycle.gone = True
            self._serve(cycle)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.gone = True
            task = self._task
            if task is not None:
                task.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._touched = self.loop.time()
        if self._dropping:
            return
        if self._direct is not None:
            data = self._fill(self._direct, data)
            if not data:
                return
        self._feed(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answering is not None:
            self._answering.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering is not None:
            self._answering.resume()

    # Reading a request

    def _feed(self, data: bytes) -> None:
        if self._in_head:
            self._head_size += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        except _HeadTooLarge:
            self._refuse_connection(431, f"The request's head is larger than {self._rules.header} bytes (limits.header).")
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _HeadTooLarge):
                self._refuse_connection(
                    431, f"The request's head is larger than {self._rules.header} bytes (limits.header)."
                )
            else:
                self._refuse_connection(400, f"This is not a valid HTTP request: {error.__context__ or error}.")
        if self._in_head and self._head_size > self._rules.header and not self._dropping:
            self._refuse_connection(
                431, f"The request's head is larger than {self._rules.header} bytes (limits.header)."
            )
