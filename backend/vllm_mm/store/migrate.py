"""Bringing the schema up to date: by itself at start, once, safely with others, and with a way back.

The files are in `vllm_mm/migrations` in an installed wheel and in `migrations/` at the root of a checkout. A revision's id
is its file's name, so that "is there anything to do" needs neither alembic nor an import of the revisions.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from vllm_mm.clock import Clock, RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.store import programs
from vllm_mm.store.database import make_engine, sqlite_path

ROOM = 2**20
"""Bytes that have to be free for a database to be used; below that an I/O error is taken for a full disk."""
LOCK_DEADLINE = 60.0
"""Seconds to wait for another process that migrates the same database."""
_POSTGRES_LOCK = 7_614_203_551
"""Any number that nobody else uses for an advisory lock."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What `upgrade` did."""

    before: str | None
    """Revision that was found; None for a database without our tables."""
    after: str
    backup: Path | None = None

    @property
    def changed(self) -> bool:
        return self.before != self.after


def script_location() -> Path:
    """The folder of env.py and versions/."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "migrations", package.parents[1] / "migrations"):
        if (candidate / "env.py").is_file():
            return candidate
    raise ConfigError("the migrations are missing from this installation; install vllm-mm again")


def revisions() -> tuple[str, ...]:
    """All known revisions, oldest first."""
    return tuple(sorted(p.stem for p in (script_location() / "versions").glob("[0-9]*.py")))


async def current(url: str) -> str | None:
    """The revision of the database; None when it is new (no file, or no tables). Raises ConfigError for a foreign one."""
    path = sqlite_path(url)
    if path is not None:
        return await asyncio.to_thread(sqlite_revision, path)
    engine = make_engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_revision)
    except (OSError, DBAPIError) as e:
        raise ConfigError(f"the database cannot be reached: {e}") from e
    finally:
        await engine.dispose()


async def upgrade(url: str, backup_dir: Path | None, clock: Clock | None = None) -> Migration:
    """Bring the schema to the newest revision. Does next to nothing when it is there already.

    A database with data is first copied into `backup_dir` (None: no copy). All steps are one transaction: it
    is done completely or not at all. Raises ConfigError when the database was made by a newer version or by another
    program, when it cannot be copied, or when another process holds the migration lock for more than a minute.
    """
    clock = clock or RealClock()
    head = revisions()[-1]
    before = known(await current(url))
    if before == head:
        return Migration(before, head)
    async with _alone(url, clock):
        before = known(await current(url))
        if before == head:
            return Migration(before, head)
        copied = None
        if backup_dir is not None and before is not None:
            path = sqlite_path(url)
            name = "postgresql" if path is None else path.name
            copied = free_name(backup_dir, f"{name}.{before}.{stamp(clock.wall())}")
            await (backup(url, copied) if path is not None else _dump(url, copied))
        try:
            await _run(url, "upgrade", "head")
        except BaseException:
            # Undone, so the copy is of no use: a service that is started again and again must not fill the disk.
            if copied is not None:
                copied.unlink(missing_ok=True)
            raise
        return Migration(before, head, copied)


def stamp(wall: float) -> str:
    """A moment for the name of a file."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H%M%SZ")


