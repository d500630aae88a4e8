"""How much keys may use: what is let in, and what is counted. Pure: `now` is monotonic seconds and never goes back, `wall` Unix
seconds.

Concurrency and requests are exact: at no moment more run, and in no 60 seconds more are let in, than allowed. Of tokens as many as a
request is expected to use are reserved before it is let in, and what it used is counted when it is over: what was let in never was
expected to use more than allowed, so that the limit can be passed only by as much as requests that run at the same time use beyond what
was expected of them. Device-seconds are not known before: a key that has some left is let in, so that a budget can be passed by what
runs when it is used up. What was used beyond a limit counts: it has to leave the window first.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from vllm_mm.domain.keys import Key, Limits

WINDOW: Final = 60.0
"""Seconds in which requests and tokens are counted for the limits of a minute."""
DAY: Final = 86_400.0
BYTES_PER_TOKEN: Final = 4
"""What a prompt's bytes are taken for."""
UNSAID: Final = 256
"""Tokens that an answer is expected to have where the request does not say how many it may."""
SOON: Final = 1.0
"""Seconds after which to try again, where what stands in the way ends nobody knows when."""


class Limit(StrEnum):
    """What refused a request."""

    CONCURRENCY = "concurrency"
    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    TOKENS_DAY = "tokens_per_day"
    TOKENS_MONTH = "tokens_per_month"
    SECONDS_DAY = "device_seconds_per_day"
    SECONDS_MONTH = "device_seconds_per_month"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let in."""

    limit: Limit
    message: str
    retry_after: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used of budgets; by a request, or in one day or month."""

    tokens: int = 0
    device_seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.tokens + other.tokens, self.device_seconds + other.device_seconds)


@dataclass(frozen=True, slots=True)
class Standing:
    """How much is used and left, at one moment. Limits and what is left are None where there is no limit; resets are in seconds."""

    running: int
    requests: int
    """Let in within the window."""
    tokens: int
    """Used within the window, and reserved."""
    day: Spent
    month: Spent
    concurrency: int | None = None
    requests_limit: int | None = None
    requests_reset: float = 0.0
    """Until none is in the window any more."""
    tokens_limit: int | None = None
    """Of those that limit tokens, the one of which the least is left."""
    tokens_left: int = 0
    tokens_reset: float = 0.0


