"""Usage: sums of ledger rows by hour, which outlive the rows; and reports over both.

A row is in exactly one of two places: below the mark it is part of the sums, above it it counts by itself. Sums and mark move in
one transaction, and a report reads both in one statement, so that at no moment a request counts twice or not at all.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    and_,
    case,
    cast,
    delete,
    func,
    literal,
    null,
    select,
    text,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.limits import Spent
from vllm_mm.domain.usage import NANO
from vllm_mm.store.database import Database
from vllm_mm.store.failures import DatabaseUnavailable
from vllm_mm.store.meta import read_meta, write_meta
from vllm_mm.store.tables import Meta, Request, UsageEnergy, UsageHour
from vllm_mm.store.usage import HOUR

log = logging.getLogger(__name__)

MARK: Final = "usage_row"
"""In `meta`: the last row of the ledger that is part of the sums."""
STEP: Final = 5000
"""Rows that are added up in one transaction: the ledger's writer never waits for long."""
INTERVAL: Final = 60.0
"""Seconds between two rounds."""
MOST_ROWS: Final = 50_000
"""Lines of one report."""
DAY: Final = 24
"""Hours."""

_COUNTS: Final = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_TIMES: Final = ("total_s", "queued_s", "load_s", "device_s")
_SUMS: Final = (*_COUNTS, *_TIMES, "cost_nano")
_GROUPS: Final = ("hour", "key", "model", "outcome")


