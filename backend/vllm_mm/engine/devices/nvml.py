"""NVIDIA GPUs through NVML (nvidia-ml-py) as devices."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.gpus import DriverMissingError, Gpu, NvmlSource
from vllm_mm.engine.devices.polled import Ours, PolledInventory, Reading
from vllm_mm.engine.ports import ForeignProcess

__all__ = ["DriverMissingError", "Gpu", "NvmlInventory"]

_LOG = logging.getLogger(__name__)


class NvmlInventory(PolledInventory):
    """GPUs by index (or by UUID where the configuration names one so).

    `entries`: capacity and headroom by id, for a chosen set; else all that CUDA_VISIBLE_DEVICES lets through.
    Where the driver does not tell a process's memory, or tells pids of another PID namespace (containers), our own use
    cannot be subtracted; then the foreign use is that of the last reading at which no engine of ours ran.

    A GPU keeps its id for as long as the server runs. NVML's numbers do not: when one is gone and the driver counts anew,
    the others have other numbers. Engines are told numbers, so a GPU whose number changed is out of use until a restart.

    Raises DriverMissingError when there is no driver, no GPU, or not the one that was named.
    """

    def __init__(
        self,
        clock: Clock,
        ours: Ours,
        *,
        headroom: int = 0,
        entries: Mapping[str, tuple[int | None, int | None]] | None = None,
        source: Callable[[], Sequence[Gpu]] | None = None,
        visible: str | None = None,
    ) -> None:
        super().__init__(clock)
        self._ours = ours
        self._headroom = headroom
        self._entries = entries
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._source = source or NvmlSource()
        self._baseline: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        """By UUID."""
        self._numbers: dict[str, int] = {}
        """As they were when a GPU was first seen, by id."""
        self._unused: set[str] = set()
        """UUIDs of GPUs that came later under a number that was taken."""
        self.refresh_now()
        if not self._devices:
            raise DriverMissingError("the NVIDIA driver shows no GPU (or CUDA_VISIBLE_DEVICES hides them all)")
        if entries is not None and (missing := set(entries) - {d.id for d in self._devices}):
            raise DriverMissingError(f"there is no GPU {', '.join(sorted(missing))} (nvidia-smi -L lists them)")

    def holds(self, mine: Ours) -> dict[str, int]:
        found: dict[str, int] = {}
        for gpu in self._source():
            device = self._known(gpu)
            sizes = [size for pid, size in gpu.processes if mine(pid)]
            # Where the driver tells pids of another namespace none is ours, and an engine that sleeps has its context still.
            if device is not None and sizes and None not in sizes:
                found[device] = sum(size or 0 for size in sizes)
        return found

    def read(self) -> Reading:
        devices: list[Device] = []
        foreign: list[ForeignProcess] = []
        faults: dict[str, str] = {}
        missed: dict[str, str] = {}
        held: dict[str, dict[int, int]] = {}
        energy: dict[str, float] = {}
        ours_run: bool | None = None
        for gpu in self._source():
            device = self._known(gpu)
            if device is None:
                continue
            if gpu.fault:
                faults[device] = gpu.fault
            elif gpu.unread:
                missed[device] = gpu.unread
            elif device.isdecimal() and gpu.index != self._numbers[device]:
                faults[device] = (
                    f"its number changed from {self._numbers[device]} to {gpu.index}, as happens when another GPU is gone; "
                    "restart vllm-mm"
                )
            if gpu.energy is not None:
                energy[device] = gpu.energy
            if not gpu.total:
                continue
            others: list[ForeignProcess] = []
            own, known = 0, True
            for pid, size in gpu.processes:
                if self._ours(pid):
                    own += size or 0
                    if size is not None:
                        held.setdefault(device, {})[pid] = size
                    known = known and size is not None
                else:
                    stat = procfs.read_stat(pid)
                    known = known and stat is not None
                    others.append(ForeignProcess(device, pid, stat.name if stat else "?", size))
            if not known:
                if ours_run is None:
                    ours_run = any(self._ours(pid) for pid in procfs.table())
                known = not ours_run
            if known:
                self._baseline[device] = max(0, gpu.used - own)
            capacity, headroom = (self._entries or {}).get(device, (None, None))
            devices.append(
                Device(
                    id=device,
                    capacity=gpu.total if capacity is None else min(capacity, gpu.total),
                    headroom=self._headroom if headroom is None else headroom,
                    foreign=self._beyond(self._baseline.get(device, 0), gpu.total, capacity),
                    kind=self.kind,
                    total=0 if capacity is None else gpu.total,
                    name=gpu.name,
                )
            )
            foreign += others
        return Reading(devices, foreign, faults, missed, held, energy)

    @staticmethod
    def _beyond(used: int, total: int, capacity: int | None) -> int:
        """Where less than the device has was configured, others may use the rest."""
        return max(0, used - max(0, total - (total if capacity is None else capacity)))

    def _known(self, gpu: Gpu) -> str | None:
        """Its id, given when it is seen for the first time; None for one that is not ours to use."""
        if not gpu.uuid:  # it does not even say who it is: the one that had the number
            known = next((device for device, index in self._numbers.items() if index == gpu.index), None)
            return known if known is not None else self._new(gpu)
        if gpu.uuid in self._ids:
            return self._ids[gpu.uuid]
        device = self._new(gpu)
        if device in self._ids.values():
            if gpu.uuid not in self._unused:
                self._unused.add(gpu.uuid)
                _LOG.warning("GPU %s has the number of another one; restart vllm-mm to use it", gpu.uuid)
            return None
        if device is not None:
            self._ids[gpu.uuid] = device
        return device

    def _new(self, gpu: Gpu) -> str | None:
        device = self._id(gpu)
        if device is not None:
            self._numbers.setdefault(device, gpu.index)
        return device

    def _id(self, gpu: Gpu) -> str | None:
        if self._entries is not None:
            return next((name for name in (str(gpu.index), gpu.uuid) if name in self._entries), None)
        visible = [name.strip() for name in (self._visible or "").split(",") if name.strip()]
        by_uuid = {n for n in visible if gpu.uuid.startswith(n)}
        if self._visible is not None and not ({str(gpu.index)} | by_uuid) & set(visible):
            return None
        return str(gpu.index)
