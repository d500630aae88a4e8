"""API keys. A secret is seen once, by whoever asked for it; what is kept is its hash, made with the server's secret."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.keys import ALL_RIGHTS, PREFIX, SHOWN, Limits, Right, Scope, digest
from vllm_mm.domain.keys import Key as IssuedKey
from vllm_mm.store.database import Database
from vllm_mm.store.meta import read_meta, write_meta
from vllm_mm.store.secret import mark
from vllm_mm.store.tables import Key

_ADMIN_MADE: Final = "admin_made"
_HASHED_WITH: Final = "keys_hashed_with"
"""Which server's secret the hashes were made with."""
EDITABLE: Final = frozenset({"name", "scopes", "models", "expires_at", "acts", "weight", "progress", "limits"})
"""What `edit` may change."""


class Keys:
    """The `keys` table. The gateway keeps what `all` gives in memory: no request waits for it."""

    def __init__(self, database: Database, clock: Clock, pepper: bytes = b"") -> None:
        """`pepper`: the server's secret (`store.secret`)."""
        self._database = database
        self._clock = clock
        self._pepper = pepper

    async def create(
        self,
        name: str,
        scopes: Iterable[Scope],
        *,
        models: Iterable[str] | None = None,
        expires_at: float | None = None,
        acts: Iterable[Right] = ALL_RIGHTS,
        weight: float = 1.0,
        progress: bool = False,
        limits: Limits | None = None,
    ) -> tuple[IssuedKey, str]:
        """A new key and its secret, which cannot be had again."""
        async with self._database.write() as connection:
            key, secret = self._new(name, scopes)
            key = replace(
                key, models=None if models is None else frozenset(models), expires_at=expires_at, acts=frozenset(acts),
                weight=weight, progress=progress, limits=limits if limits is not None and limits.any else None,
            )  # fmt: skip
            await self._insert(connection, key)
            return key, secret

    async def ensure_admin(self) -> str | None:
        """The secret of a first key that may do everything, at the first start only; afterwards always None, also when
        that key was revoked (`vllm-mm keys create` makes another on the machine itself)."""
        async with self._database.write() as connection:
            made = await read_meta(connection, _ADMIN_MADE)
            count = (await connection.execute(select(func.count()).select_from(Key))).scalar_one()
            if made is not None or count:
                return None
            key, secret = self._new("admin", (Scope.ADMIN, Scope.INFER))
            await self._insert(connection, key)
            await write_meta(self._database, connection, _ADMIN_MADE, repr(self._clock.wall()))
            return secret

    async def edit(self, key_id: str, changes: Mapping[str, Any]) -> IssuedKey | None:
        """The key with `changes` (of EDITABLE, as in `Key`); None when there is none with that id. Raises Conflict for a
        revoked one, which stays as it was."""
        async with self._database.write() as connection:
            key = await self._get(connection, key_id)
            if key is None:
                return None
            _check_not_revoked(key)
            changed = replace(key, **{name: changes[name] for name in changes if name in EDITABLE})
            if changed.limits is not None and not changed.limits.any:
                changed = replace(changed, limits=None)
            await self._store(connection, changed)
        return changed

    async def rotate(self, key_id: str, overlap: float) -> tuple[IssuedKey, str] | None:
        """Another secret for the key; the one that it has is good for `overlap` seconds more, and one that was rotated out
        before ends now. None when there is no such key. Raises Conflict for a revoked one."""
        async with self._database.write() as connection:
            key = await self._get(connection, key_id)
            if key is None:
                return None
            _check_not_revoked(key)
            secret = _random()
            until = self._clock.wall() + overlap if overlap > 0 else None
            changed = replace(
                key, digest=digest(secret, self._pepper), prefix=secret[:SHOWN],
                old_digest=key.digest if until is not None else None, old_until=until,
            )  # fmt: skip
            await self._store(connection, changed)
        return changed, secret

    async def revoke(self, key_id: str) -> IssuedKey | None:
        """The key, revoked now or before; None when there is none with that id."""
        async with self._database.write() as connection:
            await connection.execute(
                update(Key).where(Key.id == key_id, Key.revoked_at.is_(None)).values(revoked_at=self._clock.wall())
            )
            return await self._get(connection, key_id)

    async def add(self, keys: Sequence[IssuedKey], made_with: str) -> None:
        """Keys of an export, all or none. Raises Conflict when one is here already, or when they were hashed with another
        server's secret (`made_with`: its mark), so that nobody could use them."""
        if keys and made_with != self.mark:
            raise Conflict(
                f"These keys were hashed with another server's secret ({made_with}; here it is {self.mark}), so nobody could use them "
                "here. Give this server the same one (auth.secret, or the file auth.secret of the data directory) before it has keys "
                "of its own."
            )
        async with self._database.write() as connection:
            known = await connection.execute(select(Key.id, Key.digest))
            ids, digests = set[str](), set[str]()
            for row in known:
                ids.add(row.id)
                digests.add(row.digest)
            for key in keys:
                if key.id in ids or key.digest in digests:
                    raise Conflict(
                        f"The key {key.id} ({key.name}) is here already. Nothing was imported; leave it out."
                    )
                ids.add(key.id)
                digests.add(key.digest)
                await self._insert(connection, key)

    async def all(self) -> Sequence[IssuedKey]:
        """Every key ever issued, oldest first, the revoked ones too (the ledger names them)."""
        async with self._database.read() as connection:
            return [_key(row) for row in await connection.execute(select(Key).order_by(Key.created_at, Key.id))]

    @property
    def mark(self) -> str:
        """Which server's secret hashes here are made with."""
        return mark(self._pepper)

    async def of_another_secret(self) -> bool:
        """Whether there are keys that were hashed with another one: then nobody can use them."""
        async with self._database.read() as connection:
            known = await read_meta(connection, _HASHED_WITH)
        return known is not None and known != self.mark

    async def _get(self, connection: AsyncConnection, key_id: str) -> IssuedKey | None:
        row = (await connection.execute(select(Key).where(Key.id == key_id))).one_or_none()
        return None if row is None else _key(row)

    def _new(self, name: str, scopes: Iterable[Scope]) -> tuple[IssuedKey, str]:
        secret = _random()
        key = IssuedKey(
            id=f"key_{secrets.token_hex(6)}", name=name, digest=digest(secret, self._pepper), scopes=frozenset(scopes),
            created_at=self._clock.wall(), prefix=secret[:SHOWN],
        )  # fmt: skip
        return key, secret

    async def _insert(self, connection: AsyncConnection, key: IssuedKey) -> None:
        await connection.execute(insert(Key), _values(key))
        await write_meta(self._database, connection, _HASHED_WITH, self.mark)

    async def _store(self, connection: AsyncConnection, key: IssuedKey) -> None:
        await connection.execute(update(Key).where(Key.id == key.id).values(**_values(key)))


def _random() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _check_not_revoked(key: IssuedKey) -> None:
    if key.revoked_at is not None:
        raise Conflict(f"The key {key.id} ({key.name}) is revoked, for ever. Make a new one.")


def _values(key: IssuedKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "digest": key.digest,
        "old_digest": key.old_digest,
        "old_until": key.old_until,
        "scopes": sorted(key.scopes),
        "models": None if key.models is None else sorted(key.models),
        "acts": sorted(key.acts),
        "weight": key.weight,
        "progress": key.progress,
        "limits": None if key.limits is None else {n: v for n, v in asdict(key.limits).items() if v is not None},
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _key(row: Row[Any]) -> IssuedKey:
    return IssuedKey(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        digest=row.digest,
        old_digest=row.old_digest,
        old_until=row.old_until,
        scopes=frozenset(Scope(s) for s in row.scopes),
        models=None if row.models is None else frozenset(row.models),
        acts=frozenset(Right(a) for a in row.acts),
        weight=row.weight,
        progress=row.progress,
        limits=None if row.limits is None else Limits(**row.limits),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
