"""A small world around the scheduler's pure core that does it every harm: arrivals at the worst moments, loads that fail, engines
that die, drains that end in a freeze, orders, timers that are late, beliefs that are wrong, and memory that strangers take.

After every event one round of decisions is made, carried out, and judged: see `World.step`. Times are seconds, sizes bytes.
"""

import heapq
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import split
from vllm_mm.domain.residency import Device, Ledger, Resident
from vllm_mm.domain.scheduling import (
    Expected,
    Grant,
    Hold,
    Lane,
    Load,
    Refuse,
    Returning,
    Rules,
    SwapTimes,
    Ticket,
    Turns,
    View,
    bound,
    decide,
    sent_away,
)
from vllm_mm.domain.specs import DeviceWish

KEEP = 80.0
"""Seconds for which those are expected who were told to come again."""
DRAIN, REAP, LATE = 6.0, 1.0, 0.3
"""The longest drain; from the stop to the memory seen free; how late a timer may be."""
AWAY = frozenset({State.STOPPED, State.SLEEPING, State.DRAINING, State.STOPPING})


@dataclass(eq=False)
class Body:
    """A model and its instance."""

    name: str
    need: int
    load: float
    wish: DeviceWish
    slots: int
    priority: int
    state: State = State.STOPPED
    tickets: dict[str, Ticket] = field(default_factory=dict[str, Ticket])
    turns: Turns = field(default_factory=Turns)
    leases: set[int] = field(default_factory=set[int])
    frozen: set[int] = field(default_factory=set[int])
    frozen_since: float | None = None
    wanted_since: float | None = None
    ready_since: float | None = None
    served_until: float | None = None
    last_used: float = 0.0
    launch: int = 0
    called: bool = False
    """A load is decided and waits for its memory."""
    rivals: int = 0
    """Most models that waited at once, were being loaded, or had somebody who was told to come again and is expected, since
    somebody waits for this one."""
    returning: Returning | None = None
    """Who was told to come again."""
    returning_since: float | None = None
    returned: float = 0.0
    """When somebody with rights came the last time, while nobody else with rights waited."""

    @property
    def waits(self) -> bool:
        return bool(self.tickets or self.frozen) or self.wanted_since is not None

    @property
    def rights(self) -> bool:
        """Others may be told to go for somebody who waits."""
        return bool(self.frozen) or self.wanted_since is not None or any(t.evicts for t in self.tickets.values())

    @property
    def comes(self) -> bool:
        return self.called or self.state in {State.STARTING, State.WAKING}

    @property
    def apart(self) -> bool:
        return self.waits and self.state is not State.READY


