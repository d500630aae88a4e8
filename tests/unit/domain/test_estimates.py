"""What is learned of how long things take: quantiles of what was seen, what is left, and how estimates turned out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain import estimates
from vllm_mm.domain.estimates import (
    COMPARED,
    NOTHING,
    RECENT,
    Accuracy,
    Kind,
    Past,
    Span,
    Times,
    overdue,
    pooled,
    quantile,
    relative,
    start_kind,
    turn,
)

SECONDS = st.floats(0, 1e5)
SAMPLE = st.lists(SECONDS, min_size=1, max_size=2 * RECENT)


def times(*seconds: float, kind: Kind = Kind.START) -> Times:
    found = Times()
    for one in seconds:
        found = found.note(kind, one)
    return found


def starts(*phases: dict[str, float]) -> Times:
    found = Times()
    for one in phases:
        found = found.note(Kind.START, sum(one.values()), one)
    return found


class TestQuantile:
    def test_between_neighbours(self) -> None:
        """The median of an even number lies in the middle of two; the ends are the extremes."""
        assert quantile([4, 1, 3, 2], 0.5) == 2.5
        assert quantile([4, 1, 3, 2], 0.0) == 1
        assert quantile([4, 1, 3, 2], 1.0) == 4
        assert quantile([7], 0.9) == 7

    @given(SAMPLE, st.floats(0, 1), st.floats(0, 1))
    def test_within_the_sample_and_rising(self, sample: list[float], one: float, other: float) -> None:
        """Never outside of what was seen; a larger share is never an earlier time."""
        low, high = sorted((one, other))
        slack = 1e-9 * max(sample)
        assert min(sample) - slack <= quantile(sample, low) <= quantile(sample, high) + slack
        assert quantile(sample, high) <= max(sample) + slack


class TestTimes:
    def test_nothing_known(self) -> None:
        """What was never seen is not guessed here."""
        known = times(3.0)
        assert known.expect(Kind.WAKE) is None
        assert known.span(Kind.WAKE) is None
        assert known.left(Kind.WAKE, 1.0) is None

    def test_quantiles_not_means(self) -> None:
        """One outlier moves what is likely by nothing, and what is promised at latest by much."""
        known = times(*[10.0] * 9, 500.0)
        assert known.expect(Kind.START) == 10.0
        span = known.span(Kind.START)
        assert span is not None
        assert 10.0 < span.at_latest <= 500.0

    def test_the_kind_of_the_next_start_is_that_of_the_latest(self) -> None:
        """Warm and cold starts are two samples; other kinds do not change which start is next."""
        known = times(30.0).note(Kind.WARM, 3.0).note(Kind.STOP, 0.5)
        assert known.start is Kind.WARM
        assert known.expect(known.start) == 3.0
        assert known.expect(Kind.START) == 30.0
        assert Times().start is Kind.START

    def test_kind_of_a_start_by_its_phases(self) -> None:
        """Only a forked start has a fork among its phases."""
        assert start_kind({"fork": 0.1, "weights": 2.0}) is Kind.WARM
        assert start_kind({"spawn": 0.1}) is Kind.START

    @given(SAMPLE)
    def test_bounded_and_recent(self, sample: list[float]) -> None:
        """The newest count, and no more than a few; the estimate is ordered and inside of them."""
        known = times(*sample)
        recent = sample[-RECENT:]
        assert known.seconds(Kind.START) == tuple(recent)
        span = known.span(Kind.START)
        assert span is not None
        assert min(recent) <= span.likely <= span.at_latest + 1e-9
        assert span.at_latest <= max(recent) * (1 + 1e-9)

    def test_a_clock_that_went_back_is_no_negative_time(self) -> None:
        """Starts are timed by the wall clock in the database."""
        assert times(-5.0).expect(Kind.START) == 0.0


class TestLeft:
    def test_those_that_were_quicker_do_not_count(self) -> None:
        """After 15 s it is none of those that took 10."""
        known = times(10.0, 10.0, 20.0)
        assert known.left(Kind.START, 0.0) == Span(10.0, pytest.approx(18.0))
        assert known.left(Kind.START, 15.0) == Span(5.0, 5.0)

    def test_overdue(self) -> None:
        """What takes longer than it ever did has a share of what has passed before it, and never nothing."""
        assert times(10.0).left(Kind.START, 40.0) == Span(10.0, 20.0)
        assert times(0.0).left(Kind.START, 0.0) == Span(0.1, 0.2)

    def test_conditioned_on_the_phase(self) -> None:
        """What came before a phase does not matter: an unusually slow read of the weights is told by where it is."""
        known = starts({"spawn": 1, "weights": 4, "graphs": 10}, {"spawn": 1, "weights": 6, "graphs": 10})
        assert known.left(Kind.START, 100.0, "weights", 0.0) == Span(15.0, pytest.approx(15.8))
        assert known.left(Kind.START, 105.0, "weights", 5.0) == Span(11.0, 11.0)
        assert known.left(Kind.START, 0.5, "", 0.5) == Span(pytest.approx(15.5), pytest.approx(16.3))

    def test_overdue_in_a_phase_the_later_ones_are_still_to_come(self) -> None:
        """Weights that take 40 s instead of 5 leave the graphs' 10 s to come."""
        known = starts({"weights": 5, "graphs": 10})
        assert known.left(Kind.START, 40.0, "weights", 40.0) == Span(20.0, 30.0)

    def test_an_unknown_phase_falls_back_to_the_whole(self) -> None:
        """A phase that no start had (another version of the engine) tells nothing."""
        known = starts({"weights": 5, "graphs": 10})
        assert known.left(Kind.START, 5.0, "compile", 2.0) == Span(10.0, 10.0)
        assert times(20.0).left(Kind.START, 5.0, "weights", 1.0) == Span(15.0, 15.0)

    def test_what_the_phases_leave_open_comes_last(self) -> None:
        """The phases of a start may not add up to all of it."""
        assert Past(10.0, (("weights", 4.0), ("graphs", 1.0))).from_phase("weights") == (4.0, 6.0)
        assert Past(3.0, (("weights", 4.0),)).from_phase("weights") == (4.0, 0.0)
        assert Past(3.0).from_phase("") == (3.0, 0.0)
        assert Past(3.0).from_phase("weights") is None
        assert Past(3.0, (("weights", 4.0),)).from_phase("graphs") is None

    @given(SAMPLE, SECONDS, SECONDS)
    def test_the_end_never_moves_closer_by_waiting(self, sample: list[float], one: float, other: float) -> None:
        """Time passed and time left together never fall while it goes on; what is left is never nothing."""
        known = times(*sample)
        earlier, later = sorted((one, other))
        first, second = known.left(Kind.START, earlier), known.left(Kind.START, later)
        assert first is not None
        assert second is not None
        assert 0.0 < second.likely <= second.at_latest + 1e-9
        assert later + second.likely >= (earlier + first.likely) * (1 - 1e-9) - 1e-9

    @given(
        st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=RECENT),
        st.sampled_from(["", "spawn", "weights", "graphs", "compile"]),
        SECONDS,
        SECONDS,
    )
    def test_always_an_ordered_answer(
        self, past: list[tuple[float, float, float]], phase: str, passed: float, here: float
    ) -> None:
        """Whatever the phase and the times: something is left, and the bound is not before the likely end."""
        known = starts(*[{"spawn": a, "weights": b, "graphs": c} for a, b, c in past])
        span = known.left(Kind.START, passed, phase, min(here, passed))
        assert span is not None
        assert 0.0 < span.likely <= span.at_latest * (1 + 1e-9)


