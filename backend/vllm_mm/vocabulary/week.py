"""Times of the week in which a model is to be ready, as people write them: `mon-fri 09:00-18:00`.

Times are wall-clock times of a time zone: a window from 09:00 begins at 09:00 whatever the clocks did in the night. One that
begins or ends in the hour that a change of the clocks skips does so an hour later by the new time; in the hour that comes twice, the
first time counts. A window that ends before it begins (`fri 22:00-06:00`) belongs to the day on which it begins.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXAMPLE = "mon-fri 09:00-18:00"
_DAY = "|".join(DAYS)
_WINDOW = re.compile(
    rf"(?:((?:{_DAY})(?:-(?:{_DAY}))?(?:,(?:{_DAY})(?:-(?:{_DAY}))?)*|daily)\s+)?(\d\d?):(\d\d)-(\d\d?):(\d\d)"
)


@dataclass(frozen=True, slots=True)
class Window:
    """One entry of a schedule."""

    days: frozenset[int]
    """On which it begins; 0 is Monday."""
    begins: time
    ends: time
    """On the next day when it is not after `begins`. `00:00` is the end of the day."""

    def on(self, day: date, zone: tzinfo | None) -> tuple[datetime, datetime] | None:
        """From when to when it is open if it begins on `day`, in UTC; None when it does not."""
        if day.weekday() not in self.days:
            return None
        over = day + timedelta(days=self.ends <= self.begins)
        return _moment(day, self.begins, zone), _moment(over, self.ends, zone)


def parse(text: str) -> Window:
    """An entry as it is written. Raises ValueError with what is wrong and how it is written."""
    match = _WINDOW.fullmatch(" ".join(text.lower().split()))
    if match is None:
        raise ValueError(
            f"{text!r} is no time of the week; write it like `{EXAMPLE}`, `sat,sun 10:00-14:00` or `22:00-06:00`"
        )
    begins, ends = _time(match[2], match[3]), _time(match[4], match[5])
    if begins == ends and (match[2], match[3]) == (match[4], match[5]):
        raise ValueError(
            f"{text!r} ends when it begins; for the whole day write `00:00-24:00`, which may have days before it"
        )
    return Window(_days(match[1]), begins, ends)


def _moment(day: date, at: time, zone: tzinfo | None) -> datetime:
    return datetime.combine(day, at, zone).astimezone(UTC)


def _days(text: str | None) -> frozenset[int]:
    if text is None or text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)}
    return frozenset(found)


def _time(hour: str, minute: str) -> time:
    if (int(hour), int(minute)) == (24, 0):
        return time(0, 0)
    if int(hour) > 23 or int(minute) > 59:
        raise ValueError(f"{hour}:{minute} is no time of the day; write it like 09:00, from 00:00 to 24:00")
    return time(int(hour), int(minute))
