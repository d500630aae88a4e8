"""One engine process: seen to exit at once, stopped with everything it started, never confused with another.

Three facts carry the design. A child that has not been reaped keeps its number, so while we hold the leader as a zombie its
session and group are beyond doubt ours. A pidfd names a process for good. And the launch token is in the environment of
every descendant, whatever it renamed itself to and whichever session it moved to.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable

from vllm_mm.clock import Clock
from vllm_mm.engine import children, leftovers, procfs
from vllm_mm.engine.logtail import LogTail
from vllm_mm.engine.parts import Parts
from vllm_mm.engine.ports import ExitStatus, LaunchRecord, Loss, SweepReport
from vllm_mm.engine.procfs import Launch, ProcessId, Stat

_LOG = logging.getLogger(__name__)

_PATIENCE = 0.5
"""Seconds that children get to follow a leader that ended as asked, before they count as orphans."""
_WALK_SECONDS = 1.0
"""Between two looks at the engine's descendants; a child is remembered at the latest after that time."""
_MEMORY_AGE = 1.0
"""Seconds for which a reading of the tree's memory is good."""


def kill(identity: ProcessId, number: signal.Signals = signal.SIGKILL) -> bool:
    """Signal exactly this process, never a later one with its number. False when it is gone (or not ours to signal)."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        stat = procfs.read_stat(identity.pid)
        if stat is None or stat.start_ticks != identity.start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


async def ended(identities: Iterable[ProcessId]) -> None:
    """Returns as soon as none of these processes lives, zombies being dead. A process that cannot be watched counts as dead."""
    loop = asyncio.get_running_loop()
    fds: list[int] = []
    try:
        for identity in identities:
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(identity.pid))
                stat = procfs.read_stat(identity.pid)
                if stat is None or stat.id != identity:
                    os.close(fds.pop())  # another's number by now
        for fd in fds:
            over: asyncio.Future[None] = loop.create_future()
            loop.add_reader(fd, lambda over=over: over.done() or over.set_result(None))
            try:
                await over
            finally:
                loop.remove_reader(fd)
    finally:
        for fd in fds:
            os.close(fd)


def reap(identity: ProcessId) -> None:
    """Collect a dead child of ours; anything else stays as it is."""
    stat = procfs.read_stat(identity.pid)
    if stat is not None and stat.start_ticks == identity.start_ticks and stat.ppid == os.getpid():
        with contextlib.suppress(OSError):
            os.waitpid(identity.pid, os.WNOHANG)


def peek_exit(pid: int) -> ExitStatus | None:
    """How our child ended, without reaping it; None while it runs. `code` is None when it is not our child."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return ExitStatus(code=None)
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(code=result.si_status)
    return ExitStatus(code=None, signal=result.si_status)


