"""What a policy that weighs costs may know beside the `View`: learned times, recent rates, and how much waits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mm.domain.scheduling import View

MEMORY = 300.0
"""Seconds over which arrivals are remembered: what came this long ago counts 1/e."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Those who wait for one model."""

    count: int
    arrived: float
    """Sum of their arrival times."""

    def waited(self, now: float) -> float:
        """Sum of their waits so far."""
        return self.count * now - self.arrived


@dataclass(frozen=True, slots=True)
class Outlook(View):
    """A `View` with expectations. Mappings are by model; seconds and events a second."""

    swap: Mapping[str, float]
    """From the decision to ready, when somebody idle has to go for it."""
    back: Mapping[str, float]
    """To have it back after it went: the same, as it would be then (asleep or stopped)."""
    work: Mapping[str, float]
    """A request's time on the engine."""
    rates: Mapping[str, float]
    """Arrivals of late."""
    waits: Mapping[str, float]
    """From a request's arrival to its lease, of late, on average; those that did not wait count."""
    waiting: Mapping[str, Backlog]
    """Only models that somebody waits for."""


class Rate:
    """How often something happens, with an exponential memory. Times never go back."""

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
        """Per second. The first minutes are told by what there is of them, with half a minute's doubt."""
        if self._first is None:
            return 0.0
        seen = MEMORY * (1.0 - math.exp((self._first - now - 30.0) / MEMORY))
        return self._level * math.exp((self._at - now) / MEMORY) / seen
