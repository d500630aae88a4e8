"""Writing behind: nobody waits, nothing is lost while the database may come back, and one bad row harms no other."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from fakes import FakeClock
from vllm_mm.store.behind import WriteBehind

LOCKED = OperationalError("INSERT", {}, Exception("database is locked"))


class Table:
    """Takes rows, or fails as told; `bad` rows can never be written."""

    def __init__(self, *, bad: frozenset[int] = frozenset()) -> None:
        self.rows: list[int] = []
        self.calls: list[int] = []
        self.failures: list[Exception] = []
        self.bad = bad
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, rows: Sequence[int]) -> None:
        self.calls.append(len(rows))
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.bad & set(rows):
            raise ValueError("what is this")
        self.rows.extend(rows)


def make(table: Table, clock: FakeClock, *, batch: int = 3, limit: int = 10) -> WriteBehind[int]:
    behind = WriteBehind(table.write, clock, name="things", batch=batch, limit=limit)
    behind.start()
    return behind


async def end(behind: WriteBehind[int], clock: FakeClock) -> bool:
    """Close it while time goes on."""
    task = asyncio.create_task(behind.close())
    while not task.done():
        await clock.advance(1)
    return await task


async def test_rows_go_in_order_and_in_batches() -> None:
    """Those that come while a batch is written make up the next one."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    for i in range(7):
        behind.add(i)
    assert behind.pending() == list(range(7))
    await clock.advance(1)
    assert (table.rows, table.calls, behind.backlog) == (list(range(7)), [3, 3, 1], 0)
    assert await end(behind, clock)


async def test_what_comes_during_a_write_gathers_like_what_came_before() -> None:
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    table.gate.clear()
    behind.add(1)
    await clock.advance(0.15)
    behind.add(2)
    table.gate.set()
    await clock.advance(0.05)
    behind.add(3)
    await clock.advance(0.03)
    assert table.calls == [1]
    await clock.advance(0.1)
    assert (table.rows, table.calls) == ([1, 2, 3], [1, 2])
    assert await end(behind, clock)


async def test_who_waits_for_the_rows_does_not_wait_for_more_of_them() -> None:
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    table.gate.clear()
    behind.add(1)
    await clock.advance(0.15)
    behind.add(2)
    flushed = asyncio.create_task(behind.flush())
    await clock.advance(0.0)
    table.gate.set()
    await clock.advance(0.0)
    assert (table.rows, await flushed) == ([1, 2], True)
    assert await end(behind, clock)


async def test_a_locked_database_is_tried_again() -> None:
    """With growing pauses; `problem` says so after some seconds, and is gone once the rows are through."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    table.failures = [LOCKED] * 10  # tried at 0.05, then after 0.1, 0.2, 0.4, 0.8, 1.6 and 2 s each
    behind.add(1)
    await clock.advance(2)
    assert behind.problem() is None
    await clock.advance(8)
    behind.add(2)
    assert table.rows == []
    await clock.advance(1)
    assert behind.problem() == "2 rows of things wait to be written, for 11 s: (builtins.Exception) database is locked"
    await clock.advance(10)
    assert table.rows == [1, 2]
    assert table.calls == [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]
    assert behind.problem() is None
    assert behind.dropped == 0
    assert await end(behind, clock)


async def test_a_write_that_hangs_is_a_problem() -> None:
    """No error comes, and still `/ready` has to learn of it."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    table.gate.clear()
    behind.add(1)
    await clock.advance(11)
    assert "1 rows of things wait to be written, for 11 s" in str(behind.problem())
    table.gate.set()
    await clock.advance(1)
    assert behind.problem() is None
    assert await end(behind, clock)


async def test_an_ended_writer_is_a_problem() -> None:
    """If the task is gone, somebody must notice."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    assert behind._task is not None
    behind._task.cancel()
    await clock.settle()
    assert behind.problem() == "the writer of things has ended"


async def test_a_bad_row_is_dropped_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Its neighbours are written, in order; it is counted and logged."""
    table, clock = Table(bad=frozenset({2, 5})), FakeClock()
    behind = make(table, clock)
    for i in range(8):
        behind.add(i)
    await clock.advance(1)
    assert table.rows == [0, 1, 3, 4, 6, 7]
    assert table.calls == [3, 1, 1, 1, 3, 1, 1, 1, 2]  # back to whole batches once the bad row is found
    assert behind.dropped == 2
    assert "cannot be written" in caplog.text
    assert await end(behind, clock)


async def test_beyond_the_limit_the_oldest_go() -> None:
    """Memory is bounded while the database is away; those on their way are not touched."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    table.gate.clear()
    for i in range(3):
        behind.add(i)
    await clock.advance(1)
    for i in range(3, 15):
        behind.add(i)
    assert behind.backlog == 10
    assert behind.dropped == 5
    assert behind.pending() == [0, 1, 2, *range(8, 15)]
    table.gate.set()
    await clock.advance(1)
    assert table.rows == [0, 1, 2, *range(8, 15)]
    assert await end(behind, clock)


async def test_flush_waits_for_what_was_added_before() -> None:
    """And only for that; it gives up at its deadline and says so."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    assert await behind.flush()
    table.gate.clear()
    behind.add(1)
    flush = asyncio.create_task(behind.flush(2.0))
    await clock.advance(1.9)
    assert not flush.done()
    await clock.advance(0.2)
    assert await flush is False
    second = asyncio.create_task(behind.flush(60.0))
    await clock.settle()
    table.gate.set()
    await clock.advance(0.1)
    assert await second is True
    assert await end(behind, clock)


async def test_close_says_what_it_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Within its deadline, whatever the database does."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    table.failures = [LOCKED] * 100
    behind.add(1)
    assert await end(behind, clock) is False
    assert "1 rows of things were not written" in caplog.text


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.one_of(st.just("add"), st.just("lock"), st.floats(min_value=0, max_value=3)), max_size=60),
    bad=st.frozensets(st.integers(min_value=0, max_value=60), max_size=5),
)
def test_every_good_row_is_written_once(steps: list[str | float], bad: frozenset[int]) -> None:
    """However adds, failures and time are mixed: in order, none twice, none missing but the bad ones."""

    async def run() -> None:
        table, clock = Table(bad=bad), FakeClock()
        behind = make(table, clock, limit=1000)
        added = 0
        for step in steps:
            if step == "add":
                behind.add(added)
                added += 1
            elif step == "lock":
                table.failures.append(LOCKED)
            else:
                await clock.advance(float(step))
        await clock.advance(600)
        assert table.rows == [i for i in range(added) if i not in bad]
        assert await end(behind, clock)

    asyncio.run(run())


async def test_a_database_that_stays_away_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried every two seconds all the while; the log says when it ended, and the next time is a new one."""
    table, clock = Table(), FakeClock()
    behind = make(table, clock)
    caplog.set_level("INFO", "vllm_mm.store.behind")
    table.failures = [LOCKED] * 60
    behind.add(1)
    for _ in range(130):
        await clock.advance(1)
    assert (table.rows, len(table.calls)) == ([1], 61)
    told = [r.message for r in caplog.records]
    assert [("cannot write" in m, "written again" in m) for m in told] == [(True, False), (True, False), (False, True)]
    table.failures = [LOCKED]
    behind.add(2)
    await clock.advance(2)
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING", "INFO", "WARNING", "INFO"]
    assert await end(behind, clock)
