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
from vllm_mm.store.spool import Spool

log = logging.getLogger(__name__)

T = TypeVar("T")
_BACKOFF_MAX = 2.0
_ALERT_AFTER = 10.0
"""Seconds without progress after which `problem` says so..."""
_TOLD_AFTER = 2.0
"""...and where the database has refused, for whatever reason."""
_TOLD_AGAIN = 60.0
"""Seconds after which the log says once more that it still refuses."""
_PARTING = 0.5
"""Seconds at the end for a database that refuses."""


class WriteBehind(Generic[T]):
    """A bounded queue of rows and the task that writes them.

    Every row is written once, in the order of `add`, as long as the database comes back before `limit` rows wait: beyond
    that the oldest are dropped, and counted. A row that can never be written is dropped and logged, and holds up nobody.
    Rows that have to wait are in the spool's file as well, if it can be written; a later controller goes on with them.
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
        spool: Spool[T] | None = None,
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
        self._told_at: float | None = None
        """When the log last said that the database refuses; None when it takes rows."""
        self._wake = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None
        self._spool = spool
        self._kept = 0
        """Counted as `_done` is: up to here rows are in the file."""
        self._not_kept = ""
        """Why the file takes nothing."""
        self._filing = asyncio.Lock()
        """One change of the file at a time."""

    def start(self) -> None:
        """Begin to write; rows added before are kept, and come behind those that an earlier controller left in the file."""
        if self._task is None:
            self._take_up()
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
        if self._busy_since is None:
            return None
        waited = self._clock.now() - self._busy_since
        if waited <= (_TOLD_AFTER if self._error else _ALERT_AFTER):
            return None
        cause = f": {self._error}" if self._error else ""
        told = f"{len(self._pending)} rows of {self._name} wait to be written, for {waited:.0f} s{cause}"
        if self._not_kept:
            told += f" (in memory alone: {self._not_kept})"
        return told + (f"; {self._dropped} were given up" if self._dropped else "")

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

    async def secure(self, deadline: float) -> bool:
        """As `flush`; what is not written by then is put into the file. False where it is in neither, but in memory alone."""
        if await self.flush(deadline):
            return True
        wanted = self._added
        await self._keep()
        return max(self._done, self._kept) >= wanted

    async def close(self, deadline: float = 5.0) -> bool:
        """`flush`, then stop. False when rows were left behind. A database that refuses is not waited for where a file has the rows."""
        if self._error and self._spool is not None:
            deadline = min(deadline, _PARTING)
        written = self._task is not None and await self.flush(deadline)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._pending:
            await self._keep()
            if self._spool is not None and not self._not_kept:
                log.warning(
                    "%d rows of %s are kept in %s, and written at the next start: %s",
                    len(self._pending), self._name, self._spool.path, self._error or "no time",
                )  # fmt: skip
            else:
                log.error(
                    "%d rows of %s were not written: %s", len(self._pending), self._name, self._error or "no time"
                )
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
                        self._tell()
                        self._in_flight = 0
                        await self._keep()
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
                    if self._told_at is not None:
                        log.info("%s: written again", self._name)
                    self._error, self._told_at = "", None
                    backoff = 0.1
                    self._advance(len(rows), dropped=False)
                    await self._let_go()
                finally:
                    self._in_flight = 0
                if 0 < len(self._pending) < size and not self._error and not self._waiters:
                    # What came meanwhile gathers too: batches of a few rows behind one another cost more than the rows.
                    await self._clock.sleep(self._delay)

    def _tell(self) -> None:
        """At the first refusal, and once in a while as long as it lasts: the tries themselves are seconds apart."""
        now = self._clock.now()
        if self._told_at is None or now - self._told_at >= _TOLD_AGAIN:
            self._told_at = now
            log.warning("%s: cannot write; it is tried again until it can be: %s", self._name, self._error)

    def _take_up(self) -> None:
        if self._spool is None:
            return
        try:
            left = self._spool.read()
        except OSError as e:
            self._not_kept = _brief(e)
            log.warning("%s: what was kept in %s cannot be read: %s", self._name, self._spool.path, self._not_kept)
            return
        if left:
            log.info("%s: %d rows of an earlier controller are written now", self._name, len(left))
            self._pending.extendleft(reversed(left))
            self._added += len(left)
            self._kept = self._done + len(left)
            self._busy_since = self._clock.now()
            self._wake.set()

    async def _keep(self) -> None:
        """Put what waits into the file, as far as it is not there."""
        if self._spool is None:
            return
        async with self._filing:
            there = max(0, self._kept - self._done)
            rows = list(islice(self._pending, there, self._limit))
            if not rows:
                return
            end = self._done + there + len(rows)
            try:
                if self._spool.lines + len(rows) > 2 * self._limit:
                    await asyncio.to_thread(self._spool.replace, list(islice(self._pending, self._limit)))
                else:
                    await asyncio.to_thread(self._spool.append, rows)
            except OSError as e:
                self._not_kept = f"{self._spool.path}: {e.strerror or e}"
            else:
                self._kept, self._not_kept = end, ""

    async def _let_go(self) -> None:
        """Take the file away when all that it has is written."""
        if self._spool is None:
            return
        async with self._filing:
            if not self._kept or self._done < self._kept:
                return
            try:
                await asyncio.to_thread(self._spool.clear)
            except OSError as e:  # the rows are written once more at the next start, which changes nothing
                log.warning("%s: %s cannot be removed: %s", self._name, self._spool.path, e)
            self._kept, self._not_kept = 0, ""

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
