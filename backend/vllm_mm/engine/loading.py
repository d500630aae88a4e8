"""A load under way, and the estimate of how long loads take."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_mm.domain.launches import Address
from vllm_mm.domain.lifecycle import Instance, State
from vllm_mm.domain.scheduling import Load

GUESS = 30.0
"""Seconds a load is thought to take before one was seen."""
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

    def settle(self, *, ok: bool, reason: str) -> None:
        """Answer everybody. Only the first call counts."""
        if self.ok is None:
            self.ok, self.reason = ok, reason
            self.done.set()


def eta(instance: Instance, times: Mapping[str, float], now: float, *, behind: float = 0.0) -> float | None:
    """Seconds until the model could be READY; None when it will not come by itself. `behind`: time for room to be made."""
    usual = times.get(instance.model, GUESS)
    match instance.state:
        case State.READY:
            return 0.0
        case State.STARTING:
            done = now - instance.since
            # A load that takes longer than usual is not "ready in 0 s": say a quarter of what has passed.
            return usual - done if done < usual else max(1.0, done / 4)
        case State.WAKING:
            return max(1.0, 5.0 - (now - instance.since))
        case State.FAILED:
            return None
        case State.BACKOFF:
            return max(0.0, (instance.deadline or now) - now) + usual
        case State.SLEEPING:
            return behind + 5.0
        case _:
            return behind + usual


def retry_after(seconds: float | None) -> float:
    """A Retry-After that clients honour: 1 to 60 whole seconds."""
    return min(RETRY_MAX, max(1.0, float(round(seconds or GUESS))))
