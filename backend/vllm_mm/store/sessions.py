"""Who is signed in to the dashboard. What the cookie holds is not kept, but a hash of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select

from vllm_mm.store.database import Database
from vllm_mm.store.tables import DashboardSession


@dataclass(frozen=True, slots=True)
class StoredSession:
    """One browser. Times are Unix seconds."""

    digest: str
    key: str
    """The id of the key with which somebody signed in."""
    created_at: float
    expires_at: float


class Sessions:
    """The `sessions` table. All of them are held in memory; it is for the next start."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, wall: float) -> Sequence[StoredSession]:
        """Those that are not over, the oldest first; the others are deleted."""
        async with self._database.write() as connection:
            await connection.execute(delete(DashboardSession).where(DashboardSession.expires_at <= wall))
            query = select(DashboardSession).order_by(DashboardSession.created_at, DashboardSession.digest)
            rows = (await connection.execute(query)).all()
        return [StoredSession(r.digest, r.key, r.created_at, r.expires_at) for r in rows]

    async def replace(self, gone: Sequence[str], new: StoredSession | None = None) -> None:
        """Delete those with the digests `gone`, and keep a `new` one."""
        async with self._database.write() as connection:
            if gone:
                await connection.execute(delete(DashboardSession).where(DashboardSession.digest.in_(gone)))
            if new is not None:
                values = {
                    "digest": new.digest, "key": new.key, "created_at": new.created_at, "expires_at": new.expires_at,
                }  # fmt: skip
                await connection.execute(insert(DashboardSession), values)
