"""The host's RAM as one device, for engines that compute on the CPU."""

import os
import platform
from collections.abc import Collection
from heapq import nlargest

import psutil

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.polled import NAMED, Ours, PolledInventory, Reading
from vllm_mm.engine.ports import ForeignProcess

LOOKED_AT = 20
"""Processes with the most memory, mapped files included, of which is asked what is their own."""
WORTH_NAMING = 64 * 1024**2
"""Bytes; what has less is not what fills a machine."""


class CpuInventory(PolledInventory):
    """The device `cpu`. `capacity` None means all of the machine's memory.

    Foreign use is what is neither available (free, or cache that can be dropped) nor held by our engines. When less than
    the machine's memory was configured, only what others take beyond the rest counts. Of whom that is the largest are named.
    """

    kind = "cpu"
    observable = False
    """The kernel takes a process's memory back before anybody can see that it ended (exit_mm before exit_notify)."""

    def __init__(self, clock: Clock, ours: Ours, *, headroom: int = 0, capacity: int | None = None) -> None:
        super().__init__(clock)
        self._ours = ours
        self._headroom = headroom
        self._capacity = capacity
        self.refresh_now()

    def holds(self, mine: Ours) -> dict[str, int]:
        return {"cpu": sum(procfs.own_memory(pid) for pid in procfs.table() if mine(pid))}

    def read(self) -> Reading:
        memory = psutil.virtual_memory()
        total, available = int(memory.total), int(memory.available)
        mine = [pid for pid in procfs.table() if self._ours(pid)]
        ours = sum(procfs.own_memory(pid) for pid in mine)
        capacity = total if self._capacity is None else self._capacity
        others = max(0, total - available - ours)
        device = Device(
            id="cpu",
            capacity=capacity,
            headroom=self._headroom,
            foreign=max(0, others - max(0, total - capacity)),
            kind="cpu",
            name=platform.processor() or platform.machine(),
        )
        return Reading((device,), _largest({*mine, os.getpid()}) if device.foreign else ())


def free_memory() -> int:
    """Bytes of the host's memory that could be used now without swapping, cache that can be dropped included."""
    return int(psutil.virtual_memory().available)


def _largest(ours: Collection[int]) -> list[ForeignProcess]:
    """The processes with most memory of their own but `ours`, of whichever user, the largest first. A read of a few bytes for each process of
    the machine, and some more for a bounded number of them."""
    rough = {pid: procfs.resident(pid) for pid in procfs.pids() if pid not in ours}
    found: list[ForeignProcess] = []
    for pid in nlargest(LOOKED_AT, rough, key=rough.__getitem__):
        size = procfs.own_memory(pid) if rough[pid] >= WORTH_NAMING else 0
        stat = procfs.read_stat(pid) if size >= WORTH_NAMING else None
        if stat is not None:
            found.append(ForeignProcess("cpu", pid, stat.name, size))
    return nlargest(NAMED, found, key=lambda process: process.size or 0)
