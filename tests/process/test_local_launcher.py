"""What is guaranteed of real processes: exits are seen, whole trees are taken, and nobody else is ever touched."""

import asyncio
import mmap
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rig import Rig, alive, marked, until, zombies
from vllm_mm.clock import RealClock
from vllm_mm.engine import children, procfs
from vllm_mm.engine.launchers.local import LocalLauncher
from vllm_mm.engine.launchers.pool import ZYGOTE_TOKEN
from vllm_mm.engine.ports import ExitStatus, SweepReport

IDLE = "note('up', os.getpid()); forever()"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); note('up', os.getpid()); forever()"
TREE = """
def child():
    os.setpgid(0, 0)
    note('grandchild', fork(lambda: (os.setsid(), note('escaped', os.getpid()), forever())))
    note('child', os.getpid())
    forever()
fork(child)
note('up', os.getpid())
forever()
"""


@contextmanager
def stranger(code: str = "import time; time.sleep(600)", env: dict[str, str] | None = None) -> Iterator[int]:
    """A process of the same user that is nobody's engine."""
    process = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
    try:
        yield process.pid
        assert alive(process.pid), "a process that is not ours was killed"
    finally:
        process.kill()
        process.wait()


async def kill_now(rig: Rig, index: int = 0) -> SweepReport:
    return await rig.started[index].stop(graceful=False, grace=0, deadline=5)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("sys.exit(0)", ExitStatus(code=0)),
        ("sys.exit(3)", ExitStatus(code=3)),
        ("os.kill(os.getpid(), 9)", ExitStatus(code=None, signal=9)),
    ],
)
async def test_an_exit_is_reported_as_it_was(rig: Rig, script: str, status: ExitStatus) -> None:
    """The code or the signal, to everybody who asks, as often as they ask."""
    process = await rig.start(script)
    assert await asyncio.wait_for(asyncio.gather(process.exited(), process.exited()), 10) == [status, status]
    assert await process.exited() == status
    await kill_now(rig)
    assert await process.exited() == status


async def test_an_exit_is_seen_at_once_though_a_child_holds_the_log(rig: Rig) -> None:
    """The exit is known by the pidfd, not by the end of the output, which a child can keep open for ever."""
    process = await rig.start("note('child', fork(forever)); note('up', os.getpid()); forever()")
    await rig.note("up")
    child = await rig.note("child")
    before = time.monotonic()
    os.kill(process.record.pid, signal.SIGKILL)
    assert await asyncio.wait_for(process.exited(), 5) == ExitStatus(code=None, signal=9)
    assert time.monotonic() - before < 0.5
    assert alive(child), "seeing an exit leaves the rest of the tree as it is"
    report = await kill_now(rig)
    assert [pid for pid, _ in report.orphans] == [child]
    assert not alive(child)


async def test_the_last_words_are_in_the_tail_when_the_exit_is_seen(rig: Rig) -> None:
    """Whoever is told of the exit can read why, an unfinished last line too."""
    process = await rig.start("print('one'); print('fatal: no', end='', flush=True); sys.exit(1)")
    await asyncio.wait_for(process.exited(), 10)
    assert process.tail(10) == ("one", "fatal: no")
    assert process.tail(1) == ("fatal: no",)


async def test_a_graceful_stop_lets_the_engine_end_by_itself(rig: Rig) -> None:
    """TERM first; what ends in time is not killed, and there are no orphans to report."""
    script = (
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), os._exit(7))); note('up', 1); forever()"
    )
    process = await rig.start(script)
    await rig.note("up")
    report = await process.stop(graceful=True, grace=10, deadline=20)
    assert report == SweepReport()
    assert await process.exited() == ExitStatus(code=7)
    assert process.tail(1) == ("bye",)


async def test_an_engine_that_ignores_term_is_killed_after_the_grace(rig: Rig) -> None:
    process = await rig.start(STUBBORN)
    pid = await rig.note("up")
    before = time.monotonic()
    report = await process.stop(graceful=True, grace=0.3, deadline=5)
    assert 0.3 <= time.monotonic() - before < 2
    assert report == SweepReport()
    assert not alive(pid)
    assert await process.exited() == ExitStatus(code=None, signal=9)


async def test_an_impatient_stop_hurries_a_patient_one(rig: Rig) -> None:
    """Stops at the same time share one; the second, ungraceful, ends the first one's grace. Both get the answer."""
    process = await rig.start(STUBBORN)
    await rig.note("up")
    patient = asyncio.create_task(process.stop(graceful=True, grace=60, deadline=60))
    await asyncio.sleep(0.1)
    assert not patient.done()
    assert await process.stop(graceful=False, grace=0, deadline=5) == await asyncio.wait_for(patient, 30)


