"""A worker's end: leases as the gateway knows them (`gateway.ports.Leases`), out of what the controller lends.

For each model there is a gate like the controller's, which this module alone opens; so in a worker, too, a lease is the only way to
an engine. A request uses a credit if there is one, and asks the controller if not.
"""

import asyncio
import pickle
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.credits import Purse
from vllm_mm.domain.errors import Unavailable
from vllm_mm.domain.keys import Key
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.running import Listing
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.endings import Ending
from vllm_mm.engine.lease import Lease, LeaseGate
from vllm_mm.engine.leasing import Leasing, Looking
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.limits import Asking
from vllm_mm.engine.wire import InferenceChannel

if TYPE_CHECKING:
    from vllm_mm.domain.specs import ModelSpec
    from vllm_mm.engine.ports import Address

SWEEP: Final = 0.25
"""Seconds for which a lease is kept that nobody needs."""
GATHER: Final = 0.1
"""Seconds in which rows gather before they are sent..."""
BATCH: Final = 2000
"""...and how many go in one message."""
ROWS: Final = 50_000
"""Rows that wait to be sent at most; the oldest are given up beyond that, and counted."""
GRACE: Final = 10.0
"""Seconds beyond its deadline that a request waits for the controller's word."""
_ANY: Final = 1 << 30
"""The gate has no limit of its own: the purse has."""


class Wire(Protocol):
    """A `Link`."""

    def send(self, message: Any) -> None: ...


class Heard(Protocol):
    """Who is told what is not about leases."""

    def keys(self, keys: Iterable[Key]) -> None: ...
    def learned(self, fingerprint: str, route: str, generation: int) -> None: ...
    def cancel(self, request: str, cause: str) -> bool: ...
    def listing(self, most: int) -> Listing: ...


@dataclass(slots=True)
class Standing:
    """Where a waiting request stands (`gateway.ports.WaitView`)."""

    position: int = 0
    phase: str = ""
    percent: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of an instance as it was told last."""

    state: State
    generation: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that waits for the controller's word."""

    ticket: Ticket
    answer: asyncio.Future[Lease]


class _Model:
    """What is borrowed of one model."""

    def __init__(self, model: str, engine_name: str) -> None:
        self.purse = Purse()
        self.gate = LeaseGate(model, engine_name, _ANY, lambda: None)
        self.address: Address | None = None
        self.channel: InferenceChannel | None = None
        self.reads = 0
        """Of channels that are closed."""
        self.told_suspicions = 0

    @property
    def all_reads(self) -> int:
        return self.reads + (self.channel.reads if self.channel is not None else 0)

    def open(self, lent: say.Lent, now: float) -> None:
        """The engine is there; another launch has another address, or at least another generation."""
        if self.channel is not None and self.address == lent.address and self.gate.generation == lent.generation:
            self.gate.ready_at = lent.ready_at
            return
        self.close()
        self.address = lent.address
        self.channel = InferenceChannel(lent.address, limit=lent.limit)
        self.gate.open(self.channel, lent.generation, now)
        self.gate.ready_at = lent.ready_at

    def close(self) -> None:
        """Drop idle connections; requests that run end with the engine."""
        if self.channel is not None:
            self.reads += self.channel.reads
            self.channel.close()
            self.channel = None


