"""Models that were made over the API, in the words of the configuration file (`control.declared` makes specs of them)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select

from vllm_mm.store.database import Database
from vllm_mm.store.tables import Model


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A declaration and who changed it last. Times are Unix seconds."""

    id: str
    declaration: Mapping[str, Any]
    created_at: float
    updated_at: float
    updated_by: str


class Models:
    """The `models` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, model: str, declaration: Mapping[str, Any], *, by: str, now: float) -> StoredModel:
        """Add, or put in place of the one with the same id."""
        async with self._database.write() as connection:
            found = await connection.execute(select(Model.created_at).where(Model.id == model))
            stored = StoredModel(model, dict(declaration), found.scalar_one_or_none() or now, now, by)
            await connection.execute(
                self._database.upsert(Model, "id"),
                {
                    "id": stored.id,
                    "declaration": stored.declaration,
                    "created_at": stored.created_at,
                    "updated_at": stored.updated_at,
                    "updated_by": stored.updated_by,
                },
            )
        return stored

    async def delete(self, model: str) -> bool:
        """False when there was none."""
        async with self._database.write() as connection:
            return (await connection.execute(delete(Model).where(Model.id == model))).rowcount > 0

    async def all(self) -> Sequence[StoredModel]:
        """In the order of their making."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(Model).order_by(Model.created_at, Model.id))
            return [StoredModel(r.id, r.declaration, r.created_at, r.updated_at, r.updated_by) for r in rows]
