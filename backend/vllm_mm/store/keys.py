"""API keys. A secret is seen once, by whoever asked for it; what is kept is its digest."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from vllm_mm.clock import Clock
from vllm_mm.domain.keys import PREFIX, Scope, digest
from vllm_mm.domain.keys import Key as IssuedKey
from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta
from vllm_mm.store.tables import Key

_ADMIN_MADE = "admin_made"


class Keys:
    """The `keys` table. The gateway keeps what `all` gives in memory: no request waits for it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self,
        name: str,
        scopes: Iterable[Scope],
        *,
        models: Iterable[str] | None = None,
        expires_at: float | None = None,
    ) -> tuple[IssuedKey, str]:
        """A new key and its secret, which cannot be had again."""
        async with self._database.write() as connection:
            return await self._insert(connection, name, scopes, models, expires_at)

    async def ensure_admin(self) -> str | None:
        """The secret of a first key that may do everything, at the first start only; afterwards always None, also when
        that key was revoked (`vllm-mm keys create` makes another on the machine itself)."""
        async with self._database.write() as connection:
            made = await read_meta(connection, _ADMIN_MADE)
            count = (await connection.execute(select(func.count()).select_from(Key))).scalar_one()
            if made is not None or count:
                return None
            _, secret = await self._insert(connection, "admin", (Scope.ADMIN, Scope.INFER), None, None)
            await write_meta(self._database, connection, _ADMIN_MADE, repr(self._clock.wall()))
            return secret

    async def revoke(self, key_id: str) -> IssuedKey | None:
        """The key, revoked now or before; None when there is none with that id."""
        async with self._database.write() as connection:
            await connection.execute(
                update(Key).where(Key.id == key_id, Key.revoked_at.is_(None)).values(revoked_at=self._clock.wall())
            )
            row = (await connection.execute(select(Key).where(Key.id == key_id))).one_or_none()
        return None if row is None else _key(row)

    async def all(self) -> Sequence[IssuedKey]:
        """Every key ever issued, oldest first, the revoked ones too (the ledger names them)."""
        async with self._database.read() as connection:
            return [_key(row) for row in await connection.execute(select(Key).order_by(Key.created_at, Key.id))]

    async def _insert(
        self,
        connection: AsyncConnection,
        name: str,
        scopes: Iterable[Scope],
        models: Iterable[str] | None,
        expires_at: float | None,
    ) -> tuple[IssuedKey, str]:
        secret = PREFIX + secrets.token_urlsafe(32)
        key = IssuedKey(
            id=f"key_{secrets.token_hex(6)}",
            name=name,
            digest=digest(secret),
            scopes=frozenset(scopes),
            models=None if models is None else frozenset(models),
            created_at=self._clock.wall(),
            expires_at=expires_at,
        )
        await connection.execute(
            insert(Key),
            {
                "id": key.id,
                "name": key.name,
                "digest": key.digest,
                "scopes": sorted(key.scopes),
                "models": None if key.models is None else sorted(key.models),
                "created_at": key.created_at,
                "expires_at": key.expires_at,
                "revoked_at": None,
            },
        )
        return key, secret


def _key(row: Row[Any]) -> IssuedKey:
    return IssuedKey(
        id=row.id,
        name=row.name,
        digest=row.digest,
        scopes=frozenset(Scope(s) for s in row.scopes),
        models=None if row.models is None else frozenset(row.models),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
