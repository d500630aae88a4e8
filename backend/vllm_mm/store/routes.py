"""Which routes engines said they do not have, over restarts: so that none is started again to say it once more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta

KEPT: Final = 1000
"""So many are kept, the latest; a changed declaration has another fingerprint, and the old one is never looked up again."""
_NAME: Final = "missing_routes"


@dataclass(frozen=True, slots=True)
class MissingRoute:
    """The engine of the specification with that fingerprint said, in that launch, that it has no such route."""

    fingerprint: str
    route: str
    generation: int


class MissingRoutes:
    """A list in the `meta` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> Sequence[MissingRoute]:
        async with self._database.read() as connection:
            return _rows(await read_meta(connection, _NAME))

    async def add(self, rows: Sequence[MissingRoute]) -> None:
        """Put in place of what was known of the same route of the same fingerprint."""
        async with self._database.write() as connection:
            known = {(r.fingerprint, r.route): r for r in _rows(await read_meta(connection, _NAME))}
            for row in rows:
                known.pop((row.fingerprint, row.route), None)
                known[row.fingerprint, row.route] = row
            kept = list(known.values())[-KEPT:]
            await write_meta(self._database, connection, _NAME, msgspec.json.encode(kept).decode())


def _rows(text: str | None) -> list[MissingRoute]:
    return [] if text is None else msgspec.json.decode(text, type=list[MissingRoute])
