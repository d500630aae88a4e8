"""Where a model would fit, device by device, for whoever is about to declare it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from vllm_mm.domain.residency import Ledger, NoPlacement, Resident, place
from vllm_mm.domain.specs import DeviceWish


class Fits(StrEnum):
    """Whether one rank of it fits on a device."""

    NOW = "now"
    ROOM = "room"
    """When others make room, as they would for an operator's start."""
    HELD = "held"
    """It is large enough, but whoever has it would not go now."""
    NEVER = "never"
    """Not even with the device for itself."""
    OUT = "out"
    """The device is out of use."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One device's answer. Sizes in bytes."""

    device: str
    fits: Fits
    free: int
    capacity: int
    victims: tuple[str, ...] = ()
    """Who would have to go, in the order of eviction."""
    reason: str = ""
    """Why not, for people; empty where it fits."""


def fits(
    ledger: Ledger,
    model: str,
    wish: DeviceWish,
    per_device: int,
    residents: Sequence[Resident],
    now: float,
    min_dwell: float,
) -> list[Fit]:
    """For each device that `model` may use. What it holds already, under another declaration, counts as free."""
    ledger = ledger.release(model)
    others = [r for r in residents if r.model != model]
    found: list[Fit] = []
    for device in ledger.devices.values():
        if wish.ids and device.id not in wish.ids:
            continue
        free = ledger.free(device.id)
        answer = place(
            ledger, DeviceWish(ids=(device.id,)), per_device, others, now, min_dwell=min_dwell, drain_busy=True
        )
        if device.problem:
            fit = Fit(device.id, Fits.OUT, free, device.capacity, reason=device.why_out)
        elif not isinstance(answer, NoPlacement):
            fit = Fit(device.id, Fits.ROOM if answer.victims else Fits.NOW, free, device.capacity, answer.victims)
        else:
            never = per_device > device.usable
            fit = Fit(device.id, Fits.NEVER if never else Fits.HELD, free, device.capacity, reason=answer.reason)
        found.append(fit)
    return found
