"""The inference queue: one bounded lane per model, and the workers that turn tickets into leases.

A worker never carries bytes and never waits for an engine: it hands the lease to the waiting request, whose own task
does the rest (docs/adr/002-leases.md). A request for a READY model with a free slot does not come here at all.
"""

import asyncio
import logging
from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.errors import MMError, NoRoom, QueueFull, ShuttingDown, StillLoading, advised
from vllm_mm.domain.estimates import Span
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.scheduling import (
    Decision,
    Grant,
    Hold,
    Load,
    Refuse,
    Returning,
    Ticket,
    Turns,
    View,
    decide,
    sent_away,
)
from vllm_mm.domain.scheduling.fairness import deal
from vllm_mm.domain.scheduling.shares import Asked, Places, refusal
from vllm_mm.engine.lease import Lease
from vllm_mm.engine.loading import RETRY_MAX, retry_after
from vllm_mm.engine.policy import Policy
from vllm_mm.engine.survey import Waiting
from vllm_mm.engine.views import QueueEntry

log = logging.getLogger(__name__)

BEAT = 5.0
"""Seconds between two looks at the lanes when nothing happens."""


class Granter(Protocol):
    """What the queue asks of the ProcessManager."""

    def view(self, lanes: Sequence[Waiting]) -> View: ...

    def grant(self, ticket: Ticket) -> Lease | None:
        """A lease now, or None."""
        ...

    def take_back(self, lease: Lease) -> None: ...

    async def carry_out(self, load: Load) -> None:
        """Decide and flip; returns when the load is under way, not when it is done."""
        ...

    def refusal(self, ticket: Ticket) -> MMError | None:
        """Why this ticket cannot wait as things stand (failed, backing off, torn down); None when it can."""
        ...

    def held(self, model: str, reason: str, until: float | None = None) -> None: ...

    def refused(self, model: str, error: MMError) -> None: ...

    def unwanted(self, model: str) -> None:
        """The last request that waited for `model` has left."""
        ...

    def eta(self, model: str) -> float | None: ...

    def turn(self, model: str, position: int) -> Span | None: ...


@dataclass(slots=True, eq=False)
class _Waiter:
    ticket: Ticket
    lease: asyncio.Future[Lease]


@dataclass(slots=True)
class _Lane:
    waiters: list[_Waiter] = field(default_factory=list[_Waiter])
    turns: Turns = field(default_factory=Turns)
    """Whose turn it is among the keys."""
    why: str = ""
    """`code: sentence`, of the latest decision."""
    returning_since: float | None = None
    """When the first came of those who were told to come again, if one of them may be here."""
    waited_for: Reason | None = None
    """Why those in it had to wait at all: what decided the load that they share, else what held them."""

    _positions: dict[str, int] | None = None

    def add(self, waiter: _Waiter) -> None:
        insort(self.waiters, waiter, key=lambda w: (-w.ticket.priority, w.ticket.arrived))
        self._positions = None

    def remove(self, waiter: _Waiter) -> None:
        self.waiters.remove(waiter)
        self._positions = None

    def positions(self) -> dict[str, int]:
        """By ticket, from 1, as slots would be dealt between the keys; reckoned once after each change."""
        if self._positions is None:
            dealt, _ = deal([w.ticket for w in self.waiters], self.turns, len(self.waiters))
            self._positions = {ticket.id: position for position, ticket in enumerate(dealt, 1)}
        return self._positions


