"""The controller's end: leases that other processes hold are real leases of its gates, and nobody is forgotten.

An `Office` knows all workers, a `Seat` is what one of them has. What is out is counted here before the worker hears of it, and not
counted any more after it gave it back (`domain.credits`).
"""

import asyncio
import logging
import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.credits import Account, Mistrusted, portion
from vllm_mm.domain.errors import MMError, Unavailable
from vllm_mm.domain.keys import Key
from vllm_mm.domain.running import Listing
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.lease import Lease
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.answers import Answers
from vllm_mm.engine.lending.following import Followed
from vllm_mm.engine.lending.limits import Limiting, Places
from vllm_mm.engine.manager import ProcessManager

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 30.0
"""Seconds after which a worker is asked for a sign of life."""
MOST: Final = 8
"""Leases that a worker is lent at most beyond the one that it asked for."""


class Wire(Protocol):
    """A `Link`."""

    def send(self, message: Any) -> None: ...
    def fail(self, why: str) -> None: ...


class Told(Protocol):
    """Who hears what workers report."""

    def row(self, record: RequestRecord) -> None: ...
    def lost(self, rows: int) -> None: ...
    def learned(self, fingerprint: str, route: str, generation: int) -> None: ...


@dataclass(slots=True)
class Counts:
    """What was asked and used, for `/metrics`."""

    asked: int = 0
    """Leases that workers asked for."""
    credit: int = 0
    """Requests that used one that was there already."""
    lost: int = 0
    """Ledger rows that never came."""


@dataclass(slots=True)
class _Holding:
    """What one worker has of one model."""

    account: Account = field(default_factory=Account)
    leases: list[Lease] = field(default_factory=list[Lease])


class Office:
    """One for the controller. `workers`: how many there are meant to be."""

    def __init__(
        self,
        manager: ProcessManager,
        clock: Clock,
        workers: int,
        told: Told,
        patience: float = 10.0,
        limits: Limiting | None = None,
    ) -> None:
        """`patience`: seconds in which a worker has to answer before it is ended. `limits`: who knows how much keys may use."""
        self.limits: Final = limits
        self.manager: Final = manager
        self.clock: Final = clock
        self.workers: Final = workers
        self.told: Final = told
        self.patience: Final = patience
        self.counts: Final = Counts()
        self.seats: Final[list[Seat]] = []
        self._keys: Sequence[Key] = ()
        self._missing: list[say.Learned] = []
        self._reads: dict[str, int] = {}
        manager.on_change = self._changed

    def seat(self, wire: Wire) -> "Seat":
        """A worker is there: it is told everything, and may ask from now on."""
        seat = Seat(self, wire)
        self.seats.append(seat)
        for message in (self._models(), self._states(), say.Keys(list(self._keys)), *self._missing):
            wire.send(message)
        return seat

    def use_keys(self, keys: Sequence[Key]) -> None:
        """All keys, from now on."""
        self._keys = keys
        self._tell(say.Keys(list(keys)))

    def learned(self, what: say.Learned, source: "Seat | None" = None) -> None:
        """An engine has no such route; `source` knows."""
        self._missing = [m for m in self._missing if (m.fingerprint, m.route) != (what.fingerprint, what.route)]
        self._missing.append(what)
        for seat in self.seats:
            if seat is not source:
                seat.wire.send(what)

    async def cancel(self, request: str, cause: str) -> bool:
        """End a request of a worker by its id. False when none of them has it, or does not answer in time."""
        found = await asyncio.gather(*(seat.cancel(request, cause) for seat in tuple(self.seats)))
        return any(found)

    async def running(self, most: int) -> Sequence[Listing]:
        """What each worker has under way, `most` of the oldest; of one that does not answer in time, nothing."""
        return await asyncio.gather(*(seat.running(most) for seat in tuple(self.seats)))

    def read(self, model: str, more: int) -> None:
        self._reads[model] = self._reads.get(model, 0) + more

    def reads(self, model: str) -> int:
        """How often something came from engines of that model to workers."""
        return self._reads.get(model, 0)

    @property
    def serving(self) -> int:
        """Workers that accept connections."""
        return sum(seat.serves for seat in self.seats)

    def problem(self) -> str | None:
        """What is wrong with the workers, for `/ready`; None when all serve."""
        missing = self.workers - self.serving
        return f"{missing} of {self.workers} workers do not serve" if missing > 0 else None

    @property
    def out(self) -> Mapping[str, int]:
        """Leases that workers hold, by model."""
        found: dict[str, int] = {}
        for seat in self.seats:
            for model, count in seat.out.items():
                found[model] = found.get(model, 0) + count
        return found

    def _changed(self, model: str | None) -> None:
        if model is None:
            self._tell(self._models())
            self._tell(self._states())
        else:
            i = self.manager.require(model).snapshot
            self._tell(say.States({model: (i.state.value, i.generation)}))

    def _models(self) -> say.Models:
        return say.Models(pickle.dumps(tuple(self.manager.catalog)))

    def _states(self) -> say.States:
        now = (i.snapshot for i in self.manager.instances())
        return say.States({i.model: (i.state.value, i.generation) for i in now})

    def _tell(self, message: Any) -> None:
        for seat in self.seats:
            seat.wire.send(message)


