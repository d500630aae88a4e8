"""Where a load would go, and who would have to go for it to fit. Pure. The memory itself is in `domain.ledger`, whose words
can be had from here too."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import comb, inf

from vllm_mm.domain.ledger import Device, Ledger, Reservation, gib
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import DeviceWish

__all__ = ["Device", "Ledger", "NoPlacement", "Placement", "Reservation", "Resident", "gib", "lent", "place"]


@dataclass(frozen=True, slots=True)
class Resident:
    """What victim choice needs to know of an instance that holds memory."""

    model: str
    state: State
    leases: int
    pinned: bool
    last_used: float
    """When its last lease ended, or when it became ready."""
    ready_since: float | None
    priority: int = 0
    frozen: int = 0
    """Requests that are frozen in it while it sleeps: it is never stopped for room, because they would be lost."""
    missed: float = 0.0
    """What its going is expected to cost, in seconds that its clients will wait."""
    kept: bool = False
    """It is in one of its times of the week and would come back: others go before it."""
    expected: bool = False
    """Somebody was told to come again before it was loaded, may still come, and nobody was served since."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a load would go and who would go for it; `victims` in the order of eviction."""

    device_bytes: Mapping[str, int]
    victims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """Why not. `permanent`: not even with every victim gone. `until`: when a look could change the answer."""

    reason: str
    permanent: bool = False
    until: float | None = None
    out: tuple[str, ...] = ()
    """Devices that would do if they were not out of use (`Device.problem`), where no other would."""
    advice: str = ""
    """What an operator could do, where that is known: the end of `reason`."""


