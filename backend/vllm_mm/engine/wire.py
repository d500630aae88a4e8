"""The only module that opens connections to engines.

`InferenceChannel` carries requests and is reachable only through a `Lease`; `ControlChannel` can only ask what the
instance itself needs: health, the readiness probe, sleep and wake, metrics.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm_mm.domain.specs import Task
from vllm_mm.engine.ports import Address


@dataclass(slots=True)
class UpstreamRequest:
    """A request for an engine. `body` buffers are sent as they are, without being joined."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """End-to-end headers in lower case; host, content-length and connection are the channel's business."""
    body: Sequence[bytes | bytearray | memoryview] = ()


class ResponseSink(Protocol):
    """Where an answer goes, called straight from the reading of the engine's socket."""

    raw: bool
    """True: `data` gets body bytes with the engine's own transfer framing (chunk sizes included), to be relayed
    untouched. False: `data` gets the decoded body."""

    def head(self, status: int, headers: list[tuple[bytes, bytes]], *, chunked: bool, length: int | None) -> None:
        """Once, before any data. Hop-by-hop headers are gone already."""
        ...

    def data(self, chunk: bytes) -> None: ...

    def end(self) -> None:
        """The answer is complete, and the engine said so. Never called for a cut one."""
        ...


class Exchange(Protocol):
    """One request under way."""

    done: asyncio.Future[None]
    """Resolved after `ResponseSink.end`; else UpstreamDied, UpstreamTimeout, or what `abort` was given."""

    def pause(self) -> None:
        """Read no more from the engine: the client is slow."""
        ...

    def resume(self) -> None: ...

    def abort(self, error: BaseException) -> None:
        """Close the engine's connection now (the engine stops working for it). Harmless when it is over."""
        ...


class InferenceChannel:
    """Pooled keep-alive connections to one launch of one engine."""

    def __init__(self, address: Address, *, limit: int, idle: float = 4.0) -> None:
        raise NotImplementedError

    def send(self, request: UpstreamRequest, sink: ResponseSink) -> Exchange:
        """Begin at once; never waits. A pooled connection that turns out to be stale before any byte came back is
        replaced by a fresh one, once."""
        raise NotImplementedError

    def close(self) -> None:
        """Drop idle connections; running exchanges are their lease's business."""
        raise NotImplementedError


class ControlChannel:
    """The instance's own questions to its engine (httpx: nobody waits for these in bulk)."""

    def __init__(self, address: Address, *, timeout: float) -> None:
        raise NotImplementedError

    async def healthy(self) -> bool:
        """GET /health is 200. False for everything else, refused connections included."""
        raise NotImplementedError

    async def probe(self, model: str, task: Task) -> str:
        """One token (or one embedding, or one score) at temperature 0: proof of readiness. Returns the answer's
        essence, to be compared with a later one. Raises UpstreamDied or UpstreamTimeout."""
        raise NotImplementedError

    async def sleep(self, level: int) -> None:
        raise NotImplementedError

    async def wake(self, tags: Sequence[str] = ()) -> None:
        raise NotImplementedError

    async def is_sleeping(self) -> bool:
        raise NotImplementedError

    async def metrics(self) -> str:
        """The Prometheus text."""
        raise NotImplementedError

    async def models(self) -> Sequence[dict[str, Any]]:
        """What GET /v1/models lists."""
        raise NotImplementedError

    async def version(self) -> str:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