async def test_a_stop_goes_on_when_its_caller_is_cancelled(rig: Rig) -> None:
    process = await rig.start(STUBBORN)
    pid = await rig.note("up")
    caller = asyncio.create_task(process.stop(graceful=True, grace=0.2, deadline=5))
    await asyncio.sleep(0.05)
    caller.cancel()
    await until(lambda: procfs.read_stat(pid) is None, "the engine is gone and reaped")


async def test_the_whole_tree_goes_whatever_the_children_did(rig: Rig) -> None:
    """A child in a process group of its own, a grandchild in a session of its own: gone, and reaped."""
    process = await rig.start(TREE)
    pids = [await rig.note(name) for name in ("up", "child", "grandchild")]
    await rig.note("escaped")
    await kill_now(rig)
    assert [procfs.read_stat(pid) for pid in pids] == [None, None, None]
    assert process.record.pid == pids[0]


async def test_orphans_of_a_killed_leader_are_found_and_named(rig: Rig) -> None:
    """The leader is SIGKILLed, as the kernel's OOM killer would: everything that it started goes, with its name told."""
    process = await rig.start(TREE)
    child, grandchild = await rig.note("child"), await rig.note("grandchild")
    await rig.note("escaped")
    os.kill(process.record.pid, signal.SIGKILL)
    await process.exited()
    report = await kill_now(rig)
    assert {pid for pid, _ in report.orphans} == {child, grandchild}
    assert all("python" in name for _, name in report.orphans)
    assert procfs.read_stat(child) is procfs.read_stat(grandchild) is None


async def test_a_daemon_that_double_forked_is_found_by_its_token(rig: Rig) -> None:
    """No session, group or parent links it to the launch any more; the environment does."""
    script = """
def middle():
    os.setsid()
    fork(lambda: (note('daemon', os.getpid()), forever()))
os.waitpid(fork(middle), 0)
note('up', os.getpid())
forever()
"""
    process = await rig.start(script)
    await rig.note("up")
    daemon = await rig.note("daemon")
    stat = procfs.read_stat(daemon)
    assert stat is not None
    assert process.record.pid not in (stat.sid, stat.pgid, stat.ppid)
    await kill_now(rig)
    assert procfs.read_stat(daemon) is None


async def test_a_child_that_renamed_itself_is_found(rig: Rig) -> None:
    """vLLM's children call setproctitle, which may write over a part of the environment."""
    script = """
import setproctitle
def child():
    os.setsid()
    setproctitle.setproctitle('VLLM::EngineCore' + 'x' * 300)
    note('child', os.getpid())
    forever()
fork(child)
note('up', os.getpid())
forever()
"""
    process = await rig.start(script)
    child = await rig.note("child")
    os.kill(process.record.pid, signal.SIGKILL)
    await process.exited()
    report = await kill_now(rig)
    assert [(pid, name[:8]) for pid, name in report.orphans] == [(child, "VLLM::En")]


async def test_a_child_without_the_token_is_found_while_its_parent_lives(rig: Rig) -> None:
    """`env -i` and a session of its own: the parent link shows it within a second, and it is remembered from then on."""
    script = """
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={}, start_new_session=True)
note('child', child.pid)
note('up', os.getpid())
forever()
"""
    process = await rig.start(script)
    child = await rig.note("child")
    await until(lambda: child in {identity.pid for identity in process._hunt._known}, "the child is remembered", 3)
    os.kill(process.record.pid, signal.SIGKILL)
    await process.exited()
    assert [pid for pid, _ in (await kill_now(rig)).orphans] == [child]
    assert not alive(child)


async def test_children_forked_during_the_kill_are_found_too(rig: Rig) -> None:
    """Processes that change their number and session every few milliseconds lose: a look at /proc ends only when nobody
    new is there, and the search only when it finds nobody twice."""
    script = """
def runner():
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.002)
for _ in range(3):
    fork(runner)
note('up', os.getpid())
forever()
"""
    process = await rig.start(script)
    await rig.note("up")
    await asyncio.sleep(0.2)
    report = await process.stop(graceful=False, grace=0, deadline=10)
    assert report.survivors == ()
    assert marked(rig.owner) == {}
    assert zombies() == set()  # those included that died before anybody saw them


