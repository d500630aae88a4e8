"""Instances in virtual time: ready, drained, cut or frozen, asleep, thawed, idle, stopped, and the memory that each of these takes or gives back.

Decides nothing about loads; the base of `virtual.fleet.Fleet`, which does.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from math import inf

from vllm_mm.domain.lifecycle import Goal, State
from vllm_mm.domain.residency import Device, Ledger
from vllm_mm.domain.tiers import HostMemory, Sleeper, fate
from vllm_mm.virtual.body import Body
from vllm_mm.virtual.engine import Decoder, VirtualModel
from vllm_mm.virtual.records import LoadRecord, Outcome
from vllm_mm.virtual.terms import Terms


class Instances(ABC):
    """Those of one run, the ledger of their memory, and what will happen to them next."""

    def __init__(
        self, models: Sequence[VirtualModel], devices: Sequence[Device], terms: Terms, outcome: Outcome
    ) -> None:
        self.now = 0.0
        self._terms = terms
        self._bodies = {m.id: Body(m) for m in models}
        self._ledger = Ledger({d.id: d for d in devices})
        self._out = outcome
        self._heap: list[tuple[float, int, str, str, int]] = []
        """What happens when: time, order, kind of event, model (or ticket), launch (or lease)."""
        self._ids = count()
        self._lanes: dict[str, Body] = {}
        """Those with tickets, or with frozen requests."""

    # What the fleet does about it.

    @abstractmethod
    def _kick(self) -> None:
        """Something changed that a decision may depend on."""

    @abstractmethod
    def _begin_loads(self) -> None:
        """Memory came back: begin the loads that have theirs now."""

    @abstractmethod
    def _prefill(self, body: Body, number: int, until: float) -> None:
        """The prompt of that request will be in at `until`."""

    @abstractmethod
    def _look_again(self, body: Body) -> None:
        """Its requests go on: see when the next of them ends."""

    # The life of an instance.

    def _ready(self, body: Body) -> None:
        body.state = State.READY
        body.ready_since = body.last_used = body.since = self.now
        body.served_until = None
        if body.frozen_since is None:
            body.decoder, body.finish_at = Decoder(body.model.times, self.now), inf
        else:
            self._thaw(body, body.frozen_since)
        if body.load is not None:
            body.load.ready = self.now
        body.load, body.begun = None, False
        self._arm_idle(body)
        self._begin_loads()
        self._kick()

    def _evict(self, body: Body, load: LoadRecord) -> None:
        self._ledger = self._ledger.leave(body.model.id)
        if body.state is State.READY:
            self._drain(body, sleep=body.may_sleep(self._terms.sleep_budget))
        else:
            self._stop(body)
        load.freed = max(load.freed, self.now)

    def _drain(self, body: Body, *, sleep: bool) -> None:
        body.state, body.goal_sleep, body.served_until = State.DRAINING, sleep, self.now
        if not body.running:
            self._drained(body)
        elif self._terms.drain_timeout < inf:
            self._at(self.now + self._terms.drain_timeout, "drain over", body.model.id, body.launch)

    def _cut(self, body: Body) -> None:
        for served in body.running.values():
            served.cut = True
            served.finished = self.now
        body.running.clear()
        body.prefills.clear()
        body.last_used = self.now
        self._drained(body)

    def _freeze(self, body: Body) -> None:
        """Its requests stay in it, and wait for it to wake like those in its lane."""
        decoder = body.decoder
        if decoder is None:
            raise ValueError(f"{body.model.id} runs nothing that could be frozen")
        decoder.freeze(self.now)
        body.prefills = {n: until - self.now for n, until in body.prefills.items()}
        body.frozen_since = body.last_used = self.now
        self._out.freezes += 1
        self._out.draining += self.now - (body.served_until or self.now)
        if not body.tickets:
            self._lanes[body.model.id] = body
            body.rivals = 0
        self._left(body)
        body.finish_at, body.ready_since, body.drained_at = inf, None, self.now
        self._suspend(body)

    def _thaw(self, body: Body, since: float) -> None:
        decoder = body.decoder
        if decoder is None:
            raise ValueError(f"{body.model.id} has nothing to go on with")
        known = {n: s.prompt + decoder.produced(s.output, n) for n, s in body.running.items() if n not in body.prefills}
        late = decoder.thaw(self.now, sum(known.values()))
        for served in body.running.values():
            served.frozen += self.now - since
        body.frozen_since = None
        if not body.tickets:
            self._lanes.pop(body.model.id, None)
        for number, left in tuple(body.prefills.items()):
            self._prefill(body, number, self.now + left + late)
        self._look_again(body)

    def _drained(self, body: Body) -> None:
        self._out.draining += self.now - (body.served_until or self.now)
        self._left(body)
        body.decoder, body.finish_at, body.ready_since = None, inf, None
        body.drained_at = self.now
        if body.goal_sleep and self._make_host_room(body):
            self._suspend(body)
        else:
            self._stop(body)

    def _suspend(self, body: Body) -> None:
        body.state = State.SUSPENDING
        self._at(self.now + body.model.times.sleep, "asleep", body.model.id)

    def _stop(self, body: Body, *, anew: bool = False) -> None:
        """`anew`: its load goes on, by a start in the room that it was promised."""
        body.state, body.anew = State.STOPPING, anew
        if anew and body.load is not None:
            body.load.kind = "start"
        else:
            self._ledger = self._ledger.leave(body.model.id)
        self._at(self.now + body.model.times.stop, "reaped", body.model.id, body.launch)

    def _left(self, body: Body) -> None:
        """It serves nobody from now on."""
        if body.since is not None:
            self._out.stays.setdefault(body.model.id, []).append((body.since, self.now))
            body.since = None

    # Sleep.

    def _sleepers(self) -> list[Body]:
        return [b for b in self._bodies.values() if b.state in {State.SLEEPING, State.SUSPENDING, State.WAKING}]

    def _make_host_room(self, body: Body, *, keeps: bool = False) -> bool:
        """As the server does (`domain.tiers`): those that have slept longest are stopped for it; False, and nobody is stopped, if
        that is not enough. `keeps`: it is to sleep with requests, for which a model that it goes for gives up its sleep."""
        asleep = self._sleepers()
        host = HostMemory(self._terms.sleep_budget, {b.model.id: b.model.host_bytes for b in asleep})
        loads = [b.model.id for b in asleep if keeps and _could_start_anew(b, body.model.id)]
        found = fate(host, body.model.host_bytes, [_sleeper(b) for b in asleep], last=loads)
        if found.goal is not Goal.SLEEP:
            return False
        for name in found.stops:
            self._stop(self._bodies[name], anew=name in loads)
        return True

    def _asleep(self, body: Body) -> None:
        """What stays on the device is kept only where nobody was promised it."""
        name, stays = body.model.id, body.model.times.asleep
        held = self._ledger.reservations.get(name)
        devices = tuple(held.device_bytes) if held is not None else ()
        ledger = self._ledger.release(name)
        if stays and any(ledger.free_after_leaving(d) < stays for d in devices):
            self._lose(body)
            self._stop(body)
            return
        body.state, body.slept_on = State.SLEEPING, devices
        self._ledger = ledger.adopt(name, dict.fromkeys(devices, stays)) if stays else ledger
        self._begin_loads()
        self._kick()

    def _lose(self, body: Body) -> None:
        """What was frozen in it is lost: it cannot stay asleep."""
        if body.frozen_since is None:
            return
        for served in body.running.values():
            served.cut, served.finished = True, self.now
        body.running.clear()
        body.prefills.clear()
        body.frozen_since = body.decoder = None
        if not body.tickets:
            self._lanes.pop(body.model.id, None)

    def _arm_idle(self, body: Body) -> None:
        if body.running or body.model.pinned:
            return
        policy = body.model.idle
        limits = [policy.stop_after, policy.sleep_after if body.may_sleep(self._terms.sleep_budget) else None]
        for limit in limits:
            if limit is not None:
                self._at(self.now + limit, "idle", body.model.id, body.launch)

    def _idle(self, body: Body) -> None:
        policy, unused = body.model.idle, self.now - body.last_used + 1e-9
        if body.running or body.tickets or body.loading:  # frozen ones are running ones
            return
        if policy.stop_after is not None and unused >= policy.stop_after:
            if body.state is State.READY:
                self._drain(body, sleep=False)
            elif body.state is State.SLEEPING:
                self._stop(body)
        elif policy.sleep_after is not None and unused >= policy.sleep_after and body.state is State.READY:
            self._drain(body, sleep=True)

    def _at(self, when: float, kind: str, name: str, what: int = 0) -> None:
        heapq.heappush(self._heap, (when, next(self._ids), kind, name, what))


def _could_start_anew(body: Body, victim: str) -> bool:
    """Whether it sleeps and waits for the room of `victim` to wake."""
    waits = body.state is State.SLEEPING and body.load is not None and victim in body.load.victims
    return waits and body.frozen_since is None


def _sleeper(body: Body) -> Sleeper:
    wanted = body.state is not State.SLEEPING or body.loading or body.frozen_since is not None
    return Sleeper(body.model.id, body.drained_at, spare=not (wanted or body.model.pinned))
