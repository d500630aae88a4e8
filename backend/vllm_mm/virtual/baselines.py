"""Simpler policies to compare with, behind the signature of `domain.scheduling.decide`. They have no bounds to keep."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger, Placement, Resident, place
from vllm_mm.domain.scheduling import Decision, Grant, Hold, Lane, Load, Refuse, Rules, Ticket, View, foregone
from vllm_mm.domain.specs import DeviceWish


def fifo(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """Strictly in order of arrival over all models: the first who waits has its model loaded, whatever that evicts,
    and nobody overtakes, not even for a model that is ready."""
    _ = rules
    lanes = {lane.model: lane for lane in view.lanes if lane.oldest is not None}
    slots = {model: lane.free_slots for model, lane in lanes.items()}
    granted: dict[str, list[Ticket]] = {}
    head: Lane | None = min((n for n in lanes.values() if n.frozen), key=_since, default=None)
    until = head.frozen_since if head is not None and head.frozen_since is not None else inf
    for ticket in _in_order(view):
        if ticket.arrived > until:
            break
        lane = lanes[ticket.model]
        if lane.state is not State.READY or slots[ticket.model] <= 0:
            head = lane
            break
        slots[ticket.model] -= 1
        granted.setdefault(ticket.model, []).append(ticket)
    decisions: list[Decision] = [Grant(model, tuple(tickets)) for model, tickets in granted.items()]
    if head is not None and head.model not in granted:
        if head.state is State.READY:
            decisions.append(Hold(head.model, "slots: all leases that it may give are out"))
        else:
            board = _Board(view, {model: len(tickets) for model, tickets in granted.items()}, now)
            decisions.append(board.load(head))
    told = {d.model for d in decisions}
    first = head.model if head is not None else ""
    return (*decisions, *(Hold(m, f"order: {first} was asked for first") for m in lanes if m not in told))


def arrival(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """What proxies do that swap models: every request that comes for a model which is not there has it loaded, in the order
    of arrival and without collecting others; the least recently used goes, idle ones first, once it has finished. Only a
    request for a model that is ready, and for which nobody waits, is served at once."""
    return fifo(view, rules, now)


def lru(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """A request for a model that is not resident has it loaded at once: the least recently used goes, idle ones first;
    it finishes what it does, and takes nothing new."""
    _ = rules
    waiting = [lane for lane in view.lanes if lane.oldest is not None]
    decisions: list[Decision] = []
    busy: dict[str, int] = {}
    for lane in waiting:
        if lane.state is State.READY and lane.tickets:
            if lane.free_slots > 0:
                busy[lane.model] = min(lane.free_slots, len(lane.tickets))
                decisions.append(Grant(lane.model, lane.tickets[: lane.free_slots]))
            else:
                decisions.append(Hold(lane.model, "slots: all leases that it may give are out"))
    board = _Board(view, busy, now)
    others = sorted((lane for lane in waiting if lane.state is not State.READY), key=lambda n: (_since(n), n.model))
    return (*decisions, *(board.load(lane) for lane in others))


def _since(lane: Lane) -> float:
    return lane.oldest or 0.0


def _in_order(view: View) -> Iterator[Ticket]:
    return heapq.merge(*(lane.tickets for lane in view.lanes), key=lambda t: t.arrived)


class _Board:
    """What the decisions of one round leave of the memory."""

    def __init__(self, view: View, busy: Mapping[str, int], now: float) -> None:
        self._ledger = view.ledger
        self._residents: list[Resident] = [
            replace(r, leases=r.leases + busy[r.model]) if r.model in busy else r for r in view.residents
        ]
        self._now = now

    def load(self, lane: Lane) -> Decision:
        own = self._ledger.reservations.get(lane.model)
        if (decided := foregone(lane, own)) is not None:
            return decided
        wish = lane.wish if own is None else DeviceWish(ids=tuple(own.device_bytes))
        found = place(
            self._ledger.release(lane.model), wish, lane.per_device, self._residents, self._now,
            min_dwell=0.0, drain_busy=True,
        )  # fmt: skip
        if isinstance(found, Placement):
            return self._take(lane, found)
        return Refuse(lane.model, found.reason) if found.permanent else Hold(lane.model, f"room: {found.reason}")

    def _take(self, lane: Lane, found: Placement) -> Load:
        ledger: Ledger = self._ledger
        for victim in found.victims:
            ledger = ledger.leave(victim)
        change = ledger.grow if lane.model in ledger.reservations else ledger.reserve
        self._ledger = change(lane.model, found.device_bytes)
        # A sleeper that is waking, or one just granted, is nobody's victim in this round any more.
        self._residents = [r for r in self._residents if r.model != lane.model]
        why = f"idle: evicts {', '.join(found.victims)}" if found.victims else "fits"
        return Load(lane.model, dict(found.device_bytes), found.victims, why)
