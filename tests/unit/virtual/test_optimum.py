"""The offline optimum: cases reckoned by hand."""

import pytest

from vllm_mm.virtual.engine import EngineTimes
from vllm_mm.virtual.optimum import least_mean_wait
from vllm_mm.virtual.trace import Request

TIMES = dict.fromkeys("abc", EngineTimes(load=20.0, stop=1.0, decode=100.0, batch_slowdown=0.0))


def requests(*given: tuple[float, str, int]) -> list[Request]:
    return [Request(at, model, 0, 100 * seconds) for at, model, seconds in given]


@pytest.mark.parametrize(
    ("given", "least"),
    [
        ([(0.0, "a", 1)], 20.0),
        ([(0.0, "a", 1), (5.0, "a", 1)], (20 + 15) / 2),
        # B's load begins when A's request is done: 21 + 1 + 20.
        ([(0.0, "a", 1), (0.0, "b", 1)], (20 + 42) / 2),
        # The many first, although one came before them.
        ([(0.0, "a", 1), (0.0, "b", 1), (0.0, "b", 1)], (20 + 20 + 42) / 3),
        # Worth staying two seconds for A's second: else it would wait for another swap and back.
        ([(0.0, "a", 1), (0.0, "b", 1), (22.0, "a", 1)], (20 + 44 + 0) / 3),
        # Nobody knows of B before it comes: its load begins at 100.
        ([(0.0, "a", 1), (100.0, "b", 1)], (20 + 21) / 2),
    ],
)
def test_small_windows(given: list[tuple[float, str, int]], least: float) -> None:
    """The search finds what can be reckoned by hand."""
    assert least_mean_wait(requests(*given), TIMES) == pytest.approx(least)
