"""What `scripts/bench soak` calls level."""

from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts" / "bench.d"
MIB = 2**20


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return pytest.importorskip("soak", reason="scripts/bench.d is not here")


class Done:
    """A load that is over."""

    def __init__(self, module: ModuleType) -> None:
        self.done = module.Counter({"chat": 5})
        self.faults: list[str] = []


@pytest.mark.parametrize(
    ("last", "tasks", "in_flight", "level"),
    [(200, 30, 0, True), (204, 30, 0, True), (215, 30, 0, False), (200, 60, 0, False), (200, 30, 1, False)],
)
def test_the_verdict(soak: ModuleType, last: int, tasks: int, in_flight: int, level: bool) -> None:
    """Memory may grow while caches fill, and no more from the second quarter to the last; nothing is left when nobody asks."""

    def at(seconds: float, mib: int, *, count: int = 30, flying: int = 0) -> object:
        return soak.Sample(seconds, mib * MIB, 40, 8, count, flying, 0, 5)

    samples = [at(s, 100 + s if s < 100 else 200 if s < 300 else last) for s in range(1, 401)]
    after = at(401, last, count=tasks, flying=in_flight)
    found = soak.verdict(samples, at(0, 100), after, Done(soak))
    assert found["level"] is level
    assert found["rss_second_quarter"] == 200 * MIB
