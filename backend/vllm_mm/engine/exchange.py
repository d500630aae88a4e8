"""What passes between a lease's holder and the wire: a request, where its answer goes, and a handle on it. No I/O here.

An `Exchange` is one request and its answer; a `Session` is a WebSocket, frames in both directions.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol


@dataclass(slots=True)
class UpstreamRequest:
    """A request for an engine. `body` buffers are sent as they are, without being joined above 64 KiB."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """End-to-end headers in lower case; host, content-length and connection are the channel's business."""
    body: Sequence[bytes | bytearray | memoryview] = ()
    source: "BodySource | None" = None
    """Where the body comes from instead, piece by piece."""


class BodySource(Protocol):
    """A request's body that is not here yet."""

    @property
    def length(self) -> int | None:
        """In bytes, if it is known; else it is sent in chunks."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Asked once, when the engine's connection is there. What it raises ends the exchange with that error."""
        ...


class ResponseSink(Protocol):
    """Where an answer goes, called straight from the reading of the engine's socket: no call may block or wait."""

    @property
    def raw(self) -> bool:
        """True: `data` gets body bytes with the engine's own transfer framing (chunk sizes included), to be relayed
        untouched. False: `data` gets the decoded body. Asked once, when the exchange begins."""
        ...

    def head(self, status: int, headers: list[tuple[bytes, bytes]], *, chunked: bool, length: int | None) -> None:
        """Once, before any data. Names are in lower case; hop-by-hop headers, content-length and transfer-encoding are
        gone already. `data` or `end` follows at once: a head that came alone is followed by an empty `data`, so that
        an implementation may write head and first bytes together."""
        ...

    def data(self, chunk: bytes) -> None: ...

    def end(self) -> None:
        """The answer is complete, and the engine said so. Never called for a cut one."""
        ...


class Exchange(Protocol):
    """One request under way."""

    @property
    def done(self) -> asyncio.Future[None]:
        """Resolved after `ResponseSink.end`; else UpstreamDied, or what `abort` was given."""
        ...

    @property
    def at_boundary(self) -> bool:
        """Known when it is over: False when a raw sink's last chunk is incomplete, so that nothing can be added to it."""
        ...

    @property
    def sent_again(self) -> bool:
        """The connection that it was sent over at first was of no use: it was sent once more over a fresh one."""
        ...

    @property
    def paused(self) -> bool:
        """The engine is not read, for the client is slow."""
        ...

    def pause(self) -> None:
        """Read no more from the engine: the client is slow."""
        ...

    def resume(self) -> None: ...

    def abort(self, error: BaseException) -> None:
        """Close the engine's connection now (the engine stops working for it). Harmless when it is over."""
        ...


CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2


class Frame(NamedTuple):
    """A data frame of a WebSocket (RFC 6455, 5.6), unmasked. Control frames end at each hop."""

    opcode: int
    """CONTINUATION, TEXT or BINARY."""
    data: bytes
    fin: bool = True
    """The last of its message."""


class SessionSink(Protocol):
    """Where a session's frames go, called straight from the reading of the engine's socket: no call may block or wait."""

    def opened(self) -> None:
        """The engine accepted: frames may be sent."""
        ...

    def frame(self, frame: Frame) -> None: ...

    def full(self, full: bool) -> None:
        """The engine reads more slowly than it is sent to (True), or has caught up (False)."""
        ...

    def closed(self, code: int | None, reason: str) -> None:
        """The engine ended the session; None is a close without a code. Not called when our side began it."""
        ...


class Session(Protocol):
    """A WebSocket to an engine."""

    @property
    def done(self) -> asyncio.Future[None]:
        """Resolved when it is closed; else UpgradeRefused, UpstreamDied, UpstreamTimeout, or what `abort` was given."""
        ...

    def send(self, frame: Frame) -> None:
        """After `opened`. Nothing once it is over."""
        ...

    def close(self, code: int | None, reason: str = "") -> None:
        """Say goodbye, and close within half a second whatever the engine answers. None: without a code."""
        ...

    def pause(self) -> None:
        """Read no more from the engine: the client is slow."""
        ...

    def resume(self) -> None: ...

    def abort(self, error: BaseException) -> None:
        """Close the engine's connection now. Harmless when it is over."""
        ...
