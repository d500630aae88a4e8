"""Engines as subprocesses of this machine."""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from vllm_mm.clock import Clock
from vllm_mm.engine import children, leftovers, procfs
from vllm_mm.engine.logtail import OLD_FILES, ROTATE_BYTES, LogTail
from vllm_mm.engine.ports import (
    LAUNCH_VARIABLE,
    OWNER_VARIABLE,
    LaunchPlan,
    LaunchRecord,
    SweepReport,
)
from vllm_mm.engine.process import Hunt, LocalProcess, reap
from vllm_mm.engine.procfs import Launch, ProcessId, Stat

_LOG = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Make orphaned descendants children of this process instead of pid 1, so that it can reap them (prctl(2)).

    For the whole process, once. False where the system refuses; then pid 1 reaps them.
    """
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


class LocalLauncher:
    """Implements `ports.Launcher`. `owner` tells this installation's engines from those of others on the machine."""

    def __init__(self, owner: str, clock: Clock, *, log_size: int = ROTATE_BYTES, log_files: int = OLD_FILES) -> None:
        """`log_size`: bytes at which an engine's log is rotated; `log_files`: old ones that are kept."""
        self._owner = owner
        self._clock = clock
        self._log_size = log_size
        self._log_files = log_files
        if not become_subreaper():
            _LOG.info("cannot become a child subreaper: orphans of engines are left to pid 1 for reaping")

    async def start(self, plan: LaunchPlan) -> LocalProcess:
        """Raises OSError with a filename when the executable cannot be run, the work directory not made, the log not
        opened. Nothing is awaited once the process exists: it cannot be lost to a cancellation."""
        executable = _find(plan)

        async def spawn(log: int) -> tuple[int, int]:
            return self._spawn(plan, executable, log)

        return await self.launch(plan, spawn)

    async def launch(
        self, plan: LaunchPlan, spawn: Callable[[int], Awaitable[tuple[int, int]]], launcher: str = "local"
    ) -> LocalProcess:
        """Everything about a start but the making of the process: `spawn` gets the descriptor of the log, and returns the
        pid of a child of ours and a pidfd that is then this one's. If `spawn` raises, it has left nothing behind."""
        record = LaunchRecord(
            model=plan.model,
            generation=plan.generation,
            token=plan.token,
            pid=0,
            start_ticks=0,
            boot_id=procfs.boot_id(),
            address=plan.address,
            workdir=plan.workdir,
            log=plan.log,
            fingerprint=plan.fingerprint,
            device_bytes=dict(plan.device_bytes),
            started_at=self._clock.wall(),
            launcher=launcher,
        )
        try:
            leftovers.prepare(plan)
            pid, pidfd, stat, tail = await self._made(plan, spawn)
        except BaseException:
            leftovers.remove(record)
            raise
        record = replace(record, pid=pid, start_ticks=stat.start_ticks)
        return LocalProcess(record, self._clock, tail, pidfd, child=stat.ppid == os.getpid(), launcher=launcher)

    async def _made(
        self, plan: LaunchPlan, spawn: Callable[[int], Awaitable[tuple[int, int]]]
    ) -> tuple[int, int, Stat, LogTail]:
        plan.log.parent.mkdir(parents=True, exist_ok=True)
        tail = LogTail(
            plan.log, self._clock, offset=plan.log.stat().st_size if plan.log.exists() else 0,
            rotate_bytes=self._log_size, old_files=self._log_files,
        )  # fmt: skip
        try:
            log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                pid, pidfd = await spawn(log)
            finally:
                os.close(log)
        except BaseException:
            tail.release()
            raise
        try:
            stat = procfs.read_stat(pid)
            if stat is None:
                raise OSError(2, "cannot read the new process's entry in /proc; is it mounted?", f"/proc/{pid}")
        except OSError:
            tail.release()
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await asyncio.to_thread(os.waitpid, pid, 0)
            children.done(pid)
            os.close(pidfd)
            raise
        return pid, pidfd, stat, tail

    def distrust(self, plan: LaunchPlan, reason: str) -> bool:  # noqa: ARG002 - the protocol's
        return False

    def vindicate(self, plan: LaunchPlan) -> None:
        """Nothing to take back."""

    async def adopt(self, record: LaunchRecord) -> LocalProcess | None:
        if record.pid <= 0 or record.boot_id != procfs.boot_id():
            return None
        try:
            pidfd = os.pidfd_open(record.pid)
        except OSError:
            return None
        # The pidfd holds on to whoever has the number now; only then is it asked who that is.
        stat = procfs.read_stat(record.pid)
        marks = procfs.read_marks(record.pid)
        if (
            stat is None
            or stat.dead
            or stat.start_ticks != record.start_ticks
            or marks is None
            or (marks.owner, marks.launch) != (self._owner, record.token)
        ):
            os.close(pidfd)
            return None
        try:
            tail = LogTail.resumed(record.log, self._clock, rotate_bytes=self._log_size, old_files=self._log_files)
        except OSError as error:
            _LOG.warning("%s is not adopted: its log cannot be opened: %s", record.model, error)
            os.close(pidfd)
            return None
        return LocalProcess(record, self._clock, tail, pidfd, child=stat.ppid == os.getpid(), launcher=record.launcher)

    async def sweep(self, record: LaunchRecord, deadline: float) -> SweepReport:
        known = record.pid > 0 and record.boot_id == procfs.boot_id()
        leader = ProcessId(record.pid, record.start_ticks) if known else None
        report = await self._kill([Launch(record.token, leader, self._owner)], deadline)
        if not report.survivors:
            if leader is not None:
                reap(leader)
                children.done(leader.pid)
            await asyncio.to_thread(leftovers.remove, record)
        return report

    async def sweep_unknown(self, keep: frozenset[str], deadline: float) -> SweepReport:
        tokens = await asyncio.to_thread(self._tokens)
        return await self._kill([Launch(token, owner=self._owner) for token in sorted(tokens - keep)], deadline)

    def _spawn(self, plan: LaunchPlan, executable: str, log: int) -> tuple[int, int]:
        """The new process and its pidfd. Short (vfork), so it may stand on the event loop."""
        child = subprocess.Popen(
            plan.argv,
            executable=executable,
            env=self.environment(plan),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            start_new_session=True,
        )
        # From here on LocalProcess does the waiting, and keeps the child as a zombie until its tree is gone.
        child.returncode = 0
        try:
            return child.pid, os.pidfd_open(child.pid)
        except OSError:
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            raise

    async def _kill(self, launches: Iterable[Launch], deadline: float) -> SweepReport:
        until = self._clock.now() + deadline
        orphans: dict[ProcessId, str] = {}
        survivors: list[int] = []
        for launch in launches:

            def report(stat: Stat, leader: ProcessId | None = launch.leader) -> None:
                if stat.id != leader:
                    orphans.setdefault(stat.id, stat.name)

            survivors += await Hunt(launch).kill_all(self._clock, until, report)
        children.reap_orphans()
        found = tuple(sorted((identity.pid, name) for identity, name in orphans.items()))
        return SweepReport(orphans=found, survivors=tuple(survivors))

    def _tokens(self) -> set[str]:
        """The launch tokens of all living processes with our owner mark."""
        found: set[str] = set()
        for pid in procfs.table():
            marks = procfs.read_marks(pid)
            if marks is not None and marks.owner == self._owner and marks.launch:
                found.add(marks.launch)
        return found

    def environment(self, plan: LaunchPlan) -> dict[str, str]:
        """The plan's, with the marks at its end: a process that renames itself overwrites its environment's beginning."""
        env = {k: v for k, v in plan.env.items() if k not in (OWNER_VARIABLE, LAUNCH_VARIABLE)}
        return {**env, OWNER_VARIABLE: self._owner, LAUNCH_VARIABLE: plan.token}


def _find(plan: LaunchPlan) -> str:
    """The executable as the engine's own PATH gives it; Popen's error would name the wrong file."""
    path = plan.env.get("PATH", os.defpath)
    found = shutil.which(plan.argv[0], path=path)
    if found is None:
        name = plan.argv[0]
        if os.sep in name and Path(name).exists():
            raise PermissionError(13, "not an executable file", name)
        _LOG.warning("%s: no program %r in PATH=%s", plan.model, name, path)
        where = "" if os.sep in name else " on the server's PATH"
        raise FileNotFoundError(2, f"no such program{where}; correct the model's `executable` or `command`", name)
    return found
