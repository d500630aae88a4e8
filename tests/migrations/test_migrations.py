"""The schema's history: complete, reversible, safe with others, and with a way back."""

import asyncio
import contextlib
import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event

from fakes import FakeClock
from postgres import Postgres
from vllm_mm.clock import RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.store import migrate, programs
from vllm_mm.store.database import Database, make_engine
from vllm_mm.store.keys import Keys
from vllm_mm.store.migrate import alembic_config, backup, current, downgrade, revisions, script_location, upgrade
from vllm_mm.store.tables import Base

ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "0001_initial": {
        "meta": {"name": "owner", "value": "x"},
        "models": {"id": "a/b", "declaration": '{"memory": "1GiB"}', "created_at": 1.5, "updated_at": 2.5, "updated_by": "ada"},
        "instances": {
            "model": "a/b", "generation": 2, "token": "t", "pid": 7, "start_ticks": 2**40, "boot_id": "b", "socket": "/s",
            "host": "h", "port": 0, "workdir": "/w", "log": "/l", "fingerprint": "f", "device_bytes": '{"0": 1}', "started_at": 1.0, "launcher": "warm",
            "answer": "x",
        },
        "footprints": {
            "fingerprint": "f", "devices": "0", "launches": 2, "mean": 2.5e10, "squares": 1.0, "largest": 2**36,
            "weights": 2**35, "kv_cache": 2**34, "learned_at": 1.0,
        },
        "sleeps": {
            "fingerprint": "f", "level": 1, "mode": "auto", "declared": None, "failures": 2, "reason": "no", "kept": '{"0": 1}',
        },
        "starts": {
            "id": 1, "model": "a/b", "generation": 2, "launcher": "warm", "started_at": 1.0, "ready_at": None, "phases": "{}", "outcome": "failed",
            "reason": "no",
        },
        "events": {"seq": 5, "at": 1.0, "kind": "x", "model": None, "cause": "", "data": "{}"},
        "requests": {
            "row": 1, "request_id": "mine", "id": "req_1", "at": 1.0, "hour": 0, "route": "/v1/x", "model": None, "asked": None, "key": None, "stream": 0,
            "outcome": "ok", "status": 200, "error": None, "queued_s": None, "ttft_s": None, "total_s": 1.0, "bytes_in": 1,
            "bytes_out": 1, "prompt_tokens": None, "completion_tokens": None, "cached_tokens": None, "generation": None, "frozen_s": 0.0, "retried": 0, "device_s": 0.5,
        },
        "keys": {
            "id": "key_1", "name": "ada", "digest": "d", "scopes": '["admin"]', "models": None, "created_at": 1.0,
            "expires_at": None, "revoked_at": None, "prefix": "mm-", "old_digest": None, "old_until": None, "acts": '["load"]',
            "weight": 2.0, "progress": 1, "limits": '{"concurrency": 2}',
        },
        "series": {"step": 60, "kind": "device", "subject": "0", "at": 1_700_000_040, "data": '{"s": 60.0}'},
        "usage_energy": {"hour": 490000, "model": "a/b", "joules": 2.5e6},
        "usage_hours": {
            "hour": 490000, "key": "key_1", "model": "a/b", "outcome": "ok", "requests": 2, "prompt_tokens": 2**40, "cached_tokens": 0,
            "completion_tokens": 5, "reasoning_tokens": 0, "total_s": 1.5, "queued_s": 0.5, "load_s": 0.0, "device_s": 1.0, "cost_nano": None,
        },
        "audit": {
            "row": 1, "id": "aud_1", "at": 1.0, "actor": "key_1", "name": "ada", "source": "10.0.0.1", "act": "start_model", "kind": "models",
            "object": "a/b", "status": 202, "before": '{"state": "stopped"}', "after": None, "request": "req_2",
        },
        "sessions": {"digest": "d", "key": "key_1", "created_at": 1.0, "expires_at": 2.0},
    },
}  # fmt: skip
"""For each revision, a row of each table that it makes or changes."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/state.db"


def query(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()


def dump(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def fill(path: Path, revision: str) -> None:
    """Put the rows of that revision in."""
    for table, row in ROWS[revision].items():
        marks = ", ".join("?" for _ in row)
        query(path, f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())  # noqa: S608  # our own names


async def on(url: str, action: Any) -> Any:
    engine = make_engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(action)
    finally:
        await engine.dispose()


async def to(url: str, revision: str) -> None:
    """Up to a revision that need not be the newest."""
    await migrate._run(url, "upgrade", revision)


def test_ids_are_file_names() -> None:
    """What `upgrade` takes for the newest revision without asking alembic is the newest one; there is one line of them."""
    script = ScriptDirectory.from_config(alembic_config())
    assert script.get_heads() == [revisions()[-1]]
    assert [r.revision for r in reversed(list(script.walk_revisions()))] == list(revisions())
    assert all(re.fullmatch(r"[0-9]{4}_[a-z0-9_]+", r) for r in revisions())
    assert set(ROWS) == set(revisions())


async def test_schema_and_migrations_do_not_differ(url: str) -> None:
    """What the migrations build is what the mapped classes describe."""
    await upgrade(url, None)

    def differences(connection: Connection) -> Any:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return compare_metadata(context, Base.metadata)

    assert await on(url, differences) == []


async def test_they_do_not_differ_on_postgresql_either(postgres: Postgres) -> None:
    """A type or an index that only one of the two databases has would be seen."""
    url = postgres.empty()
    assert (await upgrade(url, None)).before is None
    assert not (await upgrade(url, None)).changed

    def differences(connection: Connection) -> Any:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return compare_metadata(context, Base.metadata)

    assert await on(url, differences) == []


async def test_down_and_up_again_on_postgresql(postgres: Postgres) -> None:
    """Each step undoes itself there too: tables, triggers and functions."""
    url = postgres.empty()
    name = url.partition("?")[0].rpartition("/")[2]
    things = (
        "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'public' UNION ALL "
        "SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = 'public' UNION ALL "
        "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
    )
    found: dict[str, str] = {}
    for revision in revisions():
        await to(url, revision)
        found[revision] = postgres.sql(things, name)
    for revision in reversed(revisions()):
        assert await current(url) == revision
        assert postgres.sql(things, name) == found[revision]
        await migrate._run(url, "downgrade", "-1")
    assert postgres.sql(things, name).split() == ["alembic_version", "alembic_version_pkc"]
    await upgrade(url, None)
    assert postgres.sql(things, name) == found[revisions()[-1]]


async def test_two_that_migrate_postgresql_do_it_once(postgres: Postgres) -> None:
    """The second waits for the first, and finds nothing to do."""
    url = postgres.empty()
    first, second = await asyncio.gather(upgrade(url, None), upgrade(url, None))
    assert {first.after, second.after} == {revisions()[-1]}
    assert await current(url) == revisions()[-1]


async def test_another_programs_database_is_left_alone_on_postgresql(postgres: Postgres) -> None:
    """Its tables are not ours."""
    url = postgres.empty()
    postgres.sql("CREATE TABLE customers (id int)", url.partition("?")[0].rpartition("/")[2])
    with pytest.raises(ConfigError, match=r"not vllm-mm's \(customers\)"):
        await upgrade(url, None)


async def test_a_difference_would_be_seen(url: str, tmp_path: Path) -> None:
    """The comparison above can fail."""
    await upgrade(url, None)
    query(tmp_path / "state.db", "DROP INDEX ix_requests_at")
    query(tmp_path / "state.db", "ALTER TABLE keys ADD COLUMN extra TEXT")
    found = await on(url, lambda c: compare_metadata(MigrationContext.configure(c), Base.metadata))
    assert {entry[0] for entry in found} == {"add_index", "remove_column"}


async def test_up_from_empty(url: str, tmp_path: Path) -> None:
    """A first start makes the file, privately, without a backup; the second one has nothing to do."""
    first = await upgrade(url, tmp_path / "backups")
    assert (first.before, first.after, first.backup, first.changed) == (None, revisions()[-1], None, True)
    assert await current(url) == revisions()[-1]
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
    second = await upgrade(url, tmp_path / "backups")
    assert (second.before, second.changed) == (revisions()[-1], False)
    assert not (tmp_path / "backups").exists()


@pytest.mark.parametrize("revision", revisions())
async def test_up_from_each_revision_with_its_data(url: str, tmp_path: Path, revision: str) -> None:
    """Rows that an older version wrote are still there, with their values."""
    await to(url, revision)
    fill(tmp_path / "state.db", revision)
    await upgrade(url, tmp_path / "backups")
    for table, row in ROWS[revision].items():
        found = query(tmp_path / "state.db", f"SELECT {', '.join(row)} FROM {table}")  # noqa: S608  # our own names
        assert found == [tuple(row.values())], table


async def test_down_and_up_again(url: str, tmp_path: Path) -> None:
    """Each step undoes itself: at every revision the schema is what it was on the way up."""
    path = tmp_path / "state.db"
    schemas: dict[str, list[str]] = {}
    for revision in revisions():
        await to(url, revision)
        schemas[revision] = sorted(dump(path))
    for revision in reversed(revisions()):
        assert await current(url) == revision
        assert sorted(dump(path)) == schemas[revision]
        await migrate._run(url, "downgrade", "-1")
    assert await current(url) is None
    assert [name for (name,) in query(path, "SELECT name FROM sqlite_master")] == ["alembic_version", "sqlite_autoindex_alembic_version_1"]  # fmt: skip
    await upgrade(url, None)
    assert sorted(dump(path)) == schemas[revisions()[-1]]


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the migrations with one more, as a coming version will have it."""
    scripts = tmp_path / "migrations"
    (scripts / "versions").mkdir(parents=True)
    for source in script_location().rglob("*.py"):
        (scripts / source.relative_to(script_location())).write_text(source.read_text())
    later = scripts / "versions/9000_later.py"
    later.write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision = '9000_later'\ndown_revision = {revisions()[-1]!r}\nbranch_labels = None\ndepends_on = None\n"
        "def upgrade():\n"
        "    with op.batch_alter_table('keys') as batch:\n"
        "        batch.add_column(sa.Column('note', sa.Text(), nullable=False, server_default='-'))\n"
        "        batch.alter_column('name', new_column_name='label')\n"
        "def downgrade():\n"
        "    with op.batch_alter_table('keys') as batch:\n"
        "        batch.alter_column('label', new_column_name='name')\n"
        "        batch.drop_column('note')\n"
    )
    monkeypatch.setattr(migrate, "script_location", lambda: scripts)
    return later


