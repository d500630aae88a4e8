"""What the gateway needs from its neighbours: leases, the client's connection, where rows go, and how errors are told."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, TypeAlias

from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.limits import Refusal, Standing
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.exchange import Exchange, ResponseSink, Session, SessionSink, UpstreamRequest

Headers: TypeAlias = list[tuple[bytes, bytes]]


class LeaseView(Protocol):
    """The part of a lease that a request uses."""

    @property
    def model(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def engine_name(self) -> str:
        """The name that the engine answers with, whatever alias was asked for."""
        ...

    @property
    def granted_at(self) -> float:
        """Monotonic seconds."""
        ...

    on_freeze: Callable[[bool], None] | None
    """Called, if set, when the request was frozen in its engine (True) and when it goes on (False)."""

    on_drain: Callable[[bool], None] | None
    """Called, if set, when its instance is to go and waits for the leases that are out (True), and when it stays after all."""

    def frozen_s(self, now: float) -> float:
        """Seconds for which it stood still."""
        ...

    @property
    def revoked(self) -> MMError | None:
        """Why it was taken away; None while it was not."""
        ...

    @property
    def ready_at(self) -> float:
        """When the engine became ready for the last time; monotonic seconds."""
        ...

    def suspect(self) -> None:
        """The engine sends nothing for this request, and should: it has to show that it is of use."""
        ...

    @property
    def reason(self) -> str | None:
        """Why it had to be waited for, as a code of `domain.reasons`; None when it was there at once."""
        ...

    def exchange(
        self, request: UpstreamRequest, sink: ResponseSink, *, on_started: Callable[[Exchange], None] | None = None
    ) -> Awaitable[None]:
        """Relay one request. Cancelling it closes the engine's connection at once."""
        ...

    def converse(
        self, request: UpstreamRequest, sink: SessionSink, *, on_started: Callable[[Session], None] | None = None
    ) -> Awaitable[None]:
        """Open a WebSocket and relay its frames until it is closed. Cancelling it closes the engine's connection at once."""
        ...


