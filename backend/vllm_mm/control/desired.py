"""Models that are to be kept ready: those with `preload` (at boot) and those that are pinned (always)."""

import logging

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.engine.manager import ProcessManager

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks."""


class Keeper:
    """Wants models READY on nobody's request. What an operator stopped or put to sleep stays so until somebody wants it."""

    def __init__(self, manager: ProcessManager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        await self.preload()
        while True:
            await self._clock.sleep(EVERY)
            await self.look()

    async def preload(self) -> None:
        for spec in self._manager.catalog:
            if spec.preload:
                await self._start(spec.id, Reason.PRELOAD.value)
        await self.look()

    async def look(self) -> None:
        """One round: a pinned model that sleeps is woken, and one that fell over comes back once its backoff is over."""
        for spec in self._manager.catalog:
            if not self._manager.pinned(spec) or self._manager.dismissed(spec.id):
                continue
            await self._start(spec.id, Reason.PINNED.value, only_from=frozenset({State.STOPPED, State.SLEEPING}))

    async def _start(self, model: str, cause: str, *, only_from: frozenset[State] | None = None) -> None:
        try:
            if only_from is None or self._manager.require(model).state in only_from:
                await self._manager.start(model, cause, urgent=False)
        except MMError as error:  # removed in this moment, or the server is ending
            log.info("%s is not kept ready: %s", model, error)
