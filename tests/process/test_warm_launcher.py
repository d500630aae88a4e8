"""What is guaranteed of engines that were forked: nothing tells them from started ones, but the time that it took."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig import marked, until, zombies
from serving import reap
from vllm_mm.domain.specs import LauncherKind
from vllm_mm.engine import procfs
from vllm_mm.engine.launchers.pool import ZYGOTE_TOKEN
from vllm_mm.engine.launchers.recipe import Recipe, installed
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE, ExitStatus
from vllm_mm.vocabulary.profile import IMPORTS_VARIABLE
from warm_rig import WarmRig, descriptors, environ, recipe_of, relaunched, serves, warm_rig

HANGING = {"startup": "60s"}
"""A profile of an engine that gets nowhere: up at once, with a process of its own."""


@pytest.fixture
async def warm(owner: str, tmp_path: Path) -> AsyncIterator[WarmRig]:
    async with warm_rig(owner, tmp_path) as rig:
        yield rig


def module_path(folder: Path, code: str) -> dict[str, str]:
    """Environment in which every Python of ours runs `code` at its start, as an import with side effects would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    backend = Path(__file__).parents[2] / "backend"
    return {"PYTHONPATH": f"{folder}:{backend}"}


# The engine.


async def test_the_imports_are_paid_once(warm: WarmRig) -> None:
    """The zygote pays for them, the engines do not, and a local start pays each time."""
    sim = {"imports": "700ms"}
    await warm.start(warm.plan(sim))
    assert warm.started[0].launcher == "warm"
    began = time.monotonic()
    process = await warm.start(warm.plan(sim))
    await serves(process)
    assert time.monotonic() - began < 0.7
    began = time.monotonic()
    local = await warm.start(warm.plan(sim, launcher=LauncherKind.LOCAL))
    await serves(local)
    assert time.monotonic() - began >= 0.7
    assert local.launcher == "local"
    assert warm.launcher.view().starts == {"local": 1, "warm": 2}


@pytest.mark.parametrize(
    ("sim", "status"),
    [
        ({"fault": "exit_0"}, ExitStatus(code=0)),
        ({"fault": "die_at:weights"}, ExitStatus(code=1)),
        ({"fault": "die_at:weights:7"}, ExitStatus(code=7)),
        ({"no_such_key": "1"}, ExitStatus(code=2)),
    ],
)
async def test_an_exit_is_reported_as_it_was(warm: WarmRig, sim: dict[str, Any], status: ExitStatus) -> None:
    """The same code as of a started process, for it is our child; and the last words are in its log."""
    process = await warm.start(warm.plan(sim))
    assert process.launcher == "warm"
    assert await asyncio.wait_for(process.exited(), 10) == status
    assert process.tail(5)


async def test_a_signal_is_reported_as_it_was(warm: WarmRig) -> None:
    process = await warm.start(warm.plan(HANGING))
    os.kill(process.record.pid, signal.SIGKILL)
    assert await asyncio.wait_for(process.exited(), 5) == ExitStatus(code=None, signal=9)


async def test_a_forked_engine_looks_like_a_started_one(warm: WarmRig) -> None:
    """Parent, session, group, directory, umask, signals, descriptors, title, priority: as `local` gives them."""
    stats: list[dict[str, Any]] = []
    for kind in (LauncherKind.LOCAL, LauncherKind.WARM):
        plan = warm.plan(HANGING, launcher=kind)
        process = await warm.start(plan)
        assert process.launcher == kind
        pid = process.record.pid
        await until(lambda p=process: any("engine" in line for line in p.tail(50)), "its first words")
        stat = procfs.read_stat(pid)
        assert stat is not None
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
        shown = environ(pid)
        assert cmdline.endswith(b"\0")
        assert not cmdline.endswith(b"\0\0"), "`ps` would show it with blanks at its end"
        assert cmdline[:-1].replace(b"\0", b" ").decode().endswith(" ".join(plan.argv[3:]))
        assert shown[LAUNCH_VARIABLE] == plan.token
        assert shown[OWNER_VARIABLE] == warm.owner
        log = str(plan.log)
        opened = descriptors(pid)
        assert (opened[0], opened[1], opened[2]) == ("/dev/null", log, log)
        sockets = [name for number, name in opened.items() if number > 2 and not name.startswith("socket:")]
        stats.append({
            "child": stat.ppid == os.getpid(), "session": stat.sid == pid, "group": stat.pgid == pid,
            "name": stat.name.startswith("python"), "cwd": Path(f"/proc/{pid}/cwd").readlink(), "umask": status["Umask"], "sockets": len(opened), "other": sockets,
            "blocked": status["SigBlk"], "ignored": status["SigIgn"], "caught": status["SigCgt"],
            "nice": os.getpriority(os.PRIO_PROCESS, pid), "limits": Path(f"/proc/{pid}/limits").read_text(),
        })  # fmt: skip
    assert stats[0] == stats[1]
    assert (stats[0]["child"], stats[0]["session"], stats[0]["group"]) == (True, True, True)