def free_name(folder: Path, stem: str) -> Path:
    """One that no copy has yet."""
    names = (folder / f"{stem}{suffix}.bak" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(name for name in names if not name.exists())


async def downgrade(url: str, revision: str) -> None:
    """Back to an earlier revision, or `base`. Data of tables and columns that did not exist then is lost."""
    async with _alone(url, RealClock()):
        await _run(url, "downgrade", revision)


async def backup(url: str, target: Path) -> None:
    """A consistent copy of a SQLite database, also while it is in use. Raises ConfigError for other databases, and when
    `target` exists."""
    path = sqlite_path(url)
    if path is None:
        raise ConfigError("only SQLite files are copied here; pg_dump copies PostgreSQL (`vllm-mm db backup` runs it)")
    if not path.is_file():
        raise ConfigError(f"there is no database at {path}")
    if target.exists():
        raise ConfigError(f"{target} exists already; name another file")
    await asyncio.to_thread(copy_file, path, target)


async def _dump(url: str, target: Path) -> None:
    try:
        await programs.dump(url, target)
    except ConfigError as error:
        raise ConfigError(
            "the schema of the database has to change, and it could not be copied before that, so nothing was changed: "
            f"{error.message}. Or make a copy elsewhere, and set `database.backup: false` for this start"
        ) from error


def copy_file(path: Path, target: Path) -> None:
    """A consistent copy of a SQLite database. Raises sqlite3.DatabaseError."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.part")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(partial)) as copy:
        source.backup(copy)
    # A file under the final name is always a whole copy.
    partial.replace(target)


def sqlite_revision(path: Path) -> str | None:
    """As `current`, of a file."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "alembic_version" in tables:
                row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
                return str(row[0]) if row else None
    except sqlite3.DatabaseError as e:
        raise ConfigError(_unreadable(path, e)) from e
    return _without_version(tables)


def _unreadable(path: Path, error: sqlite3.DatabaseError) -> str:
    """A full disk is no damage: even reading needs a little room, for the index of the write-ahead log."""
    code, free = error.sqlite_errorname or "", shutil.disk_usage(path.parent).free
    if code.startswith("SQLITE_FULL") or (free < ROOM and code.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN"))):
        return (
            f"the disk of {path} is full ({free / 2**20:.1f} MiB free), and the database cannot even be opened: {error}. "
            f"The data is not harmed. Free some space ({path.parent} has logs and backups, `vllm-mm doctor` looks at the "
            "disks), then start again"
        )
    if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return f"{path} cannot be read as a database: {error}; move it away, or restore a backup"
    return f"{path} cannot be opened: {error}; see who owns it and its directory, and what the system's log says of the disk"


def _revision(connection: Connection) -> str | None:
    dialect = connection.dialect
    tables = set(dialect.get_table_names(connection))
    if "alembic_version" in tables:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return _without_version(tables)


def _without_version(tables: set[str]) -> None:
    ours = tables - {"sqlite_sequence"}
    if ours:
        raise ConfigError(
            f"the database holds tables that are not vllm-mm's ({', '.join(sorted(ours)[:3])}); name another one in database.url"
        )


def known(revision: str | None) -> str | None:
    """`revision`. Raises ConfigError for one of a newer version."""
    known = revisions()
    if revision is not None and revision not in known:
        raise ConfigError(
            f"the database was made by a newer version of vllm-mm (revision {revision}, this version knows up to {known[-1]}); "
            "install that version, or put the backup back that it made before it changed the schema"
        )
    return revision


@contextlib.asynccontextmanager
async def _alone(url: str, clock: Clock) -> AsyncGenerator[None]:
    """Only one process at a time. The kernel drops the lock with the process, so that none is ever left behind."""
    path = sqlite_path(url)
    if path is None:
        yield  # PostgreSQL locks inside the transaction
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(f"{path.name}.migrate.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        deadline = clock.now() + LOCK_DEADLINE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.now() >= deadline:
                    raise ConfigError(
                        f"another process has been migrating {path} for {LOCK_DEADLINE:.0f} s; end it, then try again"
                    ) from None
                await clock.sleep(0.05)
        yield
    finally:
        os.close(lock)


async def _run(url: str, direction: str, revision: str) -> None:
    # SQLite changes a table by copying it: with foreign keys enforced, dropping the old one would delete what refers to it.
    engine = make_engine(url, foreign_keys=False, patient=True)
    try:
        async with engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _POSTGRES_LOCK})
            await connection.run_sync(_migrate, direction, revision)
    except DBAPIError as e:
        full = getattr(e.orig, "sqlite_errorname", "") == "SQLITE_FULL"
        advice = ": the disk is full. Free some space, then start again" if full else ""
        raise ConfigError(f"the migration failed and was undone: {e.orig}{advice}") from e
    finally:
        await engine.dispose()


def _migrate(connection: Connection, direction: str, revision: str) -> None:
    # Only here: most starts find nothing to do and need not wait for the import.
    from alembic import command  # noqa: PLC0415  # see above

    getattr(command, direction)(alembic_config(connection), revision)


def alembic_config(connection: Connection | None = None) -> Any:
    """The configuration of alembic for our scripts, working on `connection` if there is one."""
    from alembic.config import Config  # noqa: PLC0415  # as above

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
