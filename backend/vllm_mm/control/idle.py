"""Instances that nobody uses sleep, then stop, after the times of their spec."""

import logging
from collections.abc import Callable

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.lifecycle import Goal, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.specs import IdlePolicy, ModelSpec
from vllm_mm.engine.manager import ProcessManager

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks."""


def idle_act(policy: IdlePolicy, state: State, idle: float, *, can_sleep: bool) -> Goal | None:
    """What to do with an instance that has had no lease for `idle` seconds; None to leave it alone."""
    if state not in {State.READY, State.SLEEPING}:
        return None
    if policy.stop_after is not None and idle >= policy.stop_after:
        return Goal.STOP
    if state is State.READY and can_sleep and policy.sleep_after is not None and idle >= policy.sleep_after:
        return Goal.SLEEP
    return None


class IdleWatch:
    """Applies `idle_act`. The idle clock starts when the last lease ends, and only in READY (hard cases)."""

    def __init__(
        self, manager: ProcessManager, clock: Clock, wanted: Callable[[ModelSpec], bool] = lambda _: False
    ) -> None:
        """`wanted`: models that are to be ready although nobody uses them."""
        self._wanted = wanted
        self._manager = manager
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._clock.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """One round."""
        for instance in self._manager.instances():
            spec = instance.spec
            if (
                instance.gate.count
                or self._manager.pinned(spec)
                or self._wanted(spec)
                or self._manager.awaited(spec.id)
            ):
                continue
            idle = self._clock.now() - instance.gate.last_used
            act = idle_act(spec.idle, instance.state, idle, can_sleep=self._manager.can_sleep(spec))
            try:
                if act is not None:
                    await self._manager.rest(spec.id, act, Reason.UNUSED.because(f"idle for {idle:.0f} s"))
            except MMError as error:  # it changed in this moment; the next round looks again
                log.info("%s is idle, but: %s", spec.id, error)
