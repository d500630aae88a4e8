"""Time series in the database: rolled up once, whatever came in between, and bounded."""

import asyncio
import contextlib

import pytest

from fakes import FakeClock
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.series import Kind, Metric, Row, points
from vllm_mm.store import series as module
from vllm_mm.store.database import Database
from vllm_mm.store.series import Series

KEPT = {10: 3600.0, 60: 7200.0, 900: 86_400.0}


def tokens(at: int, count: float, subject: str = "a") -> Row:
    return Row(10, Kind.MODEL, subject, at, {"s": 10.0, "tokens": count})


async def told(series: Series, source: int, since: float, until: float, subject: str | None = "a") -> dict[int, float]:
    """Tokens of each step by the time of it, from rows of `source`."""
    read = await series.read(Kind.MODEL, subject, source, since, until)
    return {row.at: row.values["tokens"] for row in read()}


class Kit:
    """A clock whose wall time is a whole quarter of an hour."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.clock.time += 900 - self.clock.wall() % 900
        self.begin = int(self.clock.wall())
        self.series = Series(database, self.clock, KEPT)


@pytest.fixture
def kit(database: Database) -> Kit:
    return Kit(database)


async def test_what_is_over_is_rolled_up_and_the_rest_is_read_as_it_is(kit: Kit) -> None:
    """An answer by the minute has minutes as far as they are made, and then what there is; nothing counts twice."""
    begin, series = kit.begin, kit.series
    await series.add([tokens(begin + n * 10, 1.0) for n in range(10)])
    await series.add([tokens(begin + 5 * 10, 99.0)])  # written again: it is there already
    kit.clock.time += 100
    await series.roll_up()
    await series.roll_up()
    assert await told(series, 60, begin, begin + 900) == {
        begin: 6.0,
        begin + 60: 1.0,
        begin + 70: 1.0,
        begin + 80: 1.0,
        begin + 90: 1.0,
    }
    assert sum((await told(series, 10, begin, begin + 900)).values()) == 10
    read = await series.read(Kind.MODEL, None, 60, begin, begin + 900)
    assert points(read(), Metric.TOKENS, 60) == {("a", ""): {begin: 0.1, begin + 60: 0.1}}
    kit.clock.time += 900
    await series.roll_up()
    assert await told(series, 900, begin, begin + 900) == {begin: 10.0}


async def test_after_a_long_time_without_a_server_all_that_is_left_is_rolled_up(kit: Kit, database: Database) -> None:
    """Rows of an earlier run count as those of this one; the time in between stays empty."""
    begin = kit.begin
    await kit.series.add([tokens(begin + n * 10, 1.0) for n in range(700)])
    kit.clock.time += 100 * 86_400
    later = int(kit.clock.wall()) // 10 * 10
    again = Series(database, kit.clock, KEPT)
    await again.add([tokens(later, 5.0)])
    kit.clock.time += 3600
    await again.roll_up()
    whole = await told(again, 900, begin, kit.clock.wall())
    assert sum(whole.values()) == 705
    assert sorted(whole) == [*range(begin, begin + 7000, 900), later // 900 * 900]


async def test_what_is_too_old_is_deleted_but_never_before_it_is_rolled_up(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRUNED", 7)
    begin, series = kit.begin, kit.series
    await series.add([tokens(begin + n * 10, 1.0, s) for n in range(90) for s in ("a", "b")])
    kit.clock.time += 2 * 3600
    assert await series.prune() == 0
    assert len(await told(series, 10, begin, begin + 900)) == 90
    await series.roll_up()
    assert await series.prune() == 180
    assert await told(series, 10, begin, begin + 900) == {}
    assert sum((await told(series, 60, begin, begin + 900)).values()) == 90
    kit.clock.time += 3600
    assert await series.prune() == 30
    assert await told(series, 900, begin, begin + 900) == {begin: 90.0}
    kit.clock.time += 86_400
    assert await series.prune() == 2


async def test_an_answer_is_bounded(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 20)
    begin, series = kit.begin, kit.series
    await series.add([tokens(begin + n * 10, 1.0, s) for n in range(11) for s in ("a", "b")])
    with pytest.raises(BadRequest, match="shorter time"):
        await series.read(Kind.MODEL, None, 10, begin, begin + 900)
    assert len(await told(series, 10, begin, begin + 900)) == 11


async def test_a_round_is_left_out_while_rows_are_on_their_way(kit: Kit) -> None:
    """A coarse row is made once: not while rows of it are still to come."""
    await kit.series.add([tokens(kit.begin, 1.0)])
    kit.clock.time += 900
    rounds = asyncio.Queue[bool]()

    async def steps() -> set[int]:
        return {row.step for row in (await kit.series.read(Kind.MODEL, "a", 900, kit.begin, kit.begin + 900))()}

    asked = asyncio.Event()

    async def written() -> bool:
        asked.set()
        return await rounds.get()

    running = asyncio.get_running_loop().create_task(kit.series.run(written))
    for ready, expected in ((False, {10}), (True, {900})):
        await asked.wait()
        asked.clear()
        rounds.put_nowait(ready)
        while not asked.is_set():  # the next round has begun: this one is over
            await kit.clock.advance(module.INTERVAL)
            await asyncio.sleep(0.001)
        assert await steps() == expected
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
