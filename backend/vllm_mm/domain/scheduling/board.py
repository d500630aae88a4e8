"""What the decisions of one round leave of the memory, and the load or the wait that comes of it for each model. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Ledger, NoPlacement, Placement, Reservation, Resident, place
from vllm_mm.domain.scheduling.hindrance import hindrance
from vllm_mm.domain.scheduling.order import claims_at
from vllm_mm.domain.scheduling.words import Hold, Lane, Load, Refuse, Rules, View
from vllm_mm.domain.scheduling.worth import Demand, demand, may_go_at, missed
from vllm_mm.domain.specs import DeviceWish


class Board:
    """One round."""

    def __init__(
        self, view: View, apart: Sequence[Lane], granted: Mapping[str, int], rules: Rules, now: float,
        lent: Mapping[str, str],
    ) -> None:  # fmt: skip
        """`apart`: the lanes that wait for a load which is not decided yet; `granted`: leases given in this round; `lent`: see
        `order.lent_claims`."""
        self._lent = lent
        self._view = view
        self._rules = rules
        self._now = now
        self._ledger = view.ledger
        self._apart = list(apart)
        self._demands: dict[tuple[str, ...], Demand] = {}
        self._closed: dict[str, tuple[str, float]] = {}
        """Devices that are kept for an overdue model: for which, and when it can have them; infinity where time does not tell."""
        # Who is served in this round is busy; a sleeper that somebody waits for is not idle either: it can be woken at
        # once, and whoever needs its room for good gets it when overdue.
        asked = {lane.model for lane in apart if not lane.kept}
        queued = {n.model: n.waiting.count - granted.get(n.model, 0) for n in view.lanes if n.state is State.READY}
        self._residents = [
            replace(
                r,
                leases=r.leases + granted.get(r.model, 0) + (r.model in asked),
                missed=missed(r, view, self._wanted(r), queued.get(r.model, 0)),
            )
            for r in view.residents
        ]

    def own(self, model: str) -> Reservation | None:
        """What the model itself holds by now."""
        return self._ledger.reservations.get(model)

    def load(self, lane: Lane) -> Load | Hold | Refuse:
        """For a lane whose instance is stopped or sleeps."""
        own = self.own(lane.model)
        out = [
            d for m in (own.device_bytes if own is not None else ()) if (d := self._ledger.devices.get(m)) and d.problem
        ]
        if out:  # frozen requests have no other place to go on; all others can be served elsewhere
            then = "its frozen requests go on when that is over" if lane.frozen else "it has to go first"
            return Hold(lane.model, Reason.DEVICE.because(f"{out[0].why_out}, and it sleeps there; {then}"))
        claims = claims_at(lane, self._rules)
        reach = lane.wish.ids or self._ledger.devices
        if self._closed and all(d in self._closed for d in reach):
            return self._never(lane) or self._behind(lane, claims)
        overdue = claims <= self._now or lane.model in self._lent
        may = lane.may_evict
        going = {r.model: self._may_go_at(r, lane, overdue=overdue) if may else inf for r in self._residents}
        found: Placement | NoPlacement | None = None
        if own is not None and all(size >= lane.per_device for size in own.device_bytes.values()):
            if not any(d in self._closed for d in own.device_bytes):
                return self._take(lane, Placement(own.device_bytes), overdue=overdue)
        elif not self._full(lane) or any(at <= self._now for at in going.values()):
            able = [r for r in self._residents if r.pinned or going[r.model] <= self._now]
            found = self._place(lane, able, self._ledger)
        if isinstance(found, Placement):
            return self._take(lane, found, overdue=overdue)
        if found is not None and found.permanent:
            return Refuse(lane.model, Reason.NEVER.because(found.reason))
        held = self._hold(lane, going, claims)
        if claims <= self._now:  # by its own claim: who lends one waits for nobody that cannot go now
            self._keep(lane, going)
        return held

    def _never(self, lane: Lane) -> Refuse | None:
        """Who can never be there is told so at once, and not that others go first."""
        found = self._place(lane, [r for r in self._residents if r.pinned], self._ledger)
        if isinstance(found, NoPlacement) and found.permanent:
            return Refuse(lane.model, Reason.NEVER.because(found.reason))
        return None

    def _wanted(self, resident: Resident) -> Demand:
        """What waits for loads that could have this resident's memory."""
        held = self._view.ledger.reservations.get(resident.model)
        there = tuple(held.device_bytes) if held is not None else ()
        if there not in self._demands:
            within = [lane for lane in self._apart if not lane.wish.ids or set(lane.wish.ids) & set(there)]
            # Nobody waits for an answer of those that are only kept ready, and for some nobody is told to go.
            rivals = [lane for lane in within if not lane.kept and lane.may_evict]
            self._demands[there] = demand(rivals, self._view)
        return self._demands[there]

    def _may_go_at(self, resident: Resident, lane: Lane, *, overdue: bool) -> float:
        if lane.kept and not overdue and resident.missed:
            return inf  # its clients would have it back at their next request: two swaps for each
        rules = replace(self._rules, quantum=0.0) if lane.urgent else self._rules  # operators do not wait for that
        return may_go_at(resident, self._view, self._wanted(resident), rules, overdue=overdue)

    def _full(self, lane: Lane) -> bool:
        """On the only device there is, which would be big enough, it does not fit beside what is there: no need to search."""
        if len(self._ledger.devices) != 1 or lane.wish.count > 1 or lane.wish.ids:
            return False
        (device,) = self._ledger.devices.values()
        pinned = [self._ledger.reservations[r.model] for r in self._residents if r.pinned and self.own(r.model)]
        kept = sum(r.device_bytes.get(device.id, 0) for r in pinned)
        fits = lane.per_device <= device.capacity - device.headroom - kept
        return fits and self._ledger.free_after_leaving(device.id) < lane.per_device

    def _place(self, lane: Lane, residents: Sequence[Resident], ledger: Ledger) -> Placement | NoPlacement:
        """Without what the model itself holds (a sleeper that needs more); it stays where that is."""
        own = self.own(lane.model)
        wish = lane.wish if own is None else DeviceWish(ids=tuple(own.device_bytes))
        return place(
            ledger.release(lane.model), wish, lane.per_device, residents, self._now,
            min_dwell=0.0, drain_busy=True, closed=self._closed,
            spread=self._rules.spread,
        )  # fmt: skip

    def _keep(self, lane: Lane, going: Mapping[str, float]) -> None:
        """Nobody whose turn comes later takes the devices where an overdue lane will find room first. While time alone does not
        tell (loads are in the way): those where it could go with everything but the pinned gone. None if even that is too
        little (foreign use): it must not keep the others waiting for nothing."""
        for at in sorted({t for t in going.values() if self._now < t < inf}):
            there = self._place(lane, [r for r in self._residents if r.pinned or going[r.model] <= at], self._ledger)
            if isinstance(there, Placement):
                break
        else:
            at = inf
            stay = {r.model for r in self._residents if r.pinned or (r.frozen and r.state is State.SLEEPING)}
            rest = {m: r for m, r in self._ledger.reservations.items() if m in stay or r.let is not None}
            there = self._place(lane, self._residents, Ledger(self._ledger.devices, rest))
        if isinstance(there, Placement):
            self._closed |= dict.fromkeys(there.device_bytes, (lane.model, at))

    def _hold(self, lane: Lane, going: Mapping[str, float], claims: float) -> Hold:
        if self._closed and any(d in self._closed for d in lane.wish.ids or self._ledger.devices):
            return self._behind(lane, claims, *going.values())
        code, sentence = hindrance(lane, self._residents, going, self._ledger, self._now)
        if not lane.may_evict and code is not Reason.DEVICE:
            code, sentence = Reason.RIGHTS, f"nobody may be told to go for those who wait; {sentence}"
        return Hold(lane.model, code.because(sentence), self._soonest(claims, *going.values()))

    def _behind(self, lane: Lane, *times: float) -> Hold:
        first = ", ".join(dict.fromkeys(model for model, _ in self._closed.values()))
        until = self._soonest(*times, *(at for _, at in self._closed.values()))
        return Hold(lane.model, Reason.ORDER.because(f"{first} goes first and needs the room"), until)

    def _soonest(self, *times: float) -> float | None:
        """The first of them that is not past: time has no other news."""
        return min((t for t in times if self._now < t < inf), default=None)

    def _take(self, lane: Lane, found: Placement, *, overdue: bool) -> Load:
        self._ledger = self._ledger.promise(lane.model, found.device_bytes, found.victims)
        reason = self._why(lane, found, overdue=overdue)
        gone = {lane.model, *found.victims}
        self._residents = [r for r in self._residents if r.model not in gone]
        self._apart = [other for other in self._apart if other.model != lane.model]
        self._demands.clear()
        return Load(lane.model, dict(found.device_bytes), found.victims, reason, overdue)

    def _why(self, lane: Lane, found: Placement, *, overdue: bool) -> str:
        if not found.victims:
            where = ", ".join(found.device_bytes)
            if lane.state is not State.SLEEPING:
                return Reason.FITS.because(f"there is room for it on {where}")
            code = Reason.THAW if lane.frozen else Reason.WAKE
            return code.because(f"it sleeps on {where}, and nobody has to go for it")
        evicts = f"evicts {', '.join(found.victims)}"
        if overdue:
            if lender := self._lent.get(lane.model):
                evicts += f", before {lender}, which has waited too long and has a lower priority"
            return (Reason.OPERATOR if lane.urgent else Reason.MAX_WAIT).because(evicts)
        regret = sum(r.missed for r in self._residents if r.model in found.victims)
        return (Reason.PAYS if regret else Reason.IDLE).because(evicts)