def expected(prompt_bytes: int, answer: int | None) -> int:
    """Tokens that a request is expected to use. `answer`: how many it asked for at most, all its choices together."""
    return -(-prompt_bytes // BYTES_PER_TOKEN) + (UNSAID if answer is None else answer)


class Periods:
    """The day and the month (UTC) in which a moment is."""

    __slots__ = ("day", "day_ends", "month", "month_ends")

    def __init__(self, wall: float) -> None:
        self.day = wall // DAY * DAY
        self.day_ends = self.day + DAY
        first = datetime.fromtimestamp(wall, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        self.month = first.timestamp()
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self.month_ends = following.timestamp()


class Allowance:
    """What one key uses."""

    def __init__(self, wall: float) -> None:
        self.running = 0
        self._reserved = 0
        self._entered: deque[float] = deque()
        self._used: deque[tuple[float, int]] = deque()
        self._in_window = 0
        """Tokens of `_used`."""
        self._periods = Periods(wall)
        self._day = Spent()
        self._month = Spent()

    def load(self, day: Spent, month: Spent) -> None:
        """What was used of the budgets before; beside what is counted already."""
        self._day += day
        self._month += month

    def enter(self, limits: Limits, tokens: int, now: float, wall: float) -> Refusal | None:
        """Let a request in that is expected to use so many tokens; it has to `leave`. Or say why not: then nothing has changed."""
        self._advance(now, wall)
        refusal = self._refusal(limits, tokens, now, wall)
        if refusal is None:
            self.running += 1
            self._reserved += tokens
            if limits.requests_per_minute is not None:
                self._entered.append(now)
        return refusal

    def leave(self, reserved: int, used: Spent, now: float, wall: float) -> None:
        """It is over. `reserved`: what it entered with."""
        self._advance(now, wall)
        self.running -= 1
        self._reserved -= reserved
        if used.tokens:
            self._used.append((now, used.tokens))
            self._in_window += used.tokens
        self._day += used
        self._month += used

    def standing(self, limits: Limits, now: float, wall: float) -> Standing:
        """As it is now."""
        self._advance(now, wall)
        tightest = min(self._token_limits(limits), default=None)
        newest = self._used[-1][0] + WINDOW - now if self._used else 0.0
        resets = {
            Limit.TOKENS: newest,
            Limit.TOKENS_DAY: self._periods.day_ends - wall,
            Limit.TOKENS_MONTH: self._periods.month_ends - wall,
        }
        return Standing(
            self.running, len(self._entered), self._in_window + self._reserved, self._day, self._month,
            concurrency=limits.concurrency, requests_limit=limits.requests_per_minute,
            requests_reset=self._entered[-1] + WINDOW - now if self._entered else 0.0,
            tokens_limit=None if tightest is None else tightest[2],
            tokens_left=0 if tightest is None else max(0, tightest[0]),
            tokens_reset=0.0 if tightest is None else resets[tightest[1]],
        )  # fmt: skip

    def _advance(self, now: float, wall: float) -> None:
        """What is older than the window counts no more; budgets begin anew with their day and month."""
        since = now - WINDOW
        while self._entered and self._entered[0] <= since:
            self._entered.popleft()
        while self._used and self._used[0][0] <= since:
            self._in_window -= self._used.popleft()[1]
        if wall >= self._periods.day_ends:
            before, self._periods = self._periods, Periods(wall)
            self._day = Spent()
            if self._periods.month != before.month:
                self._month = Spent()

    def _token_limits(self, limits: Limits) -> list[tuple[int, Limit, int]]:
        """What is left of each, which it is, and how much it is as a whole."""
        known = (
            (limits.tokens_per_minute, self._in_window, Limit.TOKENS),
            (limits.tokens_per_day, self._day.tokens, Limit.TOKENS_DAY),
            (limits.tokens_per_month, self._month.tokens, Limit.TOKENS_MONTH),
        )
        return [(most - used - self._reserved, which, most) for most, used, which in known if most is not None]

    def _refusal(self, limits: Limits, tokens: int, now: float, wall: float) -> Refusal | None:
        most = limits.concurrency
        if most is not None and self.running >= most:
            return Refusal(
                Limit.CONCURRENCY,
                f"{self.running} requests of this key are under way, and it may have {most} at the same time. Let one end first.",
                SOON,
            )
        most = limits.requests_per_minute
        if most is not None and len(self._entered) >= most:
            again = self._entered[len(self._entered) - most] + WINDOW - now
            return Refusal(
                Limit.REQUESTS,
                f"This key may send {most} requests a minute, and has sent {len(self._entered)}. Try again in {again:.1f} s.",
                again,
            )
        for left, which, whole in self._token_limits(limits):
            if tokens > left:
                return self._too_many_tokens(which, whole, left, tokens, now, wall)
        seconds = (
            (limits.device_seconds_per_day, self._day, Limit.SECONDS_DAY, self._periods.day_ends),
            (limits.device_seconds_per_month, self._month, Limit.SECONDS_MONTH, self._periods.month_ends),
        )
        for budget, spent, which, ends in seconds:
            if budget is not None and spent.device_seconds >= budget:
                return Refusal(
                    which,
                    f"This key's budget of {budget:g} device-seconds a {_period(which)} is used up ({spent.device_seconds:.1f}). "
                    f"It begins anew at {_date(ends)}.",
                    ends - wall,
                )
        return None

    def _too_many_tokens(self, which: Limit, whole: int, left: int, tokens: int, now: float, wall: float) -> Refusal:
        what = f"This request is expected to use {tokens} tokens, and of {whole} a {_period(which)} this key has {max(0, left)} left."
        if tokens > whole:
            return Refusal(which, f"{what} It never fits: shorten the prompt, or ask for fewer (`max_tokens`).", WINDOW)
        if which is Limit.TOKENS:
            again = self._frees(tokens - left, now)
            return Refusal(which, f"{what} Try again in {again:.1f} s, or ask for fewer (`max_tokens`).", again)
        ends = self._periods.day_ends if which is Limit.TOKENS_DAY else self._periods.month_ends
        return Refusal(which, f"{what} Its budget begins anew at {_date(ends)}.", ends - wall)

    def _frees(self, tokens: int, now: float) -> float:
        """Seconds until so many have left the window; SOON where that alone does not do, for what runs may end any time."""
        for at, used in self._used:
            tokens -= used
            if tokens <= 0:
                return at + WINDOW - now
        return SOON


@dataclass(slots=True)
class _Place:
    """A request that was let in."""

    key: str
    reserved: int


class Book:
    """All keys that have limits, and the requests that were let in."""

    def __init__(self) -> None:
        self._limits: dict[str, Limits] = {}
        self._allowances: dict[str, Allowance] = {}
        self._places: dict[str, _Place] = {}
        self._unloaded: set[str] = set()

    def use(self, keys: Iterable[Key], wall: float) -> None:
        """The keys that there are. What is counted already stays counted."""
        self._limits = {key.id: key.limits for key in keys if key.limits is not None and key.revoked_at is None}
        for key in self._limits:
            if key not in self._allowances:
                self._allowances[key] = Allowance(wall)
                self._unloaded.add(key)
        self._unloaded.intersection_update(self._limits)
        for key in [k for k, a in self._allowances.items() if k not in self._limits and not a.running]:
            del self._allowances[key]

    @property
    def unloaded(self) -> bool:
        """Whether there are keys of which it is not known yet what they used before."""
        return bool(self._unloaded)

    def load(self, day: Mapping[str, Spent], month: Mapping[str, Spent]) -> None:
        """What such keys used today and this month; who is not in there used nothing."""
        for key in self._unloaded:
            self._allowances[key].load(day.get(key, Spent()), month.get(key, Spent()))
        self._unloaded.clear()

    def enter(self, place: str, key: str, tokens: int, now: float, wall: float) -> Refusal | None:
        """Let a request in, which has to `leave` its place. A key without limits is let in, and nothing is counted."""
        limits = self._limits.get(key)
        if limits is None:
            return None
        refusal = self._allowances[key].enter(limits, tokens, now, wall)
        if refusal is None:
            self._places[place] = _Place(key, tokens)
        return refusal

    def runs(self, place: str, key: str) -> None:
        """A request that was let in while its key had no limits, and has to `leave` its place from now on. Whatever the limits are: it
        runs. Harmless when repeated, and for a key that has none."""
        if key in self._limits and place not in self._places:
            self._allowances[key].running += 1
            self._places[place] = _Place(key, 0)

    def leave(self, place: str, tokens: int | None, device_seconds: float, now: float, wall: float) -> None:
        """The request is over, and used so many `tokens`: None where that is not known, and what was reserved is taken for it.
        Harmless for one that was not let in, or has left."""
        had = self._places.pop(place, None)
        if had is None:
            return
        allowance = self._allowances[had.key]
        allowance.leave(had.reserved, Spent(had.reserved if tokens is None else tokens, device_seconds), now, wall)
        if not allowance.running and had.key not in self._limits:
            del self._allowances[had.key]

    def standing(self, key: str, now: float, wall: float) -> Standing | None:
        """None for a key without limits."""
        limits = self._limits.get(key)
        return None if limits is None else self._allowances[key].standing(limits, now, wall)

    @property
    def running(self) -> int:
        """Requests that were let in and have not left."""
        return len(self._places)


def _period(which: Limit) -> str:
    return which.value.rpartition("_")[2]


def _date(wall: float) -> str:
    return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M} UTC"
