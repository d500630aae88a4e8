"""The end, in order: refuse what comes, finish what runs, end the engines; or hand them to the next controller."""

from vllm_mm.clock import Clock
from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.errors import ShuttingDown
from vllm_mm.engine.manager import ProcessManager

STOP_DEADLINE = 60.0
"""Seconds for the killing and reaping of whatever is left after the grace."""


async def shutdown(manager: ProcessManager, clock: Clock, grace: float) -> bool:
    """Let running requests finish for `grace` seconds, then end every engine. True when no process is left."""
    manager.close_admission(ShuttingDown("The server is shutting down. Try again in a few seconds.", retry_after=5.0))
    for instance in manager.instances():
        instance.tell(lc.Drain(lc.Goal.STOP, grace, "shutdown"))
    if not await _until_quiet(manager, clock, grace):
        hurry(manager)
    quiet = await _until_quiet(manager, clock, STOP_DEADLINE)
    for instance in manager.instances():
        await instance.close()
    return quiet


def hurry(manager: ProcessManager) -> None:
    """Wait for nobody any more (a second SIGTERM, or the grace is over)."""
    for instance in manager.instances():
        instance.tell(lc.Kill("shutdown"))


async def hand_over(manager: ProcessManager) -> None:
    """Let go of every engine without touching it: the next controller adopts them."""
    manager.close_admission(ShuttingDown("The server is being replaced. Try again at once.", retry_after=1.0))
    for instance in manager.instances():
        await instance.hand_over()


async def _until_quiet(manager: ProcessManager, clock: Clock, seconds: float) -> bool:
    end = clock.now() + seconds
    while any(i.state in lc.LIVE for i in manager.instances()):
        if clock.now() >= end:
            return False
        await clock.sleep(0.02)
    return True
