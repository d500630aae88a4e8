"""What is written down about engines while they run: a database in trouble delays the note, and never harms the engine."""

import logging
from collections.abc import Awaitable, Callable

from vllm_mm.clock import Clock

log = logging.getLogger(__name__)

DELAYS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between two tries; after the last one the note is left out."""


async def note(
    write: Callable[[], Awaitable[None]], clock: Clock, what: str, *, wanted: Callable[[], bool] | None = None
) -> None:
    """Carry `write` out, again and again while the database refuses it and somebody still wants it. Never raises.

    `what` names it in the log.
    """
    for delay in (*DELAYS, None):
        try:
            await write()
        except Exception as error:  # whatever the database says: the engine is more important
            if delay is None:
                log.error("%s was not written down: %s", what, error)  # noqa: TRY400  # the message says it all
                return
            log.warning("%s cannot be written down, trying again in %.0f s: %s", what, delay, error)
            await clock.sleep(delay)
        else:
            return
        if wanted is not None and not wanted():
            return