class Borrower:
    """`gateway.ports.Leases` of a worker. Stored responses are the controller's alone, so `look` finds nothing here."""

    def __init__(self, wire: Wire, clock: Clock, heard: Heard) -> None:
        self.catalog = Catalog()
        self.limits: Final = Asking(wire, clock)
        self._wire = wire
        self._clock = clock
        self._heard = heard
        self._models: dict[str, _Model] = {}
        self._states: dict[str, Seen] = {}
        self._asked: dict[str, _Asked] = {}
        self._leased: dict[str, float | None] = {}
        """By ticket of a lease that is out: when its request arrived, where it asked nobody."""
        self._standing: dict[str, Standing] = {}
        self._rows: deque[RequestRecord] = deque()
        self._uses: deque[say.Use] = deque(maxlen=ROWS)
        self._told_reads: dict[str, int] = {}
        self._lost = 0
        self._gathering: Timer | None = None
        self._sweeping: Timer | None = None

    # Leases

    def lease(self, ticket: Ticket) -> Leasing:
        """As `ProcessManager.lease`; from what is lent, or after one round trip."""
        return Leasing(self, ticket)

    def look(self, ticket: Ticket, generation: int) -> Looking:
        return Looking(self, ticket, generation)

    def fast_lease(self, ticket: Ticket) -> Lease | None:
        model = self._models.get(ticket.model)
        if model is None or not model.purse.take():
            return None
        return self._use(model, ticket, ticket.arrived)

    async def slow_lease(self, ticket: Ticket) -> Lease:
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        asked = self._asked[ticket.id] = _Asked(ticket, answer)
        self._wire.send(say.Ask(ticket))
        late = self._clock.call_at(max(ticket.deadline, self._clock.now()) + GRACE, lambda: self._unanswered(asked))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self.take_back(answer.result())
            elif self._asked.get(ticket.id) is asked:
                self._wire.send(say.Drop(ticket.id))
            raise
        finally:
            late.cancel()
            self._asked.pop(ticket.id, None)

    def take_back(self, lease: Lease) -> None:
        model = self._models[lease.model]
        now = self._clock.now()
        arrived = self._leased.pop(lease.ticket.id, None)
        if not model.gate.holds(lease):
            return  # it was taken away, and counted at once
        model.gate.release(lease, now)
        self._uses.append(say.Use(lease.model, arrived, now - lease.granted_at - lease.frozen_s(now)))
        self._gather()
        self._give_back(lease.model, model, model.purse.give())

    def look_lease(self, ticket: Ticket, generation: int) -> Lease | None:  # noqa: ARG002  # the signature of `Granting`
        return None

    def look_back(self, lease: Lease) -> None:
        """Nothing was given."""

    def ending(self, model: str, generation: int) -> Ending | None:  # noqa: ARG002  # the signature of `Leases`
        """Only the controller knows, and is asked for everything that would want to."""
        return None

    def describe(self, model: str) -> Seen:
        """Raises UnknownModel."""
        self.catalog.resolve(model)
        return self._states.get(model, Seen(State.STOPPED, 0))

    def wait_info(self, ticket: Ticket) -> Standing:
        return self._standing.get(ticket.id) or Standing()

    def follow(self, ticket: Ticket, *, on: bool) -> None:
        """Somebody will ask `wait_info` of it; or will not any more."""
        if on:
            self._standing[ticket.id] = Standing()
        else:
            self._standing.pop(ticket.id, None)
        self._wire.send(say.Follow(ticket.id, ticket.model, on))

    # What goes up

    def record(self, row: RequestRecord) -> None:
        """A request has ended."""
        self._rows.append(row)
        if len(self._rows) > ROWS:
            self._rows.popleft()
            self._lost += 1
        self._gather()

    def learn(self, fingerprint: str, route: str, generation: int) -> None:
        """An engine has no such route."""
        self._wire.send(say.Learned(fingerprint, route, generation))

    def flush(self) -> None:
        """Send all that gathered."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        while self._rows or self._uses or self._lost:
            rows = [self._rows.popleft() for _ in range(min(BATCH, len(self._rows)))]
            uses = [self._uses.popleft() for _ in range(min(BATCH, len(self._uses)))]
            lost, self._lost = self._lost, 0
            self._wire.send(say.Report(rows, uses, {}, lost))
        for name, model in self._models.items():
            more = model.gate.suspicions - model.told_suspicions
            if more:
                model.told_suspicions += more
                self._wire.send(say.Suspect(name, model.gate.generation, more))
        reads = {name: model.all_reads for name, model in self._models.items()}
        new = {name: count for name, count in reads.items() if self._told_reads.get(name, 0) != count}
        if new:
            self._told_reads.update(new)
            self._wire.send(say.Report([], [], new, 0))

    def _gather(self) -> None:
        if self._gathering is None:
            self._gathering = self._clock.call_at(self._clock.now() + GATHER, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self.flush()
        if any(model.gate.count for model in self._models.values()):
            self._gather()  # what their engines send is a sign of life

    # What comes down

    def obey(self, message: say.Down) -> None:
        """Everything that the controller says, in order."""
        match message:
            case say.Lent():
                self._lent(message)
            case say.Refused():
                asked = self._asked.pop(message.ticket, None)
                if asked is not None and not asked.answer.done():
                    asked.answer.set_exception(say.error_of(message))
            case say.Recall():
                model = self._models.get(message.model)
                if model is not None:
                    self._give_back(message.model, model, model.purse.recalled())
                self._wire.send(say.Ack(message.number))
            case say.Revoke():
                self._revoke(message)
            case say.Freeze():
                model = self._models.get(message.model)
                if model is not None:
                    (model.gate.freeze if message.stands else model.gate.thaw)(self._clock.now())
                self._wire.send(say.Ack(message.number))
            case say.States():
                for name, (state, generation) in message.states.items():
                    self._states[name] = Seen(State(state), generation)
            case say.Models():
                # From the controller, whose child this process is.
                self.catalog = Catalog(cast("tuple[ModelSpec, ...]", pickle.loads(message.catalog)))  # noqa: S301
            case say.Keys():
                self._heard.keys(message.keys)
            case say.Learned():
                self._heard.learned(message.fingerprint, message.route, message.generation)
            case say.Wait():
                if message.ticket in self._standing:
                    self._standing[message.ticket] = Standing(
                        message.position, message.phase, message.percent, message.eta_s
                    )
            case say.Cancel():
                found = self._heard.cancel(message.request, message.cause)
                self.flush()
                self._wire.send(say.Cancelled(message.number, found))
            case say.List():
                self._wire.send(say.Listed(message.number, self._heard.listing(message.most)))
            case say.Entered():
                self.limits.heard(message)
            case say.Setup() | say.End():
                pass  # its process's business

    def _lent(self, lent: say.Lent) -> None:
        model = self._models.get(lent.model)
        if model is None:
            model = self._models[lent.model] = _Model(lent.model, lent.engine_name)
        if not model.purse.lent(lent.epoch, lent.count, keep=lent.keep):
            raise ValueError(f"leases of epoch {lent.epoch} came in epoch {model.purse.epoch}")
        model.open(lent, self._clock.now())
        asked = self._asked.pop(lent.ticket, None)
        if asked is not None and not asked.answer.done() and model.purse.take():
            lease = self._use(model, asked.ticket, None)
            lease.reason = lent.reason
            asked.answer.set_result(lease)
        if model.purse.idle and not model.purse.keeps:
            self._give_back(lent.model, model, model.purse.recalled())
        self._sweep_later()

    def _use(self, model: _Model, ticket: Ticket, arrived: float | None) -> Lease:
        lease = model.gate.try_acquire(ticket, self._clock.now())
        if lease is None:
            raise Unavailable(f"The engine of `{ticket.model}` is not there any more.", retry_after=1.0)
        self._leased[ticket.id] = arrived
        self._gather()
        return lease

    def _revoke(self, message: say.Revoke) -> None:
        model = self._models.get(message.model)
        if model is not None:
            model.purse.revoked(message.epoch)
            model.gate.revoke(died=message.died, reason=message.reason)
            model.close()
        self._wire.send(say.Ack(message.number))

    def _give_back(self, name: str, model: _Model, count: int) -> None:
        if count:
            self._wire.send(say.Back(name, model.purse.epoch, count))

    def _unanswered(self, asked: "_Asked") -> None:
        if not asked.answer.done():
            self._asked.pop(asked.ticket.id, None)
            self._wire.send(say.Drop(asked.ticket.id))
            asked.answer.set_exception(Unavailable("The controller does not answer. Try again.", retry_after=5.0))

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._clock.call_at(self._clock.now() + SWEEP, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        for name, model in self._models.items():
            self._give_back(name, model, model.purse.sweep())
        if any(model.purse.held for model in self._models.values()):
            self._sweep_later()
