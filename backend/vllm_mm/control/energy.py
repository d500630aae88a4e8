"""Energy: what the devices took, by hour and by the models that had their memory."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy.exc import SQLAlchemyError

from vllm_mm.clock import Clock
from vllm_mm.domain.ledger import Ledger
from vllm_mm.store.failures import DatabaseUnavailable

log = logging.getLogger(__name__)

EVERY = 30.0
"""Seconds between two looks."""
HOUR = 3600


class EnergyMeter:
    """Adds up what counters of devices grew by between two looks. A device's share goes to the models that have memory reserved on it
    by then, in proportion to that, whether they work or not; where none has, and what a lease for others has, it is nobody's."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, float]],
        ledger: Callable[[], Ledger],
        add: Callable[[Mapping[tuple[int, str], float]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """`read`: joules by device since some moment. `add`: takes joules by hour (since 1970) and model."""
        self._read = read
        self._ledger = ledger
        self._add = add
        self._clock = clock
        self._last: Mapping[str, float] = {}
        self._joules: dict[tuple[int, str], float] = {}

    async def run(self) -> None:
        """Until cancelled. What cannot be written down now is written with the next round."""
        while True:
            self.look()
            try:
                await self.write()
            except (DatabaseUnavailable, SQLAlchemyError) as error:
                log.warning("energy cannot be written down now: %s", error)
            await self._clock.sleep(EVERY)

    def look(self) -> None:
        now, before = dict(self._read()), self._last
        self._last = now
        hour = int(self._clock.wall() // HOUR)
        for device, joules in now.items():
            grown = joules - before.get(device, joules)
            if grown <= 0:  # the first look, or its driver was loaded anew
                continue
            holders = [r for r in self._ledger().reservations.values() if r.device_bytes.get(device, 0) > 0]
            total = sum(r.device_bytes[device] for r in holders)
            for holder in holders:
                if holder.let is None:
                    name = (hour, holder.model)
                    self._joules[name] = self._joules.get(name, 0.0) + grown * holder.device_bytes[device] / total

    async def write(self) -> None:
        """Raises what the database raises; nothing is lost then."""
        if self._joules:
            found = self._joules
            await self._add(found)
            self._joules = {}
