"""Models that are to be ready at certain times of the week."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from vllm_mm.clock import Clock
from vllm_mm.domain import schedules
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.schedules import Standing, Window
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.manager import ProcessManager

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks."""


class Schedules:
    """Within its times a model is wanted ready, by room that others can spare or at the latest after `swap.max_wait`, and is
    not idle. An operator may stop it, drain it or put it to sleep all the same: then it stays so until its next time begins,
    or somebody wants it."""

    def __init__(self, manager: ProcessManager, clock: Clock, zone: str | None) -> None:
        """`zone`: of the times; None is that of the machine."""
        self._manager = manager
        self._clock = clock
        self._zone = ZoneInfo(zone) if zone is not None else None
        self._open: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(EVERY)

    def is_open(self, spec: ModelSpec) -> bool:
        """Whether `spec` is to be ready now."""
        return schedules.is_open(_windows(spec), self._now(), self._zone)

    def standing(self, spec: ModelSpec) -> Standing | None:
        """How its times stand now; None for a model without any."""
        if not (windows := _windows(spec)):
            return None
        now = self._now()
        changes = schedules.next_change(windows, now, self._zone)
        return Standing(
            schedules.is_open(windows, now, self._zone),
            changes.astimezone(self._zone) if changes is not None else None,
            # Before the first look at a time that just began, what was before does not count any more.
            dismissed=spec.id in self._open and self._manager.dismissed(spec.id),
        )

    async def look(self) -> None:
        """One round."""
        before, self._open = self._open, {spec.id for spec in self._manager.catalog if self.is_open(spec)}
        self._manager.in_time(self._open)
        for model in before - self._open:
            self._manager.withdraw(model, Reason.SCHEDULE.value, "its time of the week is over")
        for spec in self._manager.catalog:
            begins = spec.id not in before
            if spec.id in self._open and (begins or not self._manager.dismissed(spec.id)):
                await self._want(spec.id)

    async def _want(self, model: str) -> None:
        try:
            if self._manager.require(model).state in {State.STOPPED, State.SLEEPING}:
                await self._manager.start(model, Reason.SCHEDULE.value, urgent=False)
        except MMError as error:  # removed in this moment, or the server is ending
            log.info("%s is not made ready for its time: %s", model, error)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)


def _windows(spec: ModelSpec) -> Sequence[Window]:
    return [schedules.parse(text) for text in spec.schedule]