class GroupBy(StrEnum):
    """What sums are made by."""

    KEY = "key"
    MODEL = "model"
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which requests; None does not restrict. Hours since 1970 in UTC, `until` not included."""

    key: str | None = None
    model: str | None = None
    since: int | None = None
    until: int | None = None


@dataclass(slots=True)
class UsageSum:
    """Totals of one group. What was not grouped by is None, and so is the key or model of requests that had none."""

    key: str | None = None
    model: str | None = None
    day: str | None = None
    """`2026-01-31`, UTC."""
    hour: str | None = None
    """`2026-01-31T14:00Z`."""
    requests: int = 0
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    """How many ended how."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion's."""
    total_s: float = 0.0
    """Seconds from arrival to the end."""
    queued_s: float = 0.0
    """Seconds from arrival to the lease."""
    load_s: float = 0.0
    """Of those, the ones until the engine was ready."""
    device_s: float = 0.0
    """Seconds for which requests had their leases, times the model's devices."""
    cost_nano: int | None = None
    """Billionths; None where no model had a price."""
    energy_j: float | None = None
    """Joules of the devices that the model had memory on; None where they do not count them, and for keys."""

    @property
    def cost(self) -> float | None:
        return None if self.cost_nano is None else self.cost_nano / NANO

    def add(self, row: Any) -> None:
        """Totals of the same group with another outcome."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + int(row[name]))
        for name in _TIMES:
            setattr(self, name, getattr(self, name) + float(row[name]))
        self.outcomes[row["outcome"]] = self.outcomes.get(row["outcome"], 0) + int(row["requests"])
        if row["cost_nano"] is not None:
            self.cost_nano = (self.cost_nano or 0) + int(row["cost_nano"])


class UsageHours:
    """The table `usage_hours`, and what the ledger has beyond it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(self) -> None:
        """A round now and then one a minute, until cancelled. A round that fails is made up for by the next."""
        while True:
            try:
                await self.roll_up()
            except (DatabaseUnavailable, SQLAlchemyError, OSError) as e:
                log.warning("usage cannot be added up now: %s", e)
            await self._clock.sleep(INTERVAL)

    async def roll_up(self) -> int:
        """Add up all rows that are not yet; how many there were."""
        total = 0
        while count := await self._step():
            total += count
        return total

    async def _step(self) -> int:
        async with self._database.write() as connection:
            if connection.dialect.name == "postgresql":
                # Rows of a transaction that is not over yet may have lower numbers than rows that can be seen.
                await connection.execute(text("LOCK TABLE requests IN SHARE MODE"))
            mark = int(await read_meta(connection, MARK) or 0)
            step = select(Request.row).where(Request.row > mark).order_by(Request.row).limit(STEP).subquery()
            last, count = (await connection.execute(select(func.max(step.c.row), func.count()))).one()
            if last is None:
                return 0
            await self._add_up(connection, mark, last)
            await write_meta(self._database, connection, MARK, str(last))
        return count

    async def _add_up(self, connection: AsyncConnection, mark: int, last: int) -> None:
        groups = _row_groups()
        sums = select(*groups, *_totals(_row_values())).where(Request.row > mark, Request.row <= last).group_by(*groups)
        make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        insert = make(UsageHour).from_select([*_GROUPS, *_SUMS], sums)
        more = insert.excluded
        changed: dict[str, Any] = {name: getattr(UsageHour, name) + more[name] for name in (*_COUNTS, *_TIMES)}
        nothing = and_(UsageHour.cost_nano.is_(None), more["cost_nano"].is_(None))
        both = func.coalesce(UsageHour.cost_nano, 0) + func.coalesce(more["cost_nano"], 0)
        changed["cost_nano"] = case((nothing, null()), else_=both)
        await connection.execute(insert.on_conflict_do_update(index_elements=list(_GROUPS), set_=changed))

    async def add_energy(self, joules: Mapping[tuple[int, str], float]) -> None:
        """By hour and model."""
        async with self._database.write() as connection:
            make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            insert = make(UsageEnergy)
            more = insert.on_conflict_do_update(
                index_elements=["hour", "model"], set_={"joules": UsageEnergy.joules + insert.excluded.joules}
            )
            await connection.execute(more, [{"hour": h, "model": m, "joules": j} for (h, m), j in joules.items()])

    async def prune(self, before: float) -> int:
        """Delete the sums of hours that ended before that Unix time; how many rows there were."""
        async with self._database.write() as connection:
            hour = int(before // HOUR)
            await connection.execute(delete(UsageEnergy).where(UsageEnergy.hour < hour))
            return (await connection.execute(delete(UsageHour).where(UsageHour.hour < hour))).rowcount

    async def report(self, group_by: Sequence[GroupBy] = (), where: UsageFilter | None = None) -> Sequence[UsageSum]:
        """Sums by any of key, model, day and hour, ordered by them; without a group, one sum of everything.

        Raises BadRequest when there would be more than MOST_ROWS of them."""
        parts = union_all(_rolled(where or UsageFilter()), _tail(where or UsageFilter())).subquery()
        columns: dict[GroupBy, ColumnElement[Any]] = {
            GroupBy.KEY: parts.c.key, GroupBy.MODEL: parts.c.model, GroupBy.HOUR: parts.c.hour,
            GroupBy.DAY: type_coerce(parts.c.hour.op("/")(DAY), BigInteger),
        }  # fmt: skip
        wanted = list(dict.fromkeys(group_by))
        groups = [columns[group].label(f"by_{group.value}") for group in wanted]
        query = (
            select(*groups, parts.c.outcome, *_totals({name: parts.c[name] for name in _SUMS}))
            .group_by(*groups, parts.c.outcome)
            .order_by(*groups, parts.c.outcome)
            .limit(MOST_ROWS + 1)
        )
        energy = _energy(wanted, where or UsageFilter())
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
            joules: Sequence[Any] = [] if energy is None else (await connection.execute(energy)).all()
        if len(rows) > MOST_ROWS:
            raise BadRequest(
                f"The report has more than {MOST_ROWS} lines. Ask for a shorter time, for one key or model, or for fewer groups.",
                param="group_by",
            )
        found: dict[tuple[Any, ...], UsageSum] = {}
        for row in rows:
            names = tuple(row[f"by_{group.value}"] for group in wanted)
            total = found.get(names)
            if total is None:
                total = found[names] = _named(dict(zip(wanted, names, strict=True)))
            total.add(row)
        for *named, taken in joules:
            if taken is not None:
                names: tuple[Any, ...] = tuple(named)
                # Devices take energy also for a model that nobody asks for.
                total = found.setdefault(names, _named(dict(zip(wanted, names, strict=True))))
                total.energy_j = float(taken)
        ordered = [found[names] for names in sorted(found)]
        return ordered or ([] if wanted else [UsageSum()])

    async def spent(self, since: float, until: float) -> Mapping[str, Spent]:
        """What each key used of its budgets in that time (Unix seconds, whole hours): tokens, and seconds on devices. What an engine
        did not count is not in it."""
        where = UsageFilter(since=int(since // HOUR), until=int(until // HOUR))
        sums = await self.report([GroupBy.KEY], where)
        return {s.key: Spent(s.prompt_tokens + s.completion_tokens, s.device_s) for s in sums if s.key is not None}


def _row_groups() -> list[ColumnElement[Any]]:
    return [Request.hour, func.coalesce(Request.key, ""), func.coalesce(Request.model, ""), Request.outcome]  # type: ignore[list-item]


def _row_values() -> dict[str, ColumnElement[Any]]:
    """Of one row of the ledger, by the name of its sum."""
    values: dict[str, ColumnElement[Any]] = {"requests": literal(1), "cost_nano": Request.cost_nano.expression}
    for name in (*_COUNTS[1:], *_TIMES):
        values[name] = func.coalesce(getattr(Request, name), 0)
    return values


def _totals(values: dict[str, ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    return [func.sum(values[name]).label(name) for name in _SUMS]


def _rolled(where: UsageFilter) -> Any:
    columns: list[Any] = [getattr(UsageHour, name) for name in (*_GROUPS, *_SUMS)]
    return select(*columns).where(*_conditions(UsageHour, where))


def _tail(where: UsageFilter) -> Any:
    """The rows that are no part of the sums yet."""
    mark = select(cast(Meta.value, BigInteger)).where(Meta.name == MARK).scalar_subquery()
    values = _row_values()
    named = [group.label(name) for group, name in zip(_row_groups(), _GROUPS, strict=True)]
    columns: list[Any] = [*named, *(values[name].label(name) for name in _SUMS)]
    return select(*columns).where(Request.row > func.coalesce(mark, 0), *_conditions(Request, where))


def _conditions(table: type[UsageHour] | type[Request], where: UsageFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if where.key is not None:
        conditions.append(table.key == where.key)
    if where.model is not None:
        conditions.append(table.model == where.model)
    if where.since is not None:
        conditions.append(table.hour >= where.since)
    if where.until is not None:
        conditions.append(table.hour < where.until)
    return conditions


def _energy(wanted: Sequence[GroupBy], where: UsageFilter) -> Any:
    """The sums of energy by the same groups; None where keys are asked for: nobody knows what a device took for whom."""
    if GroupBy.KEY in wanted or where.key is not None:
        return None
    columns: dict[GroupBy, ColumnElement[Any]] = {
        GroupBy.MODEL: UsageEnergy.model.expression, GroupBy.HOUR: UsageEnergy.hour.expression,
        GroupBy.DAY: type_coerce(UsageEnergy.hour.op("/")(DAY), BigInteger),
    }  # fmt: skip
    groups = [columns[group] for group in wanted]
    conditions: list[ColumnElement[bool]] = []
    if where.model is not None:
        conditions.append(UsageEnergy.model == where.model)
    if where.since is not None:
        conditions.append(UsageEnergy.hour >= where.since)
    if where.until is not None:
        conditions.append(UsageEnergy.hour < where.until)
    return select(*groups, func.sum(UsageEnergy.joules)).where(*conditions).group_by(*groups)


def _named(groups: dict[GroupBy, Any]) -> UsageSum:
    found = UsageSum(key=groups.get(GroupBy.KEY) or None, model=groups.get(GroupBy.MODEL) or None)
    if GroupBy.DAY in groups:
        found.day = datetime.fromtimestamp(int(groups[GroupBy.DAY]) * DAY * HOUR, UTC).date().isoformat()
    if GroupBy.HOUR in groups:
        found.hour = datetime.fromtimestamp(int(groups[GroupBy.HOUR]) * HOUR, UTC).strftime("%Y-%m-%dT%H:00Z")
    return found