class Hunt:
    """Finds the processes of one launch again and again, and remembers each that it ever saw.

    Memory is what catches a child that wiped its environment, left the session and lost its parent afterwards.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._known: set[ProcessId] = set()
        self._marks: dict[ProcessId, procfs.Marks | None] = {}
        self._lock = threading.Lock()

    def scan(self) -> dict[int, Stat]:
        """One look at /proc; blocking for some milliseconds, safe from any thread."""
        with self._lock:
            marks: dict[int, procfs.Marks | None] = {}
            processes = procfs.table(lambda stat: marks.__setitem__(stat.pid, self._mark(stat)))
            living = {stat.id for stat in processes.values()}
            self._marks = {identity: mark for identity, mark in self._marks.items() if identity in living}
            self._known &= living
            never = lineage(processes)
            found = procfs.members(self.launch, processes, lambda stat: marks[stat.pid], self._known, never)
            self._known |= {stat.id for stat in found.values()}
            return found

    def remember(self, *, wait: bool = False) -> frozenset[ProcessId]:
        """Walk down from the leader and whoever is known, and remember their children: so that they are known when
        their parents are gone. Well under a millisecond for an engine, and cheap enough for the event loop. Returns all who
        are known; nobody while a scan is under way, which finds more, unless `wait` is set (in a thread)."""
        if not self._lock.acquire(blocking=wait):
            return frozenset()
        try:
            roots = set(self._known)
            if self.launch.leader is not None:
                roots.add(self.launch.leader)
            left = [root.pid for root in roots if (stat := procfs.read_stat(root.pid)) is not None and stat.id == root]
            while left:
                parent = left.pop()
                for pid in procfs.children(parent):
                    stat = procfs.read_stat(pid)
                    # Its parent is asked again: the number may be another's since it was listed.
                    if stat is not None and stat.ppid == parent and stat.id not in self._known:
                        self._known.add(stat.id)
                        left.append(pid)
            return frozenset(self._known)
        finally:
            self._lock.release()

    def alive(self) -> list[ProcessId]:
        """Of those who are known, and their children: without a look at anybody else."""
        known = self.remember(wait=True)
        return [i for i in known if (stat := procfs.read_stat(i.pid)) is not None and stat.id == i and not stat.dead]

    def _mark(self, stat: Stat) -> procfs.Marks | None:
        # The environment changes only by an exec, in the first moments: older processes are read once.
        if stat.id in self._marks:
            return self._marks[stat.id]
        mark = None if stat.dead else procfs.read_marks(stat.pid)
        if mark is not None and time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / _TICKS > 5.0:
            self._marks[stat.id] = mark
        return mark

    async def kill_all(
        self, clock: Clock, until: float, report: Callable[[Stat], None],
        observe: Callable[[Iterable[int]], None] = lambda _: None,
    ) -> tuple[int, ...]:  # fmt: skip
        """Kill and reap until two looks in a row find nobody; returns the pids that are still there at `until`.

        `report` is called for each living process that is found, before it is killed; `observe` before that, in a thread, with
        the pids of all of them.
        """
        pause = 0.005
        while True:
            found = await asyncio.to_thread(self._scan_twice, observe)
            alive = [stat for stat in found.values() if not stat.dead]
            for stat in found.values():
                if not stat.dead:
                    report(stat)
                    kill(stat.id)
                elif stat.ppid == os.getpid() and (self.launch.leader is None or stat.id != self.launch.leader):
                    reap(stat.id)
            if not alive:
                return ()
            if clock.now() >= until:
                return tuple(sorted(stat.pid for stat in alive))
            await clock.sleep(pause)
            pause = min(pause * 2, 0.1)

    def _scan_twice(self, observe: Callable[[Iterable[int]], None]) -> dict[int, Stat]:
        """The second look only if the first finds nobody alive."""
        found = self.scan()
        if all(stat.dead for stat in found.values()):
            found |= self.scan()
        observe([stat.pid for stat in found.values() if not stat.dead])
        return found


_TICKS = os.sysconf("SC_CLK_TCK")


def lineage(processes: dict[int, Stat]) -> frozenset[int]:
    """Ourselves and our ancestors: whatever their environment says, they are no engine of ours."""
    pid, found = os.getpid(), {0, 1}
    while pid > 1 and pid not in found:
        found.add(pid)
        stat = processes.get(pid) or procfs.read_stat(pid)
        pid = stat.ppid if stat else 0
    return frozenset(found)


class LocalProcess:
    """Implements `ports.EngineProcess` for a process on this machine. Made by `LocalLauncher`, on the event loop."""

    def __init__(
        self, record: LaunchRecord, clock: Clock, tail: LogTail, pidfd: int, *, child: bool, launcher: str = "local"
    ) -> None:
        self.launcher = launcher
        self._record = record
        self._clock = clock
        self._tail = tail
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._pidfd: int | None = pidfd
        self._hurry = asyncio.Event()
        self._until = 0.0
        self._stopping: asyncio.Task[SweepReport] | None = None
        self._gone = False
        self._hunt = Hunt(Launch(record.token, ProcessId(record.pid, record.start_ticks)))
        self._memory = (0.0, 0)
        self._alive: tuple[int, ...] = ()
        self._memory_lock = threading.Lock()
        self._shm = leftovers.SharedMemory(record.started_at)
        self._parts = Parts(ProcessId(record.pid, record.start_ticks), tail.poll)
        if child:
            children.expect(record.pid)
        self._loop.add_reader(pidfd, self._on_exit)
        self._walk: asyncio.Task[None] | None = self._loop.create_task(self._remember(), name=f"tree {record.model}")
        tail.start()

    @property
    def record(self) -> LaunchRecord:
        return self._record

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        return self._tail.follow(on_line)

    def tail(self, lines: int) -> tuple[str, ...]:
        return self._tail.lines(lines)

    @property
    def written(self) -> int:
        return self._tail.written

    def read_log(self) -> None:
        self._tail.catch_up()

    def rss(self) -> int:
        """Takes some milliseconds for each GiB that is mapped: `await asyncio.to_thread(process.rss)` (it is thread-safe)."""
        with self._memory_lock:
            read_at, size = self._memory
            now = time.monotonic()
            if not read_at or now - read_at > _MEMORY_AGE:
                alive = [stat.pid for stat in self._hunt.scan().values() if not stat.dead]
                size = sum(procfs.memory(pid) for pid in alive)
                self._shm.observe(alive)
                self._memory, self._alive = (now, size), tuple(alive)
            return size

    @property
    def pids(self) -> Collection[int]:
        return self._alive

    async def exited(self) -> ExitStatus:
        return await asyncio.shield(self._exit)

    async def lost(self) -> Loss:
        return await self._parts.lost()

    async def take_stock(self) -> None:
        await self._parts.look(lambda: self._hunt.remember(wait=True))

    async def stop(self, *, graceful: bool, grace: float, deadline: float) -> SweepReport:
        """See `ports.EngineProcess.stop`. Calls at the same time share one stop: the most impatient of them sets the
        grace, the most patient the deadline. The stop goes on when a caller is cancelled."""
        self._parts.close()
        if self._gone:
            return SweepReport()
        now = self._clock.now()
        self._until = max(self._until, now + deadline)
        timer = None
        if graceful and grace > 0:
            timer = self._clock.call_at(now + min(grace, deadline), self._hurry.set)
        else:
            self._hurry.set()
        if self._stopping is None or self._stopping.done():
            self._stopping = self._loop.create_task(self._stop(), name=f"stop {self._record.model}")
        try:
            return await asyncio.shield(self._stopping)
        finally:
            if timer is not None and self._stopping.done():
                timer.cancel()

    async def close(self) -> None:
        self._unwatch()
        self._parts.close()
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await walk
        await self._tail.close()

    async def _remember(self) -> None:
        while not self._exit.done():
            known = self._hunt.remember()
            await self._parts.look(lambda known=known: known)
            children.reap_orphans(rest=_WALK_SECONDS)
            await self._clock.sleep(_WALK_SECONDS)

    def _on_exit(self) -> None:
        """The pidfd became readable: the leader is dead, though others may still hold its log open."""
        status = peek_exit(self._record.pid) if self._child else ExitStatus(code=None)
        if status is None:  # not dead after all; the reader stays
            return
        self._unwatch()
        self._tail.drain()
        if not self._exit.done():
            self._exit.set_result(status)

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    async def _stop(self) -> SweepReport:
        leader = ProcessId(self._record.pid, self._record.start_ticks)
        # Of those who are known, while there is time; whole looks come after the signal.
        await asyncio.to_thread(self._observe)
        asked = False
        if not self._exit.done() and not self._hurry.is_set():
            asked = kill(leader, signal.SIGTERM)
            await self._exit_or_hurry()
        if asked and self._exit.done():
            await self._let_children_follow()
        killed_with_leader: set[ProcessId] = set()
        if not self._exit.done():
            # Together, so that none sees the others die and forks away; what is in the group is no orphan.
            before = await asyncio.to_thread(self._look)
            killed_with_leader = {stat.id for stat in before.values() if stat.pgid == leader.pid} | {leader}
            self._kill_group(leader)
        orphans: dict[ProcessId, str] = {}

        def report(stat: Stat) -> None:
            if stat.id not in killed_with_leader and stat.id != leader:
                orphans.setdefault(stat.id, stat.name)

        survivors = await self._hunt.kill_all(self._clock, self._until, report, self._shm.observe)
        found = tuple(sorted((identity.pid, name) for identity, name in orphans.items()))
        if survivors:
            _LOG.error("%s: processes %s survive SIGKILL (uninterruptible sleep?)", self._record.model, survivors)
            return SweepReport(orphans=found, survivors=survivors)
        await self._bury()
        return SweepReport(orphans=found)

    def _observe(self) -> None:
        self._shm.observe([identity.pid for identity in self._hunt.remember(wait=True)] + [self._record.pid])

    def _look(self) -> dict[int, Stat]:
        found = self._hunt.scan()
        self._shm.observe([stat.pid for stat in found.values() if not stat.dead])
        return found

    def _kill_group(self, leader: ProcessId) -> None:
        if self._child and not self._exit.done():
            # Our child is not reaped yet, so the number is its own and so is the group of that number.
            with contextlib.suppress(OSError):
                if os.getpgid(leader.pid) == leader.pid:
                    os.killpg(leader.pid, signal.SIGKILL)
        kill(leader)

    async def _exit_or_hurry(self) -> None:
        hurry = self._loop.create_task(self._hurry.wait())
        try:
            await asyncio.wait({hurry, self._exit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()

    async def _let_children_follow(self) -> None:
        """Looked for again and again, for those who die may have had others; between two looks, waited for and not polled."""
        until = min(self._clock.now() + _PATIENCE, self._until)
        while not self._hurry.is_set() and self._clock.now() < until:
            alive = await asyncio.to_thread(self._hunt.alive)
            if not alive:
                return
            tasks = [
                self._loop.create_task(work)
                for work in (ended(alive), self._hurry.wait(), self._clock.sleep(until - self._clock.now()))
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()

    async def _bury(self) -> None:
        """Everybody is dead: reap the leader (only now, see the top), and remove what the launch left in files."""
        if self._pidfd is not None:
            self._on_exit()  # the loop may not have come to it yet, and after the reaping nobody could tell how it ended
        if self._child:
            reap(ProcessId(self._record.pid, self._record.start_ticks))
            children.done(self._record.pid)
        children.reap_orphans()
        self._gone = True
        await self.close()
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        leftovers.remove(self._record)
        self._shm.remove()
