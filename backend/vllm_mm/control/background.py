"""Tasks that run as long as the server: looked after, so that one that ended is not missed for hours."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """Starts them, ends them, and tells which ended by themselves."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """On the running loop. `work` is meant to run until it is cancelled."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(_report)
        self._tasks.append(task)

    def problem(self) -> str | None:
        """Which of them ended, for `/ready`; None while all run."""
        ended = [f"{t.get_name()}: ended, {t.exception()!r}" for t in self._tasks if t.done() and not t.cancelled()]
        return "; ".join(ended) or None

    async def close(self) -> None:
        """Cancel them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the background task %r failed", task.get_name(), exc_info=error)