async def test_who_forked_away_and_died_unseen_is_reaped_while_the_engine_runs(rig: Rig) -> None:
    """No link to the launch is left of it, and a dead process has no environment: nobody knows whose it was."""
    script = """
def away():
    os.setsid()
    fork(lambda: (os.setsid(), time.sleep(0.3)))
os.waitpid(fork(away), 0)
note('up', os.getpid())
forever()
"""
    process = await rig.start(script)
    await rig.note("up")
    await until(zombies, "it dies", 3)
    await until(lambda: not zombies(), "it is reaped", 3)
    assert alive(process.record.pid)
    await kill_now(rig)


async def test_the_exit_of_a_leader_is_left_to_its_launch(rig: Rig) -> None:
    """It stays a zombie until its tree is gone, whoever looks for orphans meanwhile."""
    process = await rig.start("note('up', os.getpid()); sys.exit(7)")
    status = await process.exited()
    children.reap_orphans()
    stat = procfs.read_stat(process.record.pid)
    assert stat is not None
    assert stat.dead
    assert status.code == 7
    await kill_now(rig)
    assert zombies() == set()


async def test_nobody_else_is_touched(rig: Rig) -> None:
    """Same user, same program, another owner or another launch: they live on."""
    other = {**os.environ, "MM_ENGINE_OWNER": "somebody-else", "MM_ENGINE_LAUNCH": "t"}
    with stranger(), stranger(env=other):
        await rig.start(IDLE, model="a")
        second = await rig.start(IDLE, model="b")
        await kill_now(rig, 0)
        assert alive(second.record.pid)


async def test_a_stop_may_be_repeated(rig: Rig) -> None:
    process = await rig.start(IDLE)
    await rig.note("up")
    assert await kill_now(rig) == SweepReport()
    assert await kill_now(rig) == SweepReport()
    assert procfs.read_stat(process.record.pid) is None


async def test_a_stop_removes_socket_and_work_directory(rig: Rig) -> None:
    """And only those of the launch: the token in the directory is the licence."""
    script = "import socket; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); note('up', 1); forever()"
    plan = rig.plan(script)
    plan = replace(plan, argv=(*plan.argv, str(plan.address.socket)))
    process = await rig.launcher.start(plan)
    rig.started.append(process)
    await rig.note("up")
    (plan.workdir / "tmp").mkdir()
    assert plan.workdir.stat().st_mode & 0o777 == 0o700
    await kill_now(rig)
    assert not plan.workdir.exists()


async def test_a_directory_that_is_not_of_the_launch_is_left_alone(rig: Rig, tmp_path: Path) -> None:
    """A record with a wrong path (an old database, a bug) must not cost anybody's files."""
    process = await rig.start(IDLE)
    await kill_now(rig)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    await rig.launcher.sweep(replace(process.record, workdir=precious), 1)
    assert (precious / "file").exists()


async def test_shared_memory_of_the_launch_is_removed_and_no_other(rig: Rig) -> None:
    """A segment that a killed process of the launch had mapped goes, and a semaphore, whose mapping shows another name; one
    of the same kind that nobody of it used stays, and so does one that somebody else has mapped too."""
    name = f"psm_mmtest{secrets.token_hex(4)}"
    mine, shared, other = (Path("/dev/shm", name + end) for end in ("", "shared", "other"))
    semaphore = Path("/dev/shm", f"sem.mp-mmtest{secrets.token_hex(4)}")
    script = """
import _multiprocessing, mmap
def child():
    files = [open(path, 'r+b') for path in sys.argv[1:3]]
    maps = [mmap.mmap(file.fileno(), 4096) for file in files]
    semaphore = _multiprocessing.SemLock(0, 1, 1, '/' + sys.argv[3], False)
    note('up', os.getpid()); forever()
fork(child)
forever()
"""
    files = (mine, shared, other, semaphore)
    try:
        for path in (mine, shared, other):
            path.write_bytes(b"x" * 4096)
        with shared.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096):
            process = await rig.start(script, str(mine), str(shared), semaphore.name.removeprefix("sem."))
            # No younger than the launch counts as the launch's.
            for path in (mine, shared, other):
                path.chmod(0o600)
            await rig.note("up")
            assert semaphore.exists()
            os.kill(process.record.pid, signal.SIGKILL)
            await process.exited()
            await kill_now(rig)
            assert [path.exists() for path in files] == [False, True, True, False]
    finally:
        for path in files:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"A": "x\0y"}])
