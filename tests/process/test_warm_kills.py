"""Zygotes killed at every moment, and hundreds of starts: engines go on, starts come to an end, and nothing is left.

`MM_WARM_KILLS` (default 100) and `MM_WARM_ROUNDS` (default 200) are the numbers of rounds; `MM_WARM_SEED` repeats a run.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.engines import MARK
from contract.forked import MAIN, Forked, Forkery
from rig import until, zombies
from vllm_mm.engine import procfs
from vllm_mm.engine.launchers import zygote as script
from vllm_mm.engine.process import LocalProcess
from warm_rig import WarmRig, descriptors, serves, warm_rig

KILLS = int(os.environ.get("MM_WARM_KILLS", "100"))
ROUNDS = int(os.environ.get("MM_WARM_ROUNDS", "200"))
SEED = int(os.environ.get("MM_WARM_SEED", str(random.SystemRandom().randrange(2**31))))


@pytest.fixture
async def warm(owner: str, tmp_path: Path) -> AsyncIterator[WarmRig]:
    async with warm_rig(owner, tmp_path, fork_deadline=0.5, import_deadline=2.0) as rig:
        yield rig


@pytest.fixture
async def patient(owner: str, tmp_path: Path) -> AsyncIterator[WarmRig]:
    async with warm_rig(owner, tmp_path) as rig:
        yield rig


def strays(rig: WarmRig, allowed: set[int]) -> dict[int, procfs.Stat]:
    """Living processes with the owner's mark that are none of the engines' sessions and no zygote."""
    sessions = {process.record.pid for process in rig.started} | allowed
    return {
        pid: stat
        for pid, stat in procfs.table().items()
        if not stat.dead
        and stat.sid not in sessions
        and (marks := procfs.read_marks(pid)) is not None
        and marks.owner == rig.owner
    }


async def finish(rig: WarmRig, process: LocalProcess) -> None:
    report = await process.stop(graceful=False, grace=0, deadline=10)
    assert not report.survivors
    await process.close()
    rig.started.remove(process)


@pytest.mark.timeout(600)
async def test_a_zygote_is_killed_at_any_moment(warm: WarmRig) -> None:
    """SIGKILL to the zygote, or to any process of its session (the one between it and the engine too), at a random moment
    of starts: before, in and after the fork, while engines load and serve. Every start gives an engine that serves; none
    that was running notices; no process, zombie, descriptor or directory is left."""
    print(f"kills: MM_WARM_SEED={SEED} MM_WARM_KILLS={KILLS}")
    rng = random.Random(SEED)
    others = zombies()
    veteran = await warm.start(warm.plan(model="veteran"))
    await serves(veteran)
    before = len(descriptors(os.getpid()))
    done: Counter[str] = Counter()
    for number in range(KILLS):
        # Another variable every few rounds is another zygote: that of one that was killed too often is given up.
        env = {"VARIANT": str(number // 2)}
        zygotes = set(warm.zygotes().values())
        how = rng.choice([signal.SIGKILL] * 19 + [signal.SIGSTOP])
        watch = None
        if rng.random() < 0.4:
            if not zygotes:  # one that is ready, so that the fork is at once
                await finish(warm, await warm.start(warm.plan(model="first", env=env)))
                zygotes = set(warm.zygotes().values())
            delay = rng.choice([0.0, rng.uniform(0, 0.004)])
            watch = asyncio.create_task(asyncio.to_thread(kill_between, zygotes, how, delay))
            await asyncio.sleep(0.002)
        starts = [
            asyncio.create_task(warm.start(warm.plan({"startup": "20ms"}, model=f"m{n}", env=env)))
            for n in range(rng.choice([1, 1, 2]))
        ]
        if watch is not None:
            done["between"] += await watch
        else:
            await asyncio.sleep(rng.choice([rng.uniform(0, 0.03), rng.uniform(0, 0.3)]))
            for pid in warm.zygotes().values():
                zygotes.add(pid)
                done["zygote"] += 1
                os.kill(pid, how)
        began = time.monotonic()
        processes = await asyncio.wait_for(asyncio.gather(*starts), 20)
        for process in processes:
            done[process.launcher] += 1
            if rng.random() < 0.3:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(list(warm.zygotes().values()) or [0x7FFFFFF]), signal.SIGKILL)
        for process in processes:
            if rng.random() < 0.5:
                done[await _served_or_ended(process)] += 1
        assert time.monotonic() - began < 30
        for process in processes:
            await finish(warm, process)
        assert not strays(warm, set(warm.zygotes().values()) | zygotes), "an engine that nobody knows"
    await serves(veteran)
    print("kills:", dict(done))
    assert done["warm"] > KILLS / 20
    assert done["local"] > KILLS / 50
    assert done["served"] > done["killed"] * 10
    assert done["between"] > KILLS / 20
    await finish(warm, veteran)
    await warm.launcher.close()
    assert strays(warm, set()) == {}
    await until(lambda: zombies() <= others, "zombies to be reaped", 2)
    assert len(descriptors(os.getpid())) <= before
    assert not [path for path in warm.tmp.iterdir() if path.name.startswith("w")], "work directories are left"
    assert not (warm.tmp / "z").exists()


@pytest.mark.parametrize("word", [b"", b"?", script.GO], ids=["none", "another", "go"])
def test_an_engine_that_nobody_knows_ends_itself(tmp_path: Path, word: bytes) -> None:
    """Without the owner's word it does not begin, whoever else was killed meanwhile; that is a kill from outside."""
    forkery = Forkery(MARK)
    ours, theirs = socket.socketpair()
    try:
        with ours, (tmp_path / "log").open("wb") as log:
            with theirs:
                request = {"op": "fork", "argv": [MAIN, "--help"], "env": {}, "marks": {MARK: "1" * 32}}
                script.write_frame(forkery._channel, request, [log.fileno(), theirs.fileno()])
            answer, fds = script.read_frame(ours, 20)
            for fd in fds:
                os.close(fd)
            assert answer is not None
            assert "pid" in answer, answer
            if word:
                ours.send(word)
        code = Forked(answer["pid"]).wait(10)
    finally:
        forkery.close()
    assert code == (0 if word == script.GO else -signal.SIGKILL)
    assert ("usage" in (tmp_path / "log").read_text()) == (word == script.GO)