async def test_nothing_is_inherited_but_the_log(warm: WarmRig, tmp_path: Path) -> None:
    """Neither the zygote's socket nor anything that this process has open, inheritable or not; nor its folder for temporary files,
    also where an import made a constant of it."""
    report = tmp_path / "report"
    code = f"""
import os, sys
FOLDER = os.environ.get("TMPDIR", "/tmp") + "/torch/headers"
def report(*_):
    import tempfile
    with open({str(report)!r}, "a") as file:
        fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd))
        fds = [fd for fd in fds if fd != file.fileno()]
        print(fds, tempfile.gettempdir(), FOLDER, os.environ.get("HF_TOKEN"), file=file)
"""
    base = module_path(tmp_path / "site", code + SPY.replace("REPORT", "report"))
    inheritable = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        plan = warm.plan(HANGING, base={**base, "HF_TOKEN": "hf_secret"})
        process = await warm.start(plan)
    finally:
        os.close(inheritable)
    assert process.launcher == "warm"
    await until(lambda: report.exists() and report.read_text().endswith("\n"), "the engine to look around")
    fds, temporary, constant, token = report.read_text().splitlines()[0].rsplit(" ", 3)
    assert fds == "[0, 1, 2]"
    assert constant == f"{temporary}/torch/headers"
    assert temporary == plan.env["TMPDIR"] == str(plan.workdir / "t")
    assert token == "hf_secret"


SPY = """
import importlib.abc, importlib.util
class Spy(importlib.abc.MetaPathFinder):
    # The first thing that the engine does is to call the entry point; it is wrapped where it is imported.
    def find_spec(self, name, path, target=None):
        if name != "vllm_mm.sim.launch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            entry = module.main
            def main(*args):
                REPORT()
                return entry(*args)
            module.main = main
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Spy())
"""


async def test_engines_have_nothing_of_one_another(warm: WarmRig) -> None:
    """Two models of one zygote: each shows its own token and log, and no variable of the other."""
    a = warm.plan(HANGING, model="a", base={"VLLM_RPC_TIMEOUT": "111"})
    b = warm.plan(HANGING, model="b", base={"VLLM_RPC_TIMEOUT": "222"})
    first, second = await asyncio.gather(warm.start(a), warm.start(b))
    assert len(warm.zygotes()) == 1
    for process, plan, other in ((first, a, b), (second, b, a)):
        shown = environ(process.record.pid)
        assert shown[LAUNCH_VARIABLE] == plan.token
        assert other.token not in str(shown)
        assert str(other.workdir) not in str(shown)
        assert descriptors(process.record.pid)[1] == str(plan.log)


async def test_an_engine_that_nobody_waits_for_is_ended(warm: WarmRig) -> None:
    """The caller is cancelled at any moment of the fork: no process and no zombie is left, and the zygote goes on."""
    others = zombies()
    await warm.start()
    rounds = 0
    for number in range(40):
        plan = warm.plan(HANGING)
        task = asyncio.create_task(warm.launcher.start(plan))
        await asyncio.sleep(number / 40 * 0.03)
        task.cancel()
        try:
            warm.started.append(await task)
        except asyncio.CancelledError:
            rounds += 1
            await until(lambda p=plan: not carriers(p.token), "the engine to be gone")
            assert not plan.workdir.exists()
    assert rounds > 3
    await until(lambda: zombies() <= others, "zombies to be reaped")
    assert len(warm.told("zygote.started")) == 1
    assert (await warm.start()).launcher == "warm"