async def test_a_start_that_comes_to_nothing_leaves_no_directory(rig: Rig, env: dict[str, str]) -> None:
    """An environment that no program can be given: an error, and neither process, nor work directory."""
    plan = rig.plan("", env=env)
    with pytest.raises(ValueError, match=r"illegal|null"):
        await rig.launcher.start(plan)
    assert not plan.workdir.exists()


async def test_a_missing_executable_says_which(rig: Rig) -> None:
    """And leaves no process, no open file."""
    plan = replace(rig.plan(""), argv=("no-such-program", "serve"))
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    with pytest.raises(FileNotFoundError, match="executable") as caught:
        await rig.launcher.start(plan)
    assert caught.value.filename == "no-such-program"
    assert os.environ["PATH"] not in str(caught.value)  # it goes to the log: clients read this
    plain = rig.tmp / "plain"
    plain.write_text("not a program")
    with pytest.raises(PermissionError, match="not an executable") as refused:
        await rig.launcher.start(replace(plan, argv=(str(plain),)))
    assert refused.value.filename == str(plain)
    plain.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        await rig.launcher.start(replace(plan, argv=(str(plain),)))
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == before


async def test_another_controller_adopts_what_it_can_prove(rig: Rig) -> None:
    """pid, start time, boot and token all agree: the engine is followed, its log is there, and its exit is seen."""
    first = await rig.start("print('loaded', flush=True); note('up', 1); forever()")
    await rig.note("up")
    await until(lambda: first.tail(1), "the line is read")
    await first.close()
    assert alive(first.record.pid), "letting go leaves it as it is"
    adopted = await LocalLauncher(rig.owner, RealClock()).adopt(first.record)
    assert adopted is not None
    assert adopted.record == first.record
    assert adopted.tail(5) == ("loaded",)
    os.kill(first.record.pid, signal.SIGKILL)
    assert (await asyncio.wait_for(adopted.exited(), 5)).signal == 9
    assert await adopted.stop(graceful=True, grace=1, deadline=5) == SweepReport()


async def test_what_is_not_provably_the_same_engine_is_not_adopted(rig: Rig) -> None:
    """A reused pid, another boot, another token, another owner, a dead one: none is adopted, none is killed."""
    process = await rig.start(IDLE)
    await rig.note("up")
    record = process.record
    wrong = [
        replace(record, start_ticks=record.start_ticks + 1),
        replace(record, boot_id="another"),
        replace(record, token="another"),
        replace(record, pid=0),
        replace(record, pid=2**22 + 1),
    ]
    for other in wrong:
        assert await rig.launcher.adopt(other) is None
    assert await LocalLauncher("another", RealClock()).adopt(record) is None
    assert alive(record.pid)
    os.kill(record.pid, signal.SIGKILL)
    await process.exited()
    assert await rig.launcher.adopt(record) is None


async def test_a_sweep_takes_the_tree_of_a_dead_leader(rig: Rig, tmp_path: Path) -> None:
    """The controller was killed, and the leader; what is left is found by the record alone."""
    plan = rig.plan(TREE)
    script = f"""
import asyncio, os, sys
from pathlib import Path
from vllm_mm.clock import RealClock
from vllm_mm.engine.launchers.local import LocalLauncher
from vllm_mm.engine.ports import Address, LaunchPlan
async def main():
    plan = LaunchPlan(model='m', generation=1, token={plan.token!r}, argv={plan.argv!r}, env=dict(os.environ),
        address=Address(socket={plan.address.socket!r}), workdir=Path({str(plan.workdir)!r}), log=Path({str(plan.log)!r}), fingerprint='f')
    process = await LocalLauncher({rig.owner!r}, RealClock()).start(plan)
    r = process.record
    Path({str(tmp_path / "record")!r}).write_text(f'{{r.pid}} {{r.start_ticks}} {{r.started_at}}')
    await asyncio.sleep(600)
asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": "backend", "NOTES": str(tmp_path)}
    controller = subprocess.Popen([sys.executable, "-c", script], env=env)
    try:
        names = ("up", "child", "grandchild", "escaped")
        pids = [await rig.note(name) for name in names]
        await until((tmp_path / "record").exists, "the record is written")
    finally:
        controller.kill()
        controller.wait()
    assert all(alive(pid) for pid in pids), "engines outlive their controller"
    os.kill(pids[0], signal.SIGKILL)
    pid, ticks, started = (tmp_path / "record").read_text().split()
    process = await rig.start(IDLE, model="other")
    record = replace(
        process.record,
        model="m",
        token=plan.token,
        pid=int(pid),
        start_ticks=int(ticks),
        started_at=float(started),
        address=plan.address,
        workdir=plan.workdir,
    )
    assert pids[0] == record.pid
    report = await rig.launcher.sweep(record, 5)
    assert {pid for pid, _ in report.orphans} == set(pids[1:])
    assert not any(alive(pid) for pid in pids)
    assert not plan.workdir.exists()
    assert alive(process.record.pid)
    assert await rig.launcher.sweep(record, 5) == SweepReport()


async def test_a_sweep_never_kills_a_reused_pid(rig: Rig) -> None:
    """The number is somebody else's by now: other start ticks, or (the same tick by chance) no token of ours."""
    process = await rig.start(IDLE)
    await kill_now(rig)
    with stranger() as pid:
        stat = procfs.read_stat(pid)
        assert stat is not None
        for ticks in (stat.start_ticks - 1, stat.start_ticks):
            record = replace(process.record, pid=pid, start_ticks=ticks)
            assert await rig.launcher.sweep(record, 1) == SweepReport()


