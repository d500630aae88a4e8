"""How long things take, learned from how long they took; and how good such estimates turned out to be. Pure.

A small sample of recent times is kept of each model and kind, and its quantiles are told: the mean of a start that is read from the
page cache and one that is read from a disk is the time of neither.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from statistics import median

RECENT = 20
"""Times of a kind that are remembered; older ones say little about the machine as it is."""
COMPARED = 100
"""Estimates of which it is remembered how they turned out."""
LATEST = 0.9
"""The share of times that are expected to be within `Span.at_latest`."""
_OVERDUE = 0.25
"""What takes longer than it ever did is thought to need this share of what has passed once more."""
_NINE_OF_TEN = 1.2816
"""Standard deviations above the mean that nine of ten stay below."""
_LEAST = 0.1
"""Seconds: what is overdue is not there "in 0 s"."""


class Kind(StrEnum):
    """What is timed of a model. Seconds each."""

    START = "start"
    """From the start of a new process to ready."""
    WARM = "start_warm"
    """The same for a process that is forked from a zygote."""
    WAKE = "wake"
    """From the wake to ready, the probe included."""
    SLEEP = "sleep"
    """From the last lease's end to verified sleep."""
    STOP = "stop"
    """From the last lease's end until every process is reaped and its memory was seen free."""
    DRAIN = "drain"
    """From the end of new leases to the end of the last one; only drains that began with leases out are noted."""


STARTS = frozenset({Kind.START, Kind.WARM})
FORK = "fork"
"""The phase that only a start from a zygote has."""


def start_kind(phases: Iterable[str]) -> Kind:
    """Which kind of start it was, by its phases."""
    return Kind.WARM if FORK in phases else Kind.START


@dataclass(frozen=True, slots=True)
class Span:
    """An estimate, in seconds."""

    likely: float
    """As often sooner as later."""
    at_latest: float
    """Sooner nine times of ten."""

    def then(self, other: "Span") -> "Span":
        """Both, one after the other. The sum of two nine-of-ten bounds is a safer one, not a likelier one."""
        return Span(self.likely + other.likely, self.at_latest + other.at_latest)

    def with_at_least(self, other: "Span") -> "Span":
        """Both at the same time, until the later one is done."""
        return Span(max(self.likely, other.likely), max(self.at_latest, other.at_latest))

    def within(self, seconds: float) -> "Span":
        """Of something that is ended after `seconds` if it has not ended by itself."""
        return Span(min(self.likely, seconds), min(self.at_latest, seconds))


