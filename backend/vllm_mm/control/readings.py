"""Keeps the readings fresh: what the devices hold, and what each engine really takes."""

import logging

from vllm_mm.clock import Clock
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.lifecycle import State
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Inventory, LaunchStore

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two readings."""
EAGER = 1.0
"""While somebody waits for memory, which another program may give back at any moment."""
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
                await self._measure()
            except Exception:  # the database, /proc, a driver: the next round may be luckier
                log.exception("reading the devices failed")
            await self._pause()

    async def _pause(self) -> None:
        until = self._clock.now() + EVERY
        while (left := until - self._clock.now()) > 0:
            await self._clock.sleep(min(EAGER, left))
            if self._manager.wants_memory:
                return

    async def _measure(self) -> None:
        for instance in self._manager.instances():
            snapshot, record = instance.snapshot, instance.record
            if record is None or snapshot.state not in {State.READY, State.SLEEPING}:
                continue
            used = await instance.measure()
            if used and snapshot.state is State.READY and snapshot.ready_since is not None:
                await self._learn(record, used, self._clock.now() - snapshot.ready_since)

    async def _learn(self, record: LaunchRecord, used: int, ready_for: float) -> None:
        """On devices that are the host's RAM, what the tree uses is its footprint; once for each launch."""
        launch = (record.model, record.generation)
        if launch in self._learned or ready_for < SETTLED_AFTER:
            return
        self._learned.add(launch)
        cpus = {d.id for d in self._manager.devices() if d.kind == "cpu"}
        for device in cpus.intersection(record.device_bytes):
            await self._store.learn(record.fingerprint, device, used, "observed")
            self._manager.learned(record.fingerprint, device, used)
