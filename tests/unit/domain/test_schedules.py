"""When a model is to be kept ready, over weeks, midnights and changes of the clocks."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.schedules import Standing, Window, is_open, next_change, parse

BERLIN = ZoneInfo("Europe/Berlin")
WORK = [parse("mon-fri 09:00-18:00")]
NIGHT = [parse("fri 22:00-06:00")]


def at(text: str, *, fold: int = 0) -> datetime:
    """In Berlin. 2026-11-30 is a Monday."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold)


@pytest.mark.parametrize(
    ("now", "open_"),
    [
        ("2026-11-30T08:59:59", False), ("2026-11-30T09:00:00", True), ("2026-11-30T17:59:59", True),
        ("2026-11-30T18:00:00", False), ("2026-11-28T12:00:00", False), ("2026-12-04T12:00:00", True),
    ],
)  # fmt: skip
def test_a_window_is_open_from_its_beginning_to_its_end(now: str, open_: bool) -> None:
    assert is_open(WORK, at(now), BERLIN) is open_
    assert is_open(WORK, at(now).astimezone(UTC), BERLIN) is open_, "the same moment in another zone"


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ("2026-11-30T08:00", "2026-11-30T09:00"), ("2026-11-30T09:00", "2026-11-30T18:00"),
        ("2026-12-04T18:00", "2026-12-07T09:00"), ("2026-12-05T00:00", "2026-12-07T09:00"),
    ],
)  # fmt: skip
def test_the_next_change(now: str, then: str) -> None:
    assert next_change(WORK, at(now), BERLIN) == at(then)


def test_over_midnight_a_window_belongs_to_the_day_of_its_beginning() -> None:
    """Friday's night reaches into Saturday, and no other night is open."""
    assert not is_open(NIGHT, at("2026-12-04T05:00"), BERLIN)
    assert is_open(NIGHT, at("2026-12-04T23:00"), BERLIN)
    assert is_open(NIGHT, at("2026-12-05T05:59"), BERLIN)
    assert not is_open(NIGHT, at("2026-12-05T06:00"), BERLIN)
    assert next_change(NIGHT, at("2026-12-05T01:00"), BERLIN) == at("2026-12-05T06:00")


def test_the_clocks_may_change_meanwhile() -> None:
    """A night is an hour shorter in spring and longer in autumn; the mornings begin by the clock on the wall."""
    for day, hours in (("2026-03-28", 7), ("2026-10-24", 9), ("2026-11-28", 8)):
        window = parse("22:00-06:00").on(datetime.fromisoformat(day).date(), BERLIN)
        assert window is not None
        assert window[1] - window[0] == timedelta(hours=hours)
    spring = next_change([parse("daily 09:00-10:00")], at("2026-03-28T12:00"), BERLIN)
    assert spring == at("2026-03-29T09:00")


def test_a_time_that_is_skipped_and_one_that_comes_twice() -> None:
    """02:30 does not exist on 2026-03-29, and comes twice on 2026-10-25: the first counts."""
    early = [parse("02:30-04:00")]
    assert next_change(early, at("2026-03-29T01:00"), BERLIN) == at("2026-03-29T03:30")
    assert next_change(early, at("2026-10-25T01:00"), BERLIN) == at("2026-10-25T02:30", fold=0).astimezone(UTC)
    assert is_open(early, at("2026-10-25T02:15", fold=1), BERLIN)


def test_windows_that_touch_are_one() -> None:
    """No change is told where one ends and another begins; without a gap there never is one."""
    assert next_change([parse("09:00-12:00"), parse("12:00-18:00")], at("2026-11-30T10:00"), BERLIN) == at(
        "2026-11-30T18:00"
    )
    assert next_change([parse("00:00-24:00")], at("2026-11-30T10:00"), BERLIN) is None
    assert next_change([], at("2026-11-30T10:00"), BERLIN) is None


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon-fri 09:00-18:00", {0, 1, 2, 3, 4}), ("Sat, Sun 9:00-18:00", None), ("sat,sun 9:00-18:00", {5, 6}),
        ("daily 09:00-18:00", set(range(7))), ("09:00-18:00", set(range(7))), ("fri-mon 09:00-18:00", {4, 5, 6, 0}),
        ("TUE  09:00-18:00 ", {1}), ("mon,wed-thu 09:00-18:00", {0, 2, 3}),
    ],
)  # fmt: skip
def test_days(text: str, days: set[int] | None) -> None:
    """A range may go over the end of the week; commas have no blanks."""
    if days is None:
        with pytest.raises(ValueError, match="write it like"):
            parse(text)
    else:
        assert parse(text).days == days


@pytest.mark.parametrize(
    "text", ["", "mon", "mon-fri", "9-18", "mon 25:00-26:00", "mon 09:60-10:00", "someday 09:00-10:00"]
)
def test_what_is_no_time_of_the_week_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse(text)


@pytest.mark.parametrize(
    ("standing", "keeps", "text"),
    [
        (
            Standing(open=True, changes_at=at("2026-11-30T18:00")), True,
            "open until Mon 2026-11-30 18:00 (Europe/Berlin): that is why it is kept ready",
        ),
        (Standing(open=True, changes_at=None), True, "open at all times: that is why it is kept ready"),
        (
            Standing(open=True, changes_at=at("2026-11-30T18:00"), dismissed=True), False,
            "open until Mon 2026-11-30 18:00 (Europe/Berlin), but somebody stopped it: it stays so until it is started, or its next time begins",
        ),
        (
            Standing(open=False, changes_at=at("2026-12-01T09:00")), False,
            "none is open; the next one begins Tue 2026-12-01 09:00 (Europe/Berlin), and it is made ready then",
        ),
    ],
)  # fmt: skip
def test_how_times_stand_is_told_in_a_sentence(standing: Standing, keeps: bool, text: str) -> None:
    """Whether one is open, until when, and whether the model is kept for it."""
    assert standing.keeps is keeps
    assert str(standing) == text


@given(
    st.lists(st.builds(Window, st.frozensets(st.integers(0, 6), min_size=1), st.times(), st.times()), min_size=1, max_size=3),
    st.integers(0, 365 * 24 * 60).map(lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n)),
)  # fmt: skip
def test_nothing_changes_before_the_next_change(windows: list[Window], now: datetime) -> None:
    """At that moment it is another; a moment before, and half-way, it is not yet."""
    then, current = next_change(windows, now, BERLIN), is_open(windows, now, BERLIN)
    if then is None:
        assert all(is_open(windows, now + timedelta(hours=n), BERLIN) is current for n in range(0, 7 * 24, 5))
        return
    assert is_open(windows, then, BERLIN) is not current
    before = then - timedelta(microseconds=1)  # shares of so little are rounded
    for share in (0.0, 0.5, 0.999):
        assert is_open(windows, min(now + (then - now) * share, before), BERLIN) is current
