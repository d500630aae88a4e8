"""What concerns processes is tested with engines that were started and with engines that were forked."""

from collections.abc import Iterator

import pytest

from contract import engines
from contract.forked import Forkery

BOTH = ("test_sim_process", "test_sim_faults", "test_sim_sleep")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.endswith(BOTH):
        metafunc.fixturenames.append("launched")
        metafunc.parametrize("launched", ["local", "warm"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def launched(request: pytest.FixtureRequest) -> Iterator[str]:
    """How `Sim` makes its process."""
    if request.param == "local":
        yield "local"
        return
    engines.FORKERY.append(Forkery(engines.MARK))
    try:
        yield "warm"
    finally:
        engines.FORKERY.pop().close()
