"""The ledger's near end: rows are appended in memory and written behind, in batches, by one task."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from vllm_mm.clock import Clock
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.gateway.ports import UsageSink

log = logging.getLogger(__name__)


class Recorder:
    """`record` never waits and never fails; what cannot be kept is counted in `dropped` and said aloud."""

    def __init__(
        self, sinks: Sequence[UsageSink], clock: Clock, *, bound: int = 100_000, batch: int = 500, delay: float = 0.2
    ) -> None:
        """`bound`: rows held while a sink is slow or down. `delay`: seconds for which rows gather before a write."""
        self.dropped = 0
        """Rows lost since the start: the bound was reached, or the shutdown's deadline."""
        self.failures = 0
        """Failed writes in a row; zero when all is well."""
        self._sinks: Final = tuple(sinks)
        self._clock = clock
        self._bound = bound
        self._batch = batch
        self._delay = delay
        self._rows: deque[RequestRecord] = deque()
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def pending(self) -> int:
        """Rows not written yet."""
        return len(self._rows)

    def record(self, row: RequestRecord) -> None:
        if len(self._rows) >= self._bound:
            if self.dropped == 0:
                log.error("the request ledger cannot keep up: %d rows wait, further ones are lost", len(self._rows))
            self.dropped += 1
            return
        self._rows.append(row)
        if not self._some.is_set():
            self._some.set()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write(), name="ledger")

    async def close(self, deadline: float = 10.0) -> None:
        """Write what is left, for up to `deadline` seconds."""
        task, self._task = self._task, None
        self._closing = True
        self._some.set()
        if task is None:
            task = asyncio.get_running_loop().create_task(self._write(), name="ledger")
        sleeper = asyncio.ensure_future(self._clock.sleep(deadline))
        await asyncio.wait({task, sleeper}, return_when=asyncio.FIRST_COMPLETED)
        for other in (task, sleeper):
            other.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await other
        if self._rows:
            self.dropped += len(self._rows)
            log.error("%d rows of the request ledger were lost at shutdown", len(self._rows))
            self._rows.clear()

    async def _write(self) -> None:
        while True:
            await self._some.wait()
            if not self._closing:
                await self._gather()
            if self._rows:
                await self._write_batch()
            if not self._rows:
                if self._closing:
                    return
                self._some.clear()

    async def _gather(self) -> None:
        if len(self._rows) < self._batch:
            await self._clock.sleep(self._delay)

    async def _write_batch(self) -> None:
        """The first rows go to every sink; to each exactly once, however often another one fails."""
        size = min(self._batch, len(self._rows))
        batch = [self._rows[i] for i in range(size)]
        written: set[int] = set()
        while len(written) < len(self._sinks):
            for number, sink in enumerate(self._sinks):
                if number in written:
                    continue
                try:
                    await sink.add(batch)
                except Exception:
                    if self.failures == 0:
                        log.exception("the request ledger cannot be written; %d rows wait", len(self._rows))
                    self.failures += 1
                else:
                    written.add(number)
            if len(written) < len(self._sinks):
                await self._clock.sleep(min(5.0, 0.1 * 2 ** min(self.failures, 6)))
        self.failures = 0
        for _ in range(size):
            self._rows.popleft()
