"""What a prefix cache is worth, by the engine's own counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.prefix_cache import PrefixCache, Work


def test_what_is_lost_is_what_is_held_times_what_is_asked_again_at_the_speed_of_prompts() -> None:
    """10,000 tokens asked for, 4,000 of them found; 6,000 were taken in within 3 s, and 2,000 were made: 8,000 are held, of which 40 %
    will be asked for again, at 2,000 a second."""
    cache = PrefixCache().note(Work(10_000, 4_000, 2_000, 3.0))
    assert cache.tokens(None) == 8_000
    assert cache.loss(None) == pytest.approx(8_000 * 0.4 / 2_000)
    assert cache.tokens(1_000) == 1_000
    assert cache.loss(1_000) == pytest.approx(1_000 * 0.4 / 2_000)


@pytest.mark.parametrize("work", [Work(), Work(9_000, 0, 500, 4.0), Work(500, 500, 9, 0.0)])
def test_where_nothing_is_found_again_nothing_is_lost(work: Work) -> None:
    """Nobody asked yet, each prompt is another one, or nothing was ever taken in: then the speed is not known either."""
    assert PrefixCache().note(work).loss(None) == 0.0


def test_a_sleep_empties_it_and_teaches_nothing_else() -> None:
    """What it did before is no longer held; how much is found again, and how fast prompts are, is known all the same."""
    cache = PrefixCache().note(Work(10_000, 5_000, 0, 5.0)).emptied()
    assert (cache.tokens(None), cache.loss(None)) == (0, 0.0)
    cache = cache.note(Work(10_600, 5_300, 100, 5.3))
    assert cache.tokens(None) == 400
    assert cache.loss(None) == pytest.approx(400 * 0.5 / 1_000)


def test_an_engine_that_counts_anew_is_a_new_one() -> None:
    """Its counters are below those that were known: all that it counts now was done since."""
    cache = PrefixCache().note(Work(10_000, 5_000, 800, 5.0)).emptied().note(Work(100, 50, 10, 0.1))
    assert cache.tokens(None) == 60
    assert Work(200, 50, 5, 1.0).since(Work(100, 60, 10, 2.0)) == Work(200, 50, 5, 1.0)
    assert Work(200, 50, 20, 1.0).since(Work(100, 60, 10, 2.0)) == Work(100, 0, 10, 0.0)


counts = st.integers(0, 10**9)


@given(counts, st.floats(0.0, 1.0), counts, st.floats(0.0, 1e6), st.none() | st.integers(1, 10**7))
def test_it_is_never_more_than_all_prompts_took(
    asked: int, found: float, made: int, prefill: float, room: int | None
) -> None:
    """Whatever the counters say: no loss is negative, and nobody waits longer for the cache than its whole room takes to fill."""
    cache = PrefixCache().note(Work(asked, int(asked * found), made, prefill))
    computed = asked - int(asked * found)
    assert cache.loss(room) >= 0.0
    assert cache.loss(room) <= cache.tokens(room) * prefill / max(1, computed) + 1e-6
