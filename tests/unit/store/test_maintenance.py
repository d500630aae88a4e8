"""Copies of the database and their way back, on SQLite and PostgreSQL; and what `check` finds."""

import fcntl
import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from admin_rig import ROW
from fakes import FakeClock
from postgres import Postgres
from vllm_mm.domain.errors import ConfigError
from vllm_mm.store import programs
from vllm_mm.store.audit import Audit
from vllm_mm.store.database import Database, sqlite_path
from vllm_mm.store.maintenance import backup, check, restore
from vllm_mm.store.usage import Ledger


@pytest.fixture
async def filled(any_url: str) -> str:
    """The URL of a database with a request and an entry of the audit, which nobody uses now."""
    database = Database(any_url)
    await Ledger(database).add([ROW])
    audit = Audit(database, FakeClock())
    audit.record("start_model", actor="key_1", kind="models", object="a")
    await audit.write_now()
    await database.close()
    return any_url


async def requests(url: str) -> list[str]:
    database = Database(url)
    try:
        return [r.id for r in (await Ledger(database).recent()).records]
    finally:
        await database.close()


async def more(url: str) -> None:
    database = Database(url)
    await Ledger(database).add([replace(ROW, id="req_later")])
    await database.close()


async def test_there_and_back(filled: str, tmp_path: Path) -> None:
    """What came after the copy is gone, and kept in another copy; the triggers of the audit are there again."""
    copy, backups, data = tmp_path / "copy", tmp_path / "backups", tmp_path / "d"
    await backup(filled, copy)
    assert copy.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists already"):
        await backup(filled, copy)
    await more(filled)
    before = await restore(filled, copy, backups, data, FakeClock())
    assert await requests(filled) == ["req_1"]
    assert before is not None
    assert "before-restore" in before.name
    await restore(filled, before, backups, data, FakeClock())
    assert await requests(filled) == ["req_later", "req_1"]
    assert len(list(backups.iterdir())) == 2
    database = Database(filled)
    with pytest.raises(DBAPIError, match="append-only"):
        async with database.write() as connection:
            await connection.execute(text("DELETE FROM audit"))
    await database.close()


async def test_not_while_a_server_runs(filled: str, tmp_path: Path, postgres: Postgres) -> None:
    """On this data directory; and, for PostgreSQL, anywhere."""
    copy, data = tmp_path / "copy", tmp_path / "d"
    await backup(filled, copy)
    data.mkdir()
    lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match=f"a server serves from {data}"):
        await restore(filled, copy, tmp_path / "b", data)
    os.close(lock)
    if sqlite_path(filled) is None:
        elsewhere = Database(filled)
        async with elsewhere.read():
            with pytest.raises(ConfigError, match="a server uses this database"):
                await restore(filled, copy, tmp_path / "b", data)
        await elsewhere.close()
    assert await requests(filled) == ["req_1"]


async def test_what_is_no_copy_is_refused(filled: str, tmp_path: Path) -> None:
    """And changes nothing."""
    data = tmp_path / "d"
    (tmp_path / "text").write_text("no database" * 1000)
    for source, told in (
        (tmp_path / "none", "there is no file"),
        (tmp_path / "text", "no copy|is damaged: file is not a database"),
    ):
        with pytest.raises(ConfigError, match=told):
            await restore(filled, source, tmp_path / "b", data)
    assert await requests(filled) == ["req_1"]


async def test_a_damaged_copy_is_refused_and_a_damaged_database_replaced(url: str, tmp_path: Path) -> None:
    """What is there is kept as it is, even where nothing can read it."""
    copy, path = tmp_path / "copy.db", tmp_path / "state.db"
    await backup(url, copy)
    damaged = bytearray(copy.read_bytes())
    damaged[5000:9000] = b"\xff" * 4000
    (tmp_path / "damaged.db").write_bytes(damaged)
    with pytest.raises(ConfigError, match="is damaged"):
        await restore(url, tmp_path / "damaged.db", tmp_path / "b", tmp_path / "d")
    path.write_bytes(b"not even a database, as it happens" * 100)
    before = await restore(url, copy, tmp_path / "b", tmp_path / "d", FakeClock())
    assert before is not None
    assert before.read_bytes().startswith(b"not even a database")
    assert await requests(url) == []


async def test_a_copy_of_a_newer_version_is_refused(url: str, tmp_path: Path) -> None:
    """It could not be served."""
    copy = tmp_path / "copy.db"
    await backup(url, copy)
    connection = sqlite3.connect(copy)
    connection.execute("UPDATE alembic_version SET version_num = '9999_later'")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigError, match="newer version"):
        await restore(url, copy, tmp_path / "b", tmp_path / "d")
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    with pytest.raises(ConfigError, match="none of vllm-mm's tables"):
        await restore(url, empty, tmp_path / "b", tmp_path / "d")


async def test_without_the_tools_of_postgresql(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Says what to install; and what a tool says when it fails."""
    url = postgres.migrated()
    with pytest.raises(ConfigError, match=r'pg_dump failed: .*database "nowhere" does not exist'):
        await backup(postgres.url("nowhere"), tmp_path / "copy")
    assert list(tmp_path.glob(".copy*")) == []
    monkeypatch.setattr(programs.shutil, "which", lambda _tool: None)
    monkeypatch.setattr(programs, "Path", lambda *_: tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"pg_dump is not installed here: .*postgresql-client"):
        await backup(url, tmp_path / "copy2")


async def test_the_password_is_not_in_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody on the machine can read that."""
    tool = tmp_path / "tool"
    tool.write_text(
        '#!/bin/sh\necho "$0 $@" > "$OUT"\necho "$PGPASSWORD $PGHOST $PGPORT $PGUSER $PGDATABASE" >> "$OUT"\n'
    )
    tool.chmod(0o700)
    monkeypatch.setattr(programs, "_find", lambda _name: str(tool))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    await programs.run("postgresql+asyncpg://me:planted@there:5433/mm", "pg_dump", "--x")
    argv, environment = (tmp_path / "out").read_text().splitlines()
    assert "planted" not in argv
    assert environment == "planted there 5433 me mm"


async def test_a_database_that_is_well(filled: str) -> None:
    """Schema, integrity, room, rows."""
    found = {f.name: f for f in await check(filled)}
    assert all(f.ok for f in found.values())
    assert {"schema", "integrity", "rows"} <= set(found)
    assert ("room" if sqlite_path(filled) else "server") in found
    assert "1 requests" in found["rows"].detail
    assert "1 audit" in found["rows"].detail


async def test_a_database_that_is_not(url: str, tmp_path: Path, postgres: Postgres) -> None:
    """Damaged, of a newer version, out of reach, not there yet: each says so."""
    path = tmp_path / "state.db"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[6000:60_000] = b"\xff" * 54_000
    path.write_bytes(damaged)
    assert any(not f.ok for f in await check(url))
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999_later'")
    connection.commit()
    connection.close()
    assert {f.name: f.ok for f in await check(url)}["schema"] is False
    path.unlink()
    assert [(f.name, f.ok) for f in await check(url)] == [("database", True)]
    assert [(f.name, f.ok) for f in await check(postgres.empty())] == [
        ("schema", True),
        ("server", True),
        ("integrity", True),
    ][:1]
    nowhere = await check("postgresql+asyncpg://mm@/x?host=/nowhere")
    assert [(f.name, f.ok) for f in nowhere] == [("database", False)]
