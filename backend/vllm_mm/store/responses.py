"""Which launch of which engine holds which stored response, for a controller that takes over engines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sqlalchemy import delete, insert, select

from vllm_mm.clock import Clock
from vllm_mm.store.database import Database
from vllm_mm.store.tables import Response

LONGEST: Final = 200
"""Characters of an id; of a longer one (clients may make their own) nothing is kept over a restart."""
_PRUNE: Final = 1000
"""So many new ones between two looks for what is too much or too old."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One of them. `until`: Unix time at which it is forgotten."""

    id: str
    model: str
    generation: int
    key: str
    asked: str
    until: float


class StoredResponses:
    """The `responses` table: the latest so many, and none that is forgotten."""

    def __init__(self, database: Database, clock: Clock, limit: int) -> None:
        self._database = database
        self._clock = clock
        self._limit = limit
        self._new = 0

    async def all(self) -> Sequence[StoredResponse]:
        """The oldest first."""
        await self.prune()
        async with self._database.read() as connection:
            rows = await connection.execute(select(Response).order_by(Response.until))
            return [StoredResponse(r.id, r.model, r.generation, r.key, r.asked, r.until) for r in rows]

    async def add(self, responses: Sequence[StoredResponse]) -> None:
        """Each in place of what was known of the same id."""
        rows = {r.id: asdict(r) for r in responses if len(r.id) <= LONGEST}
        if not rows:
            return
        async with self._database.write() as connection:
            await connection.execute(delete(Response).where(Response.id.in_(rows)))
            await connection.execute(insert(Response), list(rows.values()))
        self._new += len(rows)
        if self._new >= _PRUNE:
            await self.prune()

    async def prune(self) -> None:
        """Delete what is too much or too old."""
        self._new = 0
        beyond = select(Response.until).order_by(Response.until.desc()).offset(self._limit).limit(1)
        async with self._database.write() as connection:
            last = (await connection.execute(beyond)).scalar_one_or_none()
            oldest = self._clock.wall() if last is None else max(last, self._clock.wall())
            await connection.execute(delete(Response).where(Response.until <= oldest))
