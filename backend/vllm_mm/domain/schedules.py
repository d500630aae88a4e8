"""Whether a model is to be kept ready now, by its times of the week (`vocabulary.week`), and when that changes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from vllm_mm.vocabulary.week import Window, parse

__all__ = ["Standing", "Window", "is_open", "next_change", "parse"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the times of a model stand at a moment."""

    open: bool
    """Whether it is to be ready."""
    changes_at: datetime | None
    """When one ends that is open, or the next one begins (the zone is that of the times); None for one that never ends: each
    time comes again within a week."""
    dismissed: bool = False
    """Somebody stopped it, which holds until its next time begins."""

    @property
    def keeps(self) -> bool:
        """Whether it is kept ready for them."""
        return self.open and not self.dismissed

    def __str__(self) -> str:
        """A sentence for people."""
        when = "" if self.changes_at is None else f"{self.changes_at:%a %Y-%m-%d %H:%M}"
        zone = "" if self.changes_at is None else f" ({self.changes_at.tzinfo})"
        if not self.open:
            return f"none is open; the next one begins {when}{zone}, and it is made ready then"
        until = f"open until {when}{zone}" if when else "open at all times"
        if self.dismissed:
            return f"{until}, but somebody stopped it: it stays so until it is started, or its next time begins"
        return f"{until}: that is why it is kept ready"


def is_open(windows: Sequence[Window], now: datetime, zone: tzinfo | None) -> bool:
    """Whether one of them is open at `now` (which has a time zone). `zone` None is that of the machine."""
    return any(begins <= now < ends for begins, ends in _around(windows, now, zone))


def next_change(windows: Sequence[Window], now: datetime, zone: tzinfo | None) -> datetime | None:
    """When `is_open` will next be another, in UTC; None when it never will: without windows, or when they leave no gap."""
    times = sorted({t for window in _around(windows, now, zone) for t in window if t > now})
    current = is_open(windows, now, zone)
    return next((t for t in times if is_open(windows, t, zone) is not current), None)


def _around(windows: Sequence[Window], now: datetime, zone: tzinfo | None) -> list[tuple[datetime, datetime]]:
    """Those that may be open, or begin or end, from a day before `now` to a week and a day after it."""
    today = now.astimezone(zone).date()
    days = [today + timedelta(days=n) for n in range(-2, 10)]
    return [found for window in windows for day in days if (found := window.on(day, zone)) is not None]
