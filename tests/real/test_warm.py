"""Real vLLM forked from a zygote: dozens of starts in a row, and its zygote killed while it imports, loads and serves.

`MM_WARM_REAL_ROUNDS` is the number of starts in a row; by default eight, and 24 with --real-full.
"""

import asyncio
import os
import secrets
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from real_vllm import START, TINY, Installation
from rig import alive, marked, until, zombies
from serving import REAL_STARTS
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, LauncherKind, ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.ports import LaunchPlan
from vllm_mm.engine.process import LocalProcess
from warm_rig import WarmRig, descriptors, serves, warm_rig

DEVICES = (Device("cpu", 16 * GIB, kind="cpu"),)


@pytest.fixture
async def warm() -> AsyncIterator[WarmRig]:
    owner = f"test-{secrets.token_hex(6)}"
    with TemporaryDirectory(prefix="mm-") as folder:  # short, for the sockets
        async with warm_rig(owner, Path(folder)) as rig:
            yield rig
    left = marked(owner)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


def plan(rig: WarmRig, vllm: Installation, *, variant: str = "") -> LaunchPlan:
    """A launch of the tiny model; another `variant` is another zygote."""
    declared = vllm.declare(TINY)
    spec = ModelSpec(
        id=TINY, engine=EngineKind.VLLM, executable=declared["executable"], model=declared["model"], args=declared["args"],
        env={**declared["env"], **({"MM_TEST_VARIANT": variant} if variant else {})}, launcher=LauncherKind.WARM,
    )  # fmt: skip
    token = secrets.token_hex(16)
    workdir = rig.tmp / f"w{token[:6]}"
    address = command.address_for(spec, workdir)
    held = {"cpu": 2 * GIB}
    argv, env = command.build(
        spec, address=address, device_bytes=held, devices=DEVICES, workdir=workdir, token=token, owner=rig.owner,
        cache_dir=rig.tmp / "cache", sim_ledger=rig.tmp / "ledger", python=sys.executable,
    )  # fmt: skip
    log = rig.tmp / "logs" / "tiny.log"
    return LaunchPlan(TINY, 1, token, argv, env, address, workdir, log, spec.fingerprint, held, LauncherKind.WARM)


async def served(process: LocalProcess) -> None:
    """Once it serves, for the first time."""
    await serves(process, START)
    REAL_STARTS[process.launcher] += 1


async def finish(rig: WarmRig, process: LocalProcess, *, graceful: bool) -> None:
    report = await process.stop(graceful=graceful, grace=20, deadline=40)
    assert not report.survivors
    await process.close()
    rig.started.remove(process)


@pytest.fixture
def rounds(full: bool) -> int:
    return int(os.environ.get("MM_WARM_REAL_ROUNDS", "24" if full else "8"))


def anonymous(pid: int) -> int:
    """Bytes that a process has beside its files. Of its private memory one cannot tell growth: whatever other processes map
    the same libraries, it counts as shared, and as private again when they end."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.timeout(1500 + 30 * int(os.environ.get("MM_WARM_REAL_ROUNDS", "0")))
async def test_dozens_of_starts_leave_nothing(warm: WarmRig, vllm: Installation, rounds: int) -> None:
    """Started, asked, and stopped, in turns as asked and by SIGKILL: always from the same zygote, whose memory and descriptors
    stay as they were; no zombie, no orphan, nothing left in directories."""
    others = zombies()
    times: list[float] = []
    ours = its = memory = 0
    for number in range(rounds):
        began = time.monotonic()
        process = await warm.start(plan(warm, vllm))
        assert process.launcher == "warm", warm.launcher.view().last_reason
        await served(process)
        times.append(time.monotonic() - began)
        core = [s for s in marked(warm.owner).values() if s.ppid == process.record.pid]
        assert core, "vLLM has its own child, which serves"
        await finish(warm, process, graceful=number % 2 == 0)
        assert not [s for s in core if alive(s.pid)]
        if number % 20 == 19:
            print(f"{number + 1} starts", flush=True)
        if number == min(3, rounds - 1):
            await warm.pool.tidy()
            memory = anonymous(warm.zygote())
            ours, its = len(descriptors(os.getpid())), len(descriptors(warm.zygote()))
    print(f"{rounds} warm starts: first {times[0]:.1f} s, then {statistics.median(times[1:]):.2f} s (median)")
    await warm.pool.tidy()
    (view,) = warm.pool.views()
    at_last = anonymous(warm.zygote())
    print(
        f"the zygote's own memory: {memory / 2**20:.1f} MiB after four starts, at the end {at_last / 2**20:.1f} MiB; "
        f"{view.report.private >> 20} MiB are private to it"
    )
    assert view.forks == rounds
    assert at_last < memory + (4 << 20)
    assert (len(descriptors(os.getpid())), len(descriptors(warm.zygote()))) == (ours, its)
    assert zombies() <= others
    assert set(marked(warm.owner)) == {warm.zygote()}
    assert not list(warm.tmp.glob("w*"))


async def test_a_zygote_is_killed(warm: WarmRig, vllm: Installation) -> None:
    """While it imports: the start is a local one. While an engine loads and while one serves: they go on. A stop of the zygote
    in the middle (SIGSTOP) does not harm them either, and the next start has a new one."""
    others = zombies()
    first = asyncio.create_task(warm.start(plan(warm, vllm)))
    await until(warm.zygotes, "the zygote", 30)
    await asyncio.sleep(1.0)
    os.kill(warm.zygote(), signal.SIGKILL)
    local = await asyncio.wait_for(first, 10)
    assert local.launcher == "local"
    assert "killed by signal 9" in warm.told("launcher.fallback")[0]["reason"]
    loading = await warm.start(plan(warm, vllm))
    assert loading.launcher == "warm"
    os.kill(warm.zygote(), signal.SIGKILL)  # it forked a moment ago
    await served(loading)
    await served(local)
    await finish(warm, local, graceful=True)
    again = await warm.start(plan(warm, vllm))
    assert again.launcher == "warm"
    os.kill(warm.zygote(), signal.SIGSTOP)
    await served(again)
    os.kill(warm.zygote(), signal.SIGKILL)
    await serves(again)
    await serves(loading)
    for process in (again, loading):
        await finish(warm, process, graceful=True)
    await until(lambda: not marked(warm.owner), "everything to be gone")
    assert zombies() <= others