def carriers(token: str) -> list[int]:
    return [pid for pid in procfs.table() if (m := procfs.read_marks(pid)) is not None and m.launch == token]


async def test_a_question_that_was_given_up_confuses_nobody(warm: WarmRig) -> None:
    """Its answer comes later than whoever asked is there; the next one gets its own all the same."""
    await warm.start(warm.plan(HANGING))
    for number in range(60):
        asked = asyncio.create_task(warm.pool.tidy())
        await asyncio.sleep(number % 6 * 0.0002)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        if number % 12 == 0:
            assert (await warm.start(warm.plan(HANGING))).launcher == "warm"
        else:
            await warm.pool.tidy()
            assert warm.pool.views()[0].report.private > 0
    (zygote,) = warm.pool._living.values()
    await until(lambda: not zygote.busy, "the last question to be answered")
    assert zygote._channel is not None
    with pytest.raises(BlockingIOError):  # no answer is left for whoever asks next
        zygote._channel.recv(1, socket.MSG_PEEK)
    assert len(warm.told("zygote.started")) == 1
    assert warm.told("zygote.died") == []


# The zygote.


async def test_a_zygote_holds_no_secret(warm: WarmRig) -> None:
    """Secrets are in the engine's environment, and in no zygote's, neither shown nor read."""
    secrets_of = {"HF_TOKEN": "s3cret-a", "AWS_SECRET_ACCESS_KEY": "s3cret-b", "OPENAI_API_KEY": "s3cret-c", "DB_PASSWORD": "s3cret-d"}  # fmt: skip
    process = await warm.start(warm.plan(HANGING, base=secrets_of))
    zygote = warm.zygote()
    assert b"s3cret" not in Path(f"/proc/{zygote}/environ").read_bytes()
    assert environ(zygote)[LAUNCH_VARIABLE] == ZYGOTE_TOKEN
    # The engine's are not in the area that others read either; it has them in its own memory.
    assert b"s3cret" not in Path(f"/proc/{process.record.pid}/environ").read_bytes()
    assert Path(f"/proc/{zygote}/cmdline").read_bytes() == f"vllm-mm zygote {warm.pool.views()[0].key}\0".encode()
    assert Path(f"/proc/{zygote}/comm").read_text() == "vllm-mm-zygote\n"
    other = await warm.start(warm.plan(HANGING, base={**secrets_of, "HF_TOKEN": "another"}))
    assert other.launcher == "warm"
    assert warm.zygote() == zygote, "a secret does not ask for another zygote"


async def test_variables_of_imports_ask_for_another_zygote(warm: WarmRig) -> None:
    """What imports read is the zygote's own; what only an engine reads is set after the fork."""
    await warm.start(warm.plan(HANGING, env={"VLLM_LOGGING_LEVEL": "DEBUG"}))
    await warm.start(warm.plan(HANGING, env={"VLLM_LOGGING_LEVEL": "DEBUG", "CUDA_VISIBLE_DEVICES": "1"}))
    assert len(warm.zygotes()) == 1
    await warm.start(warm.plan(HANGING, env={"VLLM_LOGGING_LEVEL": "INFO"}))
    assert len(warm.zygotes()) == 2
    await warm.start(warm.plan({**HANGING, "imports": "50ms"}, env={"VLLM_LOGGING_LEVEL": "INFO"}))
    keys = warm.zygotes()
    assert len(keys) == 3
    assert [environ(pid).get(IMPORTS_VARIABLE) for pid in keys.values()] == [None, None, "0.05"]


