"""What lines of engines' logs say of themselves, and which of them are wanted."""

from datetime import UTC, datetime

import pytest

from vllm_mm.domain.loglines import Level, Wanted, level_of, time_of

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("INFO 11-30 11:59:00 [api_server.py:12] up", Level.INFO),
        ("(EngineCore_0 pid=7) WARNING 11-30 11:59:00 [x.py:1] slow", Level.WARNING),
        ("(A pid=1) (B pid=2) ERROR x", Level.ERROR),
        ("2026-11-30 11:59:00,123 DEBUG x", Level.DEBUG),
        ("2026-11-30T11:59:00Z [main] CRITICAL x", Level.CRITICAL),
        ("WARN: x", Level.WARNING),
        ("TRACE x", Level.DEBUG),
        ("FATAL: x", Level.CRITICAL),
        ("Traceback (most recent call last):", None),
        ("the word ERROR comes later", None),
        ("INFORMATION", None),
        ("", None),
    ],
)
def test_the_level_of_a_line(line: str, level: Level | None) -> None:
    """At its beginning, behind what names the process or the time."""
    assert level_of(line) == level


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("INFO 11-30 11:59:00 x", datetime(2026, 11, 30, 11, 59, tzinfo=UTC)),
        ("INFO 12-31 23:59:00 of last year", datetime(2025, 12, 31, 23, 59, tzinfo=UTC)),
        ("2024-02-29T01:02:03Z x", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
        ("2024-02-30 01:02:03 is no day", None),
        ("INFO 13-30 11:59:00 is none either", None),
        ("no time", None),
        ("x" * 130 + " 2024-02-29 01:02:03", None),
    ],
)
def test_the_time_of_a_line(line: str, at: datetime | None) -> None:
    """In either of the forms that engines write, without the year too."""
    assert time_of(line, NOW) == (None if at is None else at.timestamp())


def test_a_leap_day_of_a_year_that_has_none() -> None:
    """It says nothing, rather than something wrong."""
    assert time_of("INFO 02-29 10:00:00 x", datetime(2024, 2, 20, tzinfo=UTC)) is None


LINES = [
    "INFO 11-30 10:00:00 begins",
    "ERROR 11-30 11:00:00 it failed",
    "Traceback (most recent call last):",
    '  File "x.py"',
    "INFO 11-30 11:30:00 Goes on",
]


def chosen(**wish: object) -> list[int]:
    wanted = Wanted(now=lambda: NOW, **wish)  # type: ignore[arg-type]
    return [LINES.index(line) for line in wanted.among(LINES)]


def test_lines_without_a_level_or_a_time_belong_to_the_one_before() -> None:
    """A traceback is found with its error."""
    assert chosen(level=Level.ERROR) == [1, 2, 3]
    assert chosen(since=datetime(2026, 11, 30, 10, 30, tzinfo=UTC).timestamp()) == [1, 2, 3, 4]
    assert chosen(level=Level.CRITICAL) == []


def test_the_search_does_not_look_at_the_case_of_letters() -> None:
    """And it goes together with the others."""
    assert chosen(search="GOES") == [4]
    assert chosen(search="x.py", level=Level.WARNING) == [3]
    assert chosen() == [0, 1, 2, 3, 4]


def test_what_comes_before_any_level_or_time_is_not_wanted_by_either() -> None:
    """Nobody knows what it is."""
    for wish in ({"level": Level.DEBUG}, {"since": 0.0}):
        assert not Wanted(now=lambda: NOW, **wish)("no level, no time")  # type: ignore[arg-type]
