"""What a request's head may be, beyond what the parser knows; and what becomes of heads and answers that are framed in an old or
an optional way."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from vllm_mm.gateway.ports import Headers

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

ENDS_WITH_CONNECTION: Final = "vllm_mm.ends_with_connection"
"""In the scope of a request of HTTP/1.0 whose answer needs no length."""
_FRAMING: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
_UPGRADE: Final = frozenset({b"upgrade", b"http2-settings"})
_ACKED: Final = struct.Struct("=120xQ")
"""`tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h)."""


class Fault(Exception):
    """Why a head is not acted upon; raised in callbacks of the parser, to leave it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def head_too_large(limit: int) -> Fault:
    return Fault(431, f"The request's head is larger than {limit} bytes (limits.header).")


class Body(NamedTuple):
    """What a head says about the body behind it."""

    declared: int = 0
    """Its size in bytes, if that is told."""
    chunked: bool = False
    continues: bool = False
    """The client waits for `100 Continue` (never one of HTTP/1.0)."""


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> Body:
    """Raises Fault for what others on the way may read differently than we do (RFC 9112, 2.3, 3.2 and 6.1)."""
    hosts, declared, chunked, continues = 0, 0, False, False
    for name, value in headers:
        if name not in _FRAMING:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            declared = int(value)
        elif name == b"expect":
            continues = value.lower() == b"100-continue" and version != "1.0"
        else:
            chunked = True
            if value.lower() != b"chunked":
                raise Fault(501, "Transfer-Encoding other than `chunked` is not read here. Send the body plain.")
            if version == "1.0":
                raise Fault(400, "HTTP/1.0 has no Transfer-Encoding. Send Content-Length, or use HTTP/1.1.")
    if version not in {"1.0", "1.1"}:
        raise Fault(505, "This server speaks HTTP/1.1 and HTTP/1.0.")
    if hosts != 1 and (hosts or version == "1.1"):
        raise Fault(400, "A request has to have one Host header, and only one.")
    return Body(declared, chunked, continues)


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The head of a request that offers another protocol (`Upgrade: h2c`), without the offer: who makes one has to take HTTP/1.1
    for an answer (RFC 9110, 7.8)."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, version.encode())]
    for name, value in headers:
        if name in _UPGRADE:
            continue
        if name == b"connection":
            options = [o for o in (part.strip() for part in value.split(b",")) if o.lower() not in _UPGRADE]
            if options:
                lines += (name, b": ", b", ".join(options), b"\r\n")
            continue
        lines += (name, b": ", value, b"\r\n")
    return b"".join((*lines, b"\r\n"))


def unframed(app: App, cycle: RequestResponseCycle, cut: Callable[[], None]) -> App:
    """`app` for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with its connection. One that is not
    complete is `cut`, so that its end is not taken for that."""

    async def for_http10(scope: Message, receive: Receive, send: Send) -> None:
        without_length = False

        async def sent(message: Message) -> None:
            nonlocal without_length
            if message["type"] == "http.response.start":
                without_length = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                if without_length:
                    cycle.chunked_encoding = False
            elif without_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await app({**scope, ENDS_WITH_CONNECTION: True}, receive, sent)
        finally:
            if without_length and not cycle.response_complete and not cycle.disconnected:
                cut()

    return for_http10


def end_by_reset(transport: asyncio.BaseTransport, on: bool) -> None:
    """From now on the end of the connection, by whomever, is a reset; or is not any more."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
        with contextlib.suppress(OSError):  # it may be closed by the client
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, 0))


def taken(sock: socket.socket | None) -> int | None:
    """Bytes that the other side has ever acknowledged; None where that is not known (no TCP)."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return None
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size)
    return int(_ACKED.unpack(info)[0]) if len(info) == _ACKED.size else None