class InferenceQueue:
    """Where requests wait for a model that is not READY, or has no free slot."""

    def __init__(self, manager: Granter, clock: Clock, policy: Policy) -> None:
        self._manager = manager
        self._clock = clock
        self._policy = policy
        self._lanes: dict[str, _Lane] = {}
        self._returning: dict[str, Returning] = {}
        """By model; who was told to come again before it was loaded."""
        self._by_key: Counter[str | None] = Counter()
        """How many wait of each key."""
        self._keys = Asked()
        self._models = Asked()
        self._size = 0
        self._wake = asyncio.Event()
        self._timer: Timer | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._deciding: set[str] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._closed = False
        self.last_beat = clock.now()

    def start(self) -> None:
        """Start the workers, on the running loop."""
        loop = asyncio.get_running_loop()
        self._workers = [loop.create_task(self._work(), name=f"queue-{i}") for i in range(self._policy.workers)]
        self.kick()

    async def close(self) -> None:
        """Answer everybody who waits, then end the workers."""
        self.refuse_all(ShuttingDown("The server is shutting down. Try again in a few seconds.", retry_after=5.0))
        tasks = (*self._workers, *self._carrying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    def refuse_all(self, error: MMError) -> None:
        """No new tickets; those who wait get `error`."""
        self._closed = True
        for model in tuple(self._lanes):
            self.fail(model, error)

    # The waiting side.

    def asked(self, ticket: Ticket) -> None:
        """A request came, whether or not it has to wait."""
        self._keys.last[ticket.key] = self._models.last[ticket.model] = ticket.arrived

    async def admit(self, ticket: Ticket) -> Lease:
        """Wait for a lease until the ticket's deadline. The caller has to give the lease back.

        Raises QueueFull, StillLoading, StartFailed, TornDown, NoRoom or ShuttingDown. Cancelling removes the ticket.
        """
        if self._closed:
            raise ShuttingDown("The server is shutting down. Try again in a few seconds.", retry_after=5.0)
        refusal = self._manager.refusal(ticket)
        if refusal is not None:
            raise refusal
        self._check_places(ticket)
        waiter = _Waiter(ticket, asyncio.get_running_loop().create_future())
        lane = self._lanes.get(ticket.model)
        if lane is None:
            known = self._returning.get(ticket.model)
            since = known.at(self._clock.now()) if known is not None else None
            lane = self._lanes[ticket.model] = _Lane(returning_since=since)
        lane.add(waiter)
        self._by_key[ticket.key] += 1
        self._size += 1
        timer = self._clock.call_at(ticket.deadline, lambda: self._expire(waiter))
        self.kick()
        try:
            return await waiter.lease
        except asyncio.CancelledError:
            if waiter.lease.done() and not waiter.lease.cancelled() and waiter.lease.exception() is None:
                self._manager.take_back(waiter.lease.result())
            raise
        finally:
            timer.cancel()
            self._remove(waiter)

    def served(self, model: str) -> None:
        """Somebody has a lease of it: whoever was told to come again and does has its turn like everybody else."""
        if self._returning:
            self._returning.pop(model, None)

    def expects(self, model: str) -> bool:
        """Whether somebody was told to come again before it was loaded, may still come, and nobody was served since."""
        known = self._returning.get(model)
        return known is not None and known.at(self._clock.now()) is not None

    def _check_places(self, ticket: Ticket) -> None:
        """Raises QueueFull when there is none for it."""
        now = self._clock.now()
        places = Places(
            self._policy.max_queue, self._size, self._by_key[ticket.key], self.count(ticket.model), self._holds(ticket),
            other_keys=self._keys.others(ticket.key, now), other_models=self._models.others(ticket.model, now),
        )  # fmt: skip
        if why := refusal(places):
            raise QueueFull(
                advised(f"{why[0].upper()}{why[1:]}", "Try again later."), retry_after=retry_after(self._manager.eta(ticket.model)),
                reason=Reason.QUEUE_SHARE if places.free > 0 else Reason.QUEUE_FULL,
            )  # fmt: skip

    def _expire(self, waiter: _Waiter) -> None:
        if waiter.lease.done():
            return
        ticket, lane = waiter.ticket, self._lanes.get(waiter.ticket.model)
        eta = self._manager.eta(ticket.model)
        expected = f" It is expected in {eta:.0f} s." if eta else ""
        reason, sentence = split(lane.why) if lane is not None else (None, "")
        why = f" ({sentence.rstrip('.')})" if sentence else ""
        # Who waits for a slot has had its load, and without the right to have others go nobody ages.
        if lane is not None and reason is not Reason.SLOTS and ticket.evicts:
            keep = self._policy.rules.max_wait + RETRY_MAX
            known = sent_away(lane.returning_since, ticket.arrived, self._clock.now(), keep)
            self._returning[ticket.model] = known
            lane.returning_since = known.since
        waited = self._clock.now() - ticket.arrived
        message = (
            f"The model `{ticket.model}` is not ready after {waited:.1f} s{why}.{expected} "
            "Retry, or wait longer with the X-VLLM-MM-Wait header."
        )
        waiter.lease.set_exception(StillLoading(message, retry_after=retry_after(eta), reason=reason))

    def _remove(self, waiter: _Waiter) -> None:
        lane = self._lanes.get(waiter.ticket.model)
        if lane is None or waiter not in lane.waiters:
            return
        lane.remove(waiter)
        self._size -= 1
        self._by_key[waiter.ticket.key] -= 1
        if not self._by_key[waiter.ticket.key]:
            del self._by_key[waiter.ticket.key]
        if not lane.waiters:
            del self._lanes[waiter.ticket.model]
            self._manager.unwanted(waiter.ticket.model)

    def fail(self, model: str, error: MMError) -> None:
        """Answer everybody in a lane: the load they waited for failed, or can never be."""
        self._returning.pop(model, None)
        self.refuse_those(model, lambda _: True, error)

    def refuse_those(self, model: str, which: Callable[[Ticket], bool], error: MMError) -> None:
        """These get `error`, others in the lane go on waiting."""
        lane = self._lanes.get(model)
        for waiter in [w for w in lane.waiters if which(w.ticket)] if lane is not None else ():
            if not waiter.lease.done():
                waiter.lease.set_exception(error)
            self._remove(waiter)

    # What others may read.

    def waits(self, model: str) -> bool:
        """Whether anybody waits for `model`: then a newcomer may not pass."""
        return model in self._lanes

    def _holds(self, ticket: Ticket) -> bool:
        """Whether its key waits for its model already."""
        lane = self._lanes.get(ticket.model)
        return lane is not None and any(w.ticket.key == ticket.key for w in lane.waiters)

    def count(self, model: str) -> int:
        lane = self._lanes.get(model)
        return len(lane.waiters) if lane is not None else 0

    def first(self, model: str) -> str:
        """The ticket that has waited longest; empty when nobody waits."""
        lane = self._lanes.get(model)
        waiters = lane.waiters if lane is not None else []
        return min(waiters, key=lambda w: w.ticket.arrived).ticket.id if waiters else ""

    @property
    def size(self) -> int:
        return self._size

    def position(self, ticket: str, model: str) -> int:
        """From 1, in the order of service as it is now; 0 when it does not wait (any more)."""
        lane = self._lanes.get(model)
        return lane.positions().get(ticket, 0) if lane is not None else 0

    def why(self, model: str) -> str:
        lane = self._lanes.get(model)
        return lane.why if lane is not None else ""

    def oldest_age(self, model: str | None = None) -> float:
        """Seconds that the longest waiting request has waited, of all or of one model."""
        lanes = self._lanes.items()
        arrived = [w.ticket.arrived for m, lane in lanes if model in {None, m} for w in lane.waiters]
        return self._clock.now() - min(arrived) if arrived else 0.0

    def overdue(self) -> list[str]:
        """Reasons why the scheduler looks stuck; empty when it is well. For `/ready`."""
        now, problems = self._clock.now(), list[str]()
        if now - self.last_beat > 3 * BEAT:
            problems.append(f"the scheduler has not looked at the queue for {now - self.last_beat:.0f} s")
        late = [w for lane in self._lanes.values() for w in lane.waiters if now > w.ticket.deadline + BEAT]
        if late:
            problems.append(f"{len(late)} requests wait beyond their deadline")
        return problems

    def entries(self) -> list[QueueEntry]:
        """Who waits for what, and why."""
        now = self._clock.now()
        return [
            QueueEntry(
                ticket=w.ticket.id, model=model, key=w.ticket.key, waited_s=now - w.ticket.arrived,
                position=position,
                deadline_in_s=w.ticket.deadline - now, eta_s=span.likely if span is not None else None,
                at_latest_s=span.at_latest if span is not None else None, reason=reason, why=sentence,
            )
            for model, lane in self._lanes.items()
            for positions, (reason, sentence) in [(lane.positions(), split(lane.why))]
            for position, w in sorted(((positions[w.ticket.id], w) for w in lane.waiters), key=lambda at: at[0])
            for span in [self._manager.turn(model, position)]
        ]  # fmt: skip

    # The working side.

    def kick(self) -> None:
        """Something changed: look at the lanes."""
        self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                self._round()
                self.last_beat = self._clock.now()
            except Exception:
                self._arm(BEAT)
                # A worker that died would stop the service; the next beat tries again, and /ready tells if it does not.
                log.exception("a scheduling round failed")

    def _round(self) -> None:
        # Who waits for a load of others', and may cause none, does not wait when that is off.
        for ticket in [w.ticket for lane in self._lanes.values() for w in lane.waiters if not w.ticket.loads]:
            if (refusal := self._manager.refusal(ticket)) is not None:
                self.refuse_those(ticket.model, lambda other, it=ticket.id: other.id == it, refusal)
        lanes = [
            Waiting(model, tuple(w.ticket for w in lane.waiters), lane.turns, lane.returning_since)
            for model, lane in self._lanes.items()
        ]
        now = self._clock.now()
        decisions = decide(self._manager.view(lanes), self._policy.rules, now)
        holds = [d.until - now for d in decisions if isinstance(d, Hold) and d.until is not None]
        self._arm(min([BEAT, *holds]))
        # Grants and answers first and without a pause: nobody else can run in between, so they are not stale.
        loads = [d for d in decisions if not self._at_once(d) and isinstance(d, Load) and d.model not in self._deciding]
        if loads:
            # Not by this worker: a database that is locked must not keep free slots from those who wait for them.
            self._deciding |= {load.model for load in loads}
            task = asyncio.get_running_loop().create_task(self._carry_out(loads), name="loads")
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry_out(self, loads: Sequence[Load]) -> None:
        """One after the other: each was decided on what the ones before it leave."""
        try:
            for load in loads:
                try:
                    await self._manager.carry_out(load)
                except Exception:
                    self._arm(BEAT)
                    log.exception("a load of %s failed before it began", load.model)
                finally:
                    self._deciding.discard(load.model)
        finally:
            self._deciding -= {load.model for load in loads}

    def _at_once(self, decision: Decision) -> bool:
        match decision:
            case Grant():
                self._grant(decision)
            case Hold():
                self._explain(decision.model, decision.reason, held=True)
                self._manager.held(decision.model, decision.reason, decision.until)
            case Refuse():
                reason, sentence = split(decision.reason)
                error = NoRoom(
                    f"The model `{decision.model}` cannot be loaded: {sentence}", retry_after=60.0, reason=reason
                )
                self._manager.refused(decision.model, error)
                self.fail(decision.model, error)
            case Load():
                self._explain(decision.model, decision.reason, held=False)
                return False
        return True

    def _grant(self, decision: Grant) -> None:
        """In the order of the decision: what it dealt between the keys is kept if all of it can be given."""
        lane = self._lanes.get(decision.model)
        if lane is None:
            return
        lane.returning_since = None
        waiting = {w.ticket.id: w for w in lane.waiters}
        for ticket in decision.tickets:
            waiter = waiting.get(ticket.id)
            if waiter is None or waiter.lease.done():
                continue
            lease = self._manager.grant(ticket)
            if lease is None:
                return
            lease.reason = lane.waited_for.value if lane.waited_for is not None else None
            waiter.lease.set_result(lease)
            self._remove(waiter)
        lane.turns = decision.turns

    def explain(self, model: str, reason: str) -> None:
        """Why those who wait for it go on waiting although a load was decided: remembered until they are told something else than
        the next try."""
        lane = self._lanes.get(model)
        if lane is not None:
            lane.why = reason

    def _explain(self, model: str, reason: str, *, held: bool) -> None:
        lane = self._lanes.get(model)
        if lane is None:
            return
        code = split(reason)[0]
        # That its next try is under way is no news: that it is written down is, and that it waits for something else.
        if split(lane.why)[0] is not Reason.DATABASE or (held and code is not Reason.LOADING):
            lane.why = reason
        # The load that they share says more than that it is under way; once it is there, it is slots that they wait for.
        if not (held and code in {Reason.LOADING, Reason.STOPPING} and lane.waited_for is not None):
            lane.waited_for = code

    def _arm(self, seconds: float) -> None:
        """Look again in `seconds`, unless something happens before."""
        when = self._clock.now() + max(0.0, seconds)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(when, self.kick)
