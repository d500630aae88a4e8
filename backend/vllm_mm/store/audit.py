"""The audit's table: rows come in, and leave by age alone. The database itself refuses anything else (triggers of the migrations)."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, delete, func, select

from vllm_mm.clock import Clock
from vllm_mm.domain.audit import Entry, difference
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.database import Database
from vllm_mm.store.meta import write_meta
from vllm_mm.store.spool import Spool
from vllm_mm.store.tables import AuditEntry

log = logging.getLogger(__name__)

UNTIL: Final = "audit_until"
"""In `meta`: entries before that Unix time may be deleted. The triggers look there."""
PROMPT: Final = 1.0
"""Seconds for an entry to reach the database before the act's answer goes out all the same."""
_STEP: Final = 1000


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries; None does not restrict. Times are Unix seconds, `since` included and `until` not."""

    actor: str | None = None
    """The key's id or its name."""
    act: str | None = None
    kind: str | None = None
    object: str | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A part of a list, newest first."""

    entries: tuple[Entry, ...]
    next: int | None
    """Give it as `before` for the next page; None when this was the last."""


class Audit:
    """Takes entries at once and writes them behind, in order; reads them; forgets them by age."""

    def __init__(
        self, database: Database, clock: Clock, *, limit: int = 100_000, spool: Spool[Entry] | None = None
    ) -> None:
        """`limit`: entries that may wait for a database that is away."""
        self._database = database
        self._clock = clock
        self._writer = WriteBehind[Entry](self.add, clock, name="the audit", delay=0.0, limit=limit, spool=spool)

    @property
    def writer(self) -> WriteBehind[Entry]:
        return self._writer

    def start(self) -> None:
        self._writer.start()

    def record(
        self,
        act: str,
        *,
        actor: str,
        name: str = "",
        source: str = "",
        kind: str = "",
        object: str = "",  # noqa: A002  # the column's name
        before: Any = None,
        after: Any = None,
        status: int = 200,
        request: str = "",
    ) -> None:
        """An act is over. Immediate; never fails. Of `before` and `after` (JSON) what differs is kept, without secrets."""
        old, new = difference(before, after)
        self._writer.add(
            Entry(
                f"aud_{secrets.token_hex(10)}", self._clock.wall(), actor, name or actor, source, act, kind, object, status,
                old, new, request,
            )
        )  # fmt: skip

    async def settle(self) -> bool:
        """Wait a moment for what was recorded to be in the database; False where it is not yet."""
        return await self._writer.flush(PROMPT)

    async def secure(self) -> bool:
        """Before an act is answered: as `settle`, and what a busy database does not take in that time is in a file then. Whatever becomes of
        this process, it is written. False where there was neither."""
        return await self._writer.secure(PROMPT)

    async def write_now(self) -> None:
        """For a command, which has no writer: write what was recorded. Raises DatabaseUnavailable."""
        await self.add(self._writer.pending())

    async def close(self) -> None:
        await self._writer.close()

    async def add(self, entries: Sequence[Entry]) -> None:
        """One transaction for all; safe to repeat."""
        async with self._database.write() as connection:
            await connection.execute(self._database.insert_new(AuditEntry, "id"), [_values(e) for e in entries])

    async def page(self, where: AuditFilter | None = None, *, limit: int = 100, before: int | None = None) -> AuditPage:
        """Newest first. Entries that are added meanwhile do not shift the pages."""
        query = (
            select(AuditEntry)
            .where(*_conditions(where or AuditFilter()))
            .order_by(AuditEntry.row.desc())
            .limit(limit + 1)
        )
        if before is not None:
            query = query.where(AuditEntry.row < before)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        more = len(rows) > limit
        rows = rows[:limit]
        return AuditPage(tuple(_entry(row) for row in rows), rows[-1].row if more else None)

    async def prune(self, before: float) -> int:
        """Delete entries older than `before` (Unix time); how many there were. The newest always stays, so that the
        numbers of rows never begin again."""
        total = 0
        while True:
            async with self._database.write() as connection:
                await write_meta(self._database, connection, UNTIL, repr(before))
                newest = select(func.max(AuditEntry.row)).scalar_subquery()
                old = select(AuditEntry.row).where(AuditEntry.at < before, AuditEntry.row < newest).limit(_STEP)
                count = (await connection.execute(delete(AuditEntry).where(AuditEntry.row.in_(old)))).rowcount
                # Shut again in the same transaction: nobody else ever finds it open.
                await write_meta(self._database, connection, UNTIL, "0")
            total += count
            if count < _STEP:
                return total


def _conditions(where: AuditFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if where.actor is not None:
        conditions.append((AuditEntry.actor == where.actor) | (AuditEntry.name == where.actor))
    for column, value in (
        (AuditEntry.act, where.act),
        (AuditEntry.kind, where.kind),
        (AuditEntry.object, where.object),
    ):
        if value is not None:
            conditions.append(column == value)
    if where.since is not None:
        conditions.append(AuditEntry.at >= where.since)
    if where.until is not None:
        conditions.append(AuditEntry.at < where.until)
    return conditions


def _values(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id, "at": entry.at, "actor": entry.actor[:200], "name": entry.name[:200], "source": entry.source[:200],
        "act": entry.act[:200], "kind": entry.kind[:64], "object": entry.object[:400], "status": entry.status,
        "before": entry.before, "after": entry.after, "request": entry.request[:200],
    }  # fmt: skip


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        row.id, row.at, row.actor, row.name, row.source, row.act, row.kind, row.object, row.status, row.before, row.after,
        row.request,
    )  # fmt: skip
