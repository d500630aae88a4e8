"""Pragmas, transactions, and what happens when two want to write."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text

from vllm_mm.domain.errors import ConfigError
from vllm_mm.store.database import Database, sqlite_path
from vllm_mm.store.meta import installation
from vllm_mm.store.tables import Meta


async def test_pragmas(lite: Database) -> None:
    """WAL, so that readers and the writer do not wait for each other; and the rest that we rely on."""
    async with lite.read() as connection:
        values = {p: (await connection.execute(text(f"PRAGMA {p}"))).scalar_one() for p in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")}  # fmt: skip
    assert values == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 5000}


async def test_only_the_owner_can_read_the_file(lite: Database, tmp_path: Path) -> None:
    """Digests and usage are nobody else's business: the file and its companions have mode 0600."""
    async with lite.write() as connection:
        await connection.execute(insert(Meta), {"name": "a", "value": "b"})
    modes = {p.name: p.stat().st_mode & 0o077 for p in tmp_path.iterdir() if p.name.startswith("state.db")}
    assert "state.db" in modes
    assert "state.db-wal" in modes
    assert set(modes.values()) == {0}


async def test_a_block_that_raises_changes_nothing(database: Database) -> None:
    """`write` is all or nothing."""

    async def fail() -> None:
        async with database.write() as connection:
            await connection.execute(insert(Meta), {"name": "a", "value": "b"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with database.read() as connection:
        assert (await connection.execute(select(func.count()).select_from(Meta))).scalar_one() == 0


async def test_a_cancelled_block_changes_nothing_and_frees_the_writer(database: Database) -> None:
    """Cancellation in the middle of a transaction rolls back, and the next writer goes on."""
    inside = asyncio.Event()

    async def half() -> None:
        async with database.write() as connection:
            await connection.execute(insert(Meta), {"name": "a", "value": "b"})
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(half())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with database.write() as connection:
        await connection.execute(insert(Meta), {"name": "a", "value": "c"})
        assert (await connection.execute(select(Meta.value))).scalars().all() == ["c"]


async def test_many_writers_and_readers(database: Database) -> None:
    """Read-modify-write by twenty tasks at once loses nothing and never meets "database is locked"."""
    async with database.write() as connection:
        await connection.execute(insert(Meta), {"name": "n", "value": "0"})

    async def increment() -> None:
        async with database.write() as connection:
            value = int((await connection.execute(select(Meta.value))).scalar_one())
            await connection.execute(database.upsert(Meta, "name"), {"name": "n", "value": str(value + 1)})

    async def look() -> None:
        async with database.read() as connection:
            await connection.execute(select(Meta.value))

    await asyncio.gather(*(increment() for _ in range(20)), *(look() for _ in range(20)))
    async with database.read() as connection:
        assert (await connection.execute(select(Meta.value))).scalar_one() == "20"


async def test_writers_of_two_processes(database: Database, any_url: str) -> None:
    """The controller and a command beside it do not overwrite each other, nor fail because the other wrote meanwhile."""
    other = Database(any_url)
    async with database.write() as connection:
        await connection.execute(insert(Meta), {"name": "n", "value": "0"})

    async def increment(mine: Database) -> None:
        for _ in range(10):
            async with mine.write() as connection:
                value = int((await connection.execute(select(Meta.value))).scalar_one())
                await connection.execute(mine.upsert(Meta, "name"), {"name": "n", "value": str(value + 1)})

    await asyncio.gather(increment(database), increment(other))
    async with other.read() as connection:
        assert (await connection.execute(select(Meta.value))).scalar_one() == "20"
    await other.close()


async def test_a_reader_does_not_wait_for_a_writer(database: Database) -> None:
    """What is not committed is not seen, and holds nobody up."""
    async with database.write() as writer:
        await writer.execute(insert(Meta), {"name": "a", "value": "b"})
        async with asyncio.timeout(1), database.read() as reader:
            assert (await reader.execute(select(func.count()).select_from(Meta))).scalar_one() == 0


async def test_the_installation_has_one_mark(database: Database) -> None:
    """Made once, however many ask at once."""
    marks = {await installation(database), *await asyncio.gather(*(installation(database) for _ in range(5)))}
    assert len(marks) == 1
    assert len(marks.pop()) == 32


def test_urls_that_are_of_no_use(tmp_path: Path) -> None:
    """The message says what is wrong with database.url."""
    with pytest.raises(ConfigError, match=r"database\.url"):
        Database("nonsense")
    with pytest.raises(ConfigError, match=r"database\.url is no SQLAlchemy URL; write it like sqlite\+aiosqlite:///"):
        sqlite_path("postgresql+asyncpg://h:x/d")
    with pytest.raises(ConfigError, match="driver"):
        Database("mysql+asyncmy://h/d")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        Database(f"sqlite+aiosqlite:///{tmp_path}/file/state.db")


def test_where_the_file_is() -> None:
    """Only a file has a path."""
    assert sqlite_path("sqlite+aiosqlite:////a/b.db") == Path("/a/b.db")
    assert sqlite_path("sqlite+aiosqlite:///:memory:") is None
    assert sqlite_path("sqlite+aiosqlite://") is None
    assert sqlite_path("postgresql+asyncpg://h/d") is None


async def test_a_lock_of_another_process_is_waited_for(lite: Database, tmp_path: Path) -> None:
    """Another process's short write delays ours and does not fail it."""
    other = sqlite3.connect(tmp_path / "state.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    async def write() -> None:
        async with lite.write() as connection:
            await connection.execute(insert(Meta), {"name": "a", "value": "b"})

    task = asyncio.create_task(write())
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done
    other.execute("COMMIT")
    other.close()
    await asyncio.wait_for(task, 5)
