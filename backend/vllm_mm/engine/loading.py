"""A load under way, and what is told to those who cannot wait for it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_mm.domain.estimates import Compared
from vllm_mm.domain.launches import Address
from vllm_mm.domain.partings import Parting
from vllm_mm.domain.scheduling import Load

GUESS = 30.0
"""Seconds after which to try again when nothing is known."""
RETRY_MAX = 60.0
"""openai-python gives up at once on a longer Retry-After (older versions: above 60 s)."""


@dataclass(slots=True)
class Loading:
    """Shared by all who wait for one load: exactly one start for any number of waiters."""

    load: Load
    generation: int
    token: str
    began: float
    cause: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    ok: bool | None = None
    reason: str = ""
    task: asyncio.Task[None] | None = None
    address: Address | None = None
    partings: tuple[Parting, ...] = ()
    """What becomes of those who go for it."""

    def settle(self, *, ok: bool, reason: str) -> None:
        """Answer everybody. Only the first call counts."""
        if self.ok is None:
            self.ok, self.reason = ok, reason
            self.done.set()

    def told(self, compared: Sequence[Compared], now: float) -> Mapping[str, Any]:
        """Of a load that is done: what is told of it, for the event. Seconds."""
        return {
            "reason": self.load.reason, "victims": list(self.load.victims), "took_s": round(now - self.began, 3),
            "forecasts": [
                {
                    "at": c.stage.value, "expected_s": round(c.told.likely, 3),
                    "at_latest_s": round(c.told.at_latest, 3), "took_s": round(c.took, 3),
                }
                for c in compared
            ],
        }  # fmt: skip


def retry_after(seconds: float | None) -> float:
    """A Retry-After that clients honour: 1 to 60 whole seconds."""
    return min(RETRY_MAX, max(1.0, float(round(seconds or GUESS))))