def place(
    ledger: Ledger,
    wish: DeviceWish,
    per_device: int,
    residents: Sequence[Resident],
    now: float,
    *,
    min_dwell: float,
    drain_busy: bool,
    closed: Container[str] = frozenset(),
    spread: bool = False,
) -> Placement | NoPlacement:
    """Find devices for `wish.count` x `per_device` bytes, evicting as few as possible, least recently used first.

    Explicit ids are all used, each with `per_device` bytes; otherwise `count` distinct devices of one kind. Without
    victims the tightest fit wins (with `spread` the widest: small models share no device while there is another), and one
    that need not wait for leavers before one that must. With victims: the fewest busy ones, then the fewest at all, then
    not in a time of the week, sleeping before ready, lower priority, less missed and longer unused first; none of them could be
    left out. Exact while the search is small, greedy beyond.

    Pinned instances are never victims, nor are sleepers with frozen requests; instances with leases only when `drain_busy`
    (the aging bound was reached, or an operator asked); nobody within `min_dwell` seconds of becoming ready. Loading, draining
    and stopping instances are not victims (a leaver's memory is already counted on). `closed` devices are kept for somebody
    else. Devices with a problem are not used, not even when they were asked for: that is told, and is not permanent.
    """
    pools = _pools(ledger, wish, per_device, residents)
    if isinstance(pools, NoPlacement):
        return pools
    search = _Search(
        pools=[[d for d in p if d not in closed] for p in pools],
        count=len(_ids(wish)) or wish.count,
        need=per_device,
        room={d: ledger.free_after_leaving(d) for p in pools for d in p},
        waits={d: ledger.free(d) < per_device for p in pools for d in p},
        spread=spread,
    )
    if (devices := search.best_fit(())) is not None:
        return Placement(dict.fromkeys(devices, per_device))
    candidates = [c for r in residents if (c := _candidate(ledger, r, min_dwell)) and (drain_busy or not c.busy)]
    victims = search.cheapest([c for c in candidates if c.free_at <= now])
    if victims is None:
        times = sorted({c.free_at for c in candidates if c.free_at > now})
        until = next((t for t in times if search.fits([c for c in candidates if c.free_at <= t])), None)
        return NoPlacement(_why_not(ledger, wish, pools, residents, now, per_device, min_dwell, closed), until=until)
    devices = search.best_fit(victims) or ()
    return Placement(dict.fromkeys(devices, per_device), tuple(c.model for c in victims))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A possible victim."""

    model: str
    device_bytes: Mapping[str, int]
    busy: bool
    kept: bool
    awake: bool
    priority: int
    missed: float
    last_used: float
    free_at: float
    """When it will have dwelt long enough."""

    @property
    def worth(self) -> tuple[bool, bool, bool, int, float, float, str]:
        """Ascending in the order of eviction."""
        return (self.busy, self.kept, self.awake, self.priority, self.missed, self.last_used, self.model)


def _candidate(ledger: Ledger, resident: Resident, min_dwell: float) -> _Candidate | None:
    held = ledger.reservations.get(resident.model)
    if held is None or held.leaving or resident.pinned or resident.state not in {State.READY, State.SLEEPING}:
        return None
    if resident.frozen and resident.state is State.SLEEPING:
        return None
    if not held.begun:  # a sleeper that was promised the room to wake
        return None
    awake = resident.state is State.READY
    since = resident.ready_since if awake and resident.ready_since is not None else -inf
    return _Candidate(
        resident.model, held.device_bytes, resident.leases > 0, resident.kept, awake,
        resident.priority, resident.missed, resident.last_used, since + min_dwell,
    )  # fmt: skip


def _ids(wish: DeviceWish) -> tuple[str, ...]:
    return tuple(dict.fromkeys(wish.ids))


def _pools(
    ledger: Ledger, wish: DeviceWish, per_device: int, residents: Sequence[Resident]
) -> list[list[str]] | NoPlacement:
    """Sets of devices that are in use, one per kind, in each of which the load could go with every victim gone and no
    foreign use (that may end); or why there is none."""
    unknown = [d for d in _ids(wish) if d not in ledger.devices]
    if unknown:
        known = ", ".join(ledger.devices) or "none"
        return NoPlacement(f"there is no device {', '.join(unknown)}; the devices are: {known}", permanent=True)
    pinned = [
        r for m in residents if m.pinned and (r := ledger.reservations.get(m.model)) is not None and not r.leaving
    ]
    asked = _ids(wish) or tuple(ledger.devices)
    able: dict[str, list[str]] = {}
    bare: dict[str, int] = {}
    sums: list[str] = []
    for device in (ledger.devices[d] for d in asked):
        kept = [r for r in pinned if r.device_bytes.get(device.id, 0)]
        limit = device.capacity - device.headroom
        kind = "" if wish.ids else device.kind
        bare[kind] = bare.get(kind, 0) + (per_device <= limit)
        if per_device <= limit - sum(r.device_bytes[device.id] for r in kept):
            able.setdefault(kind, []).append(device.id)
        note = "".join(f", pinned {r.model} holds {gib(r.device_bytes[device.id])}" for r in kept)
        sums.append(f"{device.id}: {gib(device.capacity)} less {gib(device.headroom)} headroom{note}")
    count = len(_ids(wish)) or wish.count
    pools = [p for p in able.values() if len(p) >= count]
    sound = [[d for d in p if not ledger.devices[d].problem] for p in pools]
    if enough := [p for p in sound if len(p) >= count]:
        return enough
    where = f"each of {count} devices of one kind" if count > 1 and not wish.ids else f"{count} device(s)"
    if pools:
        out = [ledger.devices[d] for d in chain.from_iterable(pools) if ledger.devices[d].problem]
        return NoPlacement(
            f"needs {gib(per_device)} on {where}; {_out_of_use(out)}", out=tuple(device.id for device in out)
        )
    pins = max(bare.values(), default=0) >= count
    if pins:
        what = "more than there is beside what is pinned"
        advice = f"unpin {' or '.join(dict.fromkeys(r.model for r in pinned if any(d in r.device_bytes for d in asked)))}, or give it less memory"
    else:
        what = "more than there can ever be"
        alike = [len(asked)] if wish.ids else [sum(d.kind == k for d in ledger.devices.values()) for k in bare]
        few = max(alike, default=0) < count
        advice = (
            "give it fewer devices (`devices.count`), or the server more"
            if few
            else "give it less memory, larger devices, or more of them (`devices.count`)"
        )
    return NoPlacement(
        f"needs {gib(per_device)} on {where}, {what} ({'; '.join(sums) or 'there is no device'}); {advice}",
        permanent=True,
        advice=advice,
    )


def lent(
    ledger: Ledger, wish: DeviceWish, per_device: int, residents: Sequence[Resident], now: float
) -> tuple[str, ...]:
    """The leases on device memory that a load waits for: with them there is no room for it whoever goes, and without them there
    is. Empty when there is room, or when something else is in the way too."""
    lets = tuple(r.model for r in ledger.reservations.values() if r.let is not None)
    if not lets:
        return ()

    def possible(there: Ledger) -> bool:
        return isinstance(place(there, wish, per_device, residents, now, min_dwell=0.0, drain_busy=True), Placement)

    without = ledger.with_devices([replace(d, foreign=ledger.foreign(d.id)) for d in ledger.devices.values()])
    for name in lets:
        without = without.release(name)
    return lets if not possible(ledger) and possible(without) else ()


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the cheapest set of victims."""

    pools: list[list[str]]
    count: int
    need: int
    room: Mapping[str, int]
    """Per device, once the leavers are gone."""
    waits: Mapping[str, bool]
    """Whether leavers have to be waited for, per device."""
    spread: bool = False

    def fits(self, victims: Sequence[_Candidate]) -> bool:
        return any(len(self._enough(pool, victims)) >= self.count for pool in self.pools)

    def _enough(self, pool: Sequence[str], victims: Sequence[_Candidate]) -> list[tuple[bool, int, int, str]]:
        """The devices of a pool with room once `victims` are gone, best fit first."""
        found: list[tuple[bool, int, int, str]] = []
        sign = -1 if self.spread else 1
        for index, device in enumerate(pool):
            left = self.room[device] - self.need
            left += sum(v.device_bytes.get(device, 0) for v in victims)
            if left >= 0:
                found.append((self.waits[device], sign * left, index, device))
        return sorted(found)

    def best_fit(self, victims: Sequence[_Candidate]) -> list[str] | None:
        fits = [f[: self.count] for pool in self.pools if len(f := self._enough(pool, victims)) >= self.count]
        best = min(fits, key=lambda f: (any(w for w, *_ in f), sum(left for _, left, *_ in f)), default=None)
        return None if best is None else [device for *_, device in best]

    def cheapest(self, candidates: Sequence[_Candidate], budget: int = 4000) -> tuple[_Candidate, ...] | None:
        """None when not even all of them make room. Looks at no more than about `budget` sets."""
        ours = set(chain.from_iterable(self.pools))
        useful = sorted((c for c in candidates if ours & set(c.device_bytes)), key=lambda c: c.worth)
        if not self.fits(useful):
            return None
        idle, busy = [c for c in useful if not c.busy], [c for c in useful if c.busy]
        sizes = [(b, i) for b in range(len(busy) + 1) for i in range(len(idle) + 1)]
        for n_busy, n_idle in sizes[:-1]:
            budget -= comb(len(busy), n_busy) * comb(len(idle), n_idle)
            if budget < 0:
                return self._greedy(useful)
            sets = ((*i, *b) for i in combinations(idle, n_idle) for b in combinations(busy, n_busy))
            if found := min((s for s in sets if self.fits(s)), key=_regret, default=None):
                return found
        return tuple(useful)

    def _greedy(self, useful: Sequence[_Candidate]) -> tuple[_Candidate, ...]:
        chosen = list(useful)
        for candidate in reversed(useful):
            rest = [c for c in chosen if c is not candidate]
            if self.fits(rest):
                chosen = rest
        return tuple(chosen)