async def test_a_changed_installation_makes_a_new_zygote(warm: WarmRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamp changes with what is installed: the old zygote goes, its engines stay."""
    first = await warm.start(warm.plan(HANGING))
    old = warm.zygote()
    monkeypatch.setattr("vllm_mm.engine.launchers.recipe.installed", lambda *_: "after an upgrade")
    second = await warm.start(warm.plan(HANGING))
    assert warm.zygote() != old
    assert [data["reason"] for data in warm.told("zygote.retired")] == ["what is installed there changed"]
    await until(lambda: procfs.read_stat(old) is None, "the old zygote to be gone and reaped")
    for process in (first, second):
        assert process.launcher == "warm"
        stat = procfs.read_stat(process.record.pid)
        assert stat is not None
        assert not stat.dead


def test_the_stamp_sees_an_installation(tmp_path: Path) -> None:
    """A package that is added to the environment of the engine's Python changes its recipe."""
    python = tmp_path / "bin" / "python"
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    python.parent.mkdir()
    python.symlink_to(sys.executable)

    before = installed(str(python))
    assert installed(str(python)) == before
    (packages / "__pycache__").mkdir()
    os.utime(packages, ns=(1, 1))
    assert installed(str(python)) == before, "a cache of Python's is no installation"
    (packages / "vllm-0.33.0.dist-info").mkdir()
    assert installed(str(python)) != before


async def test_idle_zygotes_go(owner: str, tmp_path: Path) -> None:
    """After the time without a start; the next start makes another. Engines stay."""
    async with warm_rig(owner, tmp_path, idle_after=0.2) as warm:
        process = await warm.start()
        pid = warm.zygote()
        await until(lambda: procfs.read_stat(pid) is None, "the idle zygote to be gone and reaped")
        assert warm.told("zygote.retired")[0]["reason"].startswith("idle for")
        assert warm.pool.views() == ()
        await serves(process)
        assert (await warm.start()).launcher == "warm"
        assert warm.zygote() != pid


async def test_there_are_only_so_many(warm: WarmRig) -> None:
    """The one that was idle longest makes room."""
    for number in range(5):
        await warm.start(warm.plan(HANGING, env={"VARIANT": str(number)}))
    assert len(warm.zygotes()) == 4
    assert [data["reason"] for data in warm.told("zygote.retired")] == ["room for another"]
    assert warm.told("zygote.retired")[0]["key"] == warm.told("zygote.started")[0]["key"]


async def test_what_it_uses_is_told(warm: WarmRig) -> None:
    """Its private memory, its threads and how long its imports took; its number of forks counts."""
    await warm.start()
    await warm.start()
    (view,) = warm.launcher.view().zygotes
    assert (view.state, view.forks, view.kind, view.report.threads) == ("ready", 2, "plain", 1)
    assert 1_000_000 < view.report.private < 200_000_000
    assert view.report.seconds > 0


async def test_close_leaves_nothing_but_the_engines(owner: str, tmp_path: Path) -> None:
    """Zygotes are gone and reaped when `close` returns, with their temporary directory; engines answer."""
    async with warm_rig(owner, tmp_path) as warm:
        process = await warm.start()
        importing = asyncio.create_task(warm.launcher.start(warm.plan({"imports": "30s"})))
        await until(lambda: len(warm.zygotes()) == 2, "the second zygote")
        pids = list(warm.zygotes().values())
        assert (tmp_path / "z").is_dir()
        await warm.launcher.close()
        assert [procfs.read_stat(pid) for pid in pids] == [None, None]
        assert not (tmp_path / "z").exists()
        await serves(process)
        fallen = await asyncio.wait_for(importing, 30)
        warm.started.append(fallen)
        assert fallen.launcher == "local", "a start under way is not lost"
        assert (await warm.start()).launcher == "local", "and there are no new zygotes"


# Refusals, and the other way.


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True, name='pool').start()", "2 Python threads run in it (MainThread, pool)"),
        ("import sys, types\nm = types.ModuleType('torch.cuda')\nm.is_initialized = lambda: True\nsys.modules['torch.cuda'] = m", "CUDA was initialised by an import"),
    ],
    ids=["thread", "cuda"],
)  # fmt: skip
async def test_an_unfit_zygote_refuses(warm: WarmRig, tmp_path: Path, code: str, reason: str) -> None:
    """No fork from a process with threads or a GPU: the reason is told, the start is a local one, and after three of its
    kind there are no more of them."""
    guarded = "import sys\nif 'zygote.py' in ' '.join(sys.orig_argv):\n" + "".join(
        f"    {line}\n" for line in code.split("\n")
    )
    base = module_path(tmp_path / "site", guarded)
    for number in range(1, 5):
        process = await warm.start(warm.plan(HANGING, base=base))
        assert process.launcher == "local"
        assert warm.launcher.view().fallbacks == number
    assert reason in warm.told("launcher.fallback")[0]["reason"]
    assert len(warm.told("zygote.started")) == len(warm.told("zygote.died")) == 3
    assert warm.told("launcher.fallback")[3]["reason"].startswith("its zygote failed 3 times: ")
    (view,) = warm.launcher.view().zygotes
    assert (view.state, view.pid) == ("failed", None)
    assert reason in view.reason
    assert warm.launcher.view().starts == {"local": 4, "warm": 0}


