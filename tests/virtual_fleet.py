"""A fleet in virtual time around `decide`, `place` and the ledger: arrivals, loads, drains and leases as events in a heap.

It does what the ProcessManager does with decisions, and nothing cleverer, and checks after every step what must always
hold. Times are seconds; one unit of memory is a byte.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device, Ledger, NoPlacement, Placement, Resident, place
from vllm_mm.domain.scheduling import Grant, Hold, Lane, Load, Refuse, Rules, Ticket, View, decide
from vllm_mm.domain.specs import DeviceWish

DRAIN = 10.0
"""Leases that are left after a drain of this long are cut."""
REAP = 1.0
"""From the stop to the memory seen free."""


@dataclass(frozen=True)
class Model:
    name: str
    need: int
    load: float = 3.0
    devices: int = 1
    slots: int = 4
    pinned: bool = False
    priority: int = 0


@dataclass(frozen=True)
class Arrival:
    at: float
    model: str
    work: float = 0.5
    priority: int = 0


@dataclass
class Body:
    """An instance as the manager sees it."""

    model: Model
    state: State = State.STOPPED
    tickets: list[Ticket] = field(default_factory=list[Ticket])
    wanted_since: float | None = None
    leases: set[int] = field(default_factory=set[int])
    last_used: float = 0.0
    ready_since: float | None = None
    served_until: float | None = None
    launch: int = 0


class Fleet:
    def __init__(self, capacities: Sequence[int], models: Sequence[Model], rules: Rules) -> None:
        self.rules = rules
        self.now = 0.0
        self.ledger = Ledger({f"d{i}": Device(f"d{i}", c) for i, c in enumerate(capacities)})
        self.bodies = {m.name: Body(m) for m in models}
        self.work: dict[str, float] = {}
        self.loads: list[str] = []
        self.loaded_at: list[float] = []
        """When each of `loads` was decided."""
        self.served: list[str] = []
        self.refused: list[str] = []
        self.waited: dict[str, float] = {}
        """By ticket: seconds until its model was ready or on its way."""
        self.called: set[str] = set()
        """Loads that were decided and wait for their memory."""
        self._open: dict[str, Ticket] = {}
        self._looks: set[float] = set()
        self._heap: list[tuple[float, int, str, tuple[str, int]]] = []
        self._ids = count()
        for body in self.bodies.values():
            if body.model.pinned:
                self._adopt(body)
        self.permanent = {b.model.name for b in self.bodies.values() if self._never(b)}

    # The script of a run.

    def arrive(self, arrivals: Sequence[Arrival]) -> None:
        for number, arrival in enumerate(arrivals):
            ticket = f"t{number}"
            self.work[ticket] = arrival.work
            self._at(arrival.at, f"arrive {arrival.priority}", (arrival.model + "/" + ticket, 0))

    def order(self, at: float, model: str) -> None:
        """An operator starts a model."""
        self._at(at, "order", (model, 0))

    def nap(self, at: float, model: str, share: int) -> None:
        """The idle policy puts it to sleep if it is idle then; asleep it holds 1/`share` of its memory."""
        self._at(at, "nap", (model, share))

    def run(self, steps: int = 20_000) -> None:
        for _ in range(steps):
            if not self._heap:
                break
            self.now, _, kind, (name, number) = heapq.heappop(self._heap)
            self._event(kind, name, number)
            self._round()
        else:
            raise AssertionError("it never comes to rest")
        assert not self._open, f"never served: {sorted(self._open)}"
        assert not any(b.tickets or b.leases for b in self.bodies.values())

    # What happens.

    def _event(self, kind: str, name: str, number: int) -> None:
        if kind.startswith("arrive"):
            model, ticket_id = name.split("/")
            ticket = Ticket(ticket_id, model, self.now, 1e9, priority=int(kind.split()[1]))
            self.bodies[model].tickets.append(ticket)
            self._open[ticket_id] = ticket
            if model in self.called or self.bodies[model].state in {State.STARTING, State.WAKING, State.READY}:
                self._reached(ticket)
            return
        if kind == "look":
            return
        body = self.bodies[name]
        match kind:
            case "order":
                body.wanted_since = self.now if body.state is not State.READY else None
            case "nap":
                if body.state is State.READY and not body.leases and not body.tickets and not body.model.pinned:
                    body.state, body.ready_since, body.served_until = State.SLEEPING, None, self.now
                    held = self.ledger.reservations[name].device_bytes
                    self.ledger = self.ledger.resize(name, {d: max(1, n // number) for d, n in held.items()})
            case "ready" if body.launch == number:
                body.state, body.ready_since, body.last_used = State.READY, self.now, self.now
                body.wanted_since = body.served_until = None
            case "lease ends" if number in body.leases:
                body.leases.discard(number)
                body.last_used = self.now
            case "drain over" if body.launch == number and body.state is State.DRAINING:
                body.leases.clear()
            case "reaped":
                body.state = State.STOPPED
                self.ledger = self.ledger.release(name)
            case _:
                pass

    def _round(self) -> None:
        self._move_on()
        decisions = decide(self._view(), self.rules, self.now)
        assert len({d.model for d in decisions}) == len(decisions), "two decisions for one lane"
        gone: set[str] = set()
        for decision in decisions:
            body = self.bodies[decision.model]
            match decision:
                case Grant():
                    self._grant(body, decision.tickets)
                case Load():
                    assert not gone & {*decision.victims, decision.model}, "a victim of two decisions"
                    gone |= set(decision.victims)
                    self._load(body, decision)
                case Refuse():
                    assert decision.model in self.permanent
                    assert decision.reason
                    self.refused += [self._open.pop(t.id).id for t in body.tickets]
                    body.tickets, body.wanted_since = [], None
                case Hold():
                    assert decision.model not in self.permanent
                    assert decision.reason
                    if decision.until is not None:
                        assert decision.until > self.now, "a look at once would be a busy loop"
                        if decision.until not in self._looks:
                            self._looks.add(decision.until)
                            self._at(decision.until, "look", ("", 0))
        for body in self.bodies.values():
            if body.state is State.READY and body.tickets:
                assert len(body.leases) == body.model.slots, "a READY lane waits"
        self._move_on()
        self._check()

    def _grant(self, body: Body, tickets: Sequence[Ticket]) -> None:
        assert body.state is State.READY
        for ticket in tickets:
            body.tickets.remove(ticket)
            lease = next(self._ids)
            body.leases.add(lease)
            self.served.append(body.model.name)
            self._reached(ticket)
            del self._open[ticket.id]
            self._at(self.now + self.work[ticket.id], "lease ends", (body.model.name, lease))
        assert len(body.leases) <= body.model.slots

    def _load(self, body: Body, load: Load) -> None:
        for victim in load.victims:
            self._evict(self.bodies[victim])
        name = body.model.name
        change = self.ledger.grow if name in self.ledger.reservations else self.ledger.reserve
        self.ledger = change(name, load.device_bytes)
        body.launch += 1
        self.called.add(name)
        self.loads.append(name)
        self.loaded_at.append(self.now)
        for ticket in body.tickets:
            self._reached(ticket)

    def _evict(self, body: Body) -> None:
        assert not body.model.pinned, "a pinned victim"
        assert body.state in {State.READY, State.SLEEPING}
        self.ledger = self.ledger.leave(body.model.name)
        if body.state is State.READY:
            assert body.ready_since is not None
            assert self.now >= body.ready_since + self.rules.min_dwell
            body.served_until = self.now
            body.state = State.DRAINING
            self._at(self.now + DRAIN, "drain over", (body.model.name, body.launch))
        else:
            self._stop(body)

    def _stop(self, body: Body) -> None:
        body.state, body.ready_since = State.STOPPING, None
        self._at(self.now + REAP, "reaped", (body.model.name, body.launch))

    def _move_on(self) -> None:
        """What follows without a decision: drained instances stop, loads begin when their memory is there."""
        for body in self.bodies.values():
            if body.state is State.DRAINING and not body.leases:
                self._stop(body)
        for name in sorted(self.called):
            if self.ledger.fits_now(name):
                body = self.bodies[name]
                self.called.discard(name)
                self.ledger = self.ledger.begin(name)
                body.state = State.STARTING if body.state is State.STOPPED else State.WAKING
                self._at(self.now + body.model.load, "ready", (name, body.launch))

    def _check(self) -> None:
        for device in self.ledger.devices.values():
            assert self.ledger.in_use(device.id) <= device.usable, "over capacity"
            assert self.ledger.free_after_leaving(device.id) >= 0
        for name, body in self.bodies.items():
            assert (name in self.ledger.reservations) == (body.state is not State.STOPPED or name in self.called)
            assert not body.leases or body.state in {State.READY, State.DRAINING}

    # What the decisions see.

    def _view(self) -> View:
        lanes = [
            Lane(
                name, b.state, tuple(b.tickets), b.wanted_since, DeviceWish(count=b.model.devices), b.model.need,
                b.model.slots - len(b.leases) if b.state is State.READY else 0,
                b.model.priority, urgent=b.wanted_since is not None, served_until=b.served_until,
            )
            for name, b in self.bodies.items()
        ]  # fmt: skip
        return View(lanes, self._residents(), self.ledger)

    def _residents(self) -> list[Resident]:
        return [
            Resident(name, b.state, len(b.leases), b.model.pinned, b.last_used, b.ready_since, b.model.priority)
            for name, b in self.bodies.items()
            if b.state is not State.STOPPED
        ]

    def _place(self, body: Body) -> Placement | NoPlacement:
        return place(
            self.ledger, DeviceWish(count=body.model.devices), body.model.need, self._residents(), self.now,
            min_dwell=0.0, drain_busy=True,
        )  # fmt: skip

    def _adopt(self, body: Body) -> None:
        """A pinned model is there from the start, if it fits."""
        found = self._place(body)
        if isinstance(found, Placement):
            self.ledger = self.ledger.adopt(body.model.name, found.device_bytes)
            body.state, body.ready_since = State.READY, 0.0

    def _never(self, body: Body) -> bool:
        found = self._place(body)
        return body.state is State.STOPPED and isinstance(found, NoPlacement) and found.permanent

    def _reached(self, ticket: Ticket) -> None:
        self.waited.setdefault(ticket.id, self.now - ticket.arrived)

    def _at(self, when: float, kind: str, subject: tuple[str, int]) -> None:
        heapq.heappush(self._heap, (when, next(self._ids), kind, subject))
