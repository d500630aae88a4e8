"""Writing behind: whoever adds a row never waits, and the rows reach the database in batches, in order."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Generic, TypeVar

from vllm_mm.clock import Clock
from vllm_mm.store.failures import may_pass

log = logging.getLogger(__name__)

T = TypeVar("T")
_BACKOFF_MAX = 5.0
_ALERT_AFTER = 10.0
"""Seconds without progress after which `problem` says so."""


class WriteBehind(Generic[T]):
    """A bounded queue of rows and the task that writes them.

    Every row is written once, in the order of `add`, as long as the database comes back before `limit` rows wait: beyond
    that the oldest are dropped, and counted. A row that can never be written is dropped and logged, and holds up nobody.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[None]],
        clock: Clock,
        *,
        name: str,
        batch: int = 2000,
        limit: int = 50_000,
        delay: float = 0.1,
    ) -> None:
        """`write` has to be safe to repeat for rows that it may have written. `delay`: seconds in which rows gather."""
        self._write = write
        self._clock = clock
        self._name = name
        self._batch = batch
        self._limit = limit
        self._delay = delay
        self._pending: deque[T] = deque()
        self._in_flight = 0
        self._added = 0
        self._done = 0
        self._dropped = 0
        self._busy_since: float | None = None
        """Since when there are rows of which none was written."""
        self._error = ""
        self._wake = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write; rows added before are kept."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"write {self._name}")

    def add(self, row: T) -> None:
        """Returns at once, and never raises."""
        if not self._pending:
            self._busy_since = self._clock.now()
        self._pending.append(row)
        self._added += 1
        if len(self._pending) > self._limit:
            del self._pending[self._in_flight]
            self._settle(1, dropped=True)
        self._wake.set()

    def pending(self) -> list[T]:
        """The rows that are not yet known to be written, oldest first."""
        return list(self._pending)

    @property
    def backlog(self) -> int:
        return len(self._pending)

    @property
    def dropped(self) -> int:
        """Rows that were given up since the start."""
        return self._dropped

    def problem(self) -> str | None:
        """Why the rows do not reach the database, for `/ready`; None while they do."""
        if self._task is not None and self._task.done():
            return f"the writer of {self._name} has ended"
        if self._busy_since is not None and self._clock.now() - self._busy_since > _ALERT_AFTER:
            waited = self._clock.now() - self._busy_since
            cause = f": {self._error}" if self._error else ""
            return f"{len(self._pending)} rows of {self._name} wait to be written, for {waited:.0f} s{cause}"
        return None

    async def flush(self, deadline: float = 5.0) -> bool:
        """Wait until every row added so far is written or dropped; False if that takes longer than `deadline` seconds."""
        if self._done >= self._added:
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._added, future))
        timer = self._clock.call_at(self._clock.now() + deadline, lambda: future.done() or future.set_result(False))
        try:
            return await future
        finally:
            timer.cancel()
            self._waiters = [w for w in self._waiters if w[1] is not future]

    async def close(self, deadline: float = 5.0) -> bool:
        """`flush`, then stop. False when rows were left behind."""
        written = self._task is not None and await self.flush(deadline)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._pending:
            log.error("%d rows of %s were not written: %s", len(self._pending), self._name, self._error or "no time")
        return written or not self._pending

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._delay:
                await self._clock.sleep(self._delay)
            backoff = 0.1
            size = self._batch
            while self._pending:
                rows = list(islice(self._pending, size))
                self._in_flight = len(rows)
                try:
                    await self._write(rows)
                except Exception as e:
                    if may_pass(e):
                        self._error = _brief(e)
                        log.warning("%s: cannot write, trying again in %.1f s: %s", self._name, backoff, self._error)
                        self._in_flight = 0
                        await self._clock.sleep(backoff)
                        backoff = min(_BACKOFF_MAX, backoff * 2)
                    elif len(rows) > 1:
                        size = 1  # find the row that cannot be written
                    else:
                        log.exception("%s: a row cannot be written and is dropped", self._name)
                        self._error = _brief(e)
                        self._advance(1, dropped=True)
                        size = self._batch
                else:
                    self._error = ""
                    backoff = 0.1
                    self._advance(len(rows), dropped=False)
                finally:
                    self._in_flight = 0

    def _advance(self, count: int, *, dropped: bool) -> None:
        for _ in range(count):
            self._pending.popleft()
        self._busy_since = self._clock.now() if self._pending else None
        self._settle(count, dropped=dropped)

    def _settle(self, count: int, *, dropped: bool) -> None:
        self._done += count
        self._dropped += count if dropped else 0
        for target, future in self._waiters:
            if self._done >= target and not future.done():
                future.set_result(True)


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
