"""Deliveries of webhooks that were given up, and how far the events were delivered, over restarts."""

from collections.abc import Sequence
from typing import Final

import msgspec

from vllm_mm.domain.webhooks import DeadLetter, Place
from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta

_NAME: Final = "webhooks_dead"
_PLACE: Final = "webhooks_place"


class DeadLetterStore:
    """A list in the `meta` table: it is short, and seldom changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Sequence[DeadLetter]:
        """Oldest first."""
        async with self._database.read() as connection:
            text = await read_meta(connection, _NAME)
        return [] if text is None else msgspec.json.decode(text, type=list[DeadLetter])

    async def save(self, letters: Sequence[DeadLetter]) -> None:
        """In place of all that were there."""
        async with self._database.write() as connection:
            await write_meta(self._database, connection, _NAME, msgspec.json.encode(list(letters)).decode())

    async def place(self) -> Place | None:
        """How far an earlier controller came; None when there was none."""
        async with self._database.read() as connection:
            text = await read_meta(connection, _PLACE)
        return None if text is None else msgspec.json.decode(text, type=Place | None)

    async def came(self, place: Place | None) -> None:
        """So far, now; None: nobody is sent anything any more."""
        async with self._database.write() as connection:
            await write_meta(self._database, connection, _PLACE, msgspec.json.encode(place).decode())
