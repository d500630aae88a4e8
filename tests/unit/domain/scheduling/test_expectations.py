"""What is learned of models."""

import pytest

from vllm_mm.domain.scheduling.expectations import Backlog, Expected, Habits, Rate, SwapTimes, learn_time


def test_a_swap_is_going_and_coming() -> None:
    """Asleep it wakes, else it starts; what goes sleeps where it can."""
    times = SwapTimes(start=20.0, wake=2.0, stop=1.5, sleep=0.5)
    cold, warm = Expected(times), Expected(times, sleeps=True)
    assert (cold.swap(asleep=False), cold.swap(asleep=True), cold.back) == (21.5, 3.5, 21.5)
    assert (warm.swap(asleep=False), warm.swap(asleep=True), warm.back) == (20.5, 2.5, 2.5)


def test_backlogs_add_up() -> None:
    """Two came at 1 s and 2 s, one at 5 s: at 10 s they have waited 22 s together."""
    both = Backlog(2, 3.0) + Backlog(1, 5.0)
    assert both == Backlog(3, 8.0)
    assert both.waited(10.0) == 22.0
    assert Backlog().waited(10.0) == 0.0


def test_a_rate_follows_what_comes_and_fades() -> None:
    """One a second for twenty minutes is one a second; after five minutes of silence a third of it is left."""
    rate = Rate()
    assert rate.at(5.0) == 0.0
    for second in range(1200):
        rate.note(float(second))
    assert rate.at(1199.0) == pytest.approx(1.0, rel=0.03)
    assert rate.at(1499.0) == pytest.approx(0.37, rel=0.05)


def test_one_request_is_no_high_rate() -> None:
    """Seen once, it is expected about once in half a minute, and less as time goes by."""
    rate = Rate()
    rate.note(100.0)
    assert 0.03 < rate.at(100.0) < 0.04
    assert rate.at(130.0) < 0.02


def test_habits_follow_the_latest_requests() -> None:
    """Waits and work as running averages; those that did not wait count."""
    habits = Habits()
    for second in range(100):
        habits.arrived(float(second))
        habits.leased(2.0)
        habits.ended(30.0)
    known = habits.expected(SwapTimes(start=9.0), 99.0, sleeps=True)
    assert (known.times.start, known.sleeps) == (9.0, True)
    assert known.wait == pytest.approx(2.0, rel=0.01)
    assert known.work == pytest.approx(30.0, rel=0.01)
    assert known.rate == pytest.approx(1.0, rel=0.2)
    habits.leased(0.0)
    assert habits.expected(SwapTimes(), 99.0, sleeps=False).wait == pytest.approx(1.8, rel=0.01)


def test_a_duration_is_learned_from_the_first_time() -> None:
    """Then it follows slowly."""
    first = learn_time(None, 10.0)
    assert first == 10.0
    assert learn_time(first, 20.0) == 13.0
