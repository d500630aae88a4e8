"""The table of stored responses."""

from fakes import FakeClock
from vllm_mm.store.database import Database
from vllm_mm.store.responses import LONGEST, StoredResponse, StoredResponses


def stored(name: str, until: float, model: str = "a") -> StoredResponse:
    return StoredResponse(name, model, 3, "key_1", "alias", until)


async def test_the_latest_are_known(database: Database) -> None:
    """So many of them, the oldest first, none beyond its time; the same id again takes the place of the first."""
    clock = FakeClock()
    store = StoredResponses(database, clock, limit=3)
    now = clock.wall()
    await store.add([stored("r1", now + 1), stored("r2", now + 20)])
    await store.add([stored("r3", now + 30), stored("r2", now + 40, "b"), stored("x" * (LONGEST + 1), now + 90)])
    await store.add([])
    assert await store.all() == [stored("r1", now + 1), stored("r3", now + 30), stored("r2", now + 40, "b")]
    await clock.advance(2.0)
    assert [r.id for r in await StoredResponses(database, clock, limit=3).all()] == ["r3", "r2"]
    await store.add([stored(f"n{number}", now + 100 + number) for number in range(1000)])
    assert [r.id for r in await store.all()] == ["n997", "n998", "n999"]
