"""From what is declared, learned and estimated to what is reserved: one model, on devices of one size. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from vllm_mm.domain.estimate import Estimate, describe
from vllm_mm.domain.footprint import TOLERANCE, TOLERANCE_SHARE, Footprint, Learned, Parts
from vllm_mm.domain.ledger import Device, gib
from vllm_mm.domain.specs import GIB, DeviceWish

WHOLE = 0.92
"""vLLM's own default for `--gpu-memory-utilization`: what it takes of a GPU that nobody else wants."""
UNKNOWN_KV = 4 * GIB
"""KV cache on the CPU for a model about which nothing is known, at most."""


@dataclass(frozen=True, slots=True)
class Place:
    """The device that a model is sized for, in bytes."""

    capacity: int
    usable: int
    """Without headroom and strangers."""
    gpu: bool = True
    whole: bool = False
    """No other model wants it: the KV cache may take all that is left."""
    share: float | None = None
    """The fraction that somebody asked for (`gpu-memory-utilization`)."""

    @property
    def most(self) -> int:
        """What an engine may take that has the device for itself."""
        return max(0, min(int(self.capacity * WHOLE), self.usable))


def alone(wish: DeviceWish, others: Sequence[DeviceWish], devices: Sequence[str]) -> bool:
    """Whether a model with `wish` finds devices that no other declared model needs: as many as all ask for together that may
    use one of the same."""

    def candidates(w: DeviceWish) -> set[str]:
        return set(w.ids) or set(devices)

    own = candidates(wish)
    return wish.count + sum(o.count for o in others if candidates(o) & own) <= len(own)


def place_for(wish: DeviceWish, devices: Sequence[Device], need: int) -> Device | None:
    """The device to size for: the smallest that has `need` bytes for it, else the largest there is."""
    here = [d for d in devices if not wish.ids or d.id in wish.ids]
    enough = [d for d in here if d.usable >= need]
    if wish.ids:  # it gets all of them, so the smallest decides
        return min(here, key=lambda d: d.usable, default=None)
    return min(enough, key=lambda d: d.capacity, default=None) or max(here, key=lambda d: d.capacity, default=None)


def footprint(declared: int | None, estimate: Estimate, learned: Mapping[str, Learned], place: Place) -> Footprint:
    """`declared`: bytes per device, None where nobody said; `learned`: by device set."""
    best = max(learned.values(), key=lambda known: known.largest, default=None)
    fixed, weights = _fixed(estimate, best)
    if declared is not None:
        return _shown(_declared(declared, estimate, best, fixed, weights), estimate, best)
    if fixed is None:
        return _unknown(estimate, place)
    if place.share is not None:
        found = _with(max(fixed, int(place.capacity * place.share)), fixed, weights, best)
    elif place.gpu and place.whole and estimate.setup.kv_cache is None and fixed + estimate.least_kv <= place.most:
        found = _with(place.most, fixed, weights, best)
    else:
        found = _given(fixed, weights, estimate, best, place)
    return _shown(found, estimate, best)


def _fixed(estimate: Estimate, best: Learned | None) -> tuple[int | None, int]:
    """What it takes beside its KV cache (None when that is not known), and how much of it are weights."""
    guessed = estimate.weights.size if estimate.weights is not None else 0
    if best is not None:
        return best.largest, min(best.weights or guessed, best.largest)
    return (estimate.fixed, guessed) if estimate.known else (None, 0)


def _with(total: int, fixed: int, weights: int, best: Learned | None) -> Footprint:
    """`total` bytes, of which the KV cache has all that is left."""
    parts = Parts(weights, max(0, total - fixed), fixed - weights)
    return Footprint(total, "learned" if best is not None else "estimated", parts=parts)


def _declared(declared: int, estimate: Estimate, best: Learned | None, fixed: int | None, weights: int) -> Footprint:
    """As declared, unless launches showed that it cannot do with that."""
    if fixed is None:
        return Footprint(declared, "declared")
    asked = estimate.setup.kv_cache
    least = fixed + (estimate.least_kv if asked is None else asked)
    if best is not None and least > declared + max(TOLERANCE, int(declared * TOLERANCE_SHARE)):
        told = f"`memory` says {gib(declared)}, but it was seen to need {gib(least)}"
        return replace(_with(least, fixed, weights, best), notes=(told,))
    return replace(_with(declared, min(fixed, declared), min(weights, declared), best), source="declared")


def _unknown(estimate: Estimate, place: Place) -> Footprint:
    """Nothing tells how large it is: on a GPU it is given what vLLM takes by itself."""
    if place.gpu:
        size = int(place.capacity * place.share) if place.share is not None else place.most
        told = f"until its first launch it is given {gib(size)} of a GPU" if size else ""
        return Footprint(size, "estimated", notes=(*estimate.notes, *([told] if told else [])))
    kv = estimate.setup.kv_cache
    if kv is None:
        kv = max(GIB, min(UNKNOWN_KV, place.capacity // 4 // GIB * GIB))
    return replace(estimate.footprint(kv), notes=estimate.notes)


def _given(fixed: int, weights: int, estimate: Estimate, best: Learned | None, place: Place) -> Footprint:
    """The KV cache that is wanted, or what there is room for, but not less than the engine needs to start."""
    if estimate.setup.kv_cache is not None:
        return _with(fixed + estimate.setup.kv_cache, fixed, weights, best)
    unit = 1 if place.gpu else GIB  # the CPU build's variable takes whole GiB
    want, least = (ceil(size / unit) * unit for size in (estimate.wanted_kv(), estimate.least_kv))
    room = (place.usable - fixed) // unit * unit
    if room < least and best is None and weights < place.usable:
        # An estimate is no reason to refuse: vLLM knows better, and says what is wrong.
        told = f"it may not fit: a request of the greatest length needs {gib(least)} of KV cache, and there are {gib(max(0, room))}"
        return replace(_with(place.usable, min(fixed, place.usable), weights, None), notes=(told,))
    return _with(fixed + max(least, min(want, room)), fixed, weights, best)


def _shown(found: Footprint, estimate: Estimate, best: Learned | None) -> Footprint:
    """With what else is known of it."""
    notes = (*found.notes, *(estimate.notes if found.source == "estimated" else ()))
    shown = describe(replace(found, notes=notes), estimate.cache)
    if best is None:
        return shown
    return replace(shown, spread=round(best.spread), samples=best.count, learned_at=best.at)