async def test_a_zygote_that_cannot_start_is_given_up_until_something_changes(
    warm: WarmRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends during its imports: the start falls back each time, the fourth time at once, and after a change it is tried
    again."""
    base = module_path(tmp_path / "site", "import sys, os\nif 'zygote.py' in ' '.join(sys.orig_argv): os._exit(3)")
    for _ in range(4):
        assert (await warm.start(warm.plan(HANGING, base=base))).launcher == "local"
    assert len(warm.told("zygote.started")) == 3
    assert "exited with code 3" in warm.launcher.view().last_reason
    assert "zygote-" in warm.launcher.view().last_reason, "where its log is"
    monkeypatch.setattr("vllm_mm.engine.launchers.recipe.installed", lambda *_: "mended")
    (tmp_path / "site" / "sitecustomize.py").write_text("")
    assert (await warm.start(warm.plan(HANGING, base=base))).launcher == "warm"
    assert [view.state for view in warm.launcher.view().zygotes] == ["ready"]


async def test_another_program_is_started_and_only_who_asked_for_warm_is_told(warm: WarmRig) -> None:
    """`auto` takes what there is; `warm` that cannot be is a fallback, counted and told."""
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    plan = replace(warm.plan(), argv=argv, launcher=LauncherKind.AUTO)
    assert (await warm.start(plan)).launcher == "local"
    assert warm.launcher.view().fallbacks == 0
    assert (await warm.start(replace(relaunched(plan), launcher=LauncherKind.WARM))).launcher == "local"
    assert "another program" in warm.told("launcher.fallback")[0]["reason"]


async def test_a_plan_that_was_distrusted_is_local_until_something_changes(
    warm: WarmRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fingerprint and zygote: another model still starts warm, and so does this one after a change."""
    plan = warm.plan(HANGING)
    await warm.start(plan)
    assert warm.launcher.distrust(plan, "it failed")
    assert (await warm.start(relaunched(plan))).launcher == "local"
    assert [(d.model, d.reason) for d in warm.launcher.view().distrusted] == [("m", "it failed")]
    assert warm.launcher.view().fallbacks == 1, "once, not at each start"
    assert (await warm.start(warm.plan(HANGING, model="other"))).launcher == "warm"
    monkeypatch.setattr("vllm_mm.engine.launchers.recipe.installed", lambda *_: "changed")
    assert (await warm.start(relaunched(plan))).launcher == "warm"
    assert warm.launcher.view().distrusted == ()


async def test_a_plan_is_vindicated(warm: WarmRig) -> None:
    """A local start that failed as well shows that the launcher was not at fault."""
    plan = warm.plan(HANGING)
    await warm.start(plan)
    assert warm.launcher.distrust(plan, "it failed")
    warm.launcher.vindicate(plan)
    assert (await warm.start(relaunched(plan))).launcher == "warm"
    assert not warm.launcher.distrust(warm.plan(HANGING, launcher=LauncherKind.LOCAL), "no"), "that was no warm start"


async def test_a_stopped_zygote_does_not_hold_a_start_up(owner: str, tmp_path: Path) -> None:
    """SIGSTOP: at the deadline of the fork the start goes another way, and the zygote is replaced. No engine comes of the
    first request when everything goes on."""
    async with warm_rig(owner, tmp_path, fork_deadline=0.3) as warm:
        await warm.start()
        pid = warm.zygote()
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        plan = warm.plan(HANGING)
        both = await asyncio.gather(warm.start(plan), warm.start(warm.plan(HANGING)))
        assert [process.launcher for process in both] == ["local", "local"]
        assert 0.3 <= time.monotonic() - began < 2
        assert any("within 0.3 s" in data["reason"] for data in warm.told("launcher.fallback"))
        await until(lambda: procfs.read_stat(pid) is None, "the zygote to be gone and reaped")
        assert (await warm.start()).launcher == "warm"
        leaders = [pid for pid in carriers(plan.token) if (s := procfs.read_stat(pid)) and s.sid == pid]
        assert leaders == [both[0].record.pid]


async def test_a_zygote_that_does_nothing_does_not_hold_a_start_up(owner: str, tmp_path: Path) -> None:
    """Stopped in the middle of its imports: nothing moves in it, so the start is a local one long before the deadline of
    imports. One that works on them for longer than that is waited for."""
    async with warm_rig(owner, tmp_path, patience=0.5) as warm:
        slow = {"imports": "1s"}
        assert (await warm.start(warm.plan(slow))).launcher == "warm"
        began = time.monotonic()
        hanging = asyncio.create_task(warm.start(warm.plan({"imports": "40s", **HANGING})))
        await until(lambda: len(warm.zygotes()) == 2, "the second zygote")
        _, pid = warm.zygotes().values()
        await asyncio.sleep(0.3)  # somewhere in its imports
        os.kill(pid, signal.SIGSTOP)
        assert (await asyncio.wait_for(hanging, 30)).launcher == "local"
        assert time.monotonic() - began < 8
        reason = warm.told("launcher.fallback")[0]["reason"]
        assert reason.startswith("it did not answer `prepare` and did nothing at all for 0.5 s")
        await until(lambda: procfs.read_stat(pid) is None, "the zygote to be gone and reaped")


async def test_children_of_an_engine_have_short_titles(warm: WarmRig) -> None:
    """Those that rename themselves too: `ps` shows the name and nothing behind it, and the mark of the launch is there."""
    plan = warm.plan(HANGING, ranks=2)
    process = await warm.start(plan)
    names = {b"VLLM::EngineCore\0", b"VLLM::Worker_TP0\0", b"VLLM::Worker_TP1\0"}
    titles: set[bytes] = set()
    for _ in range(200):
        titles = {
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in carriers(plan.token) if pid != process.record.pid
        }
        if titles == names:
            break
        await asyncio.sleep(0.02)
    assert titles == names


async def test_a_zygote_is_repaired(warm: WarmRig) -> None:
    """Killed while nobody asks: seen at once, told, reaped; engines go on, and the next start has a new one."""
    process = await warm.start()
    pid = warm.zygote()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: warm.told("zygote.died"), "the death to be noticed", 2)
    assert "it was killed by signal 9" in warm.told("zygote.died")[0]["reason"]
    await until(lambda: procfs.read_stat(pid) is None, "it to be reaped")
    await serves(process)
    again = await warm.start()
    assert again.launcher == "warm"
    assert warm.zygote() != pid


