"""The wire runs on the product's loop, and must not depend on it."""

import pytest

from loops import BOTH, LoopFactory


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory] | None:
    return BOTH if item.path.name.startswith("test_wire") else None
