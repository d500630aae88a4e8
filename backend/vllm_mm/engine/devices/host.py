"""The host's RAM as one device, for engines that compute on the CPU."""

import platform

import psutil

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.polled import Ours, PolledInventory, Reading


class CpuInventory(PolledInventory):
    """The device `cpu`. `capacity` None means all of the machine's memory.

    Foreign use is what is neither available (free, or cache that can be dropped) nor held by our engines. When less than
    the machine's memory was configured, only what others take beyond the rest counts.
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
        ours = sum(procfs.own_memory(pid) for pid in procfs.table() if self._ours(pid))
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
        return Reading((device,))
