"""What the past lets expect of a model: how long its swaps take, how often it is asked for, how long its requests wait and
work. Pure: times are arguments and never go back. `Habits` learns in constant time and without allocating, because every
request passes it."""

import math
from dataclasses import dataclass

MEMORY = 300.0
"""Seconds over which arrivals are remembered: what came this long ago counts 1/e."""
DOUBT = 30.0
"""Seconds for which a model that was asked for just once counts as observed already."""
LEARN = 0.1
"""Weight of the latest request in what is known of a model's requests."""
LEARN_TIME = 0.3
"""Weight of the latest swap in what is known of a model's swaps, which are fewer and more alike."""


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """Seconds that an engine takes; the defaults are guesses for one that was never seen doing it."""

    start: float = 30.0
    """From the start of the process to ready."""
    wake: float = 3.0
    stop: float = 2.0
    """From its last request to the memory seen free."""
    sleep: float = 2.0

    def go(self, *, sleeps: bool) -> float:
        """Until its memory is free, once its requests have ended."""
        return self.sleep if sleeps else self.stop

    def come(self, *, asleep: bool) -> float:
        """Until it is ready, once it has the memory."""
        return self.wake if asleep else self.start


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one model, at one moment. Seconds, and events a second."""

    times: SwapTimes = SwapTimes()
    sleeps: bool = False
    """If it has to go it is put to sleep, and not stopped."""
    work: float = 5.0
    """A request's time on the engine."""
    rate: float = 0.0
    """Arrivals of late."""
    wait: float = 0.0
    """From a request's arrival to its lease, of late, on average; those that did not wait count."""

    cache: float = 0.0
    """What its clients would wait longer, altogether, for the prefix cache that it loses when it goes."""

    @property
    def returns(self) -> float:
        """The chance that it is asked for again while what it held would still be of use, by how often it was of late."""
        return 1.0 - math.exp(-self.rate * MEMORY)

    def swap(self, *, asleep: bool) -> float:
        """From the decision to ready, when somebody like it has to go for it and is idle."""
        return self.times.go(sleeps=self.sleeps) + self.times.come(asleep=asleep)

    @property
    def back(self) -> float:
        """To have it back after it went."""
        return self.swap(asleep=self.sleeps)


NOTHING_KNOWN = Expected()


@dataclass(frozen=True, slots=True)
class Backlog:
    """Those who wait for one model, or for several."""

    count: int = 0
    arrived: float = 0.0
    """Sum of the times when they came."""

    def waited(self, now: float) -> float:
        """Sum of their waits so far."""
        return self.count * now - self.arrived

    def __add__(self, other: "Backlog") -> "Backlog":
        return Backlog(self.count + other.count, self.arrived + other.arrived)


class Rate:
    """How often something happens, with an exponential memory."""

    __slots__ = ("_at", "_first", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0
        self._first: float | None = None

    def note(self, now: float) -> None:
        self._level = self._level * math.exp((self._at - now) / MEMORY) + 1.0
        self._at = now
        if self._first is None:
            self._first = now

    def at(self, now: float) -> float:
        """Per second. The first minutes are told by what there is of them, with some doubt."""
        if self._first is None:
            return 0.0
        seen = MEMORY * (1.0 - math.exp((self._first - now - DOUBT) / MEMORY))
        return self._level * math.exp((self._at - now) / MEMORY) / seen


class Habits:
    """What is learned of one model's requests."""

    __slots__ = ("_rate", "wait", "work")

    def __init__(self) -> None:
        self._rate = Rate()
        self.work = NOTHING_KNOWN.work
        self.wait = NOTHING_KNOWN.wait

    def arrived(self, now: float) -> None:
        self._rate.note(now)

    def leased(self, waited: float) -> None:
        self.wait += LEARN * (waited - self.wait)

    def ended(self, worked: float) -> None:
        self.work += LEARN * (worked - self.work)

    def expected(self, times: SwapTimes, now: float, *, sleeps: bool) -> Expected:
        return Expected(times, sleeps, self.work, self._rate.at(now), self.wait)


def learn_time(known: float | None, seconds: float) -> float:
    """What is known of a duration after it was seen once more."""
    return seconds if known is None else known + LEARN_TIME * (seconds - known)