def kill_between(zygotes: set[int], how: signal.Signals, delay: float) -> int:
    """Wait for a process that a zygote forks, and kill it: the one that forks the engine, or the engine before it has a
    session of its own. Returns how many were found. Looks again and again without a pause: it lives for a
    few milliseconds."""
    until = time.monotonic() + 0.15
    while time.monotonic() < until:
        for zygote in zygotes:
            for child in procfs.children(zygote):
                victim = child
                if delay:
                    time.sleep(delay)
                    left = [s.pid for s in procfs.table().values() if s.sid == zygote and s.pid != zygote]
                    victim = left[-1] if left else child
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, how)
                return 1
    return 0


async def _served_or_ended(process: LocalProcess) -> str:
    """An engine whose own process was hit before it was complete ends by SIGKILL; nothing else may happen to it."""
    ended = asyncio.ensure_future(process.exited())
    served = asyncio.ensure_future(serves(process))
    await asyncio.wait({ended, served}, return_when=asyncio.FIRST_COMPLETED)
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)
    if not ended.done():
        ended.cancel()
        return "served"
    status = ended.result()
    assert status.signal == signal.SIGKILL, (status, process.tail(5))
    return "killed"


@pytest.mark.timeout(600)
async def test_hundreds_of_starts_leave_nothing(patient: WarmRig) -> None:
    """Warm starts and stops in a row: neither the zygote's private memory nor anybody's descriptors grow; no zombie, no
    orphan, no directory; one zygote does it all."""
    warm, others = patient, zombies()
    sim = {"imports": "50ms"}
    for _ in range(5):
        process = await warm.start(warm.plan(sim))
        await finish(warm, process)
    pid = warm.zygote()
    await warm.pool.tidy()
    memory = warm.pool.views()[0].report.private
    ours, its = len(descriptors(os.getpid())), len(descriptors(pid))
    for number in range(ROUNDS):
        process = await warm.start(warm.plan(sim))
        assert process.launcher == "warm"
        if number % 10 == 0:
            await serves(process)
            report = await process.stop(graceful=True, grace=5, deadline=10)
            assert (report.orphans, report.survivors) == ((), ())
        await finish(warm, process)
    await warm.pool.tidy()
    assert warm.zygote() == pid
    grown = warm.pool.views()[0].report.private - memory
    print(f"starts: {ROUNDS} rounds, the zygote's private memory changed by {grown} bytes")
    assert grown < 1 << 20
    assert len(descriptors(os.getpid())) == ours
    assert len(descriptors(pid)) == its
    assert zombies() <= others
    assert strays(warm, {pid}) == {}
    assert not [path for path in warm.tmp.iterdir() if path.name.startswith("w")]
    assert len(warm.told("zygote.started")) == 1
    assert warm.launcher.view().fallbacks == 0
