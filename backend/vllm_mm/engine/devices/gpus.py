"""What NVML tells of each GPU: memory, processes, and whether it is in a state to work."""

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class DriverMissingError(OSError):
    """There is no NVIDIA driver, or no GPU, or not the one that was named; the message says which."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. `processes`: (pid, bytes or None where the driver does not tell). The sizes are zero where they
    could not be read."""

    index: int
    uuid: str
    """Empty where even that could not be read."""
    name: str
    total: int
    used: int
    processes: tuple[tuple[int, int | None], ...]
    fault: str = ""
    """Why it is not fit for use; empty when it is."""
    unread: str = ""
    """Why it could not be read this time, for another reason than a fault of its own."""
    energy: float | None = None
    """Joules that it took since its driver was loaded; None where the GPU does not count them (before Volta)."""


class Nvml(Protocol):
    """The part of `pynvml` that is used (it has no types of its own)."""

    NVMLError: type[Exception]
    """Its instances have the code as `value`."""
    NVML_ERROR_GPU_IS_LOST: int
    NVML_ERROR_RESET_REQUIRED: int
    NVML_ERROR_TIMEOUT: int
    NVML_FEATURE_ENABLED: int
    NVML_DEVICE_MIG_ENABLE: int
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED: int
    NVML_VOLATILE_ECC: int
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: int
    nvmlEventTypeXidCriticalError: int  # noqa: N815

    def nvmlInit(self) -> None: ...  # noqa: N802 - NVML's names
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: object) -> str | bytes: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[Any]: ...  # noqa: N802
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: object) -> Sequence[Any]: ...  # noqa: N802
    def nvmlDeviceGetFieldValues(self, handle: object, fields: Sequence[int]) -> Sequence[Any]: ...  # noqa: N802
    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: object) -> int: ...  # noqa: N802
    def nvmlDeviceGetRemappedRows(self, handle: object) -> tuple[int, int, int, int]: ...  # noqa: N802
    def nvmlDeviceGetTotalEccErrors(self, handle: object, error: int, counter: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: object) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int: ...  # noqa: N802
    def nvmlEventSetCreate(self) -> object: ...  # noqa: N802
    def nvmlDeviceRegisterEvents(self, handle: object, types: int, events: object) -> None: ...  # noqa: N802
    def nvmlEventSetWait_v2(self, events: object, timeout: int) -> Any: ...  # noqa: N802


RECOVERY = {
    1: "a reset (end what runs there, then `nvidia-smi --gpu-reset -i {gpu}`)",
    2: "a reboot of the machine",
    3: "its peer-to-peer traffic to be drained and a reset",
    4: "to be drained and reset (end what runs there, then `nvidia-smi --gpu-reset -i {gpu}`)",
    5: "its IMEX domain to be recovered",
    6: "a reset of its bus",
    7: "a reboot of the machine",
}
"""NVML_GPU_RECOVERY_ACTION_*: what the driver says the GPU needs (nvml.h)."""
XIDS = {
    48: "a double bit error in its memory",
    62: "its internal controller halted",
    64: "a row of its memory could not be remapped",
    74: "an error of its NVLink",
    79: "it fell off the bus",
    95: "an uncontained error in its memory",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "an unrecovered error in its memory",
}
"""Errors that the driver reports (NVIDIA's "Xid Errors") that are the GPU's own and not those of a program on it."""
QUARANTINE = 300.0
"""Seconds that such an error keeps a GPU out of use, if nothing else is wrong with it then."""


def load_nvml() -> Nvml:
    return cast("Nvml", importlib.import_module("pynvml"))