async def test_a_sweep_of_an_intent_finds_the_process_that_was_not_recorded(rig: Rig) -> None:
    """The controller died between starting it and writing its pid: the token was written before."""
    process = await rig.start(IDLE)
    await rig.note("up")
    report = await rig.launcher.sweep(replace(process.record, pid=0, start_ticks=0), 5)
    assert [pid for pid, _ in report.orphans] == [process.record.pid]
    assert not alive(process.record.pid)


async def test_unknown_launches_of_ours_are_swept_and_known_ones_kept(rig: Rig) -> None:
    """At boot: what carries our owner mark and is in no record goes; what is in one stays, as do other installations'."""
    kept, lost = await rig.start(IDLE, model="kept"), await rig.start(TREE, model="lost")
    await rig.note("escaped")
    await rig.note("up")
    other = {**os.environ, "MM_ENGINE_OWNER": rig.owner + "-other", "MM_ENGINE_LAUNCH": "t"}
    with stranger(env=other):
        report = await rig.launcher.sweep_unknown(frozenset({kept.record.token}), 5)
    assert len(report.orphans) == 3
    assert report.survivors == ()
    assert set(marked(rig.owner)) == {kept.record.pid}
    assert not alive(lost.record.pid)


async def test_a_sweep_leaves_what_carries_the_same_token_for_another_installation(rig: Rig) -> None:
    """The zygotes of all installations on a machine carry one token: those of others live on when one's own are swept."""
    same = {**os.environ, "MM_ENGINE_LAUNCH": ZYGOTE_TOKEN}
    other = {**same, "MM_ENGINE_OWNER": rig.owner + "-other"}
    ours = subprocess.Popen(["sleep", "600"], env={**same, "MM_ENGINE_OWNER": rig.owner}, start_new_session=True)
    with stranger(env=other):
        report = await rig.launcher.sweep_unknown(frozenset(), 5)
        assert [pid for pid, _ in report.orphans] == [ours.pid]
    ours.returncode = -9  # it was reaped
    assert not alive(ours.pid)


async def test_memory_is_that_of_the_tree(rig: Rig) -> None:
    """A child's memory counts, and what it shares with its parent counts once."""
    script = """
def child():
    data = bytearray(64 << 20)
    note('up', os.getpid())
    forever()
fork(child)
forever()
"""
    process = await rig.start(script)
    await rig.note("up")
    assert 64 << 20 < await asyncio.to_thread(process.rss) < 128 << 20


async def test_engines_get_no_descriptor_of_ours(rig: Rig) -> None:
    """A listening socket or a database in an engine would outlive us."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        process = await rig.start("print(sorted(os.listdir('/proc/self/fd')), flush=True)")
        await process.exited()
        assert process.tail(1) == ("['0', '1', '2', '3']",)  # 3 is the listing itself
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("round_", range(2))
def test_it_works_on_uvloop(owner: str, tmp_path: Path, round_: int) -> None:
    """Exits are seen by a pidfd in the event loop, whichever loop that is."""
    import uvloop

    async def main() -> None:
        rig = Rig(owner, tmp_path, LocalLauncher(owner, RealClock()))
        process = await rig.start(TREE)
        await rig.note("escaped")
        await rig.note("up")
        loop_lag = asyncio.create_task(asyncio.sleep(0))
        os.kill(process.record.pid, signal.SIGKILL)
        assert (await asyncio.wait_for(process.exited(), 5)).signal == 9
        assert len((await process.stop(graceful=True, grace=1, deadline=5)).orphans) == 2
        await loop_lag

    uvloop.run(main())
