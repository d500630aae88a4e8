"""The audit's table: what was written stands."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fakes import FakeClock
from vllm_mm.domain.audit import Entry
from vllm_mm.store.audit import Audit, AuditFilter
from vllm_mm.store.database import Database

ENTRY = Entry(
    "aud_1", 100.0, "key_1", "ada", "10.0.0.1", "start_model", "models", "a/b", 202, {"state": "stopped"}, {"state": "starting"}, "req_1"
)  # fmt: skip


async def test_what_goes_in_comes_out(database: Database) -> None:
    """Newest first, in pages, by every filter; a batch that is written again leaves one row."""
    audit = Audit(database, FakeClock())
    other = replace(
        ENTRY,
        id="aud_2",
        at=200.0,
        actor="key_2",
        name="bob",
        act="revoke_key",
        kind="keys",
        object="key_9",
        before=None,
    )
    await audit.add([ENTRY, other])
    await audit.add([ENTRY, other])
    first = await audit.page(limit=1)
    assert first.entries == (other,)
    assert first.next is not None
    rest = await audit.page(limit=1, before=first.next)
    assert (rest.entries, rest.next) == ((ENTRY,), None)
    for where in (
        AuditFilter(actor="key_1"), AuditFilter(actor="ada"), AuditFilter(act="start_model"), AuditFilter(kind="models"),
        AuditFilter(object="a/b"), AuditFilter(until=200.0), AuditFilter(since=50.0, until=101.0),
    ):  # fmt: skip
        assert (await audit.page(where)).entries == (ENTRY,), where
    assert (await audit.page(AuditFilter(since=200.0))).entries == (other,)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET actor = 'nobody'",
        "UPDATE audit SET before = NULL WHERE id = 'aud_1'",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE id = 'aud_1'",
    ],
)
async def test_nobody_changes_or_deletes(database: Database, statement: str) -> None:
    """Whoever asks: the database refuses it, and the row is as it was."""
    audit = Audit(database, FakeClock())
    await audit.add([ENTRY])
    assert await audit.prune(1000.0) == 0  # the newest stays; retention's own door is shut again behind it
    with pytest.raises(DBAPIError, match="append-only"):
        async with database.write() as connection:
            await connection.execute(text(statement))
    assert (await audit.page()).entries == (ENTRY,)


async def test_a_row_cannot_be_replaced(database: Database) -> None:
    """SQLite's REPLACE deletes without asking the triggers of deletes; PostgreSQL has TRUNCATE."""
    audit = Audit(database, FakeClock())
    await audit.add([ENTRY])
    async with database.read() as connection:
        number = (await connection.execute(text('SELECT "row" FROM audit'))).scalar_one()
    if database.engine.dialect.name == "sqlite":
        columns = '"row", id, at, actor, name, source, act, kind, object, status, request'
        for row, identity in ((number, "aud_x"), (number + 5, "aud_1")):
            async with database.write() as connection:
                await connection.execute(
                    text(f"INSERT OR REPLACE INTO audit ({columns}) VALUES ({row}, '{identity}', 1, 'x', 'x', '', '', '', '', 1, '')")  # noqa: S608  # our own
                )  # fmt: skip
    else:
        with pytest.raises(DBAPIError, match="append-only"):
            async with database.write() as connection:
                await connection.execute(text("TRUNCATE audit"))
    assert (await audit.page()).entries == (ENTRY,)


async def test_age_alone_takes_rows_away(database: Database) -> None:
    """What is older goes; what is not stays; and the newest stays however old, so that numbers never begin again."""
    audit = Audit(database, FakeClock())
    await audit.add([replace(ENTRY, id=f"old{i}", at=10.0 + i) for i in range(5)])
    await audit.add([replace(ENTRY, id="young", at=99.0)])
    assert await audit.prune(12.0) == 2
    assert [e.id for e in (await audit.page()).entries] == ["young", "old4", "old3", "old2"]
    assert await audit.prune(1000.0) == 3
    assert [e.id for e in (await audit.page()).entries] == ["young"]


async def test_what_is_recorded_is_written_behind_without_secrets(database: Database) -> None:
    """`record` returns at once; `settle` waits until it is there."""
    clock = FakeClock()
    audit = Audit(database, clock)
    audit.start()
    audit.record(
        "edit_key", actor="local", kind="keys", object="key_1", before={"a": 1, "b": 2}, after={"a": 1, "token": "x"}
    )
    settling = asyncio.create_task(audit.settle())
    while not settling.done():
        await clock.settle()
        await asyncio.sleep(0)
    assert settling.result()
    (entry,) = (await audit.page()).entries
    assert (entry.actor, entry.name, entry.before, entry.after) == ("local", "local", {"b": 2}, {"token": "***"})
    assert (entry.at, entry.status) == (clock.wall(), 200)
    await audit.close()
