"""Time series in the database: rows of 10 seconds as they come, and the coarser ones that are made of them.

A coarse row is made when all fine rows of its time are written, in the transaction that moves the mark up to which that is done,
and never changes. So whatever ends in between, no fine row counts twice, and an answer reads coarse rows below the mark and the
finest from there on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.series import STEPS, Kind, Row, rolled, start_of
from vllm_mm.store.database import Database
from vllm_mm.store.failures import DatabaseUnavailable
from vllm_mm.store.meta import read_meta, write_meta
from vllm_mm.store.tables import SeriesRow

log = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two rounds."""
SPAN: Final = 3600
"""Seconds of rows that are rolled up in one transaction: the other writers never wait for long."""
MOST_ROWS: Final = 40_000
"""Rows that one answer is made of."""
PRUNED: Final = 5000
"""Rows deleted in one transaction."""
_FINEST: Final = STEPS[0]


class Series:
    """The table `series`."""

    def __init__(self, database: Database, clock: Clock, kept: Mapping[int, float]) -> None:
        """`kept`: seconds after which rows are deleted, by their step."""
        self._database = database
        self._clock = clock
        self.kept = kept

    async def add(self, rows: Sequence[Row]) -> None:
        """One transaction. Rows that are there already are left as they are."""
        if not rows:
            return
        written = [_written(row) for row in rows]
        async with self._database.write() as connection:
            await connection.execute(self._database.insert_new(SeriesRow, "step", "kind", "subject", "at"), written)

    async def run(self, written: Callable[[], Awaitable[bool]]) -> None:
        """Roll up and forget, once a minute, until cancelled. `written`: waits a moment for rows on their way here, and says whether
        they have come; else the round is left out, for a coarse row is made once."""
        while True:
            try:
                if await written():
                    await self.roll_up()
                await self.prune()
            except (DatabaseUnavailable, SQLAlchemyError, OSError) as e:
                log.warning("time series cannot be rolled up now: %s", e)
            await self._clock.sleep(INTERVAL)

    async def roll_up(self) -> None:
        """All that is over. To be called when every row of before is written."""
        until = self._clock.wall()
        for fine, coarse in pairwise(STEPS):
            until = start_of(until, coarse)
            while await self._step(fine, coarse, int(until)):
                pass

    async def _step(self, fine: int, coarse: int, until: int) -> bool:
        """A part; False when nothing was left."""
        async with self._database.write() as connection:
            mark = await _mark(connection, coarse)
            if mark >= until:
                return False
            oldest = select(func.min(SeriesRow.at)).where(SeriesRow.step == fine, SeriesRow.at >= mark)
            first: int | None = (await connection.execute(oldest)).scalar_one_or_none()
            after = until
            if first is not None and first < until:
                begin = start_of(first, coarse)
                after = min(until, begin + SPAN)
                found = await _rows(connection, [SeriesRow.step == fine, SeriesRow.at >= mark, SeriesRow.at < after])
                made = await asyncio.to_thread(lambda: [_written(row) for row in rolled(_read(found), coarse)])
                if made:
                    upsert = self._database.upsert(SeriesRow, "step", "kind", "subject", "at")
                    await connection.execute(upsert, made)
            await write_meta(self._database, connection, _name(coarse), str(after))
        return after < until

    async def prune(self) -> int:
        """Delete what is too old, and part of a coarser row where there is to be one; how many rows there were."""
        total = 0
        for step, coarser in zip(STEPS, (*STEPS[1:], None), strict=True):
            before = self._clock.wall() - self.kept[step]
            if coarser is not None:
                async with self._database.read() as connection:
                    before = min(before, await _mark(connection, coarser))
            total += await self._prune(step, before)
        return total

    async def _prune(self, step: int, before: float) -> int:
        total = 0
        while True:
            async with self._database.write() as connection:
                # Up to the time of the row that is so many after the oldest: no row has a number that a step could be made of.
                old = (SeriesRow.step == step, SeriesRow.at < before)
                last = (
                    await connection.execute(
                        select(SeriesRow.at).where(*old).order_by(SeriesRow.at).offset(PRUNED - 1).limit(1)
                    )
                ).scalar_one_or_none()
                until = before if last is None else last + 1
                count = await connection.execute(delete(SeriesRow).where(SeriesRow.step == step, SeriesRow.at < until))
            total += count.rowcount
            if last is None:
                return total

    async def read(
        self, kind: Kind, subject: str | None, source: int, since: float, until: float
    ) -> Callable[[], Sequence[Row]]:
        """The rows of a time (Unix seconds, `until` not included), of one model or device or of all: those of the step `source`, and
        finer ones where there are none yet. What is returned decodes them, which is for a thread: they may be many.

        Raises BadRequest when there are more than MOST_ROWS."""
        what = [SeriesRow.kind == kind.value]
        if subject is not None:
            what.append(SeriesRow.subject == subject)
        found: list[tuple[int, str, str, int, str]] = []
        async with self._database.read() as connection:
            for step in reversed(STEPS[: STEPS.index(source) + 1]):
                end = until if step == _FINEST else min(until, await _mark(connection, step))
                if end <= since:
                    continue
                where = [*what, SeriesRow.step == step, SeriesRow.at >= since, SeriesRow.at < end]
                found += await _rows(connection, where, MOST_ROWS + 1)
                since = end
        if len(found) > MOST_ROWS:
            raise BadRequest(
                "That is more than can be answered at once: ask for a shorter time, a longer step, or one model or device.",
                param="step",
            )
        return lambda: _read(found)


def _name(step: int) -> str:
    """In `meta`: the time up to which rows of that step are made."""
    return f"series_{step}"


async def _mark(connection: AsyncConnection, step: int) -> int:
    return int(await read_meta(connection, _name(step)) or 0)


async def _rows(
    connection: AsyncConnection, where: Sequence[ColumnElement[bool]], limit: int | None = None
) -> list[tuple[int, str, str, int, str]]:
    columns = (SeriesRow.step, SeriesRow.kind, SeriesRow.subject, SeriesRow.at, SeriesRow.data)
    found = await connection.execute(select(*columns).where(*where).limit(limit))
    return [(row[0], row[1], row[2], row[3], row[4]) for row in found]


def _written(row: Row) -> dict[str, object]:
    values = {name: float(f"{value:.9g}") for name, value in row.values.items()}
    return {
        "step": row.step, "kind": row.kind.value, "subject": row.subject, "at": row.at,
        "data": msgspec.json.encode(values).decode(),
    }  # fmt: skip


def _read(rows: Sequence[tuple[int, str, str, int, str]]) -> list[Row]:
    decode = msgspec.json.Decoder(dict[str, float]).decode
    return [Row(step, Kind(kind), subject, at, decode(data)) for step, kind, subject, at, data in rows]
