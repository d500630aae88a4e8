"""What is told of a PostgreSQL that is away, and what becomes of rows meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from admin_rig import ROW
from postgres import Postgres
from vllm_mm.clock import RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.store import database as databases
from vllm_mm.store import migrate
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.database import Database
from vllm_mm.store.failures import DatabaseFull, DatabaseUnavailable, may_pass, told
from vllm_mm.store.usage import Ledger


@pytest.fixture
async def away(postgres: Postgres) -> AsyncIterator[Database]:
    """A database on a server that the test may stop."""
    made = Database(postgres.migrated())
    yield made
    await made.close()
    if not postgres.runs:
        postgres.start()


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await fact():
            await asyncio.sleep(0.02)


async def test_a_server_that_stops_is_told_and_costs_no_row(away: Database, postgres: Postgres) -> None:
    """In the middle of what it does, and when it is asked for the first time; rows go on in order when it is back."""
    ledger = Ledger(away)
    rows = WriteBehind[RequestRecord](ledger.add, RealClock(), name="requests", delay=0.01)
    rows.start()
    rows.add(replace(ROW, id="1"))
    assert await rows.flush(30)

    async def in_the_middle() -> None:
        async with away.write() as connection:
            await connection.execute(text("SELECT 1"))
            postgres.stop()
            await connection.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        await in_the_middle()
    with pytest.raises(DatabaseUnavailable, match=r"could not be (reached|used)"):
        await ledger.recent()
    with pytest.raises((ConfigError, DatabaseUnavailable)):
        await migrate.current(str(away.engine.url))
    for number in range(2, 6):
        rows.add(replace(ROW, id=str(number)))
    assert not await rows.flush(0.3)
    assert (rows.backlog, rows.dropped) == (4, 0)
    postgres.start()
    assert await rows.flush(30)
    assert [r.id for r in (await ledger.recent()).records] == ["5", "4", "3", "2", "1"]
    assert await rows.close()


async def test_a_lock_of_another_is_not_waited_for_for_ever(away: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lock_timeout`: it is told who may hold it, and the same rows may be taken later."""
    impatient = {
        **databases._POSTGRES,
        "server_settings": {**databases._POSTGRES["server_settings"], "lock_timeout": "50"},
    }
    monkeypatch.setattr(databases, "_POSTGRES", impatient)
    other = Database(away.engine.url.render_as_string(hide_password=False))
    async with away.write() as connection:
        await connection.execute(text("LOCK TABLE requests"))
        with pytest.raises(DatabaseUnavailable, match="Another program holds a lock") as caught:
            await Ledger(other).add([ROW])
    assert may_pass(caught.value)
    await other.close()
    await Ledger(away).add([ROW])


class _Failed(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(f"state {sqlstate}")
        self.sqlstate = sqlstate


_Failed.__module__ = "asyncpg.exceptions"


@pytest.mark.parametrize(
    ("state", "kind", "advice"),
    [
        ("53100", DatabaseFull, "Free some space on PostgreSQL's disk"),
        ("53300", DatabaseUnavailable, "max_connections"),
        ("57P03", DatabaseUnavailable, "is starting"),
        ("28P01", DatabaseUnavailable, "the user and the password"),
        ("3D000", DatabaseUnavailable, "There is no such database"),
        ("08006", DatabaseUnavailable, "reached and then lost"),
    ],
)
def test_what_it_refuses_is_told_with_advice(state: str, kind: type[Exception], advice: str) -> None:
    """By its code: also what comes up while a connection is made."""
    with pytest.raises(kind, match=advice) as caught, told():
        raise _Failed(state)
    assert may_pass(caught.value)


def test_faults_of_ours_pass_as_they_are() -> None:
    """They are no matter of the database."""
    with pytest.raises(ValueError, match="mine"), told():
        raise ValueError("mine")
    assert not may_pass(ValueError("mine"))