async def test_a_backup_is_made_before_a_change_and_can_be_put_back(
    url: str, tmp_path: Path, next_revision: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has revision and time in its name, is private, and is a whole database that the older version runs on."""
    head = revisions()[-2]
    await to(url, head)
    database = Database(url)
    secret = await Keys(database, RealClock()).ensure_admin()
    await database.close()
    done = await upgrade(url, tmp_path / "backups")
    assert (done.before, done.after) == (head, "9000_later")
    assert done.backup is not None
    assert re.fullmatch(rf"state\.db\.{head}\.\d{{8}}T\d{{6}}Z\.bak", done.backup.name)
    assert done.backup.stat().st_mode & 0o777 == 0o600
    made = datetime.strptime(done.backup.name.split(".")[-2], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - made).total_seconds()) < 60
    assert query(tmp_path / "state.db", "SELECT label, note FROM keys") == [("admin", "-")]
    monkeypatch.undo()
    restored = tmp_path / "restored.db"
    restored.write_bytes(done.backup.read_bytes())
    assert query(restored, "PRAGMA integrity_check") == [("ok",)]
    old = f"sqlite+aiosqlite:///{restored}"
    assert not (await upgrade(old, None)).changed
    database = Database(old)
    assert secret is not None
    assert [k.name for k in await Keys(database, RealClock()).all()] == ["admin"]
    await database.close()


async def test_postgresql_is_copied_before_a_change_too(
    postgres: Postgres, tmp_path: Path, next_revision: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pg_dump; where that cannot be done nothing is changed, and it is said what to do. Without a copy when that is said."""
    url, head, backups = postgres.migrated(), revisions()[-2], tmp_path / "backups"
    with monkeypatch.context() as without:
        without.setattr(programs, "_find", lambda _tool: "/bin/false")
        with pytest.raises(
            ConfigError, match=r"nothing was changed: pg_dump failed.*`database.backup: false` for this"
        ):
            await upgrade(url, backups)
    assert await current(url) == head
    assert list(backups.iterdir()) == []
    done = await upgrade(url, backups, FakeClock())
    assert (done.before, done.after) == (head, "9000_later")
    assert done.backup is not None
    assert done.backup.name.startswith(f"postgresql.{head}.")
    assert done.backup.read_bytes().startswith(b"PGDMP")
    assert done.backup.stat().st_mode & 0o777 == 0o600
    assert list(backups.iterdir()) == [done.backup]
    await downgrade(url, head)
    assert (await upgrade(url, None)).backup is None


async def test_an_older_version_refuses_a_newer_database(
    url: str, tmp_path: Path, next_revision: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do, and without touching it."""
    await upgrade(url, None)
    monkeypatch.undo()
    before = dump(tmp_path / "state.db")
    with pytest.raises(
        ConfigError, match=r"made by a newer version of vllm-mm \(revision 9000_later, .*put the backup back"
    ):
        await upgrade(url, tmp_path / "backups")
    assert dump(tmp_path / "state.db") == before
    assert not (tmp_path / "backups").exists()


async def test_a_failed_step_is_undone(url: str, tmp_path: Path, next_revision: Path) -> None:
    """All or nothing: what the step did before it failed is gone, and so is the copy that nobody needs."""
    head = revisions()[-2]
    await to(url, head)
    fill(tmp_path / "state.db", head)
    before = dump(tmp_path / "state.db")
    text = next_revision.read_text()
    next_revision.write_text(text.replace("def downgrade", "    op.execute('SELECT * FROM nowhere')\ndef downgrade"))
    with pytest.raises(ConfigError, match=r"the migration failed and was undone: .*nowhere"):
        await upgrade(url, tmp_path / "backups")
    assert dump(tmp_path / "state.db") == before
    assert list((tmp_path / "backups").iterdir()) == []
    next_revision.write_text(text)
    assert (await upgrade(url, tmp_path / "backups")).changed


async def test_no_backup_is_overwritten(url: str, tmp_path: Path, next_revision: Path) -> None:
    """Two changes within a second leave two copies."""
    await to(url, revisions()[-2])
    first = await upgrade(url, tmp_path / "backups", FakeClock())
    await downgrade(url, revisions()[-2])
    second = await upgrade(url, tmp_path / "backups", FakeClock())
    assert first.backup is not None
    assert second.backup == first.backup.with_name(first.backup.name.replace(".bak", "-2.bak"))
    assert len(list((tmp_path / "backups").iterdir())) == 2


async def test_other_databases_are_left_alone(url: str, tmp_path: Path) -> None:
    """Neither another program's tables nor a file that is no database are written to."""
    query(tmp_path / "state.db", "CREATE TABLE customers (id INTEGER)")
    with pytest.raises(ConfigError, match=r"not vllm-mm's \(customers\)"):
        await upgrade(url, None)
    (tmp_path / "text.db").write_text("this is not a database, whatever its name says" * 100)
    with pytest.raises(ConfigError, match="cannot be read as a database"):
        await upgrade(f"sqlite+aiosqlite:///{tmp_path}/text.db", None)


@pytest.mark.parametrize(
    ("name", "free", "words"),
    [
        ("SQLITE_FULL", 10 * 2**30, "is full"),
        ("SQLITE_IOERR_SHMOPEN", 4096, "is full (0.0 MiB free)"),
        ("SQLITE_CANTOPEN", 0, "Free some space"),
        ("SQLITE_IOERR_READ", 10 * 2**30, "cannot be opened: broken; see who owns it"),
        ("SQLITE_CORRUPT", 0, "restore a backup"),
    ],
)
async def test_a_full_disk_is_not_taken_for_a_broken_database(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, free: int, words: str
) -> None:
    """Nobody is told to move a good database away because there was no room to open it."""
    await upgrade(url, None)

    def connect(*_args: object, **_more: object) -> None:
        error = sqlite3.OperationalError("broken")
        error.sqlite_errorname = name
        raise error

    monkeypatch.setattr(migrate.sqlite3, "connect", connect)
    monkeypatch.setattr(migrate.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(ConfigError, match=re.escape(words)) as told:
        await upgrade(url, None)
    assert ("move it away" in str(told.value)) == (name == "SQLITE_CORRUPT")


async def test_no_room_for_a_new_database_is_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SQLite itself finds it out."""
    make = migrate.make_engine

    def small(*args: object, **more: object) -> object:
        engine = make(*args, **more)
        event.listen(engine.sync_engine, "connect", lambda c, _: c.execute("PRAGMA max_page_count=10").close())
        return engine

    monkeypatch.setattr(migrate, "make_engine", small)
    with pytest.raises(ConfigError, match=r"the disk is full\. Free some space"):
        await upgrade(url, None)


async def test_backup_of_a_database_in_use(url: str, tmp_path: Path) -> None:
    """`db backup` copies what is committed, also what is only in the WAL yet; it overwrites nothing."""
    await upgrade(url, None)
    database = Database(url)
    await Keys(database, RealClock()).ensure_admin()
    async with database.write() as connection:
        await connection.exec_driver_sql("DELETE FROM keys")
        await backup(url, tmp_path / "to/copy.db")
    assert query(tmp_path / "to/copy.db", "SELECT name FROM keys") == [("admin",)]
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["copy.db"]
    with pytest.raises(ConfigError, match="exists already"):
        await backup(url, tmp_path / "to/copy.db")
    with pytest.raises(ConfigError, match="there is no database"):
        await backup(f"sqlite+aiosqlite:///{tmp_path}/no.db", tmp_path / "x")
    with pytest.raises(ConfigError, match="pg_dump"):
        await backup("postgresql+asyncpg://h/d", tmp_path / "x")
    await database.close()


def python(code: str) -> subprocess.Popen[str]:
    """Another process with our package."""
    path = str(Path(migrate.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_processes_at_once(url: str) -> None:
    """One does it, the others find it done; nobody fails."""
    workers = [
        python(
            "import asyncio\nfrom vllm_mm.store.migrate import upgrade\n"
            f"print('here', flush=True)\ninput()\ndone = asyncio.run(upgrade({url!r}, None))\nprint(done.before, done.after)\n"
        )
        for _ in range(3)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "here\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        ends = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0, 0], ends
    head = revisions()[-1]
    assert sorted(out for out, _ in ends) == sorted([f"None {head}\n", f"{head} {head}\n", f"{head} {head}\n"])
    assert asyncio.run(current(url)) == head


async def test_a_lock_that_is_never_given_back(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting has an end, with a reason; and the lock goes with its holder."""
    monkeypatch.setattr(migrate, "LOCK_DEADLINE", 0.2)
    async with migrate._alone(url, RealClock()):
        with pytest.raises(ConfigError, match="another process has been migrating"):
            await upgrade(url, None)
    assert (await upgrade(url, None)).changed


def test_nothing_to_do_costs_nothing(url: str) -> None:
    """At the newest revision alembic is not even imported, and the check takes a few milliseconds."""
    asyncio.run(upgrade(url, None))
    code = (
        "import asyncio, sys, time\n"
        "from vllm_mm.store.migrate import upgrade\n"
        f"url = {url!r}\n"
        "began = time.perf_counter()\n"
        "done = asyncio.run(upgrade(url, None))\n"
        "print(done.changed, 'alembic' in sys.modules, time.perf_counter() - began < 0.5)\n"
    )
    worker = python(code)
    out, err = worker.communicate(timeout=60)
    assert out.split() == ["False", "False", "True"], err


async def test_downgrade_by_name(url: str) -> None:
    """`base` is the empty schema; an upgrade brings it back."""
    await upgrade(url, None)
    await downgrade(url, "base")
    assert await current(url) is None
    assert (await upgrade(url, None)).after == revisions()[-1]
