"""Lines of engines' logs: how severe they are and when they were written, as far as they say so."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from enum import IntEnum
from typing import Final

_LEVEL: Final = re.compile(
    r"^(?:\([^)]{1,80}\)\s*|\[[^\]]{1,80}\]\s*|[\d:.,TZ+/-]{5,40}\s+)*(TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b"
)
"""At the beginning, behind the process (`(EngineCore pid=7)`), a time or a component in brackets at most."""
_FULL: Final = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)")
_SHORT: Final = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
"""vLLM's own: a month and a day without the year."""


class Level(IntEnum):
    """From the least severe."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


_NAMES: Final = {"TRACE": Level.DEBUG, "WARN": Level.WARNING, "FATAL": Level.CRITICAL}


def level_of(line: str) -> Level | None:
    """What the line says of itself; None where it says nothing, as the lines of a traceback do."""
    found = _LEVEL.match(line)
    if found is None:
        return None
    return _NAMES.get(found[1]) or Level[found[1]]


def time_of(line: str, now: datetime) -> float | None:
    """Unix time at which the line says that it was written, in the zone of `now`; None where it says nothing."""
    head = line[:120]
    if (found := _FULL.search(head)) is not None:
        year, numbers = int(found[1]), found.groups()[1:]
    elif (found := _SHORT.search(head)) is not None:
        year, numbers = now.year, found.groups()
    else:
        return None
    month, day, hour, minute, second = map(int, numbers)
    at = _moment(year, month, day, hour, minute, second, now.tzinfo)
    if at is not None and found.re is _SHORT and at > now + timedelta(days=2):
        at = _moment(year - 1, month, day, hour, minute, second, now.tzinfo)  # written before the turn of the year
    return None if at is None else at.timestamp()


def _moment(
    year: int, month: int, day: int, hour: int, minute: int, second: int, zone: tzinfo | None
) -> datetime | None:
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        return None


class Wanted:
    """Which lines somebody wants to see. A line that says no level, or no time, has that of the line before it: a
    traceback belongs to its error. One of each reader, for it remembers."""

    def __init__(
        self,
        *,
        search: str = "",
        level: Level | None = None,
        since: float | None = None,
        now: Callable[[], datetime],
    ) -> None:
        """`search`: a part of the line, whatever the case of its letters. `level`: this or more severe. `since`: Unix time."""
        self._search = search.casefold()
        self._level = level
        self._since = since
        self._now = now
        self._last_level: Level | None = None
        self._last_time: float | None = None

    def __call__(self, line: str) -> bool:
        """Lines have to come in their order."""
        if self._level is not None:
            self._last_level = level_of(line) or self._last_level
            if self._last_level is None or self._last_level < self._level:
                return False
        if self._since is not None:
            found = time_of(line, self._now())
            self._last_time = self._last_time if found is None else found
            if self._last_time is None or self._last_time < self._since:
                return False
        return self._search in line.casefold()

    def among(self, lines: Iterable[str]) -> Iterator[str]:
        """Those of them that are wanted."""
        return (line for line in lines if self(line))
