"""A candidate for the server's policy, with the signature of `domain.scheduling.decide`: it weighs what a swap costs.

- *Whose turn?* The lane with the most waiting per second of its swap: the sum of its waits as they will be when it is ready.
  With that measure a model that is asked for p times as often is visited about sqrt(p) times as often, which makes the mean
  wait least; and a lone old waiter gains on the many.
- *When?* As soon as at least as many wait as, over time, wait for the resident itself (its rate x the mean wait of its
  requests: Little's law). While fewer wait, staying costs less than leaving does in the long run. When little comes this
  number is small, and the first who waits has his swap at once.
- *From whom?* From residents without requests; a busy one is not told to drain before somebody is overdue, because waiting for
  a moment without requests costs about the same as the drain, and its own clients are served meanwhile. Among them, whoever
  would be missed least: rate x absence^2 / 2.

The bound stays: at `max_wait` a lane takes its room whatever that costs, and nobody who was served or came since then goes before it.
A resident may use up its quantum first: `QUANTUM` seconds since it became ready, or the minimum dwell where that is longer.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger, NoPlacement, Placement, Resident, place
from vllm_mm.domain.scheduling import Decision, Grant, Hold, Lane, Load, Refuse, Rules, View, foregone
from vllm_mm.domain.specs import DeviceWish
from vllm_mm.virtual.outlook import Backlog, Outlook

QUANTUM = 10.0
"""Seconds for which a resident may go on although somebody is overdue, in the hope of a moment without requests."""
_ON_THE_WAY = frozenset({State.STARTING, State.WAKING})


def candidate(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """As `domain.scheduling.decide`. Without an `Outlook` it expects swaps of `max_wait` and no return."""
    outlook = view if isinstance(view, Outlook) else _blind(view, rules)
    waiting = [lane for lane in view.lanes if lane.oldest is not None]
    ready: list[Decision] = []
    busy: dict[str, int] = {}
    for lane in waiting:
        if lane.state is not State.READY or not lane.tickets:
            continue
        if lane.free_slots <= 0:
            ready.append(Hold(lane.model, "slots: all leases that it may give are out"))
            continue
        queue = sorted(lane.tickets, key=lambda t: (-t.priority, t.arrived))[: lane.free_slots]
        busy[lane.model] = len(queue)
        ready.append(Grant(lane.model, tuple(queue)))
    others = [lane for lane in waiting if lane.state is not State.READY]
    board = _Board(outlook, others, busy, rules, now)
    return (*ready, *(board.decide(lane) for lane in sorted(others, key=board.turn)))


def _blind(view: View, rules: Rules) -> Outlook:
    swap = dict.fromkeys([lane.model for lane in view.lanes] + [r.model for r in view.residents], rules.max_wait)
    waiting = {n.model: Backlog(len(n.tickets), sum(t.arrived for t in n.tickets)) for n in view.lanes if n.tickets}
    return Outlook(view.lanes, view.residents, view.ledger, swap, swap, {}, {}, {}, waiting)


class _Board:
    """What the decisions of one round have changed so far."""

    def __init__(
        self, outlook: Outlook, others: Sequence[Lane], busy: dict[str, int], rules: Rules, now: float
    ) -> None:
        self._outlook = outlook
        self._rules = rules
        self._now = now
        self._ledger = outlook.ledger
        self._others = [lane for lane in others if lane.state not in _ON_THE_WAY]
        wanted = {lane.model for lane in others}
        self._residents = [
            replace(r, leases=r.leases + busy.get(r.model, 0) + (r.model in wanted), last_used=self._missed(r.model))
            for r in outlook.residents
        ]
        """As `place` wants them; it evicts those with the least `last_used` first, which is how much they would be missed."""
        self._closed: set[str] = set()
        backlogs = [b for lane in self._others if (b := outlook.waiting.get(lane.model)) is not None]
        self._backlog = Backlog(sum(b.count for b in backlogs), sum(b.arrived for b in backlogs))

    def turn(self, lane: Lane) -> tuple[bool, float, float, str]:
        """Who is looked at first. Before an overdue lane goes only who waited already when it became overdue, and that once:
        whoever was served or came since then comes after it."""
        since = max(lane.served_until if lane.served_until is not None else -inf, lane.oldest or -inf)
        after = any(self._overdue_at(other) <= min(self._now, since) for other in self._others if other is not lane)
        return after, -float(lane.priority), self._overdue_at(lane) if after else -self._index(lane), lane.model

    def _index(self, lane: Lane) -> float:
        if lane.urgent:
            return inf
        backlog = self._outlook.waiting.get(lane.model, Backlog(1, lane.oldest or self._now))
        swap = max(self._outlook.swap[lane.model], 0.1)
        return backlog.waited(self._now + swap) / swap

    def _away(self, model: str) -> float:
        """Seconds until it would be back if it went now: those who wait come first."""
        return self._outlook.back.get(model, 0.0) + sum(
            self._outlook.swap[lane.model] + self._outlook.work.get(lane.model, 0.0) for lane in self._others
        )

    def _missed(self, model: str) -> float:
        """Seconds that its clients will wait together if it goes now."""
        return self._outlook.rates.get(model, 0.0) * self._away(model) ** 2 / 2

    def decide(self, lane: Lane) -> Decision:
        own = self._ledger.reservations.get(lane.model)
        if (decided := foregone(lane, own)) is not None:
            return decided
        return self._load(lane, lane.wish if own is None else DeviceWish(ids=tuple(own.device_bytes)))

    def _load(self, lane: Lane, wish: DeviceWish) -> Decision:
        overdue = self._overdue_at(lane) <= self._now
        may_go = [(r, self._goes_at(r, overdue=overdue)) for r in self._residents]
        if self._hopeless(lane, wish) and all(at > self._now for _, at in may_go):
            if overdue:
                self._closed |= set(self._ledger.devices)
            return self._hold(lane, may_go, "nobody may go yet")
        found = self._place(lane, wish, [r for r, at in may_go if r.pinned or at <= self._now])
        if isinstance(found, Placement):
            return self._take(lane, found, overdue=overdue)
        if found.permanent:
            return Refuse(lane.model, found.reason)
        if overdue:
            self._keep(lane, wish)
        return self._hold(lane, may_go, found.reason)

    def _hold(self, lane: Lane, may_go: Sequence[tuple[Resident, float]], why: str) -> Hold:
        times = [*(at for _, at in may_go), self._overdue_at(lane)]
        until = min((t for t in times if self._now < t < inf), default=None)
        return Hold(lane.model, f"room: a swap does not pay yet, or cannot be; {why}", until)

    def _hopeless(self, lane: Lane, wish: DeviceWish) -> bool:
        """On the only device there is, which would be big enough, it does not fit beside what is there: no need to search."""
        if len(self._ledger.devices) != 1 or wish.count > 1 or wish.ids:
            return False
        (device,) = self._ledger.devices.values()
        pinned = {r.model for r in self._residents if r.pinned}
        kept = sum(
            self._ledger.reservations[m].device_bytes.get(device.id, 0) for m in pinned & set(self._ledger.reservations)
        )
        fits = lane.per_device <= device.capacity - device.headroom - kept
        return fits and self._ledger.free_after_leaving(device.id) < lane.per_device

    def _goes_at(self, resident: Resident, *, overdue: bool) -> float:
        """From when on it may be a victim; infinity when time alone does not bring that."""
        if resident.pinned or resident.state not in {State.READY, State.SLEEPING}:
            return inf
        since = resident.ready_since if resident.ready_since is not None else -inf
        dwelt = since + self._rules.min_dwell
        if self._pays(resident):
            return dwelt
        return max(dwelt, since + QUANTUM) if overdue else inf

    def _pays(self, resident: Resident) -> bool:
        model, waiting = resident.model, self._backlog.count
        own = self._outlook.rates.get(model, 0.0) * self._outlook.waits.get(model, 0.0)
        return not resident.leases and waiting >= own

    def _place(
        self, lane: Lane, wish: DeviceWish, residents: Sequence[Resident], ledger: Ledger | None = None
    ) -> Placement | NoPlacement:
        return place(
            (ledger or self._ledger).release(lane.model), wish, lane.per_device, residents, self._now,
            min_dwell=self._rules.min_dwell, drain_busy=True, closed=self._closed,
        )  # fmt: skip

    def _keep(self, lane: Lane, wish: DeviceWish) -> None:
        """Nobody takes the devices from an overdue lane that it could have with everything but the pinned gone."""
        pinned = {r.model for r in self._residents if r.pinned}
        rest = {m: r for m, r in self._ledger.reservations.items() if m in pinned}
        there = self._place(lane, wish, self._residents, Ledger(self._ledger.devices, rest))
        if isinstance(there, Placement):
            self._closed |= set(there.device_bytes)

    def _take(self, lane: Lane, found: Placement, *, overdue: bool) -> Load:
        ledger = self._ledger
        for victim in found.victims:
            ledger = ledger.leave(victim)
        change = ledger.grow if lane.model in ledger.reservations else ledger.reserve
        self._ledger = change(lane.model, found.device_bytes)
        self._residents = [r for r in self._residents if r.model != lane.model]
        reason = "wake" if lane.state is State.SLEEPING else "fits"
        if found.victims:
            why = "operator" if lane.urgent else "max_wait" if overdue else "pays"
            reason = f"{why}: evicts {', '.join(found.victims)}"
        return Load(lane.model, dict(found.device_bytes), found.victims, reason)

    def _overdue_at(self, lane: Lane) -> float:
        at = lane.overdue_at(self._rules.max_wait)
        return inf if at is None else at
