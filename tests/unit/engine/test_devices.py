"""What the inventories tell, and when memory counts as free again."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from vllm_mm.clock import RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.residency import Device
from vllm_mm.engine import procfs
from vllm_mm.engine.devices import (
    CompositeInventory,
    CpuInventory,
    DeviceEntry,
    DriverMissingError,
    ForeignProcess,
    NvmlInventory,
    PolledInventory,
    Reading,
    SimulatedInventory,
    build_inventory,
    owned_by,
)
from vllm_mm.engine.devices.gpus import Gpu
from vllm_mm.engine.devices.polled import MISSING

GIB = 1024**3
ME = os.getpid()
GONE = 2**22 + 1


class QuickClock(RealClock):
    """Time passes only in sleeps, and those are over at once."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


def nobody(pid: int) -> bool:
    return False


def only(*pids: int) -> Callable[[int], bool]:
    return lambda pid: pid in pids


def gpu(index: int = 0, used: int = 0, processes: Sequence[tuple[int, int | None]] = (), total: int = 80 * GIB) -> Gpu:
    return Gpu(index, f"GPU-{index}aa", "NVIDIA H100", total, used, tuple(processes))


def inventory(
    *gpus: Gpu,
    ours: Callable[[int], bool] = nobody,
    entries: Mapping[str, tuple[int | None, int | None]] | None = None,
    visible: str | None = None,
) -> tuple[NvmlInventory, list[Gpu]]:
    """And the list from which it reads."""
    now = list(gpus)
    made = NvmlInventory(
        QuickClock(), ours, headroom=GIB, entries=entries, source=lambda: list(now), visible=visible
    )  # fmt: skip
    return made, now


@pytest.fixture(autouse=True)
def no_cuda_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_is_told_with_what_others_use_of_it() -> None:
    """Everything in use that is not our engines' counts, also what no process admits (the driver's own)."""
    found, _ = inventory(gpu(used=30 * GIB, processes=[(ME, 20 * GIB), (1, 5 * GIB)]), ours=only(ME))
    stat = procfs.read_stat(1)
    assert stat is not None
    assert found.foreign_processes() == (ForeignProcess("0", 1, stat.name, 5 * GIB),)
    strangers = (f"{stat.name} (pid 1, 5.0 GiB)",)
    assert found.devices() == (
        Device("0", 80 * GIB, headroom=GIB, foreign=10 * GIB, kind="gpu", name="NVIDIA H100", strangers=strangers),
    )


def test_where_the_driver_does_not_tell_sizes_the_last_clean_reading_counts() -> None:
    """Our own use cannot be subtracted, and must not be taken for somebody else's."""
    ours: set[int] = set()
    found, now = inventory(gpu(used=2 * GIB), ours=lambda pid: pid in ours)
    assert found.devices()[0].foreign == 2 * GIB
    ours.add(ME)
    now[0] = gpu(used=60 * GIB, processes=[(ME, None)])
    assert asyncio.run(found.refresh())[0].foreign == 2 * GIB
    now[0] = gpu(used=60 * GIB, processes=[(GONE, 58 * GIB)])  # a pid of another namespace: it may be our own engine's
    assert asyncio.run(found.refresh())[0].foreign == 2 * GIB
    ours.clear()
    now[0] = gpu(used=50 * GIB, processes=[(GONE, 48 * GIB)])
    assert asyncio.run(found.refresh())[0].foreign == 50 * GIB


def test_gpus_are_chosen_by_index_or_uuid() -> None:
    """Under the name that the configuration gives them; a smaller capacity leaves the rest to others."""
    entries = {"1": (40 * GIB, None), "GPU-0aa": (None, 3 * GIB)}
    found, _ = inventory(gpu(0), gpu(1, used=45 * GIB), gpu(2), entries=entries)
    assert [(d.id, d.capacity, d.headroom, d.foreign) for d in found.devices()] == [
        ("GPU-0aa", 80 * GIB, 3 * GIB, 0),
        ("1", 40 * GIB, GIB, 5 * GIB),
    ]
    with pytest.raises(DriverMissingError, match=r"no GPU 7 .*nvidia-smi -L"):
        inventory(gpu(0), entries={"0": (None, None), "7": (None, None)})


@pytest.mark.parametrize(
    ("visible", "ids"),
    [(None, ["0", "1", "2"]), ("1", ["1"]), ("2, 0", ["0", "2"]), ("GPU-1a", ["1"]), ("GPU-2aa", ["2"])],
)
def test_cuda_visible_devices_limits_what_is_found(visible: str | None, ids: list[str]) -> None:
    """By index or by the beginning of a UUID, as CUDA reads it: the machine is shared with others."""
    found, _ = inventory(gpu(0), gpu(1), gpu(2), visible=visible)
    assert [d.id for d in found.devices()] == ids


