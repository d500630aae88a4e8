"""A real database for each test, with the schema in place."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vllm_mm.store.database import Database
from vllm_mm.store.migrate import upgrade


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/state.db"


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    await upgrade(url, None)
    database = Database(url)
    yield database
    await database.close()
