"""A small HTTP/1.1 server on httptools, with uvicorn's manners: keep-alive, pipelining, chunked answers, one task a request.

A client that goes away cancels the task of its request at once.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, unquote

import httptools

if TYPE_CHECKING:
    from vllm_mm.sim.websocket import WebSocket

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


WEBSOCKET = "WEBSOCKET"
"""Stands for the method of a request to upgrade to a WebSocket."""


@dataclass(slots=True, eq=False)
class Request:
    """A request whose body is complete."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    head: bytes = b""
    """As it came, of a request to upgrade."""

    def values(self, name: str) -> list[str]:
        """Every value of a query parameter."""
        return [value for key, value in self.query if key == name]

    def parameter(self, name: str, default: str) -> str:
        """The last value of a query parameter."""
        return (self.values(name) or [default])[-1]


class Writer:
    """The answer to one request: whole (`send`, `json`) or in parts (`start`, `write`, `end`)."""

    __slots__ = ("_extra", "_head_only", "_transport", "closes", "ended", "started", "status", "upgraded")

    def __init__(self, transport: asyncio.Transport, *, closes: bool, head_only: bool) -> None:
        self.upgraded: WebSocket | None = None
        """What the connection is from now on."""
        self._transport = transport
        self._head_only = head_only
        self._extra: dict[str, str] = {}
        self.closes = closes
        """Whether the connection ends with this answer."""
        self.started = False
        self.ended = False
        self.status = 0

    def header(self, name: str, value: str) -> None:
        """One more header, before the answer starts."""
        self._extra[name] = value

    def upgrade(self, request: Request) -> "WebSocket | None":
        """Make it a WebSocket; None when the handshake is wrong, which the client is told."""
        from vllm_mm.sim.websocket import WebSocket  # noqa: PLC0415 - most engines never need it

        socket = WebSocket(self._transport, request.head)
        self.started = self.closes = True
        self.status = 101 if socket.accept() else 400
        if self.status != 101:
            return None
        self.upgraded = socket
        return socket

    def send(self, status: int, body: bytes = b"", media_type: str | None = None) -> None:
        """The whole answer."""
        fields = {"content-length": str(len(body))}
        if media_type:
            fields["content-type"] = media_type
        head = self._head(status, fields)
        self._transport.write(head if self._head_only else head + body)
        self.ended = True

    def json(self, status: int, content: object) -> None:
        """The whole answer, as compact JSON in UTF-8."""
        self.send(status, dump(content), JSON)

    def start(self) -> None:
        """The head of a stream of server-sent events."""
        self._transport.write(self._head(200, {"content-type": EVENTS, "transfer-encoding": "chunked"}))

    def write(self, data: bytes) -> None:
        """One part, as one chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """The end of an answer in parts."""
        self._transport.write(b"0\r\n\r\n")
        self.ended = True

    def _head(self, status: int, fields: Mapping[str, str]) -> bytes:
        self.started = True
        self.status = status
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines.append(time.strftime("date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()))
        lines.append("server: uvicorn")
        lines += [f"{name}: {value}" for name, value in {**fields, "vary": "Origin", **self._extra}.items()]
        if self.closes:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", errors="replace")


Handler = Callable[[Request, Writer], Awaitable[None]]


def dump(content: object) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


@dataclass(slots=True, eq=False)
class WebServer:
    """The open connections, and the way to end them."""

    handler: Handler
    keep_alive: float
    """Seconds that an idle connection is kept."""
    connections: set["Connection"] = field(default_factory=set["Connection"])
    closing: bool = False
    on_idle: Callable[[], None] | None = None
    """Called when the last connection is gone after `close`."""

    def connection(self) -> "Connection":
        """A protocol for an accepted connection."""
        return Connection(self)

    def close(self) -> None:
        """Close idle connections now, and the others after the answer that is under way."""
        self.closing = True
        for connection in list(self.connections):
            connection.finish()
        self.gone(None)

    def gone(self, connection: "Connection | None") -> None:
        """A connection ended."""
        if connection is not None:
            self.connections.discard(connection)
        if self.closing and not self.connections and self.on_idle is not None:
            self.on_idle()


class Connection(asyncio.Protocol):
    """One client connection. Requests that come before their turn wait."""

    def __init__(self, server: WebServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._pending: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writer: Writer | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._upgrading = False
        """It asked for a WebSocket: what follows is no HTTP."""

    def finish(self) -> None:
        """Close when nothing is under way, else after it; a WebSocket is told at once."""
        if self._writer is not None and self._writer.upgraded is not None:
            self._writer.upgraded.close(1012)
            return
        if self._task is None and self._transport is not None:
            self._transport.close()
        elif self._writer is not None and not self._writer.started:
            self._writer.closes = True

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        if self._server.closing:
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._stay()
        if self._upgrading:
            if self._writer is not None and self._writer.upgraded is not None:
                self._writer.upgraded.received(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # to a WebSocket, or an offer that is not taken up
        except httptools.HttpParserError:
            if self._transport is not None:
                Writer(self._transport, closes=True, head_only=False).send(
                    400, b"Invalid HTTP request received.", "text/plain; charset=utf-8"
                )
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._stay()
        self._transport = None
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()
        self._server.gone(self)

    # httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        self._headers[key] = value.decode("latin-1")
        if key == "expect" and value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url = httptools.parse_url(self._url)
        method = self._parser.get_method().decode("ascii")
        self._upgrading = self._parser.should_upgrade() and self._headers.get("upgrade", "").lower() == "websocket"
        request = Request(
            method=WEBSOCKET if self._upgrading else method,
            path=unquote((url.path or b"/").decode("ascii")),
            query=parse_qsl((url.query or b"").decode("ascii"), keep_blank_values=True),
            headers=self._headers,
            body=bytes(self._body),
            head=self._head(method) if self._upgrading else b"",
        )
        self._pending.append((request, self._parser.should_keep_alive()))
        self._next()

    def _head(self, method: str) -> bytes:
        lines = [f"{method} {self._url.decode('ascii')} HTTP/1.1", *(f"{k}: {v}" for k, v in self._headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    # One request after the other

    def _next(self) -> None:
        if self._task is not None or not self._pending or self._transport is None:
            return
        request, keep = self._pending.popleft()
        closes = not keep or self._server.closing
        self._writer = Writer(self._transport, closes=closes, head_only=request.method == "HEAD")
        self._task = asyncio.get_running_loop().create_task(self._answer(request, self._writer))

    async def _answer(self, request: Request, writer: Writer) -> None:
        try:
            await self._server.handler(request, writer)
        except Exception:
            if not writer.started:
                writer.send(500, b"Internal Server Error", "text/plain; charset=utf-8")
            raise
        finally:
            self._task = self._writer = None
            if self._transport is not None:
                if writer.closes or not writer.ended or self._server.closing:
                    self._transport.close()
                else:
                    self._idle = asyncio.get_running_loop().call_later(self._server.keep_alive, self._transport.close)
                    self._next()

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
