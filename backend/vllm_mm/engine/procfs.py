"""Reading /proc: who lives, whose child it is, and which launch it belongs to. Linux only; nothing here changes anything.

Layout of the files: proc(5). A process can vanish between any two reads; that is never an error, it is an answer.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE

_DEAD = frozenset("ZXx")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number (within one boot)."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks from the boot to its start."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says at one moment."""

    pid: int
    name: str
    state: str
    ppid: int
    pgid: int
    sid: int
    threads: int
    start_ticks: int

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start_ticks)

    @property
    def dead(self) -> bool:
        """A zombie holds no memory any more. (A dead main thread with others alive is not a dead process.)"""
        return self.state in _DEAD and self.threads <= 1


@dataclass(frozen=True, slots=True)
class Marks:
    """The two marker variables as a process's environment has them."""

    owner: str | None
    launch: str | None


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Changes at every boot of the machine; start ticks mean nothing across it. Empty where the kernel gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        while chunk := os.read(fd, 1 << 16):
            parts.append(chunk)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def parse_stat(data: bytes) -> Stat | None:
    """`PID (NAME) STATE PPID PGRP SESSION ...`; the name may itself contain blanks and brackets."""
    left, right = data.find(b"("), data.rfind(b")")
    fields = data[right + 1 :].split()
    if left < 1 or right < left or len(fields) < 20:
        return None
    return Stat(
        pid=int(data[:left]),
        name=data[left + 1 : right].decode(errors="replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    data = _read(f"/proc/{pid}/stat") if pid > 0 else None
    return parse_stat(data) if data else None


def parse_marks(environ: bytes) -> Marks:
    """The last assignment wins, as in a shell that looks a name up in its own table."""
    found: dict[bytes, str] = {}
    for entry in environ.split(b"\0"):
        key, equals, value = entry.partition(b"=")
        if equals and key in (OWNER_VARIABLE.encode(), LAUNCH_VARIABLE.encode()):
            found[key] = value.decode(errors="replace")
    return Marks(owner=found.get(OWNER_VARIABLE.encode()), launch=found.get(LAUNCH_VARIABLE.encode()))


def read_marks(pid: int) -> Marks | None:
    """None when the environment cannot be read or is empty (a zombie, a kernel thread, another user's process)."""
    data = _read(f"/proc/{pid}/environ")
    return parse_marks(data) if data else None


def pids() -> list[int]:
    """All processes of this PID namespace, whoever owns them."""
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def children(pid: int) -> list[int]:
    """The children of all its threads; cheap, for nothing else is looked at (CONFIG_PROC_CHILDREN; else empty)."""
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        for thread in threads:
            found += [int(child) for child in (_read(f"/proc/{pid}/task/{thread.name}/children") or b"").split()]
    return found


_LISTINGS = 20


def table(look: Callable[[Stat], object] = lambda _: None) -> dict[int, Stat]:
    """Every process of our user except kernel threads; `look` is called for each while it is fresh.

    /proc is listed again until a listing names nobody new: a process that forks and exits faster than one listing is read
    leaves a child that the next one names. Some milliseconds per hundred processes.
    """
    uid = os.getuid()
    found: dict[int, Stat] = {}
    seen: set[str] = set()
    for _ in range(_LISTINGS):
        with os.scandir("/proc") as entries:
            fresh = [entry for entry in entries if entry.name.isdecimal() and entry.name not in seen]
        if not fresh:
            break
        for entry in fresh:
            seen.add(entry.name)
            try:
                if entry.stat().st_uid != uid:
                    continue
            except OSError:
                continue
            stat = read_stat(int(entry.name))
            if stat is not None and stat.pid != 2 and stat.ppid != 2:
                found[stat.pid] = stat
                look(stat)
    return found


def memory(pid: int) -> int:
    """Bytes: the proportional set size, so that pages shared within a tree count once; else the resident set size."""
    rollup = _read(f"/proc/{pid}/smaps_rollup")
    for line in (rollup or b"").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident(pid)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory, with those of files that it has mapped. Cheaper than `own_memory`; for anybody's
    process, 0 for a kernel thread and for one that is gone."""
    fields = (_read(f"/proc/{pid}/statm") or b"").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def own_memory(pid: int) -> int:
    """Bytes that go when the process goes: anonymous and shared memory, without the pages of files. Cheap at any size."""
    size = 0
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith((b"RssAnon:", b"RssShmem:")):
            size += int(line.split()[1]) * 1024
    return size


def mapped_inodes(pid: int, prefix: str) -> set[int]:
    """Inodes of the files under `prefix` that the process has mapped.

    Not their names: glibc makes a semaphore under another name and links it to its own, so that its maker's mapping shows
    a deleted file (sem_open).
    """
    wanted = prefix.encode()
    rows = (line.split(None, 5) for line in (_read(f"/proc/{pid}/maps") or b"").splitlines())
    return {int(fields[4]) for fields in rows if len(fields) == 6 and fields[5].startswith(wanted)}


@dataclass(frozen=True, slots=True)
class Launch:
    """What is known of one launch: enough to tell its processes from everybody else's."""

    token: str
    leader: ProcessId | None = None
    """None while nothing was started, or when it is of another boot."""
    owner: str | None = None
    """Whose it is, where the token alone does not tell: the zygotes of all installations on a machine carry the same one."""

    def made(self, marks: Marks | None) -> bool:
        """Whether a process with these marks was started by this launch."""
        return marks is not None and marks.launch == self.token and self.owner in (None, marks.owner)


def members(
    launch: Launch,
    processes: Mapping[int, Stat],
    marks: Callable[[Stat], Marks | None],
    known: Iterable[ProcessId] = (),
    never: frozenset[int] = frozenset(),
) -> dict[int, Stat]:
    """The processes of a launch, the leader and zombies included. Pure, given `marks`.

    One is of the launch when it carries the token; when it was seen to be of it before (`known`); when it is in a session
    or process group whose leader is of it; or when its parent is of it. A process that carries another token never is,
    and a leader whose environment can be read has to carry this one. A session number alone proves nothing once its
    leader is gone: numbers are used again. While any member of a session lives the kernel keeps the number, so one proven
    member of the leader's session proves the others.
    """
    seen: dict[int, Marks | None] = {}

    def stranger(stat: Stat) -> bool:
        if stat.pid in never:
            return True
        if stat.pid not in seen:
            seen[stat.pid] = marks(stat)
        mark = seen[stat.pid]
        return mark is not None and mark.launch is not None and not launch.made(mark)

    found: dict[int, Stat] = {}
    for identity in known:
        stat = processes.get(identity.pid)
        if stat is not None and stat.start_ticks == identity.start_ticks and not stranger(stat):
            found[stat.pid] = stat
    leader = launch.leader and processes.get(launch.leader.pid)
    if launch.leader and leader and leader.start_ticks == launch.leader.start_ticks and not stranger(leader):
        mark = seen[leader.pid]
        if mark is None or launch.made(mark):
            found[leader.pid] = leader
    for stat in processes.values():
        if not stranger(stat) and launch.made(seen[stat.pid]):
            found[stat.pid] = stat

    leader_number = launch.leader.pid if launch.leader else None
    grown = True
    while grown:
        groups = {number for stat in found.values() for number in (stat.sid, stat.pgid)}
        # 0 is what a session outside of this PID namespace looks like: everybody's.
        groups = {number for number in groups if number > 1 and (number in found or number == leader_number)}
        fresh = {
            pid: stat
            for pid, stat in processes.items()
            if pid not in found
            and (stat.ppid in found or stat.sid in groups or stat.pgid in groups)
            and not stranger(stat)
        }
        found |= fresh
        grown = bool(fresh)
    return found
