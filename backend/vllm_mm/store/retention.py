"""Forgetting: events, ledger rows, usage, the audit and the history of starts do not grow for ever."""

import logging

from sqlalchemy import Delete, delete, func, select
from sqlalchemy.exc import SQLAlchemyError

from vllm_mm.clock import Clock
from vllm_mm.settings import RetentionConfig
from vllm_mm.store.audit import Audit
from vllm_mm.store.database import Database
from vllm_mm.store.failures import DatabaseUnavailable
from vllm_mm.store.journal import Journal
from vllm_mm.store.meta import read_meta
from vllm_mm.store.tables import Request, Start
from vllm_mm.store.usage_hours import MARK, UsageHours

log = logging.getLogger(__name__)

STEP = 1000
"""Rows deleted in one transaction: the writers never wait for long."""
STARTS_KEPT = 200
"""Starts remembered of each model."""
INTERVAL = 3600.0
"""Seconds between two rounds."""


class Retention:
    """Deletes what is older, or more, than the settings keep."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        audit: Audit,
        usage: UsageHours,
        config: RetentionConfig,
        clock: Clock,
    ) -> None:
        self._database = database
        self._journal = journal
        self._audit = audit
        self._usage = usage
        self._config = config
        self._clock = clock

    async def run(self) -> None:
        """A round now and then one an hour, until cancelled. A round that fails is logged and made up for by the next."""
        while True:
            try:
                await self.prune()
            except (DatabaseUnavailable, SQLAlchemyError, OSError) as e:
                log.warning("cannot delete old rows now: %s", e)
            await self._clock.sleep(INTERVAL)

    async def prune(self) -> dict[str, int]:
        """One round; rows deleted, by table."""
        config, now = self._config, self._clock.wall()
        return {
            "events": await self._journal.prune(
                before=None if config.events is None else now - config.events, keep=config.max_events
            ),
            "requests": await self._requests(now),
            "starts": await self._starts(),
            "usage": 0 if config.usage is None else await self._usage.prune(now - config.usage),
            "audit": 0 if config.audit is None else await self._audit.prune(now - config.audit),
        }

    async def _requests(self, now: float) -> int:
        """Only what is part of the sums of usage, and never the newest row: numbers of rows would begin again, below the mark
        up to which they were added up."""
        await self._usage.roll_up()
        async with self._database.read() as connection:
            mark = int(await read_meta(connection, MARK) or 0)
            newest = (await connection.execute(select(func.max(Request.row)))).scalar_one() or 0
        free = Request.row <= min(mark, newest - 1)
        total = 0
        if self._config.requests is not None:
            old = select(Request.row).where(free, Request.at < now - self._config.requests).limit(STEP)
            total += await self._in_steps(delete(Request).where(Request.row.in_(old)))
        if self._config.max_requests is not None:
            beyond = select(Request.row).order_by(Request.row.desc()).offset(self._config.max_requests).limit(1)
            async with self._database.read() as connection:
                last = (await connection.execute(beyond)).scalar_one_or_none()
            if last is not None:
                step = select(Request.row).where(free, Request.row <= last).limit(STEP)
                total += await self._in_steps(delete(Request).where(Request.row.in_(step)))
        return total

    async def _starts(self) -> int:
        newest = func.row_number().over(partition_by=Start.model, order_by=Start.id.desc()).label("newest")
        ranked = select(Start.id, newest).subquery()
        step = select(ranked.c.id).where(ranked.c.newest > STARTS_KEPT).limit(STEP)
        return await self._in_steps(delete(Start).where(Start.id.in_(step)))

    async def _in_steps(self, statement: Delete) -> int:
        total = 0
        while True:
            async with self._database.write() as connection:
                count = (await connection.execute(statement)).rowcount
            total += count
            if count < STEP:
                return total
