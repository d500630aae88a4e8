"""Copies of the database, their way back, and whether it is well. For commands; SQLite by its own means, PostgreSQL by its tools."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from vllm_mm.clock import Clock, RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.store import migrate, programs
from vllm_mm.store.database import make_engine, sqlite_path
from vllm_mm.store.failures import DatabaseUnavailable, told
from vllm_mm.store.tables import Base


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


# Copies


async def backup(url: str, target: Path) -> None:
    """A consistent copy, also while the server runs: a SQLite file, or pg_dump's custom format. Raises ConfigError, also when
    `target` exists."""
    if sqlite_path(url) is not None:
        await migrate.backup(url, target)
        return
    await programs.dump(url, target)


async def restore(url: str, source: Path, backup_dir: Path, data_dir: Path, clock: Clock | None = None) -> Path | None:
    """Put a copy in the place of the database; where there was one, it is copied first. Returns that copy.

    Raises ConfigError when a server uses the database, when `source` is no whole copy of ours, or is of a newer version."""
    if not source.is_file():
        raise ConfigError(f"there is no file {source}")
    now = (clock or RealClock()).wall()
    path = sqlite_path(url)
    if path is not None:
        with _nobody_serves(data_dir):
            return await asyncio.to_thread(_restore_file, source, path, backup_dir, now)
    with _nobody_serves(data_dir):
        await _nobody_is_connected(url)
        if not (await asyncio.to_thread(_beginning, source)).startswith(b"PGDMP"):
            raise ConfigError(f"{source} is no copy of a PostgreSQL database (`vllm-mm db backup` makes one)")
        before = None
        if await migrate.current(url) is not None:
            before = migrate.free_name(backup_dir, f"postgresql.before-restore.{migrate.stamp(now)}")
            await backup(url, before)
        await programs.run(
            url, "pg_restore", "--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error",
            "--dbname", make_url(url).database or "", str(source),
        )  # fmt: skip
        return before


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def _restore_file(source: Path, path: Path, backup_dir: Path, now: float) -> Path | None:
    if damage := _damage(source):
        raise ConfigError(f"{source} is damaged: {damage[0]}; name another copy")
    if migrate.known(migrate.sqlite_revision(source)) is None:
        raise ConfigError(f"{source} has none of vllm-mm's tables; name a copy that `vllm-mm db backup` made")
    before = None
    if path.is_file() and path.stat().st_size:
        before = migrate.free_name(backup_dir, f"{path.name}.before-restore.{migrate.stamp(now)}")
        backup_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            migrate.copy_file(path, before)
        except sqlite3.DatabaseError:  # that may be why somebody restores: keep what there is as it is
            before.unlink(missing_ok=True)
            shutil.copyfile(path, before)
            before.chmod(0o600)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.restored")
    migrate.copy_file(source, fresh)
    # The old one's log would be taken for the new one's.
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    fresh.replace(path)
    return before


@contextlib.contextmanager
def _nobody_serves(data_dir: Path):  # a generator of nothing
    """The lock that a controller holds on its data directory (`main.alone`)."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"a server serves from {data_dir}; stop it, then restore") from None
        yield
    finally:
        os.close(lock)


async def _nobody_is_connected(url: str) -> None:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'vllm-mm' "
        "AND pid <> pg_backend_pid()"
    )
    engine = make_engine(url)
    try:
        with told():
            async with engine.connect() as connection:
                others = (await connection.execute(text(query))).scalar_one()
    finally:
        await engine.dispose()
    if others:
        raise ConfigError(f"a server uses this database ({others} connections); stop it, then restore")


# Whether it is well


async def check(url: str) -> Sequence[Finding]:
    """Everything that can be seen without changing anything. Raises ConfigError when the URL is of no use."""
    path = sqlite_path(url)
    if path is not None and (not path.is_file() or not path.stat().st_size):
        return [Finding("database", True, f"{path} is not there yet; the first start makes it")]
    try:
        revision = await migrate.current(url)
    except (ConfigError, DatabaseUnavailable) as error:
        return [Finding("database", False, error.message)]
    found = [_revision(revision)]
    if path is not None:
        damage = await asyncio.to_thread(_damage, path)
        found.append(
            Finding("integrity", not damage, "; ".join(damage[:5]) or "every page and index is as it should be")
        )
        size, free = path.stat().st_size / 2**20, shutil.disk_usage(path.parent).free
        found.append(
            Finding("room", free >= migrate.ROOM, f"{size:.1f} MiB, and {free / 2**20:.0f} MiB free on its disk")
        )
    if revision is None or revision not in migrate.revisions():
        return found
    engine = make_engine(url)
    try:
        with told():
            async with engine.connect() as connection:
                if path is None:
                    found += await connection.run_sync(_postgres)
                found.append(await connection.run_sync(_rows))
    except (DatabaseUnavailable, DBAPIError) as error:
        found.append(Finding("database", False, str(error).splitlines()[0]))
    finally:
        await engine.dispose()
    return found


def _revision(revision: str | None) -> Finding:
    newest = migrate.revisions()[-1]
    if revision is None:
        return Finding("schema", True, "no tables yet; the first start makes them")
    if revision == newest:
        return Finding("schema", True, f"up to date ({newest})")
    if revision in migrate.revisions():
        return Finding("schema", True, f"{revision}; the next start brings it to {newest}")
    return Finding("schema", False, f"{revision}, of a newer version of vllm-mm: install that one")


def _damage(path: Path) -> list[str]:
    """What SQLite finds wrong with its file."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            found += [f"a row of {row[0]} refers to nothing" for row in connection.execute("PRAGMA foreign_key_check")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [line for line in found if line != "ok"]


def _postgres(connection: Connection) -> list[Finding]:
    version, encoding, size = connection.execute(
        text(
            "SELECT current_setting('server_version'), pg_encoding_to_char(encoding), pg_size_pretty(pg_database_size(oid)) "
            "FROM pg_database WHERE datname = current_database()"
        )
    ).one()
    broken = (
        connection.execute(text("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")).scalars().all()
    )
    return [
        Finding("server", encoding == "UTF8", f"PostgreSQL {version}, {encoding}, {size}"),
        Finding("integrity", not broken, f"broken indexes: {', '.join(broken)}" if broken else "every index is valid"),
    ]


def _rows(connection: Connection) -> Finding:
    counts = [
        f"{connection.execute(text(f'SELECT count(*) FROM {name}')).scalar_one()} {name}"  # noqa: S608  # our own tables
        for name in ("requests", "usage_hours", "events", "audit", "keys", "models")
        if name in Base.metadata.tables
    ]
    return Finding("rows", True, ", ".join(counts))
