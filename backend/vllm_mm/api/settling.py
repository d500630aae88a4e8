"""Waiting for an instance to come to rest: what `?wait=` does."""

import asyncio

from vllm_mm.api import present
from vllm_mm.api.dependencies import Services
from vllm_mm.store.journal import Subscription

LOOK_EVERY = 1.0
"""Seconds between two looks when no event comes: a few changes (a wish that is dropped) have none."""


async def settled(the: Services, model: str, wait: float) -> bool:
    """Wait up to `wait` seconds until nothing is under way for `model`. False when something still is."""
    end = the.clock.now() + wait
    async with the.journal.subscribe() as events:
        while present.instance(the.manager, model).pending:
            left = end - the.clock.now()
            if left <= 0 or the.closing.is_set():
                return False
            try:
                async with asyncio.timeout(min(left, LOOK_EVERY)):
                    await _next_about(events, model)
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return False
    return True


async def _next_about(events: Subscription, model: str) -> None:
    while (await anext(events)).model != model:
        pass
