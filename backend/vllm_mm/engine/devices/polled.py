"""What all inventories share: readings made in a thread and kept, and the wait for memory to come back."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs

Ours: TypeAlias = Callable[[int], bool]
"""Whether a pid is of an engine of this installation."""

_TOLERANCE = 64 * 1024**2
_TOLERANCE_SHARE = 0.05
"""What may be missing of a stopped engine's memory: drivers round, and neighbours breathe."""


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process that is not ours and uses memory of a device. `size` in bytes; None where the driver does not tell."""

    device: str
    pid: int
    name: str
    size: int | None


def owned_by(owner: str) -> Ours:
    """By the owner mark in the environment: true for engines of an earlier controller of this installation too."""

    def ours(pid: int) -> bool:
        marks = procfs.read_marks(pid)
        return marks is not None and marks.owner == owner

    return ours


class PolledInventory(ABC):
    """Implements `ports.Inventory`. The constructor of a subclass ends with the first reading."""

    observable = True
    """Whether memory that comes back late shows up in the readings."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: tuple[Device, ...] = ()
        self._foreign: tuple[ForeignProcess, ...] = ()

    @abstractmethod
    def read(self) -> tuple[tuple[Device, ...], tuple[ForeignProcess, ...]]:
        """One reading, blocking. Raises OSError when it cannot be made."""

    def refresh_now(self) -> None:
        """Blocking; for start-up."""
        self._devices, self._foreign = self.read()

    def devices(self) -> Sequence[Device]:
        return self._devices

    def foreign_processes(self) -> Sequence[ForeignProcess]:
        """Who else was seen on the devices at the latest reading."""
        return self._foreign

    async def refresh(self) -> Sequence[Device]:
        self._devices, self._foreign = await asyncio.to_thread(self.read)
        return self._devices

    async def wait_free(self, device_bytes: Mapping[str, int], before: Mapping[str, int], deadline: float) -> bool:
        """`before` is the foreign use of each device while the instance still ran. Once its processes are gone, what the
        driver has not given back yet counts as foreign: it is free when foreign use is back where it was."""
        if not self.observable:
            return True
        until = self._clock.now() + deadline
        pause = 0.05
        while True:
            now = {d.id: d.foreign for d in await self.refresh()}
            if all(
                now[device] <= before.get(device, 0) + max(_TOLERANCE, int(size * _TOLERANCE_SHARE))
                for device, size in device_bytes.items()
                if device in now
            ):
                return True
            left = until - self._clock.now()
            if left <= 0:
                return False
            await self._clock.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)


class CompositeInventory:
    """Several inventories as one; each device belongs to one of them. `notes`: what people should know about it."""

    def __init__(self, parts: Sequence[PolledInventory], notes: tuple[str, ...] = ()) -> None:
        self._parts = tuple(parts)
        self.notes = notes

    def devices(self) -> Sequence[Device]:
        return tuple(device for part in self._parts for device in part.devices())

    def foreign_processes(self) -> Sequence[ForeignProcess]:
        return tuple(process for part in self._parts for process in part.foreign_processes())

    async def refresh(self) -> Sequence[Device]:
        await asyncio.gather(*(part.refresh() for part in self._parts))
        return self.devices()

    async def wait_free(self, device_bytes: Mapping[str, int], before: Mapping[str, int], deadline: float) -> bool:
        waits: list[asyncio.Future[bool] | asyncio.Task[bool]] = []
        for part in self._parts:
            mine = {d.id for d in part.devices()}
            held = {device: size for device, size in device_bytes.items() if device in mine}
            if held:
                waits.append(asyncio.ensure_future(part.wait_free(held, before, deadline)))
        return all(await asyncio.gather(*waits))
