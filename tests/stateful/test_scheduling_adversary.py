"""The scheduler against an adversary, for 200,000 steps: memory is never over-committed, the bound on waits is never broken, no
state is a deadlock, every decision has a reason. `ADVERSARY_SEED` repeats a run, `ADVERSARY_STEPS` makes it longer."""

import os
from random import Random

import pytest

from adversary import World

SEED = int(os.environ.get("ADVERSARY_SEED", "20"))
STEPS = int(os.environ.get("ADVERSARY_STEPS", "100000"))


@pytest.mark.parametrize("strangers", [False, True], ids=["bound", "strangers"])
@pytest.mark.timeout(600)
def test_nothing_that_comes_breaks_what_is_promised(*, strangers: bool) -> None:
    """Half of the steps with the bound judged at every load, half with strangers on the devices, where there is none."""
    steps, worlds, worst, returned = 0, 0, 0.0, 0
    while steps < STEPS:
        seed = SEED * 1_000_000 + worlds
        world = World(Random(seed), strangers=strangers)
        try:
            while world.step():
                steps += 1
        except AssertionError as error:
            raise AssertionError(
                f"World(Random({seed}), strangers={strangers}) after {world.now:.3f} s: {error}"
            ) from error
        worlds += 1
        worst, returned = max(worst, world.worst), returned + world.returned
    print(f"seed {SEED}: {steps:,} steps in {worlds} worlds; the longest wait had {100 * worst:.0f} % of its bound")
    assert worst > 0.5, "the adversary is too kind"
    assert returned > 100, "hardly anybody was told to come again"
