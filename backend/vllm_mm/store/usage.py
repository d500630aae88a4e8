"""The request ledger: written in batches, never by a request itself, and read by people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Dialect, Row, func, select

from vllm_mm.domain.usage import NANO, Gaps, Outcome, Price, RequestRecord, Usage, device_seconds
from vllm_mm.store.database import Database
from vllm_mm.store.tables import Request

HOUR: Final = 3600
RECENT: Final = 50_000
"""Rows among which a client's own id is looked for: there is no index of those."""
COLUMNS: Final = tuple(c.name for c in Request.__table__.columns if c.name != "row")
"""Of the ledger, in the table's order; the number of the row is the database's business."""


@dataclass(frozen=True, slots=True)
class _Insert:
    text: str
    positional: bool
    """The driver takes values in the order of COLUMNS."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows; None does not restrict. Times are Unix seconds, `since` included and `until` not."""

    model: str | None = None
    key: str | None = None
    outcome: Outcome | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, newest first."""

    records: tuple[RequestRecord, ...]
    next: int | None
    """Give it as `before` for the next page; None when this was the last."""


class Terms(NamedTuple):
    """What the ledger has to know of a model beside its requests."""

    devices: int = 1
    price: Price | None = None


def _unknown(_model: str) -> Terms:
    return Terms()


class Ledger:
    """The `requests` table."""

    def __init__(self, database: Database, terms: Callable[[str], Terms] = _unknown) -> None:
        """`terms`: those of a model, by id, when its row is written."""
        self._database = database
        self._terms = terms
        self._insert: _Insert | None = None

    async def add(self, records: Sequence[RequestRecord]) -> None:
        """One transaction for all. Rows whose request id is there already are left as they are, so that a batch whose
        fate is unknown can be written again."""
        if not records:
            return
        rows = [_values(r, self._terms(r.model) if r.model is not None else _NONE) for r in records]
        async with self._database.write() as connection:
            insert = self._insert or self._compiled(connection.dialect)
            if insert.positional:
                # Straight to the driver: the expression language would look at each value of each row once more.
                await connection.exec_driver_sql(insert.text, rows)
            else:
                named = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
                await connection.execute(self._database.insert_new(Request, "id"), named)

    def _compiled(self, dialect: Dialect) -> "_Insert":
        """The statement as the driver takes it, made once."""
        compiled = self._database.insert_new(Request, "id").compile(dialect=dialect, column_keys=list(COLUMNS))
        order: list[str] | None = compiled.positiontup
        self._insert = insert = _Insert(str(compiled), positional=order == list(COLUMNS))
        return insert

    async def get(self, request_id: str) -> RequestRecord | None:
        async with self._database.read() as connection:
            row = (await connection.execute(select(Request).where(Request.id == request_id))).one_or_none()
        return None if row is None else _record(row)

    async def find(self, request_id: str) -> RequestRecord | None:
        """With that id; or the latest with that id of the client's own, among the last RECENT rows."""
        newest = select(func.max(Request.row)).scalar_subquery()
        named = (Request.request_id == request_id) & (Request.row > newest - RECENT)
        async with self._database.read() as connection:
            for where in (Request.id == request_id, named):
                query = select(Request).where(where).order_by(Request.row.desc()).limit(1)
                row = (await connection.execute(query)).one_or_none()
                if row is not None:
                    return _record(row)
        return None

    async def recent(self, where: Filter | None = None, *, limit: int = 100, before: int | None = None) -> Page:
        """Newest first. Rows that are added meanwhile do not shift the pages."""
        query = select(Request).where(*_conditions(where or Filter())).order_by(Request.row.desc()).limit(limit + 1)
        if before is not None:
            query = query.where(Request.row < before)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        more = len(rows) > limit
        rows = rows[:limit]
        return Page(tuple(_record(r) for r in rows), rows[-1].row if more else None)


def _conditions(where: Filter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if where.model is not None:
        conditions.append(Request.model == where.model)
    if where.key is not None:
        conditions.append(Request.key == where.key)
    if where.outcome is not None:
        conditions.append(Request.outcome == where.outcome.value)
    if where.since is not None:
        conditions.append(Request.at >= where.since)
    if where.until is not None:
        conditions.append(Request.at < where.until)
    return conditions


def _clean(text: str | None) -> str | None:
    """What a client or an engine wrote, as a database takes it: half of a surrogate pair is no text, and PostgreSQL has no zero."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_NONE: Final = Terms()


def _values(record: RequestRecord, terms: Terms) -> tuple[Any, ...]:
    """In the order of COLUMNS. A tuple and not a mapping: it is made for every request."""
    at, usage, gaps = record.at, record.usage, record.gaps
    return (
        record.id,
        record.request_id,
        at,
        int(at // HOUR),
        record.route,
        record.model,
        _clean(record.asked),
        record.key,
        record.stream,
        record.outcome.value,
        record.status,
        _clean(record.error),
        record.queued_s,
        record.ttft_s,
        record.total_s,
        record.bytes_in,
        record.bytes_out,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
        record.generation,
        record.frozen_s,
        record.reason,
        record.retried,
        *((None, None, None) if gaps is None else (gaps.p50, gaps.p95, gaps.p99)),
        record.load_s,
        device_seconds(record, terms.devices),
        None if terms.price is None else terms.price.cost(usage),
    )


def _record(row: Row[Any]) -> RequestRecord:
    return RequestRecord(
        id=row.id,
        request_id=row.request_id,
        at=row.at,
        route=row.route,
        model=row.model,
        asked=row.asked,
        key=row.key,
        stream=row.stream,
        outcome=Outcome(row.outcome),
        status=row.status,
        error=row.error,
        queued_s=row.queued_s,
        ttft_s=row.ttft_s,
        total_s=row.total_s,
        bytes_in=row.bytes_in,
        bytes_out=row.bytes_out,
        usage=Usage(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens),
        generation=row.generation,
        frozen_s=row.frozen_s,
        reason=row.reason,
        retried=row.retried,
        gaps=None if row.itl_p50_s is None else Gaps(row.itl_p50_s, row.itl_p95_s, row.itl_p99_s),
        load_s=row.load_s,
        device_s=row.device_s,
        cost=None if row.cost_nano is None else row.cost_nano / NANO,
    )