def _regret(victims: Sequence[_Candidate]) -> tuple[int, int, list[int], float, list[float], list[str]]:
    """Among sets of the same size: fewer in a time of the week, fewer awake, then lower priorities, then who is missed least and was used longest ago."""
    return (
        sum(v.kept for v in victims),
        sum(v.awake for v in victims),
        sorted((v.priority for v in victims), reverse=True),
        sum(v.missed for v in victims),
        sorted((v.last_used for v in victims), reverse=True),
        [v.model for v in victims],
    )


def _why_not(
    ledger: Ledger,
    wish: DeviceWish,
    pools: Sequence[Sequence[str]],
    residents: Sequence[Resident],
    now: float,
    per_device: int,
    min_dwell: float,
    closed: Container[str],
) -> str:
    by_model = {r.model: r for r in residents}
    notes: list[str] = []
    for device in chain.from_iterable(pools):
        holders = [
            f"{r.model} ({'kept for something else until it ends' if r.let is not None else _hold_on(by_model.get(r.model), now, min_dwell)})"
            for r in ledger.reservations.values()
            if not r.leaving and r.device_bytes.get(device, 0)
        ]
        kept = ", kept for a model that waits longer" if device in closed else ""
        room = gib(max(0, ledger.free_after_leaving(device)))
        who = f" ({', '.join(s)})" if (s := ledger.devices[device].strangers) else ""
        others = f"; others use {gib(n)}{who}" if (n := ledger.foreign(device)) else ""
        notes.append(f"{device} has {room} left{kept}; on it: {', '.join(holders) or 'none of ours'}{others}")
    if out := [d for d in ledger.devices.values() if d.problem and d.id in (_ids(wish) or ledger.devices)]:
        notes.append(_out_of_use(out))
    return f"needs {gib(per_device)} per device; {'; '.join(notes)}"


def _out_of_use(devices: Sequence[Device]) -> str:
    return "; ".join(d.why_out for d in devices)


def _hold_on(resident: Resident | None, now: float, min_dwell: float) -> str:
    """Why an instance keeps its memory, in a word or two."""
    if resident is None:
        return "loading"
    if resident.pinned:
        return "pinned"
    if resident.state is State.READY and resident.ready_since is not None and now < resident.ready_since + min_dwell:
        return "just loaded"
    if resident.leases:
        return "asleep, but wanted" if resident.state is State.SLEEPING else f"busy with {resident.leases}"
    return resident.state.value
