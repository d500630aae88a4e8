"""These tests run on the product's event loop; the wire must not depend on it, and is tested on asyncio's own too."""

import pytest

from loops import BOTH, UVLOOP, LoopFactory


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    return BOTH if item.path.name.startswith("test_wire") else UVLOOP
