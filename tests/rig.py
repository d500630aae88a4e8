"""Scripts as engines: real processes for the tests that need them."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vllm_mm.engine import procfs
from vllm_mm.engine.launchers.local import LocalLauncher
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE, Address, LaunchPlan
from vllm_mm.engine.process import LocalProcess


def marked(owner: str) -> dict[int, procfs.Stat]:
    """Living processes that carry `owner`."""
    return {
        pid: stat
        for pid, stat in procfs.table().items()
        if not stat.dead and (marks := procfs.read_marks(pid)) is not None and marks.owner == owner
    }


def alive(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and not stat.dead


def zombies() -> set[procfs.ProcessId]:
    """Dead children of ours that nobody reaped."""
    return {s.id for s in procfs.table().values() if s.ppid == os.getpid() and s.dead}


async def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait for a fact about another process; there is nothing to be told by."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s in vain: {what}")
        await asyncio.sleep(0.01)


@dataclass
class Rig:
    """Launches scripts as engines."""

    owner: str
    tmp: Path
    launcher: LocalLauncher
    started: list[LocalProcess] = field(default_factory=list)

    def plan(self, script: str, *args: str, model: str = "m", env: dict[str, str] | None = None) -> LaunchPlan:
        """A plan that runs the Python source `script`; `pids(name)` reads what it writes with `note(name, pid)`."""
        token = secrets.token_hex(8)
        path = self.tmp / f"{token}.py"
        path.write_text(_PRELUDE + script)
        workdir = self.tmp / f"w-{token}"
        return LaunchPlan(
            model=model,
            generation=1,
            token=token,
            argv=(sys.executable, str(path), *args),
            env={
                **os.environ,
                OWNER_VARIABLE: self.owner,
                LAUNCH_VARIABLE: token,
                "NOTES": str(self.tmp),
                "SPT_NOENV": "1",
                **(env or {}),
            },
            address=Address(socket=str(workdir / "s")),
            workdir=workdir,
            log=self.tmp / "logs" / f"{model}.log",
            fingerprint="f",
        )

    async def start(self, script: str, *args: str, model: str = "m") -> LocalProcess:
        process = await self.launcher.start(self.plan(script, *args, model=model))
        self.started.append(process)
        return process

    async def note(self, name: str) -> int:
        """The number that a script noted under `name`."""
        path = self.tmp / name
        await until(lambda: path.exists() and path.read_text().endswith("\n"), f"the note {name!r} of a script")
        return int(path.read_text())


_PRELUDE = """\
import os, signal, subprocess, sys, time
from pathlib import Path

def note(name, number):
    path = Path(os.environ["NOTES"]) / name
    new = path.with_suffix(f".{os.getpid()}")  # two scripts may note the same thing at once
    new.write_text(f"{number}\\n")
    new.rename(path)

def forever():
    while True:
        time.sleep(60)

def fork(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return pid

"""
