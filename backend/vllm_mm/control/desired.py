"""Models that are to be kept ready: those with `preload` (at boot) and those that are pinned (always)."""

from vllm_mm.clock import Clock
from vllm_mm.domain.lifecycle import State
from vllm_mm.engine.manager import ProcessManager

EVERY = 2.0
"""Seconds between two looks."""


class Keeper:
    """Wants models READY on nobody's request. What an operator stopped stays stopped until somebody starts it."""

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
            if spec.preload or self._manager.pinned(spec):
                await self._manager.start(spec.id, "preload", urgent=False)

    async def look(self) -> None:
        """One round: a pinned model that fell over comes back once its backoff is over."""
        for spec in self._manager.catalog:
            if not self._manager.pinned(spec) or self._manager.dismissed(spec.id):
                continue
            if self._manager.require(spec.id).state is State.STOPPED:
                await self._manager.start(spec.id, "pinned", urgent=False)
