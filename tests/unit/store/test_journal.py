"""The journal: numbers that never repeat, listeners that miss nothing, and a database that may be slow."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from vllm_mm.clock import RealClock
from vllm_mm.domain.events import Event
from vllm_mm.store.database import Database
from vllm_mm.store.journal import BLOCK, LAGGED, Journal, Subscription


@pytest.fixture
async def journal(database: Database) -> AsyncIterator[Journal]:
    journal = await Journal.open(database, RealClock(), ring=8, queue=50)
    yield journal
    await journal.close()


async def take(subscription: Subscription, count: int) -> list[Event]:
    return [await asyncio.wait_for(anext(subscription), 5) for _ in range(count)]


async def crash(journal: Journal) -> None:
    """The process is gone: nothing is flushed and nothing given back."""
    assert journal._writer._task is not None
    journal._writer._task.cancel()
    await asyncio.wait({journal._writer._task})


async def test_an_event_is_told_at_once_and_written_down(journal: Journal, database: Database) -> None:
    """The listener has it before anything is awaited; the database has all of it afterwards."""
    async with journal.subscribe() as events:
        event = journal.emit("instance.ready", model="a", cause="request r", data={"n": 1, "path": Path("/x")})
        assert list(events._queue) == [event]
        assert (await take(events, 1)) == [event]
    assert await journal.flush()
    (stored,) = await journal.recent()
    assert (stored.seq, stored.kind, stored.model, stored.cause) == (1, "instance.ready", "a", "request r")
    assert stored.at == event.at
    assert stored.data == {"n": 1, "path": "/x", "code": "request"}


async def test_numbers_go_on_after_a_clean_end(database: Database) -> None:
    """Without a gap."""
    for expected in (1, 2, 3):
        journal = await Journal.open(database, RealClock())
        assert journal.emit("x").seq == expected
        await journal.close()


async def test_numbers_never_repeat_after_a_crash(database: Database) -> None:
    """Even when nothing of what the listeners saw reached the database."""
    journal = await Journal.open(database, RealClock())
    seen = [journal.emit("x").seq for _ in range(5000)]
    await crash(journal)
    after = await Journal.open(database, RealClock())
    assert await after.recent() == []
    assert after.emit("y").seq > seen[-1]
    await after.close()


async def test_the_block_of_numbers_is_renewed(database: Database) -> None:
    """Long before it is used up, together with a batch of events."""
    journal = await Journal.open(database, RealClock())
    journal._seq += BLOCK // 2 + 1
    last = journal.emit("x").seq
    assert await journal.flush()
    await crash(journal)
    after = await Journal.open(database, RealClock())
    assert after.last_seq >= last + BLOCK // 2
    await after.close()


async def test_catching_up_from_the_database_and_the_ring(journal: Journal) -> None:
    """From any number: what is written, what is on its way, what comes: each once, in order."""
    for i in range(1200):
        journal.emit("x", data={"i": i})
        if i == 1100:
            await journal.flush()
    for after in (0, 1, 500, 1099, 1101, 1190, 1195, 1199):
        async with journal.subscribe(after) as events:
            got = await take(events, 1200 - after)
            assert [e.seq for e in got] == list(range(after + 1, 1201))
            assert [e.data["i"] for e in got] == list(range(after, 1200))
    async with journal.subscribe(1200) as events:
        new = journal.emit("y")
        assert await take(events, 1) == [new]
    async with journal.subscribe(10**9) as events:
        new = journal.emit("y")
        assert await take(events, 1) == [new]


@pytest.mark.parametrize("seed", range(6))
async def test_no_gap_and_no_repetition(database: Database, seed: int) -> None:
    """Listeners come at random moments with random numbers, while events are emitted, written with failures, and
    read at random speeds."""
    rng = random.Random(seed)
    journal = await Journal.open(database, RealClock(), ring=rng.choice([1, 5, 100]), queue=100_000)
    honest = journal._writer._write

    async def flaky(events: Sequence[Event]) -> None:
        if rng.random() < 0.1:
            raise OperationalError("INSERT", {}, Exception("database is locked"))
        await honest(events)
        if rng.random() < 0.1:
            raise OperationalError("COMMIT", {}, Exception("was it written? who knows"))

    journal._writer._write = flaky
    journal._writer._delay = 0.001
    total = 3000
    finished: list[tuple[int, list[int]]] = []

    async def listen(after: int) -> None:
        seen: list[int] = []
        async with journal.subscribe(after) as events:
            async for event in events:
                seen.append(event.seq)
                if rng.random() < 0.01:
                    await asyncio.sleep(0)
                if event.seq == total:
                    break
        finished.append((after, seen))

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(total):
            journal.emit("x")
            if rng.random() < 0.01:
                group.create_task(listen(rng.randint(0, journal.last_seq)))
            if rng.random() < 0.05:
                await asyncio.sleep(0)
            if rng.random() < 0.01:
                await journal.flush(0.01)
        group.create_task(listen(total - 1))
    assert len(finished) > 5
    for after, seen in finished:
        assert seen == list(range(after + 1, total + 1)), f"seed {seed}, after {after}"
    assert await journal.flush()
    async with database.read() as connection:
        assert (await connection.execute(text("SELECT count(*), min(seq), max(seq) FROM events"))).one() == (
            total,
            1,
            total,
        )
    await journal.close()


async def test_a_slow_listener_loses_the_oldest_and_is_told(journal: Journal) -> None:
    """How many, and up to which number; nobody else is affected, and the emitter never waits."""
    slow, quick = journal.subscribe(), journal.subscribe()
    got: list[Event] = []
    for i in range(70):
        journal.emit("x")
        if i % 10 == 9:
            got += await take(quick, 10)
    assert [e.seq for e in got] == list(range(1, 71))
    marker, *rest = await take(slow, 51)
    assert (marker.kind, marker.seq, marker.data) == (LAGGED, 20, {"lost": 20})
    assert [e.seq for e in rest] == list(range(21, 71))
    again = journal.subscribe(0)
    assert [e.seq for e in await take(again, 70)] == list(range(1, 71))
    for subscription in (slow, quick, again):
        subscription.close()


async def test_cancelling_a_read_loses_nothing(journal: Journal) -> None:
    """A timeout around the next event, as a keep-alive does it, is safe."""
    events = journal.subscribe()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.01)
    journal.emit("x")
    assert [e.seq for e in await take(events, 1)] == [1]
    events.close()


async def test_a_forgotten_listener_costs_nothing(journal: Journal) -> None:
    """One that nobody closed is not fed for ever."""
    events = journal.subscribe()
    assert len(journal._listeners) == 1
    del events
    assert len(journal._listeners) == 0
    async with journal.subscribe():
        pass
    assert len(journal._listeners) == 0


async def test_the_end_reaches_the_listeners(database: Database) -> None:
    """They get what is left, then the iteration ends; a late one ends at once, after what it missed."""
    journal = await Journal.open(database, RealClock())
    events = journal.subscribe()
    journal.emit("x")
    await journal.close()
    assert [e.seq async for e in events] == [1]
    assert [e.seq async for e in journal.subscribe()] == []
    assert [e.seq async for e in journal.subscribe(0)] == [1]


async def test_a_broken_database_never_reaches_the_emitter(journal: Journal, database: Database) -> None:
    """Events go on to the listeners; the journal is unhealthy; afterwards everything is written."""
    async with database.write() as connection:
        await connection.execute(text("ALTER TABLE events RENAME TO away"))
    events = journal.subscribe()
    for _ in range(5):
        journal.emit("x")
    assert [e.seq for e in await take(events, 5)] == [1, 2, 3, 4, 5]
    assert await journal.flush(0.3) is False
    journal._writer._busy_since = RealClock().now() - 60
    assert any(told in str(journal.problem()) for told in ("no such table: events", 'relation "events" does not exist'))
    assert not journal.healthy
    async with database.write() as connection:
        await connection.execute(text("ALTER TABLE away RENAME TO events"))
    assert await journal.flush(10)
    assert journal.healthy
    assert journal.dropped == 0
    assert [e.seq for e in await journal.recent()] == [1, 2, 3, 4, 5]
    events.close()


async def test_pruning(journal: Journal) -> None:
    """By count and by age; who asks for what is gone is told so, and gets the rest."""
    for i in range(1300):
        journal.emit("x", model="a" if i % 2 else "b")
    await journal.flush()
    assert await journal.prune(before=None, keep=100) == 1200
    assert await journal.prune(before=None, keep=None) == 0
    async with journal.subscribe(7) as events:
        marker, *rest = await take(events, 101)
    assert (marker.kind, marker.seq, marker.data) == (LAGGED, 1200, {"lost": None})
    assert [e.seq for e in rest] == list(range(1201, 1301))
    async with journal.subscribe(1250) as events:
        assert [e.seq for e in await take(events, 50)] == list(range(1251, 1301))
    assert [e.seq for e in await journal.read(after=1250, before=1256, model="b")] == [1251, 1253, 1255]
    assert [e.seq for e in await journal.recent(2, model="b")] == [1297, 1299]
    assert await journal.prune(before=RealClock().wall() + 10, keep=None) == 100
    assert await journal.recent() == []
    assert journal.emit("y").seq == 1301


async def test_pruned_numbers_are_not_given_out_again(database: Database) -> None:
    """Nor forgotten: a listener of before the restart is told what it missed."""
    journal = await Journal.open(database, RealClock())
    for _ in range(10):
        journal.emit("x")
    await journal.flush()
    await journal.prune(before=None, keep=0)
    await journal.close()
    after = await Journal.open(database, RealClock())
    async with after.subscribe(3) as events:
        assert (await take(events, 1))[0].data == {"lost": None}
        assert after.emit("x").seq == 11
        assert (await take(events, 1))[0].seq == 11
    await after.close()
