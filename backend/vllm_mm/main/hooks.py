"""The webhooks of the configuration, ready to run."""

from urllib.parse import urlsplit

from vllm_mm.clock import Clock
from vllm_mm.control.webhooks import Webhooks
from vllm_mm.domain.webhooks import Hook
from vllm_mm.outward.posting import Poster
from vllm_mm.settings import Settings
from vllm_mm.store.database import Database
from vllm_mm.store.dead_letters import DeadLetterStore

TIMEOUT = 10.0
"""Seconds for each step of a delivery."""


def hooks_of(settings: Settings) -> tuple[Hook, ...]:
    """Each with a name of its own."""
    found: dict[str, Hook] = {}
    for config in settings.webhooks:
        wished = config.name or urlsplit(config.url).hostname or "webhook"
        name, number = wished, 2
        while name in found:
            name, number = f"{wished}-{number}", number + 1
        found[name] = Hook(name, config.url, config.events, config.secret)
    return tuple(found.values())


async def webhooks_of(settings: Settings, database: Database, clock: Clock) -> tuple[Webhooks, Poster]:
    """With the dead letters of earlier runs. The poster is to be closed."""
    poster = Poster(TIMEOUT)
    made = Webhooks(hooks_of(settings), poster, DeadLetterStore(database), clock)
    await made.load()
    return made, poster