class WaitView(Protocol):
    """Where a waiting request stands."""

    @property
    def position(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def percent(self) -> float | None: ...
    @property
    def eta_s(self) -> float | None: ...


class InstanceState(Protocol):
    """The part of an instance's view that the gateway uses."""

    @property
    def state(self) -> State: ...
    @property
    def generation(self) -> int:
        """Which launch it is in."""
        ...


class Ended(Protocol):
    """The end of one launch."""

    @property
    def at(self) -> float:
        """Unix time."""
        ...

    @property
    def reason(self) -> str:
        """`code: sentence`, or the words of a failure."""
        ...


class Leases(Protocol):
    """Whoever gives leases: `engine.manager.ProcessManager`."""

    @property
    def catalog(self) -> Catalog: ...

    def lease(self, ticket: Ticket) -> AbstractAsyncContextManager[LeaseView]:
        """Entering raises QueueFull, StillLoading, TornDown, StartFailed, NoRoom or ShuttingDown; cancelling it drops
        the ticket."""
        ...

    def look(self, ticket: Ticket, generation: int) -> AbstractAsyncContextManager[LeaseView | None]:
        """A lease on that launch, for what only looks at work that it has or ends it; None when that launch cannot be asked.
        Waits for nothing, wakes and starts nothing."""
        ...

    def ending(self, model: str, generation: int) -> "Ended | None":
        """How that launch ended; None when it did not, or that was long ago."""
        ...

    def wait_info(self, ticket: Ticket) -> WaitView: ...

    def follow(self, ticket: Ticket, *, on: bool) -> None:
        """`wait_info` of it will be asked for, or will not any more: where that is known elsewhere, it has to be told."""
        ...

    def describe(self, model: str) -> InstanceState:
        """Changes and wakes nothing. Raises UnknownModel."""
        ...


class Framing(Enum):
    """How the body's end is told to the client."""

    LENGTH = auto()
    """By content-length; the client's side adds nothing to the bytes."""
    RELAYED = auto()
    """The bytes carry chunked framing already."""
    CHUNKED = auto()
    """The client's side frames each piece (or, for HTTP/1.0, ends with the connection)."""
    EMPTY = auto()
    """No body at all (204, 304)."""


class Client(Protocol):
    """The client's end of one request. No call waits."""

    @property
    def raw(self) -> bool:
        """Whether it can take RELAYED bodies."""
        ...

    @property
    def gone(self) -> bool:
        """The client closed its connection."""
        ...

    def start(self, status: int, headers: Headers, framing: Framing, length: int | None = None) -> None:
        """Once. Written together with the first `data`, which follows at once (it may be empty)."""
        ...

    def data(self, chunk: bytes) -> None: ...

    def writer(self) -> Callable[[bytes], None]:
        """The shortest way for pieces after the first: `data`, or what it would end in."""
        ...

    def finish(self, trailers: Headers = []) -> None:  # noqa: B006  # never changed
        """The answer is complete. `trailers` go out where the body is framed here and the client is `raw`."""
        ...

    def cut(self) -> None:
        """End the connection so that the answer cannot be taken for a complete one. What was written before goes out."""
        ...

    def bind(self, exchange: Exchange) -> None:
        """Whose reading to pause while the client reads slowly."""
        ...

    def interrupt(self) -> None:
        """Cancel the coroutine that serves this request, wherever it waits."""
        ...

    def release(self) -> None:
        """The last call: the request is over."""
        ...


class Entered(Protocol):
    """What a request of a key with limits is told: a refusal, or that it is in; and how the key stands."""

    @property
    def refusal(self) -> Refusal | None: ...

    @property
    def standing(self) -> Standing | None:
        """None where nothing limits the key (any more)."""
        ...


class Gate(Protocol):
    """Where requests of keys with limits come by: the controller's own book, or a worker's way to it."""

    async def enter(self, place: str, key: str, tokens: int) -> Entered:
        """Let in a request that is expected to use so many tokens. Whatever becomes of this, `leave` has to follow."""
        ...

    def leave(self, place: str, tokens: int | None, device_seconds: float) -> None:
        """It is over. At once, and harmless where it was not let in."""
        ...

    def runs(self, place: str, key: str) -> None:
        """It came in while its key had no limits, and counts from now on; `leave` has to follow."""
        ...

    async def look(self, key: str) -> Standing | None:
        """How the key stands, for a request that is not let in. Raises Unavailable when that cannot be known."""
        ...


Record: TypeAlias = Callable[[RequestRecord], None]
"""Takes one row per request, at once and without failing (`store.behind.WriteBehind.add`)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as HTTP knows it; `bodies` renders it in each API's form."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after: int | None = None
    """Whole seconds, 1 to 60."""
    headers: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    reason: str = ""
    """A code of `domain.reasons`, finer than `code`; empty where the scheduler had nothing to do with it."""
    said: Mapping[str, object] | None = None
    """The engine's own error, where it is the engine that refuses: its fields go before ours."""


Explain: TypeAlias = Callable[[BaseException], Problem]
"""The one table from errors to HTTP; it stands in `api.problems`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The data plane's settings. Times in seconds, sizes in bytes."""

    max_wait: float = 30.0
    """How long a request waits for its model when it does not say so itself."""
    request_timeout: float = 600.0
    """The longest that a request may take from arrival to its last byte."""
    body: int = 64 * 1024**2
    header: int = 64 * 1024
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    """For how long a body may pause, and after which it has to have come at `body_rate`."""
    body_rate: int = 1024
    """Bytes a second, on the whole."""
    send_timeout: float = 60.0
    """For how long a client may take nothing of its answer."""
    keep_alive: float = 75.0
    connections: int = 10_000
    progress: float = 2.0
    """Between two comments to a client that asked for progress."""
    timings: bool = False
    """Clients of streams are told at the end how long it took, whether or not they ask."""
    stall: float | None = 300.0
    """A stream that has begun and gets nothing from its engine for so long is ended; None: never."""
    origins: frozenset[bytes] = frozenset()
    """Web origins whose pages may read answers; `*` allows all."""
    upload: int = 1024**3
    """The largest form with a file in it."""
    upload_held: int = 128 * 1024**2
    """So much of it is held in a temporary file before an engine can take it."""
    responses: int = 20_000
    """Stored responses of which it is remembered who holds them."""
    responses_age: float = 86_400.0
    """For how long."""
    preflight: float = 600.0
    """How long a browser may remember that they may."""
    session_message: int = 16 * 1024**2
    """The largest message of a realtime session's client."""
    session_idle: float = 300.0
    """A session in which nothing is said for so long ends."""
    session_length: float = 3600.0
    """The longest that a session lasts, from when it has its model."""
    session_unnamed: float = 30.0
    """How long a session may take to name its model."""
    drain: float = 60.0
    """How long a session goes on when its engine is to go."""
    subprotocol_keys: bool = True
    """A page may send its key as a WebSocket subprotocol."""
    revoke_running: bool = True
    """What runs for a key ends with the key, and not only what waits."""
