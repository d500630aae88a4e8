"""What NVML says of a GPU, asked of a stand-in: there is no GPU where these tests have to run."""

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vllm_mm.engine.devices.gpus import QUARANTINE, DriverMissingError, Gpu, NvmlSource

LOST, RESET, TIMEOUT, UNSUPPORTED, UNKNOWN = 15, 16, 10, 3, 999


class FakeNvml(SimpleNamespace):
    """The part of pynvml that is used, with its habits: bytes or text, None for sizes that are not available, an error for
    questions that a GPU does not know."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    NVML_ERROR_GPU_IS_LOST = LOST
    NVML_ERROR_RESET_REQUIRED = RESET
    NVML_ERROR_TIMEOUT = TIMEOUT
    NVML_FEATURE_ENABLED = 1
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, gpus: int = 1) -> None:
        super().__init__()
        self.gpus = gpus
        self.fail: dict[str, int] = {}
        """Error codes by function, or by function and GPU (`nvmlDeviceGetMemoryInfo 1`)."""
        self.answers: dict[str, Any] = {}
        """What a question that is not answered otherwise says."""
        self.events: list[tuple[int, int]] = []
        """(GPU, Xid)."""
        self.opened = 0

    def _may_fail(self, name: str, gpu: object = "") -> None:
        for key in (name, f"{name} {gpu}"):
            if key in self.fail:
                raise self.NVMLError(self.fail[key])

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self._may_fail("nvmlInit")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._may_fail("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._may_fail("nvmlDeviceGetCount")
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._may_fail("nvmlDeviceGetHandleByIndex", index)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return f"GPU-{handle}".encode()

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "A100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        self._may_fail("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=10, used=4)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=5, usedGpuMemory=None), SimpleNamespace(pid=6, usedGpuMemory=3)]

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        self._may_fail("nvmlEventSetCreate")
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, types: int, events: object) -> None:  # noqa: N802
        self._may_fail("nvmlDeviceRegisterEvents", handle)

    def nvmlEventSetWait_v2(self, events: object, timeout: int) -> SimpleNamespace:  # noqa: N802
        if not self.events:
            raise self.NVMLError(TIMEOUT)
        gpu, xid = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)

        def ask(handle: int, *_: object) -> Any:
            self._may_fail(name, handle)
            if name not in self.answers:
                raise self.NVMLError(UNSUPPORTED)
            return self.answers[name]

        return ask


def fault(question: str, answer: object) -> str:
    fake = FakeNvml()
    fake.answers[question] = answer
    (gpu,) = NvmlSource(cast("Any", fake))()
    assert (gpu.total, gpu.unread) == (10, ""), "a faulty GPU goes on being read"
    return gpu.fault


def test_nvml_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that compute and programs that draw, each once."""
    fake = FakeNvml()
    fake.answers["nvmlDeviceGetGraphicsRunningProcesses"] = [
        SimpleNamespace(pid=6, usedGpuMemory=3), SimpleNamespace(pid=7, usedGpuMemory=1)
    ]  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]  # stands for the module
    assert list(NvmlSource()()) == [Gpu(0, "GPU-0", "A100", 10, 4, ((6, 3), (7, 1), (5, None)))]


def test_no_driver_at_the_start_is_a_clear_reason() -> None:
    fake = FakeNvml()
    fake.fail["nvmlInit"] = 12
    with pytest.raises(DriverMissingError, match=r"error 12.*nvidia-smi"):
        NvmlSource(cast("Any", fake))


def test_one_gpu_that_fails_does_not_keep_the_others_from_being_read() -> None:
    """Lost for good is a fault, another error is a reading that was missed."""
    fake = FakeNvml(4)
    fake.fail |= {
        "nvmlDeviceGetHandleByIndex 0": LOST, "nvmlDeviceGetMemoryInfo 1": UNKNOWN, "nvmlDeviceGetMemoryInfo 2": RESET
    }  # fmt: skip
    lost, unread, reset, well = NvmlSource(cast("Any", fake))()
    assert (lost.uuid, "lost it" in lost.fault, lost.unread) == ("", True, "")
    assert (unread.uuid, unread.fault, unread.unread) == ("GPU-1", "", "error 999")
    assert ("gpu-reset -i 2" in reset.fault, well.fault, well.total) == (True, "", 10)


