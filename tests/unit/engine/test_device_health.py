"""When a device is out of use, and when it is used again."""

import threading
from collections.abc import Callable

import pytest

from fakes import FakeClock
from vllm_mm.domain.residency import Device
from vllm_mm.engine.devices import ForeignProcess, PolledInventory, Reading
from vllm_mm.engine.devices.health import Health
from vllm_mm.engine.devices.polled import MISSING


def test_a_fault_counts_at_once_and_ends_only_when_it_is_well_for_a_while() -> None:
    """Three good readings, and ten seconds since the first of them; one bad one begins that again."""
    sick = Health().saw("lost", 0.0)
    assert sick.problem == "lost"
    at_11, at_20 = sick.saw("", 1.0).saw("", 6.0).saw("", 11.0), sick.saw("", 1.0).saw("", 20.0)
    assert at_11.problem == "", "ten seconds since the first"
    assert at_20.problem == "lost", "only two"
    assert sick.saw("", 1.0).saw("", 2.0).saw("", 3.0).saw("", 4.0).problem == "lost", "too soon"
    assert sick.saw("", 1.0).saw("", 6.0).saw("lost again", 7.0).saw("", 12.0).saw("", 13.0).problem == "lost again"


def test_a_reading_that_fails_once_or_twice_is_chance() -> None:
    """At the third in a row it is not. Readings that come in a bunch count as one."""
    twice = Health().missed("no answer", 0.0).missed("no answer", 5.0)
    assert twice.problem == ""
    assert twice.missed("no answer", 5.5).problem == ""
    assert twice.missed("no answer", 10.0).problem == "it cannot be read: no answer (3 readings in a row)"
    assert twice.saw("", 10.0).missed("no answer", 15.0).problem == ""


def test_what_was_known_stays_known_while_nothing_can_be_read() -> None:
    """And missed readings are no good ones."""
    sick = Health().saw("needs a reset", 0.0).saw("", 1.0).saw("", 6.0).missed("no answer", 11.0)
    assert sick.problem == "needs a reset"
    assert sick.saw("", 12.0).saw("", 17.0).problem == "needs a reset"
    assert sick.missed("no answer", 16.0).missed("no answer", 21.0).problem.startswith("it cannot be read")


class Looks(PolledInventory):
    """Each reading is the work that the test gave last."""

    def __init__(self, clock: FakeClock, look: Callable[[], Reading]) -> None:
        super().__init__(clock)
        self.look = look
        self.refresh_now()

    def read(self) -> Reading:
        return self.look()


WELL = Reading((Device("0", 10, foreign=2),), (ForeignProcess("0", 7, "game", 2),))


def fails() -> Reading:
    raise OSError("NVML cannot read the GPUs: Unknown Error")


async def test_a_driver_that_fails_leaves_the_last_reading_and_then_marks_the_device(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The figures stay, so that what runs goes on being accounted; the log says it once."""
    clock = FakeClock()
    found = Looks(clock, lambda: WELL)
    found.look = fails
    for _ in range(3):
        clock.time += 5.0
        await found.refresh()
    (device,) = found.devices()
    assert (device.foreign, device.strangers) == (2, ("game (pid 7, 0.0 GiB)",))
    assert device.problem == "it cannot be read: NVML cannot read the GPUs: Unknown Error (3 readings in a row)"
    assert found.age() == 15.0
    assert caplog.text.count("Unknown Error") == 1
    found.look = lambda: WELL
    for _ in range(3):
        clock.time += 5.0
        await found.refresh()
    assert found.devices()[0].problem == ""


async def test_a_driver_that_hangs_keeps_nobody_waiting() -> None:
    """Readers go on with the last reading; the hanging one is not joined by more, and counts against the device. When it
    comes back, its reading is taken."""
    clock = FakeClock()
    found = Looks(clock, lambda: WELL)
    hang, readings = threading.Event(), 0

    def hangs() -> Reading:
        nonlocal readings
        readings += 1
        hang.wait(10)
        return Reading((Device("0", 10, foreign=5),))

    found.look = hangs
    for _ in range(3):
        clock.time += 5.0
        await found.refresh(deadline=0.0)
    (device,) = found.devices()
    assert (device.foreign, readings) == (2, 1)
    assert "takes longer than 0 s (3 readings in a row)" in device.problem
    hang.set()
    assert [d.foreign for d in await found.refresh()] == [5]


async def test_a_mistake_in_a_reading_is_told_to_who_asked_for_it() -> None:
    """It is no fault of the device."""
    found = Looks(FakeClock(), lambda: WELL)
    found.look = lambda: Reading((), (), None)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError):
        await found.refresh()
    assert found.devices()[0].problem == ""


async def test_a_device_that_is_gone_stays_in_the_list() -> None:
    """With its last figures, and out of use; one that is new comes after it."""
    clock = FakeClock()
    found = Looks(clock, lambda: WELL)
    found.look = lambda: Reading((Device("1", 20),))
    told = await found.refresh()
    assert [(d.id, d.capacity, d.problem) for d in told] == [("0", 10, MISSING), ("1", 20, "")]


async def test_a_faulty_device_is_not_waited_for() -> None:
    """The memory of an engine that stopped on it may never be seen to come back."""
    found = Looks(FakeClock(), lambda: WELL)
    found.look = lambda: Reading((Device("0", 10, foreign=9),), faults={"0": "lost"})
    assert await found.wait_free({"0": 5}, {"0": 0}, 0.0) is True


async def test_the_largest_strangers_are_named_and_the_others_counted() -> None:
    """Who took the memory, in a line."""
    processes = [ForeignProcess("0", pid, f"p{pid}", pid << 30 if pid != 5 else None) for pid in range(1, 6)]
    found = Looks(FakeClock(), lambda: Reading((Device("0", 10),), processes))
    assert found.devices()[0].strangers == (
        "p4 (pid 4, 4.0 GiB)", "p3 (pid 3, 3.0 GiB)", "p2 (pid 2, 2.0 GiB)", "2 more",
    )  # fmt: skip
    assert str(processes[4]) == "p5 (pid 5)"