class _Borrowers:
    """What the gate of one model sees of the workers (`lease.Borrowers`)."""

    def __init__(self, office: Office, model: str) -> None:
        self._office = office
        self._model = model

    def wanted(self) -> None:
        for seat in self._office.seats:
            seat.recall(self._model)

    closed = wanted

    def frozen(self, stands: bool) -> None:
        for seat in self._office.seats:
            seat.freeze(self._model, stands=stands)

    def revoked(self, *, died: bool, reason: str) -> None:
        for seat in self._office.seats:
            seat.revoke(self._model, died=died, reason=reason)

    async def settled(self) -> None:
        for seat in tuple(self._office.seats):
            await seat.settled(self._model)

    @property
    def reads(self) -> int:
        return self._office.reads(self._model)


class Seat:
    """One worker: what it asks, and what it has."""

    def __init__(self, office: Office, wire: Wire) -> None:
        self.wire: Final = wire
        self.serves = False
        """It accepts connections."""
        self._office = office
        self._manager = office.manager
        self._clock = office.clock
        self._holdings: dict[str, _Holding] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._followed = Followed(wire, office.manager, office.clock)
        self._number = 0
        self._unanswered: deque[tuple[int, str, float]] = deque()
        """Number, model, deadline of what the worker has not answered."""
        self._settling: list[tuple[str, asyncio.Future[None]]] = []
        self._overdue: Timer | None = None
        self._reads: dict[str, int] = {}
        self._places = Places(wire, office.limits)
        self._gone = False
        self._answers = Answers(wire, office.clock, office.patience)
        self._looker = self._clock.call_at(self._clock.now() + LOOK_EVERY, self._look)

    @property
    def out(self) -> Mapping[str, int]:
        """Leases that it holds, by model."""
        return {model: h.account.out for model, h in self._holdings.items() if h.account.out}

    def heard(self, message: say.Up) -> None:
        """Everything that comes from the worker, in order. Raises Mistrusted."""
        match message:
            case say.Ask():
                self._asked(message.ticket)
            case say.Back():
                self._back(message)
            case say.Drop():
                task = self._waiting.get(message.ticket)
                if task is not None:
                    task.cancel()
            case say.Ack():
                self._answered(message.number)
            case say.Report():
                self._report(message)
            case say.Suspect():
                self._manager.suspected(message.model, message.generation, message.count)
            case say.Cancelled():
                self._answers.heard(message.number, message.found)
            case say.Listed():
                self._answers.heard(message.number, message.listing)
            case say.Follow():
                self._followed.follow(message)
            case say.Learned():
                self._office.learned(message, self)
                self._office.told.learned(message.fingerprint, message.route, message.generation)
            case say.Enter():
                self._places.enter(message)
            case say.Leave():
                self._places.leave(message)
            case say.Runs():
                self._places.runs(message)
            case say.Look():
                self._places.look(message)
            case say.Serves():
                self.serves = True
            case say.Hello():
                if message.version != say.VERSION:
                    raise Mistrusted(f"it speaks version {message.version} and not {say.VERSION}")

    def leave(self) -> int:
        """Its process is gone: everything that it had is here again. Returns how many leases that were."""
        self._gone = True
        if self in self._office.seats:
            self._office.seats.remove(self)
        self._followed.end()
        for timer in (self._overdue, self._looker):
            if timer is not None:
                timer.cancel()
        for task in tuple(self._waiting.values()):
            task.cancel()
        self._places.end()
        had = 0
        for holding in self._holdings.values():
            leases, holding.leases = holding.leases, []
            had += holding.account.out
            holding.account.revoke()
            for lease in leases:
                self._manager.look_back(lease)
        self._unanswered.clear()
        self._wake()
        self._answers.end()
        return had

    async def cancel(self, request: str, cause: str) -> bool:
        """Whether the worker had it; False after `patience`, in which a worker that hangs is ended."""
        return await self._answers.to(lambda number: say.Cancel(number, request, cause), otherwise=False)

    async def running(self, most: int) -> Listing:
        """What the worker has under way; nothing after `patience`."""
        return await self._answers.to(lambda number: say.List(number, most), otherwise=Listing([], 0))

    # Leases

    def _asked(self, ticket: Ticket) -> None:
        self._office.counts.asked += 1
        try:
            lease = self._manager.fast_lease(ticket)
        except MMError as error:
            self.wire.send(say.refused(ticket.id, error))
            return
        if lease is not None:
            self._lend(ticket, lease)
            return
        task = asyncio.get_running_loop().create_task(self._wait(ticket))
        self._waiting[ticket.id] = task
        task.add_done_callback(lambda _: self._waiting.pop(ticket.id, None))

    async def _wait(self, ticket: Ticket) -> None:
        try:
            lease = await self._manager.slow_lease(ticket)
        except MMError as error:
            self.wire.send(say.refused(ticket.id, error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the request %s of a worker cannot have its lease", ticket.id)
            self.wire.send(say.refused(ticket.id, Unavailable("The server failed on this request; its log says why.")))
        else:
            if self._gone:
                self._manager.look_back(lease)
            else:
                self._lend(ticket, lease)

    def _lend(self, ticket: Ticket, lease: Lease) -> None:
        model = ticket.model
        gate = self._manager.require(model).gate
        if gate.borrowers is None:
            gate.borrowers = _Borrowers(self._office, model)
        more = self._manager.spare(ticket, portion(gate.free, self._office.workers, MOST))
        holding = self._holdings.setdefault(model, _Holding())
        holding.leases += (lease, *more)
        keep = bool(more) or (gate.free > 0 and not self._manager.waits(model))
        epoch = holding.account.lend(1 + len(more), keep=keep)
        self.wire.send(
            say.Lent(
                ticket.id, model, epoch, 1 + len(more), keep, lease.generation, lease.engine_name,
                gate.whereabouts(lease), gate.limit, lease.reason, lease.ready_at,
            )
        )  # fmt: skip

    def _back(self, message: say.Back) -> None:
        holding = self._holdings.get(message.model)
        if holding is None:
            raise Mistrusted(f"leases of {message.model} came back and none was lent")
        for _ in range(holding.account.returned(message.epoch, message.count)):
            self._manager.look_back(holding.leases.pop())

    # Taking back

    def recall(self, model: str) -> None:
        """What it does not use is wanted."""
        holding = self._holdings.get(model)
        if holding is not None and holding.account.out and holding.account.recall():
            self.wire.send(say.Recall(self._expect(model), model))

    def freeze(self, model: str, *, stands: bool) -> None:
        holding = self._holdings.get(model)
        if holding is not None and holding.account.out:
            self.wire.send(say.Freeze(self._expect(model), model, stands))

    def revoke(self, model: str, *, died: bool, reason: str) -> None:
        """The gate has taken them away; the worker is to let go."""
        holding = self._holdings.get(model)
        if holding is not None and holding.account.out:
            holding.leases.clear()
            epoch = holding.account.revoke()
            self.wire.send(say.Revoke(self._expect(model), model, epoch, died, reason))

    async def settled(self, model: str) -> None:
        """When the worker has done what it was told about the model; or is gone."""
        while any(about == model for _, about, _ in self._unanswered):
            answer = asyncio.get_running_loop().create_future()
            self._settling.append((model, answer))
            await answer

    def _look(self) -> None:
        """Does it live? One that hangs holds connections, and nobody may have a reason to take leases back."""
        self.wire.send(say.Recall(self._expect(""), ""))
        self._looker = self._clock.call_at(self._clock.now() + LOOK_EVERY, self._look)

    def _expect(self, model: str) -> int:
        """The number of a message that has to be answered."""
        self._number += 1
        deadline = self._clock.now() + self._office.patience
        self._unanswered.append((self._number, model, deadline))
        if self._overdue is None:
            self._overdue = self._clock.call_at(deadline, self._late)
        return self._number

    def _answered(self, number: int) -> None:
        if not self._unanswered or self._unanswered[0][0] != number:
            raise Mistrusted(f"message {number} was answered out of order")
        self._unanswered.popleft()
        self._wake()

    def _late(self) -> None:
        self._overdue = None
        if not self._unanswered:
            return
        deadline = self._unanswered[0][2]
        if deadline <= self._clock.now():
            self.wire.fail(f"it did not answer within {self._office.patience:g} s (timeouts.worker)")
        else:
            self._overdue = self._clock.call_at(deadline, self._late)

    def _wake(self) -> None:
        """Those who wait look again."""
        settling, self._settling = self._settling, []
        for _, answer in settling:
            if not answer.done():
                answer.set_result(None)

    # What it tells

    def _report(self, message: say.Report) -> None:
        office = self._office
        for row in message.rows:
            office.told.row(row)
        for use in message.uses:
            office.counts.credit += use.arrived is not None
            self._manager.served(use.model, use.arrived, use.worked)
        for model, reads in message.reads.items():
            office.read(model, reads - self._reads.get(model, 0))
            self._reads[model] = reads
        if message.lost:
            office.counts.lost += message.lost
            office.told.lost(message.lost)