def test_a_gpu_that_is_lost_during_the_questions_is_lost() -> None:
    """Optional questions may fail for many reasons; this one is told."""
    fake = FakeNvml()
    fake.fail["nvmlDeviceGetMigMode"] = LOST
    assert "lost it" in NvmlSource(cast("Any", fake))()[0].fault


def test_a_driver_that_fails_as_a_whole_is_opened_anew() -> None:
    """It may have been loaded anew, as by an update."""
    fake = FakeNvml()
    read = NvmlSource(cast("Any", fake))
    fake.fail["nvmlDeviceGetCount"] = UNKNOWN
    for _ in range(2):
        with pytest.raises(OSError, match="error 999"):
            read()
    fake.fail = {"nvmlShutdown": 1}
    assert len(read()) == 1
    assert fake.opened == 3, "at the start, at the second failure, and now"


@pytest.mark.parametrize(
    ("question", "answer", "said"),
    [
        ("nvmlDeviceGetRemappedRows", (3, 1, 1, 1), "replaced"),
        ("nvmlDeviceGetRemappedRows", (3, 1, 1, 0), "gpu-reset -i 0"),
        ("nvmlDeviceGetRetiredPagesPendingStatus", 1, "retired"),
        ("nvmlDeviceGetTotalEccErrors", 2, "2 errors that ECC could not correct"),
        ("nvmlDeviceGetMigMode", [1, 1], "MIG mode, which is not supported"),
    ],
)
def test_a_gpu_in_a_bad_state_says_so(question: str, answer: object, said: str) -> None:
    """What is wrong, and what would help."""
    assert said in fault(question, answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("nvmlDeviceGetRemappedRows", (3, 1, 0, 0)),
        ("nvmlDeviceGetRetiredPagesPendingStatus", 0),
        ("nvmlDeviceGetTotalEccErrors", 0),
        ("nvmlDeviceGetMigMode", [0, 1]),
    ],
)
def test_a_gpu_that_is_well_says_nothing(question: str, answer: object) -> None:
    """Rows that were remapped, corrected errors and modes of the future are no trouble."""
    assert fault(question, answer) == ""


def action(code: int, status: int = 0) -> list[SimpleNamespace]:
    return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=code))]


def test_what_the_driver_asks_for_is_told() -> None:
    """The recovery action of newer drivers; `none` and an answer that failed mean nothing."""
    assert "a reset" in fault("nvmlDeviceGetFieldValues", action(1))
    assert "a reboot" in fault("nvmlDeviceGetFieldValues", action(2))
    assert fault("nvmlDeviceGetFieldValues", action(0)) == ""
    assert fault("nvmlDeviceGetFieldValues", action(1, status=UNSUPPORTED)) == ""


def test_an_error_that_the_driver_reports_keeps_the_gpu_out_of_use_for_a_while() -> None:
    """Its own errors, not those of a program on it (31: a wild pointer)."""
    fake, now = FakeNvml(2), [0.0]
    read = NvmlSource(cast("Any", fake), now=lambda: now[0])
    fake.events = [(0, 31), (1, 119)]
    assert [g.fault for g in read()] == ["", "its system processor does not answer (Xid 119 within 5 min; see dmesg)"]
    now[0] = QUARANTINE
    assert "Xid 119" in read()[1].fault
    now[0] = QUARANTINE + 1
    assert read()[1].fault == ""


def test_without_reports_all_else_is_read() -> None:
    """WSL and some GPUs have none."""
    for missing in ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents 0"):
        fake = FakeNvml()
        fake.fail[missing] = UNSUPPORTED
        assert len(NvmlSource(cast("Any", fake))()) == 1


def test_energy_is_read_where_it_is_counted() -> None:
    """In joules; NVML counts thousandths since its driver was loaded, and GPUs before Volta none."""
    nvml = FakeNvml()
    assert NvmlSource(cast("Any", nvml))()[0].energy is None
    nvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = 2_500
    assert NvmlSource(cast("Any", nvml))()[0].energy == 2.5