async def test_a_zygote_ends_with_its_owner(tmp_path: Path) -> None:
    """An owner that is killed takes its zygotes with it at once, ready or in the middle of an import; its engine stays."""
    owner = f"test-{secrets.token_hex(6)}"
    script = f"""
import asyncio, sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "backend")]!r}
from warm_rig import *
async def main():
    async with warm_rig({owner!r}, Path({str(tmp_path)!r})) as rig:
        process = await rig.start(rig.plan())
        await serves(process)
        task = asyncio.create_task(rig.start(rig.plan({{"imports": "60s"}}, model="slow")))
        while len(rig.zygotes()) < 2:
            await asyncio.sleep(0.01)
        print(process.record.pid, *rig.zygotes().values(), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        line = await asyncio.to_thread(controller.stdout.readline)
        engine, *zygotes = map(int, line.split())
        controller.kill()
    try:
        assert len(zygotes) == 2
        dead = [lambda p=pid: (s := procfs.read_stat(p)) is None or s.dead for pid in zygotes]
        await until(lambda: all(look() for look in dead), "the zygotes to end", 3)
        stat = procfs.read_stat(engine)
        assert stat is not None
        assert not stat.dead
    finally:
        left = marked(owner)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not marked(owner), "the engine to be gone")
        reap([*left, *zygotes])  # orphans are ours


async def test_the_recipe_is_the_same_for_the_same_engine_environment(warm: WarmRig) -> None:
    """Tokens, directories and devices make no difference; an equal recipe has an equal key."""
    one, two = recipe_of(warm.plan(model="a")), recipe_of(warm.plan(model="b", ranks=2))
    assert one == two
    assert isinstance(one, Recipe)
    assert one.key == two.key
