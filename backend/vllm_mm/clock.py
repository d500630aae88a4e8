"""Time as a dependency, so that tests can jump it."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A pending call; cancelling it twice, or after it fired, does nothing."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Everything in the product that asks for the time or waits does it through this."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Unix time in seconds, for people and for the database."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` on the event loop at monotonic time `when` (or soon, if that is past)."""
        ...


class RealClock:
    """The clock of the running event loop."""

    # The functions themselves: every request asks several times.
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), callback)
