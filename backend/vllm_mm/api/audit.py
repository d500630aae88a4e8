"""`/api/audit`: who did what to which object, before and after, from where."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, fields
from enum import StrEnum
from typing import Annotated, Any, Final, get_type_hints

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import create_model

from vllm_mm.api.dependencies import ROW_MAX, Admin, The, operation_id
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.api.tables import csv_lines
from vllm_mm.domain.audit import Entry
from vllm_mm.store.audit import Audit, AuditFilter, AuditPage

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", tags=["audit"], responses=REFUSALS)

_PAGE: Final = 500
_COLUMNS: Final = tuple(field.name for field in fields(Entry))


def _columns() -> dict[str, Any]:
    """Names and types of an entry, so that a field is named once."""
    kinds = get_type_hints(Entry)
    return {name: (kinds[name], ...) for name in _COLUMNS}


_Columns: type[Out] = create_model("_Columns", __base__=Out, **_columns())


class AuditEntryOut(_Columns):
    """One act."""

    described_by = (Entry,)


class AuditOut(Out):
    entries: list[AuditEntryOut]
    next: int | None
    """Give it as `before` for the next page; null when this was the last."""


class AuditFormat(StrEnum):
    JSON = "json"
    """A page of at most `limit` entries."""
    JSONL = "jsonl"
    """All that fit the filter, one object a line."""
    CSV = "csv"
    """All that fit the filter, as a table."""


@router.get(
    "/audit", name="list_audit", response_model=AuditOut,
    responses={200: {"content": {
        "text/csv": {"schema": {"type": "string"}}, "application/jsonl": {"schema": {"type": "string"}},
    }}},
)  # fmt: skip
async def list_audit(
    the: The,
    _key: Admin,
    limit: Annotated[int, Query(ge=1, le=1000, description="Of a page; exports are whole.")] = 100,
    before: Annotated[int | None, Query(ge=0, le=ROW_MAX, description="`next` of the page before.")] = None,
    actor: Annotated[str | None, Query(description="Only acts of that key, by id or name.")] = None,
    act: Annotated[str | None, Query(description="Only those, such as `start_model`.")] = None,
    kind: Annotated[str | None, Query(description="Only what was done to such things: `models`, `keys`, ...")] = None,
    object: Annotated[str | None, Query(description="Only what was done to that one, by id.")] = None,  # noqa: A002  # the query's name
    since: Annotated[float | None, Query(description="From that moment on; Unix seconds.")] = None,
    until: Annotated[float | None, Query(description="Before that moment; Unix seconds.")] = None,
    format: AuditFormat = AuditFormat.JSON,  # noqa: A002  # the query's name
) -> Any:
    """What was done, newest first. Entries cannot be changed, and are deleted by age alone (`retention.audit`)."""
    where = AuditFilter(actor, act, kind, object, since, until)
    await the.audit.settle()
    if format is AuditFormat.JSON:
        page = await the.audit.page(where, limit=limit, before=before)
        return AuditOut(entries=[AuditEntryOut(**asdict(entry)) for entry in page.entries], next=page.next)
    first = await the.audit.page(where, limit=_PAGE, before=before)  # what is refused is refused before it begins
    if format is AuditFormat.CSV:
        text, kind = _pages(the.audit, where, first, _table, csv_lines([_COLUMNS])), "text/csv; charset=utf-8"
    else:
        text, kind = _pages(the.audit, where, first, _lines, ""), "application/jsonl"
    headers = {"Content-Disposition": f'attachment; filename="audit.{format.value}"', "Cache-Control": "no-store"}
    return StreamingResponse(text, media_type=kind, headers=headers)


def _table(entries: Iterable[Entry]) -> str:
    return csv_lines([getattr(entry, name) for name in _COLUMNS] for entry in entries)


def _lines(entries: Iterable[Entry]) -> str:
    return "".join(json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in entries)


async def _pages(
    audit: Audit, where: AuditFilter, page: AuditPage, form: Callable[[Iterable[Entry]], str], head: str
) -> AsyncIterator[str]:
    yield head + form(page.entries)
    while page.next is not None:
        page = await audit.page(where, limit=_PAGE, before=page.next)
        yield form(page.entries)
