"""Why a model cannot have memory now: a code and a sentence. Pure."""

from collections.abc import Mapping, Sequence
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Ledger, Resident, gib
from vllm_mm.domain.scheduling.words import Lane


def hindrance(
    lane: Lane, residents: Sequence[Resident], going: Mapping[str, float], ledger: Ledger, now: float
) -> tuple[Reason, str]:
    """What stands in the way of `lane`. `going`: from when on each resident may be a victim."""
    within = [ledger.devices[d] for d in lane.wish.ids or ledger.devices if d in ledger.devices]
    by_model = {r.model: r for r in residents}
    notes: list[str] = []
    codes: set[Reason] = set()
    for model, held in ledger.reservations.items():
        if held.leaving or model == lane.model or not any(held.device_bytes.get(d.id, 0) for d in within):
            continue
        if held.let is not None:
            code, note = Reason.ROOM, "is kept for something else until it ends"
        else:
            code, note = _holder(by_model.get(model), going.get(model, inf), now)
        codes.add(code)
        notes.append(f"{model} {note}")
    for device in within:
        if foreign := ledger.foreign(device.id):
            who = f" ({', '.join(device.strangers)})" if device.strangers else ""
            notes.append(f"others use {gib(foreign)}{who} of {device.id}")
        if device.problem:
            notes.append(device.why_out)
    if sum(not d.problem for d in within) < (len(lane.wish.ids) or lane.wish.count):
        code = Reason.DEVICE
    else:
        code = next((c for c in (Reason.DWELL, Reason.BUSY, Reason.COST) if c in codes), Reason.ROOM)
    return code, "; ".join([f"needs {gib(lane.per_device)}", *notes])


def _holder(resident: Resident | None, at: float, now: float) -> tuple[Reason, str]:
    """Why somebody keeps memory."""
    if resident is None or resident.state not in {State.READY, State.SLEEPING}:
        return Reason.ROOM, "is being loaded"
    if resident.pinned:
        return Reason.ROOM, "is pinned"
    if resident.frozen and resident.state is State.SLEEPING:
        return Reason.ROOM, "has frozen requests"
    if now < at < inf:
        return Reason.DWELL, "became ready just now"
    if at <= now:
        return Reason.ROOM, "could go, which is not enough"
    if resident.state is State.SLEEPING:
        return Reason.BUSY, "sleeps, and is wanted"
    if resident.leases:
        return Reason.BUSY, f"serves {resident.leases}"
    return Reason.COST, "is asked for too often"
