"""Fakes shared by the tests: a clock that jumps. Real processes, sockets and databases are never faked."""

import asyncio
import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """`advance` moves time and fires what is due, in order, letting the loop settle after each."""

    def __init__(self, start: float = 1000.0) -> None:
        self.time = start
        self._heap: list[tuple[float, int, FakeTimer]] = []
        self._ids = itertools.count()

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_700_000_000.0 + self.time

    def call_at(self, when: float, callback: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._heap, (when, next(self._ids), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = self.call_at(self.time + seconds, wake)
        try:
            await future
        finally:
            timer.cancel()

    async def settle(self, turns: int = 20) -> None:
        """Let everything that is ready to run, run."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        end = self.time + seconds
        await self.settle()
        while self._heap and self._heap[0][0] <= end:
            when, _, timer = heapq.heappop(self._heap)
            self.time = max(self.time, when)
            if timer.callback is not None:
                timer.callback()
            await self.settle()
        self.time = end
        await self.settle()
