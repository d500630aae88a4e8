"""The bound on waits, as a number."""

from vllm_mm.domain.scheduling import Rules, bound

RULES = Rules(max_wait=20.0, min_dwell=0.0, quantum=10.0)


def test_each_rival_goes_before_at_most_once() -> None:
    """Alone it is `max_wait`; every other model that waits adds its swap and its quantum."""
    assert bound(RULES, 1, 30.0) == 20.0
    assert bound(RULES, 4, 30.0) == 20.0 + 3 * 40.0
    assert bound(RULES, 0, 30.0) == 20.0


def test_a_long_dwell_is_the_operators_own_wish() -> None:
    """It stands in for whatever is shorter."""
    assert bound(Rules(max_wait=5.0, min_dwell=60.0, quantum=10.0), 2, 30.0) == 60.0 + 90.0
