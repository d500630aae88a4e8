"""When and why the latest launches of each model ended: for those who ask for something that ended with one of them."""

from collections import deque
from typing import Final, NamedTuple

KEPT: Final = 32
"""Launches of each model that are remembered."""


class Ending(NamedTuple):
    """The end of one launch."""

    generation: int
    at: float
    """Unix time."""
    reason: str
    """As in the instance: `code: sentence`, or the words of a failure."""


class Endings:
    """In memory: an engine of an earlier controller that was not adopted is not here."""

    def __init__(self) -> None:
        self._by_model: dict[str, deque[Ending]] = {}

    def note(self, model: str, ending: Ending) -> None:
        """The first word about a launch counts: what came later is about the same end."""
        known = self._by_model.setdefault(model, deque(maxlen=KEPT))
        if not known or known[-1].generation != ending.generation:
            known.append(ending)

    def of(self, model: str, generation: int) -> Ending | None:
        """None when it did not end, or that was too long ago."""
        return next((e for e in self._by_model.get(model, ()) if e.generation == generation), None)