class NvmlSource:
    """A function that reads all GPUs in the order of their PCI bus, as NVML numbers them.

    One GPU that fails does not keep the others from being read. When all fails, the library is opened again at the next
    call: that helps when the driver was loaded anew.

    Raises DriverMissingError with the reason when there is no driver at the start, OSError when nothing can be read later.
    """

    def __init__(self, nvml: Nvml | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml or load_nvml()
        self._now = now
        self._events: object | None = None
        self._xids: dict[str, tuple[int, float]] = {}
        self._broken = False
        try:
            self._open()
        except self._nvml.NVMLError as error:
            raise DriverMissingError(f"no NVIDIA driver answers ({error}); see whether nvidia-smi works") from error

    def _open(self) -> None:
        self._nvml.nvmlInit()
        self._nvml.nvmlDeviceGetCount()
        self._events = self._listen()

    def _listen(self) -> object | None:
        """For Xids, where the driver lets us."""
        nvml = self._nvml
        events = self._ask(nvml.nvmlEventSetCreate)
        for index in range(nvml.nvmlDeviceGetCount()) if events is not None else ():
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                _LOG.info("GPU %d tells no Xids (%s)", index, error)
        return events

    def __call__(self) -> Sequence[Gpu]:
        nvml = self._nvml
        try:
            if self._broken:
                self._ask(nvml.nvmlShutdown)
                self._open()
                self._broken = False
            self._hear()
            return [self._gpu(index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            self._broken = True
            raise OSError(f"NVML cannot read the GPUs: {error}") from error

    def _gpu(self, index: int) -> Gpu:
        nvml = self._nvml
        uuid = name = ""
        total = used = 0
        processes: dict[int, int | None] = {}
        fault = unread = ""
        energy: float | None = None
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            total, used = int(memory.total), int(memory.used)
            computing = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            drawing = self._ask(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()
            for p in (*drawing, *computing):  # one that does both is in both lists
                processes[int(p.pid)] = None if p.usedGpuMemory is None else int(p.usedGpuMemory)
            millijoules = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
            energy = None if millijoules is None else int(millijoules) / 1000
            fault = self._fault(handle, index) or self._xid(uuid)
        except nvml.NVMLError as error:
            fault = self._lost(error, index)
            unread = "" if fault else str(error)
        return Gpu(index, uuid, name, total, used, tuple(processes.items()), fault, unread, energy)

    def _lost(self, error: Exception, index: int) -> str:
        """What an error says of the GPU for good; empty for any other."""
        code = getattr(error, "value", None)
        if code == self._nvml.NVML_ERROR_GPU_IS_LOST:
            return "the driver has lost it (it fell off the bus, or was unplugged); a reboot may bring it back"
        if code == self._nvml.NVML_ERROR_RESET_REQUIRED:
            return f"the driver says that it needs {RECOVERY[1].format(gpu=index)}"
        return ""

    def _fault(self, handle: object, index: int) -> str:
        """What the driver and the GPU itself say of its state. Older ones do not know each of the questions."""
        nvml = self._nvml
        if (action := self._recovery(handle)) and action in RECOVERY:
            return f"the driver says that it needs {RECOVERY[action].format(gpu=index)}"
        if (rows := self._ask(nvml.nvmlDeviceGetRemappedRows, handle)) is not None:
            if rows[3]:
                return "a row of its memory could not be remapped after an error; it has to be replaced"
            if rows[2]:
                return f"after an error in its memory it needs {RECOVERY[1].format(gpu=index)}"
        if self._ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle) == nvml.NVML_FEATURE_ENABLED:
            return f"pages of its memory are to be retired, for which it needs {RECOVERY[1].format(gpu=index)}"
        errors = self._ask(
            nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        if errors:
            return (
                f"its memory had {errors} errors that ECC could not correct; it needs {RECOVERY[1].format(gpu=index)}"
            )
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            return f"it is in MIG mode, which is not supported (`nvidia-smi -i {index} -mig 0` ends that)"
        return ""

    def _recovery(self, handle: object) -> int | None:
        field = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = None if field is None else self._ask(self._nvml.nvmlDeviceGetFieldValues, handle, [field])
        return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None

    def _xid(self, uuid: str) -> str:
        code, since = self._xids.get(uuid, (0, 0.0))
        if code == 0 or self._now() - since > QUARANTINE:
            return ""
        return f"{XIDS[code]} (Xid {code} within {QUARANTINE / 60:.0f} min; see dmesg)"

    def _hear(self) -> None:
        """Take up what the driver reported since the last call."""
        nvml = self._nvml
        for _ in range(100 if self._events is not None else 0):
            event = self._ask(nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            code = int(event.eventData)
            uuid = self._ask(nvml.nvmlDeviceGetUUID, event.device)
            if uuid is not None and code in XIDS:
                self._xids[_text(uuid)] = (code, self._now())

    def _ask(self, question: Callable[..., T], *about: object) -> T | None:
        """The answer; None where this driver, or this GPU, has none. Raises where the GPU is lost."""
        try:
            return question(*about)
        except self._nvml.NVMLError as error:
            if self._lost(error, 0):
                raise
            return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
