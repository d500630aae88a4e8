"""A real database for each test, with the schema in place: SQLite and PostgreSQL, for every repository has to be the same on both."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin_rig import blank_database
from vllm_mm.store.database import Database


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a SQLite database without rows."""
    return asyncio.run(blank_database(tmp_path_factory.mktemp("blank")))


@pytest.fixture
def url(tmp_path: Path, blank: bytes) -> str:
    """Of a SQLite database."""
    (tmp_path / "state.db").touch(mode=0o600)
    (tmp_path / "state.db").write_bytes(blank)
    return f"sqlite+aiosqlite:///{tmp_path}/state.db"


@pytest.fixture
async def lite(url: str) -> AsyncIterator[Database]:
    """For what only SQLite has."""
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest) -> str:
    """Of each."""
    if request.param == "sqlite":
        return request.getfixturevalue("url")
    return request.getfixturevalue("postgres").migrated()


@pytest.fixture
async def database(any_url: str) -> AsyncIterator[Database]:
    database = Database(any_url)
    yield database
    await database.close()
