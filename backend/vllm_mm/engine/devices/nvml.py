"""NVIDIA GPUs through NVML (nvidia-ml-py)."""

import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from vllm_mm.clock import Clock
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.polled import ForeignProcess, Ours, PolledInventory

_LOG = logging.getLogger(__name__)


class DriverMissingError(OSError):
    """There is no NVIDIA driver, or no GPU, or not the one that was named; the message says which."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. `processes`: (pid, bytes or None where the driver does not tell)."""

    index: int
    uuid: str
    name: str
    total: int
    used: int
    processes: tuple[tuple[int, int | None], ...]


class _Nvml(Protocol):
    """The part of `pynvml` that is used (it has no types of its own)."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802 - NVML's names
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[Any]: ...  # noqa: N802


def open_nvml() -> Callable[[], Sequence[Gpu]]:
    """A function that reads all GPUs in the order of their PCI bus, as NVML numbers them.

    Raises DriverMissingError with the reason when there is no driver.
    """
    nvml = cast("_Nvml", importlib.import_module("pynvml"))
    try:
        nvml.nvmlInit()
        nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise DriverMissingError(f"no NVIDIA driver answers ({error}); see whether nvidia-smi works") from error
    return lambda: _gpus(nvml)


def _gpus(nvml: _Nvml) -> list[Gpu]:
    """Raises OSError when the driver fails."""
    try:
        found: list[Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            processes = tuple(
                (int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory))
                for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            )
            uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
            found.append(Gpu(index, uuid, name, int(memory.total), int(memory.used), processes))
        return found
    except nvml.NVMLError as error:
        raise OSError(f"NVML cannot read the GPUs: {error}") from error


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class NvmlInventory(PolledInventory):
    """GPUs by index (or by UUID where the configuration names one so).

    `entries`: capacity and headroom by id, for a chosen set; else all that CUDA_VISIBLE_DEVICES lets through.
    Where the driver does not tell a process's memory, or tells pids of another PID namespace (containers), our own use
    cannot be subtracted; then the foreign use is that of the last reading at which no engine of ours ran.

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
        self._source = source or open_nvml()
        self._baseline: dict[str, int] = {}
        self.refresh_now()
        if not self._devices:
            raise DriverMissingError("the NVIDIA driver shows no GPU (or CUDA_VISIBLE_DEVICES hides them all)")
        if entries is not None and (missing := set(entries) - {d.id for d in self._devices}):
            raise DriverMissingError(f"there is no GPU {', '.join(sorted(missing))} (nvidia-smi -L lists them)")

    def read(self) -> tuple[tuple[Device, ...], tuple[ForeignProcess, ...]]:
        try:
            gpus = self._source()
        except OSError as error:
            if not self._devices:
                raise
            _LOG.warning("%s; the last reading stays", error)
            return self._devices, self._foreign
        ours_run: bool | None = None
        devices: list[Device] = []
        foreign: list[ForeignProcess] = []
        for gpu in gpus:
            device = self._id(gpu)
            if device is None:
                continue
            others: list[ForeignProcess] = []
            own, known = 0, True
            for pid, size in gpu.processes:
                if self._ours(pid):
                    own += size or 0
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
                    kind="gpu",
                    name=gpu.name,
                )
            )
            foreign += others
        return tuple(devices), tuple(foreign)

    @staticmethod
    def _beyond(used: int, total: int, capacity: int | None) -> int:
        """Where less than the device has was configured, others may use the rest."""
        return max(0, used - max(0, total - (total if capacity is None else capacity)))

    def _id(self, gpu: Gpu) -> str | None:
        if self._entries is not None:
            return next((name for name in (str(gpu.index), gpu.uuid) if name in self._entries), None)
        visible = [name.strip() for name in (self._visible or "").split(",") if name.strip()]
        if self._visible is not None and not ({str(gpu.index)} | {n for n in visible if gpu.uuid.startswith(n)}) & set(
            visible
        ):
            return None
        return str(gpu.index)
