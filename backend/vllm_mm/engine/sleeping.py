"""Putting one engine to sleep, and believing it only when its memory was seen to come back; and waking one with requests."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from vllm_mm.clock import Clock
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.ledger import gib
from vllm_mm.domain.sleep import gave_back
from vllm_mm.domain.specs import ModelSpec, SleepMode
from vllm_mm.engine.ports import Inventory
from vllm_mm.engine.watch import Checks, Untrue

log = logging.getLogger(__name__)

RETURNS = 3.0
"""Seconds after its answer until the memory of an engine that sleeps has to be seen to be back."""
AGAIN = 0.1
"""Seconds between two looks at it."""
PROBE_PATIENCE = 5.0
"""Seconds for the probe of an engine that woke with requests, before their answers count instead."""
LOOK = 0.5
"""Seconds between two looks at whether they go on."""


async def put_to_sleep(
    checks: Checks, spec: ModelSpec, record: LaunchRecord, inventory: Inventory, clock: Clock, *, level: int, keep: bool
) -> Mapping[str, int]:
    """`keep`: with the requests that it has. Returns the bytes that it still holds on the devices of its launch; nothing for a device of which that cannot be known.

    Raises MMError when it will not sleep, and Untrue when it says that it does and keeps almost all of its memory.
    """
    # Where the operator says what stays, that is taken at its word: of some engines it cannot be seen.
    vouched = spec.sleep.mode is SleepMode.ALWAYS and spec.sleep.keeps is not None
    before = {} if vouched else await _held(inventory, record)
    await checks.fall_asleep(level, keep=keep)
    until = clock.now() + RETURNS
    while True:
        kept = await _held(inventory, record) if before else {}
        if gave_back(before, kept):
            return kept
        if clock.now() >= until:
            what = ", ".join(f"{gib(size)} of {gib(before[d])} on {d}" for d, size in kept.items() if d in before)
            raise Untrue(f"it says that it sleeps and keeps {what}")
        await clock.sleep(AGAIN)


async def or_goes_on(
    waking: Coroutine[Any, Any, str], before: str | None, reads: Callable[[], int], clock: Clock
) -> str | None:
    """The end of `waking`, an answer to a probe. Or `before`, the last one: an engine that is full of the requests that it
    kept has no slot for a probe until one of them has ended, and that they go on (`reads` grows) proves that it is awake."""
    task = asyncio.get_running_loop().create_task(waking)
    asleep, wait = reads(), PROBE_PATIENCE
    try:
        while True:
            patience = asyncio.ensure_future(clock.sleep(wait))
            try:
                await asyncio.wait({task, patience}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                patience.cancel()
            if task.done():
                return task.result()
            if reads() != asleep:
                return before
            wait = LOOK
    finally:
        task.cancel()


async def _held(inventory: Inventory, record: LaunchRecord) -> dict[str, int]:
    try:
        held = await inventory.held(record.token)
    except OSError as error:
        log.warning("%s: what it holds on its devices cannot be read: %s", record.model, error)
        return {}
    return {device: size for device, size in held.items() if device in record.device_bytes}
