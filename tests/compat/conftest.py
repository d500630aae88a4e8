from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin_rig import Admin, admin
from fakes_engine import model


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Admin]:
    """Two models that do not fit together (24 GiB), one with a slash in its id and an alias."""
    async with admin(tmp_path, model("a", 20), model("Qwen/Qwen2.5-7B", 20, aliases=("gpt",))) as made:
        yield made