NOTHING = Span(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Past:
    """How long it took once, and in a start each of its phases, in their order."""

    seconds: float
    phases: tuple[tuple[str, float], ...] = ()

    def from_phase(self, phase: str) -> tuple[float, float] | None:
        """Seconds that `phase` took, and all that came after it; the first phase for ``""``. None when it did not have that phase."""
        names = [name for name, _ in self.phases]
        if not names:
            return None if phase else (self.seconds, 0.0)
        if phase and phase not in names:
            return None
        at = names.index(phase) if phase else 0
        until = list(accumulate(seconds for _, seconds in self.phases))[at]
        # What the phases do not account for came after the last one.
        return self.phases[at][1], max(0.0, self.seconds - until)


@dataclass(frozen=True, slots=True)
class Times:
    """What is known of how long a model takes. Immutable: `note` returns the richer one."""

    samples: Mapping[Kind, tuple[Past, ...]] = field(default_factory=dict[Kind, tuple[Past, ...]])
    """Newest last."""
    start: Kind = Kind.START
    """The kind of its latest start: the next will most likely be like it."""

    def note(self, kind: Kind, seconds: float, phases: Mapping[str, float] | None = None) -> "Times":
        """It took so long. `phases`: of a start, in the order in which they came."""
        past = Past(max(0.0, seconds), tuple((phases or {}).items()))
        sample = (*self.samples.get(kind, ()), past)[-RECENT:]
        return replace(self, samples={**self.samples, kind: sample}, start=kind if kind in STARTS else self.start)

    def seconds(self, kind: Kind) -> Sequence[float]:
        """The sample, newest last."""
        return tuple(past.seconds for past in self.samples.get(kind, ()))

    def expect(self, kind: Kind) -> float | None:
        """Likely seconds; None when it was never seen."""
        span = self.span(kind)
        return None if span is None else span.likely

    def span(self, kind: Kind) -> Span | None:
        """None when it was never seen."""
        return _span(self.seconds(kind))

    def left(self, kind: Kind, passed: float, phase: str = "", in_phase: float | None = None) -> Span | None:
        """Of one that has been going on for `passed` seconds, the last `in_phase` of them in `phase`; None when it was never seen.

        Compared with those of the past that had not got further by then. One that takes longer in its phase than any before is
        overdue there, and has the later phases before it all the same.
        """
        pasts = self.samples.get(kind, ())
        here = passed if in_phase is None else in_phase
        seen = [found for past in pasts if (found := past.from_phase(phase)) is not None]
        if not seen:  # a phase that was never seen, or a sample without phases
            seen, here = [(past.seconds, 0.0) for past in pasts], passed
        open_ones = [(took, after) for took, after in seen if took > here]
        if open_ones:
            return _span([took - here + after for took, after in open_ones])
        after = _span([after for _, after in seen])
        return None if after is None else overdue(here).then(after)


def overdue(passed: float) -> Span:
    """What is left of something that has taken longer than it ever did, or of which nothing is known."""
    more = max(_LEAST, passed * _OVERDUE)
    return Span(more, 2 * more)


def turn(position: int, work: float, slots: int) -> Span:
    """Until the request at `position` (from 1) of those that wait for a slot of a model that is ready has one. With all of its
    `slots` busy with requests of about `work` seconds, one ends each `work / slots`; `at_latest` is for ends that come by chance."""
    gap = work / slots
    return Span(position * gap, (position + _NINE_OF_TEN * position**0.5) * gap)


def pooled(others: Iterable[Times], kind: Kind) -> Span | None:
    """What a model of which nothing is known may take, by what others did: one voice each."""
    return _span([seconds for times in others if (seconds := times.expect(kind)) is not None])


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest of `values` (at least one), in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below)


def _span(values: Sequence[float]) -> Span | None:
    return Span(quantile(values, 0.5), quantile(values, LATEST)) if values else None


class Stage(StrEnum):
    """When a forecast was made that is compared with what came."""

    QUEUED = "queued"
    """At the first decision about those who wait for the model."""
    DECIDED = "decided"
    """When its load was decided, and it was known who makes room."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a forecast said, and what it was: seconds from then to READY."""

    stage: Stage
    told: Span
    took: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How estimates turned out: the latest `COMPARED` of them. Immutable, as `Times` is."""

    pairs: tuple[tuple[Span, float], ...] = ()
    """What was told, and the seconds that it was."""

    def note(self, told: Span, actual: float) -> "Accuracy":
        return Accuracy((*self.pairs, (told, actual))[-COMPARED:])

    @property
    def error(self) -> float | None:
        """The typical error in seconds, whichever way (median); None before the first comparison."""
        return self._median(lambda told, actual: abs(actual - told.likely))

    @property
    def ratio(self) -> float | None:
        """The typical share of the longer of the two by which the other falls short: 0 is exact, 0.5 is twice or half."""
        return self._median(relative)

    @property
    def kept(self) -> float | None:
        """The share that was there within `at_latest`; `LATEST` is what is aimed at."""
        if not self.pairs:
            return None
        return sum(actual <= told.at_latest for told, actual in self.pairs) / len(self.pairs)

    def _median(self, of: Callable[[Span, float], float]) -> float | None:
        return median(of(told, actual) for told, actual in self.pairs) if self.pairs else None


def relative(told: Span, actual: float) -> float:
    """By how much of the longer one `told.likely` and `actual` differ, from 0 (exact) towards 1."""
    longer = max(told.likely, actual)
    return abs(actual - told.likely) / longer if longer > 0 else 0.0
