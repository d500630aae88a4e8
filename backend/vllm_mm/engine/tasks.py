"""The tasks of an actor: those that belong to its present state, and those that have to come to their end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """`on_error` is told of each task that failed, with the `generation` of the launch in which it began."""

    def __init__(self, on_error: Callable[[BaseException, int], None], generation: Callable[[], int]) -> None:
        self._on_error = on_error
        self._generation = generation
        self._lasting: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that has to come to its end whatever the state becomes."""
        return self._keep(self._lasting, work)

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that belongs to the present state and is dropped with it."""
        self._keep(self._watchers, work)

    def stop_watching(self) -> None:
        """Drop what belongs to the state that is left; not the task that calls this."""
        current = asyncio.current_task()
        for task in tuple(self._watchers):
            if task is not current:
                task.cancel()

    async def close(self) -> None:
        """End all of them."""
        self.stop_watching()
        for task in tuple(self._lasting):
            task.cancel()
        await asyncio.gather(*self._lasting, return_exceptions=True)

    def _keep(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task, generation = asyncio.get_running_loop().create_task(work), self._generation()
        group.add(task)
        task.add_done_callback(group.discard)
        task.add_done_callback(lambda done: self._report(done, generation))
        return task

    def _report(self, task: asyncio.Task[None], generation: int) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error, generation)
