"""Who belongs to a launch: the rules, on tables of processes that are made up; and the reading of /proc, on ourselves."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_mm.engine import procfs
from vllm_mm.engine.procfs import Launch, Marks, ProcessId, Stat

TOKEN = "t1"
LEADER = 100


def stat(pid: int, ppid: int = 1, *, sid: int = 1, pgid: int | None = None, state: str = "S", ticks: int = 0) -> Stat:
    return Stat(
        pid=pid, name=f"p{pid}", state=state, ppid=ppid, pgid=sid if pgid is None else pgid, sid=sid, threads=1,
        start_ticks=ticks or pid,
    )  # fmt: skip


def members(
    *stats: Stat,
    tokens: dict[int, str] | None = None,
    leader: ProcessId | None = ProcessId(LEADER, LEADER),  # noqa: B008 - a frozen value
    known: tuple[ProcessId, ...] = (),
    never: frozenset[int] = frozenset(),
) -> set[int]:
    """Pids of the members. A process without a token has a readable environment; `""` stands for one that cannot be read."""

    def marks(stat: Stat) -> Marks | None:
        token = (tokens or {}).get(stat.pid)
        return None if token == "" else Marks(owner="o" if token else None, launch=token)

    return set(procfs.members(Launch(TOKEN, leader), {s.pid: s for s in stats}, marks, known, never))


LEAD = stat(LEADER, sid=LEADER)


def test_the_token_makes_a_member_wherever_it_is() -> None:
    """Another session, another parent, no leader at all."""
    assert members(stat(5, sid=5), stat(6), tokens={5: TOKEN}) == {5}


def test_session_group_and_parents_of_a_living_leader_make_members() -> None:
    """Each link alone is enough, and links continue: the child of a member is one."""
    table = (
        LEAD,
        stat(101, sid=LEADER),
        stat(102, sid=102, pgid=LEADER),
        stat(103, 101, sid=103),
        stat(104, 103, sid=104),
        stat(200),
    )
    assert members(*table, tokens={LEADER: TOKEN}) == {LEADER, 101, 102, 103, 104}


def test_a_zombie_leader_still_proves_its_session() -> None:
    """Not reaped, its number cannot be anybody else's; its environment cannot be read any more."""
    assert members(stat(LEADER, sid=LEADER, state="Z"), stat(101, sid=LEADER), tokens={LEADER: ""}) == {LEADER, 101}


def test_a_session_number_alone_proves_nothing() -> None:
    """The leader is gone and the number was used again: another start time, or simply a session of that number."""
    assert members(stat(101, sid=LEADER)) == set()
    assert members(stat(LEADER, sid=LEADER, ticks=999), stat(101, sid=LEADER)) == set()


def test_one_proven_member_of_the_session_proves_the_others() -> None:
    """While a session has members the kernel does not give its number away."""
    assert members(stat(101, sid=LEADER), stat(102, sid=LEADER), tokens={101: TOKEN}) == {101, 102}


def test_a_member_of_a_foreign_session_proves_nothing_of_it() -> None:
    """Somebody attached a process of ours to a session of theirs: the session stays theirs."""
    assert members(stat(5, sid=50), stat(6, sid=50), stat(50, sid=50), tokens={5: TOKEN}) == {5}


def test_a_session_that_a_member_leads_is_ours() -> None:
    assert members(stat(5, sid=5), stat(6, 1, sid=5), tokens={5: TOKEN}) == {5, 6}


def test_the_leader_needs_its_token_where_it_can_be_read() -> None:
    """pid and start time agree by chance (or the record is wrong): without the token it is a stranger."""
    assert members(LEAD) == set()
    assert members(LEAD, tokens={LEADER: "other"}) == set()
    assert members(LEAD, tokens={LEADER: ""}) == {LEADER}


def test_another_token_is_stronger_than_any_link() -> None:
    assert members(LEAD, stat(101, LEADER, sid=LEADER), tokens={LEADER: TOKEN, 101: "t2"}) == {LEADER}


def test_what_was_known_stays_known_unless_its_number_was_used_again() -> None:
    """A child that wiped its environment and lost its parent."""
    table = (stat(7, sid=7), stat(8, 7))
    assert members(*table, known=(ProcessId(7, 7),)) == {7, 8}
    assert members(*table, known=(ProcessId(7, 6),)) == set()


def test_we_are_never_a_member() -> None:
    assert members(stat(5), stat(6), tokens={5: TOKEN, 6: TOKEN}, never=frozenset({5})) == {6}


def test_sessions_from_outside_the_namespace_are_nobodys() -> None:
    """In a container a session that began outside shows as 0: it must not tie everything together."""
    table = (stat(5, sid=0), stat(6, sid=0), stat(7, 5, sid=0))
    assert members(*table, tokens={5: TOKEN}, leader=None) == {5, 7}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"12 (a b) c) S 1 2 3 " + b"0 " * 13 + b"4 0 77 0 0", Stat(12, "a b) c", "S", 1, 2, 3, 4, 77)),
        (b"12 (short) S 1 2", None),
        (b"", None),
        (b"12 no brackets", None),
    ],
)
def test_a_stat_line_is_read_whatever_the_name_is(line: bytes, expected: Stat | None) -> None:
    """Names contain blanks and brackets: vLLM's do not, but anybody's may."""
    assert procfs.parse_stat(line) == expected


def test_a_zombie_is_dead_and_a_process_without_its_main_thread_is_not() -> None:
    assert stat(1, state="Z").dead
    assert stat(1, state="X").dead
    assert not stat(1, state="D").dead
    assert not Stat(1, "p", "Z", 1, 1, 1, threads=3, start_ticks=1).dead


def test_marks_are_whole_variables() -> None:
    """A value that contains the name is not the variable; the last assignment counts."""
    environ = b"X=MM_ENGINE_OWNER=no\0MM_ENGINE_OWNER=a\0MM_ENGINE_OWNER=b\0MM_ENGINE_LAUNCHER=no\0junk\0"
    assert procfs.parse_marks(environ) == Marks(owner="b", launch=None)
    assert procfs.parse_marks(b"MM_ENGINE_LAUNCH=\xff\0").launch == "\ufffd"


@pytest.mark.parametrize("read", [procfs.read_stat, procfs.read_marks])
def test_a_process_that_is_not_there_is_no_error(read: Callable[[int], object]) -> None:
    assert read(2**22 + 1) is None
    assert procfs.memory(2**22 + 1) == 0
    assert procfs.mapped_inodes(2**22 + 1, "/") == set()


def test_we_find_ourselves() -> None:
    """With our own numbers; memory of a plausible size; our own libraries among the mapped files."""
    me = procfs.table()[os.getpid()]
    assert (me.ppid, me.pgid, me.sid) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert not me.dead
    again = procfs.read_stat(os.getpid())
    assert again is not None
    assert again.id == me.id
    assert 1 << 20 < procfs.own_memory(os.getpid()) <= procfs.memory(os.getpid()) * 2
    assert Path(sys.executable).resolve().stat().st_ino in procfs.mapped_inodes(os.getpid(), "/")
    assert len(procfs.boot_id()) in (0, 36)
