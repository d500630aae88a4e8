"""What concerns processes is tested with engines that were started and with engines that were forked."""

from collections.abc import Iterator

import pytest

from contract import engines
from contract.forked import Forkery

BOTH = ("test_sim_process", "test_sim_faults", "test_sim_sleep")
STARTED_ONLY = ("test_wipe_environment",)
"""A zygote has SPT_NOENV=1, and what was forked from it never writes over the environment."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.endswith(BOTH):
        kinds = ["local"] if metafunc.function.__name__ in STARTED_ONLY else ["local", "warm"]
        metafunc.parametrize("launched", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session", autouse=True)
def launched(request: pytest.FixtureRequest) -> Iterator[str]:
    """How `Sim` makes its process."""
    if getattr(request, "param", "local") == "local":
        yield "local"
        return
    engines.FORKERY.append(Forkery(engines.MARK))
    try:
        yield "warm"
    finally:
        engines.FORKERY.pop().close()
