"""The lease: a shared claim on one READY instance for the length of one exchange, and the gate that gives it out.

Protection is by structure: an engine's channel is reachable only from inside a `Lease`; a `Lease` is made only by a
`LeaseGate`; a gate is opened and closed only by its instance's actor. Nobody has to remember anything.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from vllm_mm.domain.errors import MMError, RequestCut, UpstreamDied
from vllm_mm.domain.launches import Address
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.engine.wire import Exchange, InferenceChannel, ResponseSink, Session, SessionSink, UpstreamRequest

Carried = TypeVar("Carried", Exchange, Session)
Sink = TypeVar("Sink", ResponseSink, SessionSink)
_ONLY_THE_GATE: Final = object()


class Lease:
    """The right to send requests to one launch of one engine. Got from `ProcessManager.lease` and from nowhere else."""

    __slots__ = (
        "_channel",
        "_exchange",
        "_frozen_s",
        "_gate",
        "_revoked",
        "engine_name",
        "frozen_since",
        "generation",
        "granted_at",
        "model",
        "on_drain",
        "on_freeze",
        "reason",
        "ticket",
    )

    def __init__(self, key: object, gate: "LeaseGate", channel: InferenceChannel, ticket: Ticket, now: float) -> None:
        if key is not _ONLY_THE_GATE:
            raise TypeError("a Lease comes from ProcessManager.lease(), it cannot be made")
        self._gate = gate
        self._channel = channel
        self._exchange: Exchange | Session | None = None
        self._revoked: MMError | None = None
        self._frozen_s = 0.0
        self.frozen_since: float | None = None
        """Its request stands still in a sleeping engine since then; None while it does not."""
        self.on_freeze: Callable[[bool], None] | None = None
        """Called, if set, when its request was frozen (True) and when it goes on (False)."""
        self.on_drain: Callable[[bool], None] | None = None
        """Called, if set, when its instance is to go and waits for the leases that are out (True), and when it stays after all."""
        self.model: Final = gate.model
        self.engine_name: Final = gate.engine_name
        self.generation: Final = gate.generation
        self.ticket: Final = ticket
        self.granted_at: Final = now
        self.reason: str | None = None
        """Why it had to be waited for, as a code; set by the queue, None when it was there at once."""

    def exchange(
        self, request: UpstreamRequest, sink: ResponseSink, *, on_started: Callable[[Exchange], None] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Send one request and relay its answer to `sink`; to be awaited until the answer is complete.

        Raises UpstreamDied when the engine went away and RequestCut when the lease was revoked. Cancelling closes the
        engine's connection at once, so that it stops working for a client that left.
        """
        return self._carry(self._channel.send, request, sink, on_started)

    def converse(
        self, request: UpstreamRequest, sink: SessionSink, *, on_started: Callable[[Session], None] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Open a WebSocket and relay its frames; to be awaited until it is closed.

        Raises UpgradeRefused when the engine has none, and what `exchange` raises. Cancelling closes the engine's connection
        at once.
        """
        return self._carry(self._channel.converse, request, sink, on_started)

    async def _carry(
        self,
        begin: Callable[[UpstreamRequest, Sink], Carried],
        request: UpstreamRequest,
        sink: Sink,
        on_started: Callable[[Carried], None] | None,
    ) -> None:
        if self._revoked is not None:
            raise self._revoked
        if not self._gate.holds(self):
            raise TypeError("the lease is over")
        exchange = begin(request, sink)
        self._exchange = exchange
        try:
            if on_started is not None:
                on_started(exchange)
            await exchange.done
        except BaseException:
            exchange.abort(RequestCut("the request was given up"))
            raise
        finally:
            self._exchange = None

    @property
    def ready_at(self) -> float:
        """When the engine became READY, or woke, for the last time; monotonic seconds."""
        return self._gate.ready_at

    def suspect(self) -> None:
        """The engine sends nothing for this request, and should: it has to show that it is of use."""
        self._gate.suspicions += 1

    @property
    def revoked(self) -> MMError | None:
        """Why it was taken away; None while it was not."""
        return self._revoked

    def frozen_s(self, now: float) -> float:
        """Seconds for which its request stood still, until now."""
        return self._frozen_s if self.frozen_since is None else self._frozen_s + now - self.frozen_since

    def _drain(self, drains: bool) -> None:
        if self.on_drain is not None:
            self.on_drain(drains)

    def _freeze(self, now: float) -> None:
        self.frozen_since = now
        if self.on_freeze is not None:
            self.on_freeze(True)

    def _thaw(self, now: float) -> None:
        self._frozen_s, self.frozen_since = self.frozen_s(now), None
        if self.on_freeze is not None:
            self.on_freeze(False)

    def _revoke(self, error: MMError) -> None:
        self._revoked = error
        if self._exchange is not None:
            self._exchange.abort(error)


class Borrowers(Protocol):
    """Other processes that hold leases of a gate (`lending`). No call waits but `settled`."""

    def wanted(self) -> None:
        """Somebody waits for a slot: what is out and not in use should come back."""
        ...

    def closed(self) -> None:
        """The same, for the gate gives no more leases."""
        ...

    def frozen(self, stands: bool) -> None:
        """The requests of all leases stand still, or go on."""
        ...

    def revoked(self, *, died: bool, reason: str) -> None:
        """All leases were taken away."""
        ...

    async def settled(self) -> None:
        """When they all know that, and have let go."""
        ...

    @property
    def reads(self) -> int:
        """How often something came from the engine to them."""
        ...


class Thawed(NamedTuple):
    """What a thaw found: leases that go on, and the seconds for which they stood still."""

    leases: int
    seconds: float


class LeaseGate:
    """Shared side: leases. Exclusive side: whatever the actor does after `close` reported that none is left."""

    __slots__ = (
        "_channel", "_leases", "_on_gone", "_on_release", "_open", "borrowers",
        "closed_at", "engine_name", "frozen_since", "generation", "last_used", "limit", "model",
        "ready_at", "suspicions",
    )  # fmt: skip

    def __init__(self, model: str, engine_name: str, limit: int, on_release: Callable[[], None]) -> None:
        """`limit`: leases at a time. `on_release` is called after each release, when a slot became free."""
        self.model = model
        self.engine_name = engine_name
        self.generation = 0
        self.last_used = 0.0
        self.ready_at = 0.0
        """When it was opened, or opened again after a sleep, for the last time."""
        self.suspicions = 0
        """How often a lease said that the engine sends nothing."""
        self.closed_at: float | None = None
        """When it stopped giving leases; None while it gives them, or if it never did."""
        self.frozen_since: float | None = None
        """The leases that are out are frozen since then; None when none is."""
        self.limit = limit
        """Leases at a time; a lower one takes effect as leases end."""
        self.borrowers: Borrowers | None = None
        """Who else holds leases; None where there are no other processes."""
        self._on_release = on_release
        self._on_gone: Callable[[], None] | None = None
        self._channel: InferenceChannel | None = None
        self._open = False
        self._leases: set[Lease] = set()

    @property
    def count(self) -> int:
        """Leases that are out."""
        return len(self._leases)

    @property
    def frozen(self) -> int:
        """Leases whose requests stand still in a sleeping engine."""
        return len(self._leases) if self.frozen_since is not None else 0

    @property
    def free(self) -> int:
        """Leases that would be given out now; zero when closed."""
        return max(0, self.limit - len(self._leases)) if self._open else 0

    def holds(self, lease: Lease) -> bool:
        return lease in self._leases

    def whereabouts(self, lease: Lease) -> Address:
        """Where the engine of a lease is that is lent to another process. Raises TypeError when the lease is over."""
        if self._channel is None or lease not in self._leases:
            raise TypeError("the lease is over")
        return self._channel.address

    @property
    def reads(self) -> int:
        """How often something came from the engine to other processes that hold leases."""
        return self.borrowers.reads if self.borrowers is not None else 0

    async def settled(self) -> None:
        """When all who had leases that were taken away, or frozen, have let go; at once where that is this process."""
        if self.borrowers is not None:
            await self.borrowers.settled()

    def try_acquire(self, ticket: Ticket, now: float) -> Lease | None:
        """The fast path: no lock, no wait, no I/O. None when closed or full."""
        channel = self._channel
        if not self._open or channel is None or len(self._leases) >= self.limit:
            return None
        lease = Lease(_ONLY_THE_GATE, self, channel, ticket, now)
        self._leases.add(lease)
        return lease

    def try_look(self, ticket: Ticket, now: float) -> Lease | None:
        """A lease beyond the limit, for what only looks at work that the engine has already, or ends it. Also while it drains,
        as long as others are out; never while they are frozen, or when it is closed for good."""
        channel = self._channel
        drains = self._on_gone is not None and bool(self._leases) and self.frozen_since is None
        if channel is None or not (self._open or drains):
            return None
        lease = Lease(_ONLY_THE_GATE, self, channel, ticket, now)
        self._leases.add(lease)
        return lease

    def release(self, lease: Lease, now: float) -> None:
        """Give a lease back. A second time, or after it was revoked, nothing happens."""
        if lease not in self._leases:
            return
        self._leases.discard(lease)
        self.last_used = now
        if self._on_gone is not None:
            self._report_if_gone()
        elif self._open:
            self._on_release()

    def open(self, channel: InferenceChannel, generation: int, now: float) -> None:
        """Only the actor. Leases of an earlier generation cannot be out (they were revoked or had ended)."""
        self._channel = channel
        self.generation = generation
        self._on_gone = None
        self._open = True
        self.closed_at = None
        self.last_used = self.ready_at = now
        self._on_release()

    def close(self, on_gone: Callable[[], None], now: float) -> None:
        """Only the actor. Calls `on_gone` once, when the last lease has ended: at once if there is none."""
        if self._open:
            self.closed_at = now
        self._open = False
        self._on_gone = on_gone
        self._tell_of_drain(True)
        if self.borrowers is not None:
            self.borrowers.closed()
        self._report_if_gone()

    def reopen(self, now: float) -> None:
        """Only the actor: an undrained or woken instance takes leases again."""
        self._on_gone = None
        self.last_used = self.ready_at = now
        self.closed_at = None
        self._open = self._channel is not None
        self._tell_of_drain(False)
        self._on_release()

    def cut_live(self, reason: str) -> int:
        """Only the actor, before `freeze`. Ends the sessions, which are never frozen: what is spoken now is worth nothing later
        (docs/adr/019-realtime-sessions.md). Returns how many there were."""
        live = [lease for lease in self._leases if lease.ticket.live]
        self._leases.difference_update(live)
        for lease in live:
            cut = RequestCut(f"{self.model} was taken away: {reason}", retry_after=5.0, reason=Reason.CUT)
            lease._revoke(cut)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the gate made it; one unit
        return len(live)

    def freeze(self, now: float) -> int:
        """Only the actor, after `close` and `cut_live`. The leases that are out stay out and are marked; returns how many there are."""
        self.frozen_since = now
        for lease in self._leases:
            lease._freeze(now)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the gate made it; one unit
        if self.borrowers is not None:
            self.borrowers.frozen(True)
        frozen = len(self._leases)
        self._report_if_gone()
        return frozen

    def thaw(self, now: float) -> Thawed:
        """Only the actor. Their requests go on."""
        since, self.frozen_since = self.frozen_since, None
        for lease in self._leases:
            lease._thaw(now)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the gate made it; one unit
        if self.borrowers is not None:
            self.borrowers.frozen(False)
        return Thawed(len(self._leases), now - since if since is not None else 0.0)

    def revoke(self, *, died: bool, reason: str) -> int:
        """Only the actor. Ends every exchange now; returns how many there were. No lease is left afterwards."""
        leases, self._leases = self._leases, set()
        self.frozen_since = None
        for lease in leases:
            error: MMError = (
                UpstreamDied(f"{self.model} died: {reason}", sent=True, started=False)
                if died
                else RequestCut(f"{self.model} was taken away: {reason}", retry_after=5.0, reason=Reason.CUT)
            )
            lease._revoke(error)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the gate made it; one unit
        if self.borrowers is not None:
            self.borrowers.revoked(died=died, reason=reason)
        self._report_if_gone()
        return len(leases)

    def _tell_of_drain(self, drains: bool) -> None:
        for lease in tuple(self._leases):
            lease._drain(drains)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the gate made it; one unit

    def _report_if_gone(self) -> None:
        if not self._leases and self._on_gone is not None:
            self.frozen_since = None
            on_gone, self._on_gone = self._on_gone, None
            on_gone()
