"""A PostgreSQL of the tests' own: Debian's, in a temporary directory, on a unix socket."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_mm.store.migrate import upgrade

TEMPLATE = "migrated"
_QUICK = {
    "fsync": "off", "full_page_writes": "off", "autovacuum": "off", "shared_buffers": "16MB",
    "max_connections": "60", "listen_addresses": "''", "max_wal_size": "64MB", "min_wal_size": "32MB", "wal_level": "minimal",
    "max_wal_senders": "0", "dynamic_shared_memory_type": "mmap", "logging_collector": "off",
}  # fmt: skip


def programs() -> Path | None:
    """Where Debian has the newest one; None where it has none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    return found[-1] if found and (found[-1] / "initdb").is_file() else None


class Postgres:
    """One server. `end` it; what it had is gone then."""

    def __init__(self) -> None:
        found = programs()
        if found is None:
            pytest.skip("PostgreSQL is not installed (apt-get install postgresql): tests on it cannot run")
        self._programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="mm-pg-"))
        # It does not run as root.
        self._user: str | None = None
        if os.geteuid() == 0:
            self._user = "postgres" if _known("postgres") else "nobody"
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._run("initdb", "-D", str(self.data), "-U", "mm", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *args: str) -> str:
        done = subprocess.run(
            [str(self._programs / program), *args],
            user=self._user,
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        """Returns when it takes connections."""
        options = [word for name, value in _QUICK.items() for word in ("-c", f"{name}={value.strip(chr(39))}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.data), "-k", str(self.folder), *options],
                user=self._user, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            ready = subprocess.run(
                [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)], timeout=30, check=False
            )
            if ready.returncode == 0:
                return
            assert time.monotonic() < deadline, "PostgreSQL does not come up"
            time.sleep(0.02)

    def stop(self, *, at_once: bool = True) -> None:
        """At once: connections are cut, as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Rows as lines, with tabs between columns."""
        return self._run(
            "psql", "-h", str(self.folder), "-U", "mm", "-d", database, "-X", "-q", "-At", "-F", "\t", "-c", statement
        )

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://mm@/{database}?host={self.folder}"

    def empty(self) -> str:
        """The URL of a database without tables."""
        self._count += 1
        name = f"empty{self._count}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def migrated(self) -> str:
        """The URL of a database with the schema; to migrate takes longer than to copy what was migrated once."""
        self._count += 1
        name = f"copy{self._count}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return self.url(name)


def _known(user: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(user))
    return False


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.sql(f"CREATE DATABASE {TEMPLATE}")
        asyncio.run(upgrade(server.url(TEMPLATE), None))
        yield server
    finally:
        server.end()
