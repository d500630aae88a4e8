"""These tests run on the product's event loop."""

import pytest

from loops import UVLOOP, LoopFactory


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    return UVLOOP