class World:
    """One random fleet and its misfortunes. `strangers`: other processes take memory, and devices fail for a while; then
    nobody can promise a bound, and all else holds."""

    def __init__(self, rng: Random, *, strangers: bool) -> None:
        self.rng, self.strangers = rng, strangers
        self.rules = Rules(rng.choice([5.0, 20.0]), rng.choice([0.0, 0.0, 5.0]), rng.choice([0.0, 2.0, 10.0]))
        self.now = 0.0
        sizes = [10] * rng.choice([1, 1, 2, 3])
        self.ledger = Ledger({f"d{i}": Device(f"d{i}", size) for i, size in enumerate(sizes)})
        self.bodies = {
            name: Body(
                name, rng.choice([3, 5, 6, 10]), rng.choice([0.5, 3.0, 20.0]),
                _wish(rng, len(sizes)), rng.choice([1, 3, 50]), rng.choice([0, 0, 0, 1]),
            )
            for name in "abcdef"[: rng.randint(2, 6)]
        }  # fmt: skip
        self.swap = DRAIN + REAP + max(b.load for b in self.bodies.values()) + LATE
        self.left = rng.choice([20, 60, 150])
        """Requests that are still to come."""
        self.reached: set[str] = set()
        self.worst = 0.0
        """The wait that came nearest to its bound, as a share of that."""
        self.ended = 0
        self.returned = 0
        """Loads for somebody who was told to come again, and came."""
        self._sent = 0
        self._work: dict[str, float] = {}
        self._heap: list[tuple[float, int, str, str, int]] = []
        self._ids = count()
        self._looks: dict[str, float] = {}
        """When each lane is looked at again."""
        self._victim = ""
        """Who was evicted last: the adversary asks for it at once."""
        self._at(0.0, "arrive")

    def step(self) -> bool:
        """One event and one round of decisions. False when nothing will happen any more."""
        if not self._heap:
            assert not any(b.apart or b.tickets or b.leases for b in self.bodies.values()), "a deadlock: somebody waits"
            assert self.ended == self._sent, "somebody was forgotten"
            return False
        self.now, _, kind, name, what = heapq.heappop(self._heap)
        self._event(kind, name, what)
        self._move_on()
        self._round()
        self._move_on()
        self._judge()
        return True

    # What happens.

    def _event(self, kind: str, name: str, what: int) -> None:
        body = self.bodies.get(name)
        if kind == "arrive":
            self._arrive()
        elif kind == "strangers":
            self._strange(name)
        elif kind == "again" and body is not None:
            self._come(body)
        elif body is not None and (what in {0, body.launch} or kind in {"lease", "expire"}):
            self._change(kind, body, what)

    def _change(self, kind: str, body: Body, what: int) -> None:
        if kind == "loaded" and body.state in {State.STARTING, State.WAKING}:
            if self.rng.random() < 0.1:
                self._fail(body)
            else:
                self._ready(body)
        elif kind == "lease" and what in body.leases:
            body.leases.discard(what)
            body.last_used = self.now
        elif kind == "drained" and body.state is State.DRAINING:
            if body.leases and self.rng.random() < 0.5:
                body.frozen, body.frozen_since, body.rivals = body.leases, self.now, 0
            body.leases = set()
        elif kind == "expire" and (ticket := body.tickets.pop(f"t{what}", None)) is not None:
            self._send_away(body, ticket)
        elif kind == "reaped":
            body.state = State.SLEEPING if body.frozen else State.STOPPED
            self.ledger = self.ledger.release(body.name)
        elif kind == "crash" and body.state is State.READY:
            self._fail(body)

    def _arrive(self) -> None:
        """The next request: for whoever was just evicted, for whoever is not there, or for anybody."""
        rng = self.rng
        names = list(self.bodies)
        apart = [b.name for b in self.bodies.values() if b.state is not State.READY]
        name = rng.choice([self._victim or rng.choice(names), rng.choice(apart or names), rng.choice(names)])
        for _ in range(rng.choice([1, 1, 1, 5])):
            self._come(self.bodies[name])
        if rng.random() < 0.05 and not self.bodies[name].waits:
            self.bodies[name].wanted_since = self.now
        if rng.random() < 0.05:
            self._at(self.now + rng.uniform(0, 30), "crash", rng.choice(names))
        if self.strangers and rng.random() < 0.1:
            self._at(self.now + rng.uniform(0, 5), "strangers", rng.choice(list(self.ledger.devices)))
        self.left -= 1
        if self.left > 0:
            self._at(self.now + rng.choice([0.0, 0.05, 1.0, 5.0, 25.0]) * rng.random(), "arrive")

    def _come(self, body: Body) -> None:
        """A request, which may have little patience."""
        rng = self.rng
        ticket = Ticket(
            f"t{self._sent}", body.name, self.now, 1e9, key=rng.choice("xyz"), priority=rng.choice([0, 0, 0, 1]),
            evicts=rng.random() < 0.9,
        )  # fmt: skip
        self._work[ticket.id] = rng.choice([0.1, 1.0, 5.0, 60.0])
        if not body.tickets:
            body.returning_since = body.returning.at(self.now) if body.returning is not None else None
        if ticket.evicts and not any(t.evicts for t in body.tickets.values()):
            body.returned = self.now
        if not body.waits:
            body.rivals = 0
        body.tickets[ticket.id] = ticket
        if body.called or body.state not in AWAY:
            self.reached.add(ticket.id)
        if not ticket.evicts or rng.random() < 0.4:  # for those without the right nobody promises anything
            self._at(self.now + rng.choice([0.1, 1.0, 4.0]), "expire", body.name, self._sent)
        self._sent += 1

    def _send_away(self, body: Body, ticket: Ticket) -> None:
        """Its patience is over; most come again in time."""
        self.ended += 1
        if body.state is not State.READY and ticket.evicts:
            body.returning = sent_away(body.returning_since, ticket.arrived, self.now, KEEP)
            body.returning_since = body.returning.since
        if self.rng.random() < 0.8:
            self._at(self.now + self.rng.choice([0.5, 5.0, 20.0, KEEP]), "again", body.name)

    def _strange(self, name: str) -> None:
        device = self.ledger.devices[name]
        well = device.foreign or device.problem
        changed = replace(device, foreign=0, problem="")
        if not well:
            changed = replace(changed, foreign=self.rng.choice([0, 4, 9]), problem=self.rng.choice(["", "it is lost"]))
            self._at(self.now + self.rng.uniform(1, 40), "strangers", name)
        self.ledger = self.ledger.with_devices([changed if d.id == name else d for d in self.ledger.devices.values()])

    def _ready(self, body: Body) -> None:
        body.state, body.ready_since, body.last_used = State.READY, self.now, self.now
        body.served_until = body.wanted_since = body.frozen_since = None
        body.leases, body.frozen = body.frozen, set()
        for lease in body.leases:
            self._at(self.now + 2.0, "lease", body.name, lease)

    def _fail(self, body: Body) -> None:
        """It died: those who wait for it, or run in it, are answered."""
        body.served_until = self.now if body.state is State.READY else body.served_until
        self.ended += len(body.tickets)
        body.tickets, body.turns, body.leases, body.frozen = {}, Turns(), set(), set()
        body.frozen_since = body.wanted_since = None
        body.returning = body.returning_since = None
        self.ledger = self.ledger.leave(body.name)
        self._stop(body)

    def _stop(self, body: Body) -> None:
        body.state, body.ready_since = State.STOPPING, None
        body.launch += 1
        self._at(self.now + REAP, "reaped", body.name, body.launch)

    def _move_on(self) -> None:
        """What follows without a decision: what has drained stops, loads begin when their memory is there."""
        for body in self.bodies.values():
            if body.state is State.DRAINING and not body.leases:
                self._stop(body)
        for body in self.bodies.values():
            if body.called and self.ledger.fits_now(body.name):
                body.called = False
                self.ledger = self.ledger.begin(body.name)
                body.state = State.WAKING if body.state is State.SLEEPING else State.STARTING
                body.launch += 1
                self._at(self.now + body.load, "loaded", body.name, body.launch)

    # Decisions.

    def _round(self) -> None:
        apart = [b for b in self.bodies.values() if b.apart]
        others = [
            b
            for b in self.bodies.values()
            if not b.apart and b.state is not State.READY and (b.comes or self._expected(b))
        ]
        for body in apart:
            body.rivals = max(body.rivals, len(apart) + len(others))
        decisions = decide(self._view(), self.rules, self.now)
        assert len({d.model for d in decisions}) == len(decisions), "two decisions for one lane"
        assert {d.model for d in decisions} >= {b.name for b in apart}, "a lane without a decision"
        gone: set[str] = set()
        for decision in decisions:
            assert split(decision.reason)[0] is not None, f"no reason: {decision}"
            body = self.bodies[decision.model]
            match decision:
                case Grant():
                    self._grant(body, decision)
                case Load():
                    assert not gone & {*decision.victims, body.name}, "a victim of two decisions"
                    gone |= set(decision.victims)
                    self._load(body, decision)
                case Hold():
                    self._hold(decision)
                case Refuse():
                    raise AssertionError(f"all of these can be loaded: {decision}")

    def _expected(self, body: Body) -> bool:
        return body.returning is not None and body.returning.at(self.now) is not None

    def _grant(self, body: Body, grant: Grant) -> None:
        assert body.state is State.READY
        body.returning = body.returning_since = None
        for ticket in grant.tickets:
            del body.tickets[ticket.id]
            lease = next(self._ids)
            body.leases.add(lease)
            self.ended += 1
            self._at(self.now + self._work[ticket.id], "lease", body.name, lease)
        body.turns = grant.turns if body.tickets else Turns()
        assert len(body.leases) <= body.slots
        assert not body.tickets or len(body.leases) == body.slots, "a READY lane waits beside a free slot"

    def _load(self, body: Body, load: Load) -> None:
        assert body.rights or not load.victims, "somebody goes for those who may not have that"
        for name in load.victims:
            victim = self.bodies[name]
            assert victim.state is State.READY, "no victim"
            assert victim.ready_since is not None
            assert self.now >= victim.ready_since + self.rules.min_dwell, "it has not dwelt"
            self.ledger = self.ledger.leave(name)
            victim.state, victim.served_until, self._victim = State.DRAINING, self.now, name
            victim.launch += 1
            self._at(self.now + DRAIN, "drained", name, victim.launch)
        self.ledger = self.ledger.reserve(body.name, load.device_bytes)  # raises when it does not fit
        assert not self.strangers or not any(self.ledger.devices[d].problem for d in load.device_bytes)
        body.called = True
        allowed = bound(self.rules, body.rivals, self.swap) + body.rivals * LATE
        for ticket in body.tickets.values():
            if ticket.id not in self.reached:
                self.reached.add(ticket.id)
                if ticket.evicts:
                    self._waited(ticket.arrived, allowed)
        if body.frozen_since is not None:
            self._waited(body.frozen_since, allowed)
        if any(t.evicts for t in body.tickets.values()) and body.returning_since is not None:
            # From its first coming; but a model that became ready while it was away may stay for its time.
            patience = max(self.rules.max_wait, self.rules.min_dwell)
            self.returned += 1
            # Nor does it count what came before it was there the last time, and it did not come.
            since = max(body.returning_since, body.returned + self.rules.stay - patience, body.served_until or 0.0)
            self._waited(since, allowed)

    def _waited(self, since: float, allowed: float) -> None:
        self.worst = max(self.worst, (self.now - since) / allowed)
        assert self.strangers or self.now - since <= allowed + 1e-6, f"{self.now - since} s, allowed are {allowed} s"

    def _hold(self, hold: Hold) -> None:
        if hold.until is not None:
            assert hold.until > self.now, "a look at once would be a busy loop"
            late = hold.until + self.rng.choice([0.0, LATE * self.rng.random()])
            if not self.now < self._looks.get(hold.model, 0.0) <= hold.until + LATE:
                self._looks[hold.model] = late
                self._at(late, "look", hold.model)

    def _judge(self) -> None:
        waiting = [b.name for b in self.bodies.values() if b.apart and b.rights]
        coming = any(kind not in {"arrive", "again", "expire", "crash"} for _, _, kind, _, _ in self._heap)
        assert coming or not waiting, f"nothing will ever change for {waiting}"
        for device in self.ledger.devices.values():
            assert self.ledger.in_use(device.id) <= device.capacity, "over capacity"
            held = sum(r.device_bytes.get(device.id, 0) for r in self.ledger.reservations.values() if not r.leaving)
            assert held <= device.capacity, "promised twice"
        for body in self.bodies.values():
            live = body.called or body.state not in {State.STOPPED, State.SLEEPING}
            assert (body.name in self.ledger.reservations) == live
            assert not body.leases or body.state in {State.READY, State.DRAINING}, "a lease on what does not serve"

    def _view(self) -> View:
        lanes = [
            Lane(
                b.name, State.STARTING if b.called else b.state, tuple(b.tickets.values()), b.wanted_since,
                b.wish, b.need, b.slots - len(b.leases) if b.state is State.READY else 0,
                max((b.priority, *(t.priority for t in b.tickets.values()))),
                served_until=b.served_until, frozen=len(b.frozen), frozen_since=b.frozen_since, turns=b.turns,
                returning_since=b.returning_since,
            )
            for b in self.bodies.values()
        ]  # fmt: skip
        residents = [
            Resident(
                b.name,
                b.state,
                len(b.leases),
                False,
                b.last_used,
                b.ready_since,
                b.priority,
                frozen=len(b.frozen),
                expected=self._expected(b),
            )
            for b in self.bodies.values()
            if b.state is not State.STOPPED
        ]
        return View(lanes, residents, self.ledger, {b.name: self._belief() for b in self.bodies.values()})

    def _belief(self) -> Expected:
        """Whatever is expected, right or wrong."""
        draw = self.rng.random()
        times = SwapTimes(draw * 60, draw * 3, 1.0, 1.0)
        return Expected(times, draw < 0.5, draw * 9, [0.0, 0.01, 3.0][int(draw * 3)], [0.0, 40.0, 1.0][int(draw * 3)])

    def _at(self, when: float, kind: str, name: str = "", what: int = 0) -> None:
        heapq.heappush(self._heap, (when, next(self._ids), kind, name, what))


def _wish(rng: Random, devices: int) -> DeviceWish:
    """Some have a device of their own choice."""
    if rng.random() < 0.2:
        return DeviceWish(ids=(f"d{rng.randrange(devices)}",))
    return DeviceWish(count=rng.choice([1, 1, 1, min(2, devices)]))
