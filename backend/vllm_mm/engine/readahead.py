"""Which weights to read into the page cache, before anybody asked for their model. Pure.

A start reads its weights from disk; what is in the page cache already is read at the speed of memory. The page cache is
everybody's: so only memory that holds nothing is filled, within a budget, and the models that are likely to be next share it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

MARGIN = 2**30
"""Bytes of unused memory that are always left: the kernel's own reserves and everybody's next allocation live there."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file. Equal identities are the same contents: (device, inode, size, time of the last change)."""

    path: str
    identity: tuple[int, int, int, int]
    cached: int = 0
    """Bytes that are in the page cache."""

    @property
    def size(self) -> int:
        return self.identity[2]

    @property
    def disk(self) -> int:
        """The number of the file system that it is on."""
        return self.identity[0]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model, as far as reading ahead goes."""

    model: str
    files: tuple[WeightFile, ...]
    loaded: bool = False
    """Its engine is there, or on its way: nothing is left to be read for it."""
    waiting: int = 0
    """Requests that wait for it."""
    wanted: bool = False
    """Somebody wants it kept ready: preloaded, pinned, or asked for by an operator."""
    last_used: float | None = None
    """When its last lease ended, on the same clock for all; None when it was never used."""

    @property
    def likely(self) -> bool:
        """Whether anything speaks for it. Not every declared model is worth the reading."""
        return not self.loaded and (self.waiting > 0 or self.wanted or self.last_used is not None)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The beginning of a file, of which `missing` bytes are not cached yet; engines read weights from the front."""

    model: str
    file: WeightFile
    end: int
    missing: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What should be cached, the likeliest first."""

    stretches: tuple[Stretch, ...] = ()
    kept: frozenset[str] = field(default_factory=frozenset[str])
    """The models that have a part of the budget, with or without something to read."""

    @property
    def bytes_missing(self) -> int:
        return sum(s.missing for s in self.stretches)


def choose(candidates: Iterable[Candidate], budget: int, unused: int, margin: int = MARGIN) -> Choice:
    """Share `budget` bytes of page cache between the likeliest models: those that requests wait for, most of them first;
    then those that are wanted; then those used last. What of them is cached already counts into the budget, whoever
    read it. No more is read than `unused` bytes leave beyond `margin`."""
    room = max(0, unused - margin)
    stretches: list[Stretch] = []
    kept: set[str] = set()
    seen: set[tuple[int, int, int, int]] = set()
    for candidate in sorted((c for c in candidates if c.likely), key=_rank):
        for file in candidate.files:
            if file.identity in seen:  # the same weights under two models' names
                kept.add(candidate.model)
                continue
            end = min(file.size, budget)
            if end <= 0:
                continue
            seen.add(file.identity)
            budget -= end
            kept.add(candidate.model)
            missing = min(max(0, end - file.cached), room)
            room -= missing
            if missing:
                stretches.append(Stretch(candidate.model, file, end, missing))
    return Choice(tuple(stretches), frozenset(kept))


def _rank(candidate: Candidate) -> tuple[bool, int, bool, float, str]:
    used = candidate.last_used
    return (
        candidate.waiting == 0,
        -candidate.waiting,
        not candidate.wanted,
        -used if used is not None else float("inf"),
        candidate.model,
    )