class TestSpans:
    def test_one_after_the_other_and_side_by_side(self) -> None:
        """Victims go at the same time; the load comes after the last of them."""
        assert Span(1, 2).then(Span(3, 4)) == Span(4, 6)
        assert Span(1, 9).with_at_least(Span(3, 4)) == Span(3, 9)
        assert Span(30, 90).within(60) == Span(30, 60)
        assert NOTHING.then(Span(1, 2)) == Span(1, 2)

    def test_pooled(self) -> None:
        """Each other model has one voice, however often it was started; those that know nothing have none."""
        others = [times(10.0, 10.0, 10.0), times(20.0), Times()]
        assert pooled(others, Kind.START) == Span(15.0, pytest.approx(19.0))
        assert pooled([Times()], Kind.START) is None

    @given(SECONDS)
    def test_overdue_is_never_nothing(self, passed: float) -> None:
        """Not "in 0 s", however short it has been."""
        assert 0.0 < overdue(passed).likely < overdue(passed).at_latest


class TestAccuracy:
    def test_empty(self) -> None:
        """Before the first comparison nothing is claimed."""
        assert (Accuracy().error, Accuracy().ratio, Accuracy().kept) == (None, None, None)

    def test_what_is_told(self) -> None:
        """The typical error, whichever way; the share that kept the bound."""
        found = Accuracy().note(Span(10, 12), 11.0).note(Span(10, 12), 5.0).note(Span(10, 12), 13.0)
        assert found.error == 3.0
        assert found.ratio == pytest.approx(3 / 13)
        assert found.kept == pytest.approx(2 / 3)

    def test_bounded(self) -> None:
        """Only the latest count."""
        found = Accuracy()
        for _ in range(COMPARED):
            found = found.note(Span(1, 1), 100.0)
        for _ in range(COMPARED):
            found = found.note(Span(1, 1), 1.0)
        assert (len(found.pairs), found.error, found.kept) == (COMPARED, 0.0, 1.0)

    @given(SECONDS, SECONDS)
    def test_relative(self, told: float, took: float) -> None:
        """Between exact and hopeless, and the same whichever of the two is the longer."""
        assert 0.0 <= relative(Span(told, told), took) <= 1.0
        assert relative(Span(told, told), took) == relative(Span(took, took), told)

    def test_nothing_told_and_nothing_taken_is_exact(self) -> None:
        """A model that was there at once."""
        assert relative(NOTHING, 0.0) == 0.0


def test_every_kind_has_a_meaning() -> None:
    """The kinds are the columns of a table in the database: they keep their names."""
    assert {k.value for k in Kind} == {"start", "start_warm", "wake", "sleep", "stop", "drain"}
    assert {k for k in Kind if k in estimates.STARTS} == {Kind.START, Kind.WARM}


def test_those_who_wait_for_a_slot_wait_for_the_work_before_them() -> None:
    """The position counts, and how many slots end work; a later one is never told to be sooner."""
    assert turn(1, 8.0, 4).likely == 2.0
    assert turn(6, 8.0, 4).likely == 12.0
    assert turn(1, 8.0, 1).likely == 8.0
    spans = [turn(n, 8.0, 4) for n in range(1, 50)]
    assert all(s.likely < s.at_latest for s in spans)
    assert all(a.at_latest < b.at_latest for a, b in pairwise(spans))
