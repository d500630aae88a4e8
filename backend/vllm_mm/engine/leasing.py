"""A request's way to a lease: at once where that is possible, else through the waiting room."""

from collections.abc import Callable
from typing import Protocol

from vllm_mm.domain.errors import MMError
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.engine.lease import Lease


class WaitingRoom(Protocol):
    """The InferenceQueue, as the manager sees it."""

    @property
    def size(self) -> int: ...
    def asked(self, ticket: Ticket) -> None: ...
    def served(self, model: str) -> None: ...
    def expects(self, model: str) -> bool: ...
    async def admit(self, ticket: Ticket) -> Lease: ...
    def waits(self, model: str) -> bool: ...
    def count(self, model: str) -> int: ...
    def first(self, model: str) -> str: ...
    def position(self, ticket: str, model: str) -> int: ...
    def why(self, model: str) -> str: ...
    def kick(self) -> None: ...
    def explain(self, model: str, reason: str) -> None: ...
    def fail(self, model: str, error: MMError) -> None: ...
    def refuse_those(self, model: str, which: Callable[[Ticket], bool], error: MMError) -> None: ...
    def refuse_all(self, error: MMError) -> None: ...


class Granting(Protocol):
    """The ProcessManager, as a request sees it."""

    def fast_lease(self, ticket: Ticket) -> Lease | None: ...
    async def slow_lease(self, ticket: Ticket) -> Lease: ...
    def take_back(self, lease: Lease) -> None: ...
    def look_lease(self, ticket: Ticket, generation: int) -> Lease | None: ...
    def look_back(self, lease: Lease) -> None: ...


class Leasing:
    """`async with` around a lease. A class, not a generator: a parked generator would keep its lease."""

    __slots__ = ("_lease", "_manager", "_ticket")

    def __init__(self, manager: Granting, ticket: Ticket) -> None:
        self._manager = manager
        self._ticket = ticket
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        lease = self._manager.fast_lease(self._ticket)
        if lease is None:
            lease = await self._manager.slow_lease(self._ticket)
        self._lease = lease
        return lease

    async def __aexit__(self, *_: object) -> None:
        if self._lease is not None:
            self._manager.take_back(self._lease)
            self._lease = None


class Looking:
    """`async with` around a lease on one launch of an engine, for what only looks at work that it has, or ends it: there at
    once, or None. Nothing is waited for, woken or started."""

    __slots__ = ("_generation", "_lease", "_manager", "_ticket")

    def __init__(self, manager: Granting, ticket: Ticket, generation: int) -> None:
        self._manager = manager
        self._ticket = ticket
        self._generation = generation
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease | None:
        self._lease = self._manager.look_lease(self._ticket, self._generation)
        return self._lease

    async def __aexit__(self, *_: object) -> None:
        if self._lease is not None:
            self._manager.look_back(self._lease)
            self._lease = None
