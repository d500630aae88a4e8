"""The devices that engines run on, and what is used on them: GPUs (NVML), the host's RAM, simulated ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.engine.devices.host import CpuInventory
from vllm_mm.engine.devices.nvml import DriverMissingError, NvmlInventory
from vllm_mm.engine.devices.polled import CompositeInventory, PolledInventory, Reading, owned_by
from vllm_mm.engine.devices.simulated import SimulatedInventory
from vllm_mm.engine.ports import ForeignProcess

__all__ = [
    "CompositeInventory",
    "CpuInventory",
    "DeviceEntry",
    "DriverMissingError",
    "ForeignProcess",
    "NvmlInventory",
    "PolledInventory",
    "Reading",
    "SimulatedInventory",
    "build_inventory",
    "owned_by",
]


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One entry of the configuration's list. Sizes in bytes; None means what the device has, or the general headroom."""

    id: str
    """`cpu`, index or UUID of a GPU, or any name for a simulated device."""
    memory: int | None = None
    headroom: int | None = None
    simulated: bool = False


def build_inventory(
    devices: Literal["auto", "cpu"] | Sequence[DeviceEntry],
    *,
    headroom: int,
    owner: str,
    ledger_dir: Path,
    clock: Clock,
    gpus: Callable[..., PolledInventory] = NvmlInventory,
) -> CompositeInventory:
    """The inventory that the configuration asks for, read once. `auto` takes the GPUs if there are any, else the host's
    RAM; why there is no GPU is then in `notes`. Blocking for the first reading.

    Raises ConfigError when a listed device is not there.
    """
    ours = owned_by(owner)
    if devices == "cpu":
        return CompositeInventory([CpuInventory(clock, ours, headroom=headroom)])
    if devices == "auto":
        try:
            return CompositeInventory([gpus(clock, ours, headroom=headroom)])
        except DriverMissingError as missing:
            return CompositeInventory([CpuInventory(clock, ours, headroom=headroom)], notes=(str(missing),))
    parts: list[PolledInventory] = []
    simulated = [e for e in devices if e.simulated]
    if simulated:
        parts.append(
            SimulatedInventory(
                clock,
                ours,
                {e.id: e.memory or 0 for e in simulated},
                ledger_dir,
                headroom={e.id: e.headroom or 0 for e in simulated},
            )
        )
    for entry in devices:
        if entry.id == "cpu" and not entry.simulated:
            room = headroom if entry.headroom is None else entry.headroom
            parts.append(CpuInventory(clock, ours, headroom=room, capacity=entry.memory))
    real = {e.id: e for e in devices if not e.simulated and e.id != "cpu"}
    if real:
        try:
            parts.append(
                gpus(clock, ours, headroom=headroom, entries={e.id: (e.memory, e.headroom) for e in real.values()})
            )
        except DriverMissingError as missing:
            names = ", ".join(real)
            raise ConfigError(
                f"devices: {names} cannot be used: {missing}. Write `devices: cpu`, or mark them `simulated: true`"
            ) from missing
    return CompositeInventory(parts)