def test_no_gpu_to_be_seen_is_a_clear_reason() -> None:
    with pytest.raises(DriverMissingError, match="CUDA_VISIBLE_DEVICES"):
        inventory(gpu(0), visible="")


def test_gpus_keep_their_ids_when_nvml_counts_anew() -> None:
    """One is gone: it stays in the list with the reason. The next one has its number now, but is still itself; as engines
    are told numbers, nothing is placed on it either."""
    found, now = inventory(gpu(0), gpu(1), gpu(2, used=3 * GIB))
    now[:] = [gpu(0), replace(gpu(2, used=5 * GIB), index=1)]
    told = asyncio.run(found.refresh())
    assert [(d.id, d.foreign, d.problem.split(" ")[0:3]) for d in told] == [
        ("0", 0, [""]), ("1", 0, ["it", "is", "not"]), ("2", 5 * GIB, ["its", "number", "changed"])
    ]  # fmt: skip
    assert "from 2 to 1" in told[2].problem


def test_a_gpu_named_by_its_uuid_may_change_its_number() -> None:
    """Its engines are told the UUID."""
    found, now = inventory(gpu(0), gpu(1), entries={"GPU-1aa": (None, None)})
    now[:] = [replace(gpu(1), index=0)]
    assert [(d.id, d.problem) for d in asyncio.run(found.refresh())] == [("GPU-1aa", "")]


