"""Keeps the readings fresh: what the devices hold, and what each engine really takes."""

import asyncio
import logging

from vllm_mm.clock import Clock
from vllm_mm.domain.lifecycle import State
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Inventory, LaunchStore

log = logging.getLogger(__name__)

EVERY = 3.0
"""Seconds between two readings."""
SETTLED_AFTER = 5.0
"""Seconds of READY after which the use of an engine counts as its footprint."""


class Readings:
    """Refreshes the inventory and learns footprints on devices that are the host's RAM."""

    def __init__(self, manager: ProcessManager, inventory: Inventory, store: LaunchStore, clock: Clock) -> None:
        self._manager = manager
        self._inventory = inventory
        self._store = store
        self._clock = clock
        self._learned: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Until cancelled. A reading that fails is logged and tried again: it must not end the service."""
        while True:
            try:
                await self._inventory.refresh()
                self._manager.observe_devices()
                await self._learn()
            except OSError:
                log.exception("reading the devices failed")
            await self._clock.sleep(EVERY)

    async def _learn(self) -> None:
        cpus = {d.id for d in self._manager.devices() if d.kind == "cpu"}
        for instance in self._manager.instances():
            snapshot, record = instance.snapshot, instance.record
            if record is None or snapshot.state is not State.READY or snapshot.ready_since is None:
                continue
            launch = (record.model, record.generation)
            if launch in self._learned or self._clock.now() - snapshot.ready_since < SETTLED_AFTER:
                continue
            self._learned.add(launch)
            for device in cpus.intersection(record.device_bytes):
                used = await asyncio.to_thread(instance.memory)
                if used:
                    await self._store.learn(record.fingerprint, device, used, "observed")
                    self._manager.learned(record.fingerprint, device, used)
