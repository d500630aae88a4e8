"""Keeps the readings fresh: what the devices hold, and what each engine really takes."""

import logging
from collections.abc import Mapping

from vllm_mm.clock import Clock
from vllm_mm.domain.footprint import exceeds
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import EngineKind
from vllm_mm.engine.footprints.book import device_set
from vllm_mm.engine.footprints.sample import sample
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.ports import Inventory, LaunchStore
from vllm_mm.store.failures import DatabaseUnavailable

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two readings."""
EAGER = 1.0
"""While somebody waits for memory, which another program may give back at any moment."""
SETTLED_AFTER = 5.0
"""Seconds of READY after which the use of an engine counts as its footprint."""
_AWAKE = frozenset({State.READY, State.DRAINING})


class Readings:
    """Refreshes the inventory, learns footprints, and lets reservations follow what engines really use."""

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
                await self.look()
            except DatabaseUnavailable as error:  # what was learned is learned again in the next round
                log.warning("what the devices say cannot be written down: %s", error.message)
            except Exception:  # /proc, a driver: the next round may be luckier
                log.exception("reading the devices failed")
            await self._pause()

    async def look(self) -> None:
        """One round."""
        await self._inventory.refresh()
        self._manager.observe_devices()
        await self._measure()

    async def _pause(self) -> None:
        until = self._clock.now() + EVERY
        while (left := until - self._clock.now()) > 0:
            await self._clock.sleep(min(EAGER, left))
            if self._manager.wants_memory:
                return

    async def _measure(self) -> None:
        for instance in self._manager.instances():
            record = instance.record
            if record is None or instance.state not in _AWAKE | {State.SLEEPING}:
                continue
            used = await instance.measure()
            if used and instance.snapshot.generation == record.generation and instance.state in _AWAKE:
                await self._compare(instance, record, self._use(instance, record, used))

    def _use(self, instance: ModelInstance, record: LaunchRecord, used: int) -> Mapping[str, int]:
        """Bytes on each device of the launch that tells: on one that is the host's RAM, what the tree uses."""
        hosts = {d.id for d in self._manager.devices() if d.kind == "cpu"}
        told = self._inventory.use(instance.pids)
        return {d: used if d in hosts else told[d] for d in record.device_bytes if d in hosts or d in told}

    async def _compare(self, instance: ModelInstance, record: LaunchRecord, use: Mapping[str, int]) -> None:
        ready = instance.snapshot.ready_since
        launch = (record.model, record.generation)
        reservation = self._manager.ledger.reservations.get(record.model)
        if not use or ready is None or reservation is None:
            return
        over = exceeds(use, reservation.device_bytes)
        if over:
            self._manager.exceeded(record.model, over)
        if instance.spec.engine is not EngineKind.COMMAND and not instance.facts:
            return  # adopted: how much of it is KV cache was told to an earlier controller
        settled = self._clock.now() - ready >= SETTLED_AFTER
        if (settled and launch not in self._learned) or (over and launch in self._learned):
            await self._learn(instance, record, max(use.values()), first=launch not in self._learned)
            self._learned.add(launch)

    async def _learn(self, instance: ModelInstance, record: LaunchRecord, used: int, *, first: bool) -> None:
        found, now = sample(instance.facts, used), self._clock.wall()
        known = self._manager.learned(record.fingerprint, record.device_bytes)
        if first:
            await self._manager.look_again(instance.spec)
            known = known.launched(found.fixed, now, weights=found.weights, kv_cache=found.kv_cache)
        else:
            known = known.grew(found.fixed, now)
        self._manager.learn(record.fingerprint, record.device_bytes, known)
        await self._store.learn(record.fingerprint, device_set(record.device_bytes), known)
