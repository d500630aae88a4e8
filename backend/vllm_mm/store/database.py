"""The database: one engine, its pragmas, and short transactions. Nothing here is ever on a request's path."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from vllm_mm.domain.errors import ConfigError
from vllm_mm.store.failures import told

BUSY_TIMEOUT_MS = 5000
"""How long SQLite waits for another process's write before it gives up with "database is locked"."""
CONNECT_TIMEOUT = 5.0
"""Seconds to reach PostgreSQL."""
COMMAND_TIMEOUT = 60.0
"""Seconds for one statement there: a connection that died without a word is noticed."""
_POSTGRES: dict[str, Any] = {
    "timeout": CONNECT_TIMEOUT,
    "command_timeout": COMMAND_TIMEOUT,
    "server_settings": {
        "application_name": "vllm-mm",
        "lock_timeout": f"{BUSY_TIMEOUT_MS}",
        # A transaction whose controller is gone gives its locks back.
        "idle_in_transaction_session_timeout": "30000",
        "jit": "off",
    },
}
_ONE_WRITER = 7_614_203_552
"""Any number that nobody else uses for an advisory lock."""
_WRITES = "mm_writes"


def _json(value: Any) -> str:
    """What JSON cannot say (a path, an enum) is stored as its text: a row is worth more than its exact type."""
    return json.dumps(value, default=str, ensure_ascii=False)


def sqlite_path(url: str) -> Path | None:
    """The file behind a SQLite URL; None for another database, or one in memory. Raises ConfigError when it is no URL."""
    parsed = _parsed(url)
    if (
        parsed.get_backend_name() != "sqlite"
        or not parsed.database
        or parsed.database.startswith((":memory:", "file:"))
    ):
        return None
    return Path(parsed.database)


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as e:  # a port that is no number is a ValueError
        # The URL itself is not told: it may have a password.
        raise ConfigError("database.url is no SQLAlchemy URL; write it like sqlite+aiosqlite:///state.db") from e


def make_engine(url: str, *, foreign_keys: bool = True, patient: bool = False) -> AsyncEngine:
    """An engine with our pragmas. `patient`: statements may take their time. Raises ConfigError when the URL or its driver is of
    no use."""
    try:
        parsed = _parsed(url)
        lite = parsed.get_backend_name() == "sqlite"
        if not lite:
            return create_async_engine(
                parsed, pool_size=5, pool_timeout=CONNECT_TIMEOUT, pool_pre_ping=True, json_serializer=_json,
                connect_args=_postgres(parsed, patient=patient),
            )  # fmt: skip
        path = sqlite_path(url)
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600, exist_ok=True)
        # The driver would begin transactions by itself, late and without IMMEDIATE: with None we say when.
        connect_args = {"isolation_level": None, "timeout": BUSY_TIMEOUT_MS / 1000}
        engine = create_async_engine(parsed, connect_args=connect_args, json_serializer=_json)
    except ConfigError:
        raise
    except ImportError as e:
        raise ConfigError(
            f"the driver of database.url is not installed: {e}; install it (pip install 'vllm-mm[postgres]' for PostgreSQL), or use SQLite"
        ) from e
    except OSError as e:
        raise ConfigError(f"the database file {e.filename} cannot be made: {e.strerror}") from e
    except Exception as e:  # SQLAlchemy's own errors for URLs have no common base
        raise ConfigError(f"database.url cannot be used: {e}") from e
    _listen(engine, foreign_keys=foreign_keys)
    return engine


def _postgres(url: URL, *, patient: bool) -> dict[str, Any]:
    if url.get_driver_name() != "asyncpg":
        return {}
    return {**_POSTGRES, "command_timeout": None} if patient else _POSTGRES


def _listen(engine: AsyncEngine, *, foreign_keys: bool) -> None:
    def connected(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"foreign_keys={'ON' if foreign_keys else 'OFF'}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begin(connection: Connection) -> None:
        # A read transaction that turns into a write fails at once if anybody wrote meanwhile; IMMEDIATE waits its turn.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", begin)


class Database:
    """Made by whoever owns its life; `close` it. The schema has to stand already (`vllm_mm.store.migrate.upgrade`)."""

    def __init__(self, url: str) -> None:
        self._engine = make_engine(url)
        self._lite = self._engine.dialect.name == "sqlite"
        # One writer at a time, on every database: what a transaction has read holds until it has written. Waiting here is fair
        # and needs no connection.
        self._writer = asyncio.Lock()
        self._upserts: dict[tuple[type[Any], tuple[str, ...]], Any] = {}

    @property
    def engine(self) -> AsyncEngine:
        return self._engine

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction that changes something: committed at the end of the block, rolled back if it raises.

        Raises DatabaseUnavailable when the database cannot take it now."""
        with told():
            async with self._writer, self._engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    if not self._lite:  # against other processes: what BEGIN IMMEDIATE is for SQLite
                        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ONE_WRITER})")
                    yield connection

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """One consistent view, never held up by a writer. Raises DatabaseUnavailable when it cannot be read now."""
        with told():
            async with self._engine.connect() as connection:
                yield connection

    def insert_new(self, table: type[Any], *unique: str) -> Any:
        """An INSERT that leaves rows alone whose `unique` columns are there already."""
        make = sqlite.insert if self._lite else postgresql.insert
        return make(table).on_conflict_do_nothing(index_elements=list(unique))

    def upsert(self, table: type[Any], *unique: str) -> Any:
        """An INSERT that replaces the row with the same `unique` columns. Made once: making it takes longer than to run it,
        and all of that on the event loop."""
        known = self._upserts.get((table, unique))
        if known is None:
            known = self._upserts[table, unique] = self._make_upsert(table, unique)
        return known

    def _make_upsert(self, table: type[Any], unique: tuple[str, ...]) -> Any:
        make = sqlite.insert if self._lite else postgresql.insert
        statement = make(table)
        columns: list[str] = [c.name for c in table.__table__.columns]
        changed: dict[str, Any] = {name: statement.excluded[name] for name in columns if name not in unique}
        return statement.on_conflict_do_update(index_elements=list(unique), set_=changed)

    async def close(self) -> None:
        """Close every connection; later use opens new ones."""
        await self._engine.dispose()