def test_a_new_gpu_under_an_old_number_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Said once, not at each reading."""
    found, now = inventory(gpu(0))
    now[:] = [replace(gpu(0), uuid="GPU-other", total=GIB)]
    for _ in range(2):
        asyncio.run(found.refresh())
    (device,) = found.devices()
    assert (device.capacity, device.problem) == (80 * GIB, MISSING)
    assert caplog.text.count("restart vllm-mm to use it") == 1


def test_a_gpu_that_tells_nothing_is_known_by_its_number() -> None:
    """The driver lost it: marked at once, with the figures of before; one that was lost from the start has none."""
    found, now = inventory(gpu(0, used=GIB), gpu(1))
    now[0] = Gpu(0, "", "", 0, 0, (), fault="the driver has lost it")
    told = asyncio.run(found.refresh())
    assert [(d.id, d.capacity, d.foreign, d.problem) for d in told] == [
        ("0", 80 * GIB, GIB, "the driver has lost it"), ("1", 80 * GIB, 0, "")
    ]  # fmt: skip
    dead, _ = inventory(gpu(0), Gpu(1, "", "", 0, 0, (), fault="the driver has lost it"))
    assert [(d.id, d.capacity, d.problem) for d in dead.devices()] == [
        ("0", 80 * GIB, ""), ("1", 0, "the driver has lost it")
    ]  # fmt: skip


def test_a_faulty_gpu_goes_on_being_read() -> None:
    """Memory that waits for a reset can still be in use."""
    found, now = inventory(gpu(0, used=GIB))
    now[0] = replace(gpu(0, used=9 * GIB), fault="it needs a reset")
    (device,) = asyncio.run(found.refresh())
    assert (device.foreign, device.problem) == (9 * GIB, "it needs a reset")


def test_the_hosts_memory_is_the_machines() -> None:
    found = CpuInventory(QuickClock(), nobody, headroom=7)
    (device,) = found.devices()
    assert (device.id, device.kind, device.headroom) == ("cpu", "cpu", 7)
    assert device.capacity == psutil.virtual_memory().total
    assert 0 < device.foreign < device.capacity


def test_our_engines_memory_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Total less available less ours; and never below nothing."""
    memory = SimpleNamespace(total=100 * GIB, available=60 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(procfs, "own_memory", lambda pid: 30 * GIB)
    assert CpuInventory(QuickClock(), nobody).devices()[0].foreign == 40 * GIB
    assert CpuInventory(QuickClock(), only(ME)).devices()[0].foreign == 10 * GIB
    memory.available = 90 * GIB
    assert CpuInventory(QuickClock(), only(ME)).devices()[0].foreign == 0


def test_who_takes_the_hosts_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three largest by what is their own, not by the files that they have mapped; neither engines of ours nor this server;
    nobody where what they take is not in our way."""
    memory = SimpleNamespace(total=100 * GIB, available=20 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    own = {1: 5 * GIB, 2: 40 * GIB, 3: 9 * GIB, 4: GIB // 2, 5: 2 * GIB, 6: 1 << 20, ME: 50 * GIB}
    monkeypatch.setattr(procfs, "pids", lambda: [*own, 7])
    monkeypatch.setattr(procfs, "resident", lambda pid: 60 * GIB if pid == 4 else own.get(pid, 0))
    monkeypatch.setattr(procfs, "own_memory", lambda pid: own.get(pid, 0))
    known = procfs.read_stat(ME)
    assert known is not None
    monkeypatch.setattr(procfs, "read_stat", lambda pid: None if pid == 5 else replace(known, name=f"p{pid}"))
    monkeypatch.setattr(procfs, "table", lambda: {2: known})
    found = CpuInventory(QuickClock(), only(2), headroom=7)
    assert [(p.device, p.pid, p.name, p.size) for p in found.foreign_processes()] == [
        ("cpu", 3, "p3", 9 * GIB), ("cpu", 1, "p1", 5 * GIB), ("cpu", 4, "p4", GIB // 2),
    ]  # fmt: skip
    memory.available = 10 * GIB
    (device,) = asyncio.run(found.refresh())
    assert device.strangers == ("p3 (pid 3, 9.0 GiB)", "p1 (pid 1, 5.0 GiB)", "p4 (pid 4, 0.5 GiB)")
    assert CpuInventory(QuickClock(), only(2), capacity=30 * GIB).foreign_processes() == ()


def test_what_a_process_takes_of_this_machine_is_read() -> None:
    """A real one: roughly, and what is its own; nothing when it is gone."""
    size = 256 * 1024**2
    code = f"import sys; held = b'x' * {size}; print(len(held), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == size
        assert procfs.resident(process.pid) >= procfs.own_memory(process.pid) >= size
        process.communicate()
    assert procfs.resident(process.pid) == 0


def test_what_others_take_beside_a_configured_pool_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 GiB, 20 were given to us: others may use 80 before they are in our way."""
    memory = SimpleNamespace(total=100 * GIB, available=30 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert CpuInventory(QuickClock(), nobody, capacity=20 * GIB).devices()[0].foreign == 0
    memory.available = 15 * GIB
    assert CpuInventory(QuickClock(), nobody, capacity=20 * GIB).devices()[0].foreign == 5 * GIB


def claim(ledger: Path, device: str, pid: int, size: object, ticks: int | None = None) -> None:
    stat = procfs.read_stat(pid)
    folder = ledger / device
    folder.mkdir(parents=True, exist_ok=True)
    started = ticks if ticks is not None else stat.start_ticks if stat else 0
    (folder / f"{pid}-{started}").write_text(str(size))


def test_claims_on_a_simulated_device(tmp_path: Path) -> None:
    """Living strangers' claims are foreign use; ours, dead ones, those of an earlier owner of the number are not."""
    parent = os.getppid()
    stat = procfs.read_stat(parent)
    assert stat is not None
    claim(tmp_path, "s0", ME, 5)
    claim(tmp_path, "s0", parent, 7)
    claim(tmp_path, "s0", GONE, 100)
    claim(tmp_path, "s1", parent, 100, ticks=1)
    claim(tmp_path, "s1", ME, "half writt")
    (tmp_path / "s0" / ".lock").touch()
    (tmp_path / "s0" / f".{parent}-1").write_text("100")
    found = SimulatedInventory(QuickClock(), only(ME), {"s0": 10, "s1": 20, "s2": 30}, tmp_path, headroom={"s1": 2})
    assert found.devices() == (
        Device("s0", 10, foreign=7, kind="sim", name="simulated", strangers=(f"{stat.name} (pid {parent}, 0.0 GiB)",)),
        Device("s1", 20, headroom=2, kind="sim", name="simulated"),
        Device("s2", 30, kind="sim", name="simulated"),
    )
    assert found.foreign_processes() == (ForeignProcess("s0", parent, stat.name, 7),)


def test_a_zombies_claim_counts_as_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    claim(tmp_path, "s0", child.pid, 5)
    assert SimulatedInventory(QuickClock(), nobody, {"s0": 10}, tmp_path).devices()[0].foreign == 0
    child.wait()


def test_a_simulated_device_can_be_made_faulty(tmp_path: Path) -> None:
    """Unplugged, with a fault of the driver's, or not to be read; well again once the file is gone and that lasts."""
    clock = QuickClock()
    found = SimulatedInventory(clock, nobody, {"s0": 10, "s1": 20}, tmp_path)
    fault = tmp_path / "s0" / ".fault"
    fault.parent.mkdir()

    def problems() -> list[str]:
        clock.time += 6.0
        return [d.problem for d in asyncio.run(found.refresh())]

    fault.write_text("unplugged\n")
    assert problems() == [MISSING, ""]
    fault.write_text("it needs\na reset")
    assert problems() == ["it needs a reset", ""]
    fault.unlink()
    assert [problems()[0] for _ in range(3)] == ["it needs a reset", "it needs a reset", ""]
    fault.write_text("unreadable")
    assert [problems()[0] for _ in range(3)] == [
        "", "", "it cannot be read: its driver gives an error (3 readings in a row)"
    ]  # fmt: skip


class Script(PolledInventory):
    """Tells foreign use from a list, one entry per reading; the last one stays."""

    def __init__(self, *foreign: int, device: str = "0") -> None:
        super().__init__(QuickClock())
        self.device = device
        self.left = list(foreign)
        self.refresh_now()

    @property
    def waited(self) -> float:
        return self._clock.now()

    def read(self) -> Reading:
        foreign = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return Reading((Device(self.device, 80 * GIB, foreign=foreign),))


def test_memory_is_awaited_until_it_is_seen_to_be_back() -> None:
    """After the process is gone the driver still shows its memory for a while, as nobody's."""
    script = Script(GIB, 31 * GIB, 31 * GIB, 12 * GIB, GIB)
    assert asyncio.run(script.wait_free({"0": 30 * GIB}, {"0": GIB}, 10)) is True
    assert 0 < script.waited < 1


def test_memory_that_does_not_come_back_is_told_at_the_deadline() -> None:
    script = Script(GIB, 31 * GIB)
    assert asyncio.run(script.wait_free({"0": 30 * GIB}, {"0": GIB}, 5)) is False
    assert script.waited == pytest.approx(5)


def test_a_little_more_than_before_is_free() -> None:
    """Drivers round, and neighbours breathe: a share of what was held, and at least some MiB."""
    assert asyncio.run(Script(2 * GIB).wait_free({"0": 30 * GIB}, {"0": GIB}, 0)) is True
    assert asyncio.run(Script(50 * 1024**2).wait_free({"0": 1}, {}, 0)) is True
    assert asyncio.run(Script(100 * 1024**2).wait_free({"0": 1}, {}, 0)) is False


def test_what_cannot_be_observed_is_free_at_once() -> None:
    """The host's memory is back before the process is seen to be gone; unknown devices say nothing."""
    assert asyncio.run(CpuInventory(QuickClock(), nobody).wait_free({"cpu": GIB}, {"cpu": 0}, 0)) is True
    assert asyncio.run(Script(5 * GIB).wait_free({"9": GIB}, {}, 0)) is True


def test_several_inventories_are_one() -> None:
    """Each device is asked of its own; the slowest decides, one failure is a failure."""
    slow, quick = Script(9 * GIB, 9 * GIB, 9 * GIB, 0, device="a"), Script(9 * GIB, 0, device="b")
    both = CompositeInventory([slow, quick])
    assert [d.id for d in both.devices()] == ["a", "b"]
    assert asyncio.run(both.wait_free({"a": GIB, "b": GIB}, {}, 5)) is True
    assert [d.foreign for d in both.devices()] == [0, 0]
    stuck = CompositeInventory([Script(9 * GIB, device="a"), Script(0, device="b")])
    assert asyncio.run(stuck.wait_free({"a": GIB, "b": GIB}, {}, 1)) is False
    assert asyncio.run(stuck.wait_free({"b": GIB}, {}, 1)) is True
    assert [d.id for d in asyncio.run(stuck.refresh())] == ["a", "b"]
    assert stuck.foreign_processes() == ()


def test_what_one_launch_holds(tmp_path: Path) -> None:
    """By device; nothing where the driver does not tell it, or tells the pids of another namespace."""
    claim(tmp_path, "s0", ME, 5)
    claim(tmp_path, "s1", os.getppid(), 7)
    simulated = SimulatedInventory(QuickClock(), nobody, {"s0": 10, "s1": 10}, tmp_path)
    assert simulated.holds(only(ME)) == {"s0": 5, "s1": 0}
    gpus, _ = inventory(
        gpu(0, processes=[(1, 4), (2, 3), (9, 50)]), gpu(1, processes=[(1, None), (2, 3)]), gpu(2, processes=[(9, 1)])
    )  # fmt: skip
    assert gpus.holds(only(1, 2)) == {"0": 7}
    assert CpuInventory(QuickClock(), nobody).holds(only(ME))["cpu"] > 0
    assert asyncio.run(CompositeInventory([simulated, gpus, Script(0)]).held("a token that nobody has")) == {
        "s0": 0, "s1": 0,
    }  # fmt: skip


def no_driver(*_: object, **__: object) -> PolledInventory:
    raise DriverMissingError("no NVIDIA driver answers")


def build(devices: object, ledger: Path, gpus: Callable[..., PolledInventory] = no_driver) -> CompositeInventory:
    return build_inventory(
        devices,  # type: ignore[arg-type] # each test gives one of the allowed forms
        headroom=GIB, owner="o", ledger_dir=ledger, clock=QuickClock(), gpus=gpus,
    )  # fmt: skip


def test_without_a_driver_auto_is_the_hosts_memory_and_says_why(tmp_path: Path) -> None:
    made = build("auto", tmp_path)
    assert [d.id for d in made.devices()] == ["cpu"]
    assert made.notes == ("no NVIDIA driver answers",)
    assert made.devices()[0].headroom == GIB


def test_with_gpus_auto_is_the_gpus(tmp_path: Path) -> None:
    made = build("auto", tmp_path, gpus=lambda *_, **__: Script(0))
    assert [d.id for d in made.devices()] == ["0"]
    assert made.notes == ()
    assert [d.id for d in build("cpu", tmp_path, gpus=lambda *_, **__: Script(0)).devices()] == ["cpu"]


def test_a_list_is_taken_as_it_is(tmp_path: Path) -> None:
    """Simulated devices have no headroom unless they are given one."""
    asked: list[object] = []

    def gpus(*_: object, headroom: int, entries: object) -> PolledInventory:
        asked.append(entries)
        return Script(0)

    entries = (
        DeviceEntry("sim0", memory=24 * GIB, simulated=True),
        DeviceEntry("sim1", memory=8 * GIB, headroom=1, simulated=True),
        DeviceEntry("cpu", memory=4 * GIB, headroom=2),
        DeviceEntry("0", memory=40 * GIB),
    )
    found = {d.id: d for d in build(entries, tmp_path, gpus).devices()}
    assert {i: (d.capacity, d.headroom, d.kind) for i, d in found.items() if i != "0"} == {
        "sim0": (24 * GIB, 0, "sim"),
        "sim1": (8 * GIB, 1, "sim"),
        "cpu": (4 * GIB, 2, "cpu"),
    }
    assert asked == [{"0": (40 * GIB, None)}]


def test_a_listed_gpu_that_is_not_there_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"devices: 0 cannot be used: no NVIDIA driver answers.*simulated"):
        build((DeviceEntry("0"),), tmp_path)


def test_ours_are_those_with_our_mark() -> None:
    """Whoever started them: engines of an earlier controller count too."""
    env = {**os.environ, "MM_ENGINE_OWNER": "o", "MM_ENGINE_LAUNCH": "t"}
    code = "print(flush=True); input()"  # its environment can be read only some time after the exec
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        assert owned_by("o")(child.pid)
        assert not owned_by("p")(child.pid)
        assert not owned_by("o")(ME)
        assert not owned_by("o")(GONE)
    finally:
        child.kill()
        child.communicate()


def test_an_engine_that_is_ending_is_still_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes a process's environment away first. Its memory is no stranger's for that; a process that was never seen
    to be ours, or a later one with the same number, does not become it by having no environment."""
    marks: dict[int, procfs.Marks | None] = {7: procfs.Marks("o", "t"), 8: None}
    ticks = {7: 100, 8: 100}
    monkeypatch.setattr(procfs, "read_marks", lambda pid: marks[pid])
    monkeypatch.setattr(
        procfs,
        "read_stat",
        lambda pid: procfs.Stat(pid, "x", "R", 1, pid, pid, 1, ticks[pid]) if pid in ticks else None,
    )
    ours = owned_by("o")
    assert ours(7)
    marks[7] = None
    assert ours(7)
    assert not ours(8)
    ticks[7] = 101
    assert not ours(7)
    marks[7], ticks[7] = procfs.Marks("o", "t"), 100
    assert ours(7)
    marks[7] = procfs.Marks("another", "t")
    assert not ours(7)
    marks[7] = None
    assert not ours(7)
    del ticks[7]
    assert not ours(7)


def test_frozen_readings_do_not_change_under_the_reader() -> None:
    found, now = inventory(gpu(used=GIB))
    before = found.devices()
    now[0] = replace(now[0], used=5 * GIB)
    asyncio.run(found.refresh())
    assert before[0].foreign == GIB
    assert found.devices()[0].foreign == 5 * GIB


def test_energy_is_by_device() -> None:
    """Of those that count it."""
    found, _ = inventory(replace(gpu(0), energy=2.5), gpu(1))
    assert found.energy() == {"0": 2.5}
