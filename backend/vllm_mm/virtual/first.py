"""The policy that the server had first, to compare with: the oldest waiter first, collated by model, a victim once it has dwelt
and is idle, and a bound on how long anybody is passed over. It knows no costs."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger, NoPlacement, Placement, Reservation, place
from vllm_mm.domain.scheduling import Decision, Grant, Hold, Lane, Load, Refuse, Rules, View, foregone, serve
from vllm_mm.domain.specs import DeviceWish


def first(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """Grants first, then the other lanes by the age of their oldest waiter, or by the moment when they were last served if that
    is later. A lane whose oldest waiter is `max_wait` old takes its room from busy models too, and no younger lane may take
    that room first."""
    waiting = [lane for lane in view.lanes if lane.oldest is not None]
    ready = [serve(lane) for lane in waiting if lane.state is State.READY and lane.tickets]
    granted = {d.model: len(d.tickets) for d in ready if isinstance(d, Grant)}
    board = _Board(view, rules, now, granted)
    others = sorted((lane for lane in waiting if lane.state is not State.READY), key=board.turn)
    return (*ready, *(board.decide(lane) for lane in others))


class _Board:
    """What the decisions of one round have changed so far."""

    def __init__(self, view: View, rules: Rules, now: float, granted: Mapping[str, int]) -> None:
        self._rules = rules
        self._now = now
        self._ledger = view.ledger
        # Who is served in this round is busy; a sleeper that somebody waits for is not idle either: it can be woken at
        # once, and whoever needs its room for good gets it at the aging bound.
        wanted = {lane.model for lane in view.lanes if lane.oldest is not None and lane.state is State.SLEEPING}
        self._residents = [
            replace(r, leases=r.leases + granted.get(r.model, 0) + (r.model in wanted)) for r in view.residents
        ]
        self._closed: dict[str, tuple[str, float | None]] = {}
        """Devices kept for an overdue lane: its model, and when it can have them."""

    def turn(self, lane: Lane) -> tuple[float, int, str]:
        """Sort key: who is looked at first."""
        since = self._overdue_at(lane)
        if lane.served_until is not None:
            since = max(since, lane.served_until + self._rules.max_wait)
        return since, -lane.priority, lane.model

    def decide(self, lane: Lane) -> Decision:
        own = self._ledger.reservations.get(lane.model)
        if (decided := foregone(lane, own)) is not None:
            return decided
        return self._load(lane, lane.wish) if own is None else self._wake(lane, own)

    def _wake(self, lane: Lane, own: Reservation) -> Decision:
        blocked = [self._closed[d] for d in own.device_bytes if d in self._closed]
        if blocked:
            return self._behind(lane, blocked)
        if all(size >= lane.per_device for size in own.device_bytes.values()):
            # It is no victim for anybody from now on.
            self._residents = [r for r in self._residents if r.model != lane.model]
            return Load(lane.model, dict(own.device_bytes), (), "wake")
        return self._load(lane, DeviceWish(ids=tuple(own.device_bytes)))

    def _load(self, lane: Lane, wish: DeviceWish) -> Decision:
        overdue_at = self._overdue_at(lane)
        overdue = overdue_at <= self._now
        found = self._place(lane, wish, drain_busy=overdue, closed=self._closed)
        if isinstance(found, Placement):
            return self._take(lane, found, overdue=overdue)
        if found.permanent:
            return Refuse(lane.model, found.reason)
        if self._closed and isinstance(self._place(lane, wish, drain_busy=overdue), Placement):
            return self._behind(lane, list(self._closed.values()))
        if overdue:
            self._keep(lane, wish, found.until)
        return Hold(lane.model, f"room: {found.reason}", self._soonest(overdue_at, found.until))

    def _take(self, lane: Lane, found: Placement, *, overdue: bool) -> Load:
        ledger = self._ledger
        for victim in found.victims:
            ledger = ledger.leave(victim)
        change = ledger.grow if lane.model in ledger.reservations else ledger.reserve
        self._ledger = change(lane.model, found.device_bytes)
        if not found.victims:
            reason = "fits"
        else:
            why = "idle" if not overdue else "operator" if lane.urgent else "max_wait"
            reason = f"{why}: evicts {', '.join(found.victims)}"
        return Load(lane.model, dict(found.device_bytes), found.victims, reason)

    def _keep(self, lane: Lane, wish: DeviceWish, until: float | None) -> None:
        """Nobody younger takes the devices where an overdue lane will find room first. While that is not known (loads
        are in the way): those where it could go with everything but the pinned gone. None if even that is too little
        (foreign use): it must not keep the others waiting for nothing."""
        if until is not None:
            there = self._place(lane, wish, drain_busy=True, closed=self._closed, at=until)
        else:
            pinned = {r.model for r in self._residents if r.pinned}
            rest = {m: r for m, r in self._ledger.reservations.items() if m in pinned}
            there = self._place(
                lane, wish, drain_busy=True, closed=self._closed, ledger=Ledger(self._ledger.devices, rest)
            )
        if isinstance(there, Placement):
            for device in there.device_bytes:
                self._closed[device] = (lane.model, until)

    def _behind(self, lane: Lane, blocked: Sequence[tuple[str, float | None]]) -> Hold:
        models = ", ".join(dict.fromkeys(model for model, _ in blocked))
        until = self._soonest(self._overdue_at(lane), *(u for _, u in blocked))
        return Hold(lane.model, f"order: {models} waits longer and needs the room", until)

    def _soonest(self, *times: float | None) -> float | None:
        """The first of them that is not past: time has no other news."""
        return min((t for t in times if t is not None and self._now < t < inf), default=None)

    def _place(
        self,
        lane: Lane,
        wish: DeviceWish,
        *,
        drain_busy: bool,
        closed: Container[str] = (),
        at: float | None = None,
        ledger: Ledger | None = None,
    ) -> Placement | NoPlacement:
        """As things stand, without what the model itself holds (a sleeper that needs more)."""
        return place(
            (ledger or self._ledger).release(lane.model), wish, lane.per_device, self._residents,
            self._now if at is None else at,
            min_dwell=self._rules.min_dwell, drain_busy=drain_busy, closed=closed,
        )  # fmt: skip

    def _overdue_at(self, lane: Lane) -> float:
        at = lane.overdue_at(self._rules.max_wait)
        return inf if at is None else at
