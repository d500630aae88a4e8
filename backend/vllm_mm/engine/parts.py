"""The processes below a leader without which an engine cannot serve: vLLM's engine core and its workers.

vLLM's API server notices the death of one of them only after seconds, in which it answers /health with 200; a pidfd tells
it at once. Which process is such a part is read from its title: helpers come and go (resource_tracker, compilers, compile
workers), and their end means nothing. A helper forked from a part has the part's title until it executes something else, so
a title that the parent has as well counts for nothing.

Titles: `set_process_title` in vllm/utils/system_utils.py and its callers (vLLM 0.32). The prefix is the user's to choose.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from vllm_mm.engine import procfs
from vllm_mm.engine.ports import ExitStatus, Loss
from vllm_mm.engine.procfs import ProcessId

_PART = re.compile(r"\S*::(EngineCore|Worker|DPCoordinator)(_\S*)?")


class Parts:
    """Watches the parts of one launch. Made, looked with and closed on the event loop. `read_log` takes in what is new."""

    def __init__(self, leader: ProcessId, read_log: Callable[[], object]) -> None:
        self._leader = leader
        self._read_log = read_log
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[Loss] = self._loop.create_future()
        self._watched: dict[ProcessId, int] = {}
        """With their pidfds."""
        self._looking = asyncio.Lock()
        self._closed = False

    async def lost(self) -> Loss:
        """The first part that died. Waits for ever when none does, or when it was closed before."""
        return await asyncio.shield(self._lost)

    async def look(self, descendants: Callable[[], Iterable[ProcessId]]) -> None:
        """Watch the parts among these from now on. `descendants` is called in a thread, as is the reading of titles."""
        async with self._looking:
            if self._closed:
                return
            known = frozenset(self._watched)
            for identity, title in await asyncio.to_thread(lambda: _parts(self._leader, descendants(), known)):
                self._watch(identity, title)

    def close(self) -> None:
        """From now on an end is no loss: the engine is being stopped, or let go of."""
        self._closed = True
        for fd in self._watched.values():
            if fd >= 0:
                self._loop.remove_reader(fd)
                os.close(fd)
        self._watched.clear()

    def _watch(self, identity: ProcessId, title: str) -> None:
        if self._closed or self._lost.done():
            return
        try:
            fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self._died(identity, title)  # between the reading of its title and now
            return
        except OSError:  # out of descriptors: the leader's end will tell, later
            return
        stat = procfs.read_stat(identity.pid)
        if stat is None or stat.id != identity:
            os.close(fd)
            self._died(identity, title)
            return
        self._watched[identity] = fd
        self._loop.add_reader(fd, self._ended, identity, title)

    def _ended(self, identity: ProcessId, title: str) -> None:
        fd = self._watched[identity]
        self._loop.remove_reader(fd)
        os.close(fd)
        self._watched[identity] = -1
        self._died(identity, title)

    def _died(self, identity: ProcessId, title: str) -> None:
        if self._closed or self._lost.done():
            return
        status = _status(identity)
        self._read_log()  # what it said last is often the cause
        self._lost.set_result(Loss(identity.pid, title, status))


def _parts(
    leader: ProcessId, descendants: Iterable[ProcessId], known: frozenset[ProcessId]
) -> list[tuple[ProcessId, str]]:
    """Those that are parts by their titles, with these."""
    found: list[tuple[ProcessId, str]] = []
    for identity in descendants:
        if identity in known or identity == leader:
            continue
        before = procfs.read_stat(identity.pid)
        title = _title(identity.pid)
        if before is None or before.id != identity or not _PART.fullmatch(title):
            continue
        forked = title == _title(before.ppid)
        # Asked again: the parent whose title was read is still its parent, so it was the parent's title.
        after = procfs.read_stat(identity.pid)
        if not forked and after is not None and (after.id, after.ppid) == (identity, before.ppid):
            found.append((identity, title))
    return found


def _title(pid: int) -> str:
    """What `ps` shows; empty for a process that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace").strip()
    except OSError:
        return ""


def _status(identity: ProcessId) -> ExitStatus:
    """How a process that is not our child ended: its parent is told, but as long as it is a zombie the last field of
    /proc/PID/stat says it to every process of the same user (proc(5), exit_code)."""
    try:
        data = Path(f"/proc/{identity.pid}/stat").read_bytes()
    except OSError:
        return ExitStatus(code=None)
    stat, fields = procfs.parse_stat(data), data[data.rfind(b")") + 1 :].split()
    if stat is None or stat.id != identity or not stat.dead or len(fields) < 50:
        return ExitStatus(code=None)
    status = int(fields[49])
    if os.WIFSIGNALED(status):
        return ExitStatus(code=None, signal=os.WTERMSIG(status))
    return ExitStatus(code=os.waitstatus_to_exitcode(status))
