"""`/api/usage`: who used what, by key, model, day and hour."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import Field

from vllm_mm.api.dependencies import Reader, Services, The, operation_id
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.api.tables import csv_lines
from vllm_mm.domain.errors import BadRequest, NotFound
from vllm_mm.domain.usage import Outcome
from vllm_mm.store.usage import HOUR
from vllm_mm.store.usage_hours import GroupBy, UsageFilter, UsageSum

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", tags=["usage"], responses=REFUSALS)

_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999."""


class UsageRowOut(Out):
    """Totals of one group. What was not asked for in `group_by` is null, and so is the key or model of requests that had none."""

    key: str | None
    """The key's id."""
    key_name: str | None
    model: str | None
    day: str | None
    """`2026-01-31`, UTC."""
    hour: str | None
    """`2026-01-31T14:00Z`."""
    requests: int
    outcomes: dict[str, int]
    """How many ended how."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's, those that were in the engine's prefix cache."""
    completion_tokens: int
    reasoning_tokens: int
    """Of the completion's."""
    total_s: float
    """Seconds from arrival to the end."""
    queued_s: float
    """Of those, seconds until a request had its lease."""
    load_s: float
    """Of those, seconds until its engine was ready."""
    device_s: float
    """Seconds for which requests had their leases (without those for which they stood still), times the devices of the model. Requests that run at the
    same time count whole, each."""
    cost: float | None
    """What the tokens cost by the models' prices at that time; null where no model had one."""
    energy_j: float | None
    """Joules that the devices took while models had memory on them, shared by that; null where the devices do not count them, and where keys are asked for."""


class UsageOut(Out):
    since: str | None = Field(serialization_alias="from")
    """The beginning of the first hour that counts; null: everything that is kept."""
    until: str | None = Field(serialization_alias="to")
    """The end of the last hour that counts."""
    group_by: list[GroupBy]
    rows: list[UsageRowOut]
    total: UsageRowOut
    """The sum of the rows."""


class UsageFormat(StrEnum):
    JSON = "json"
    CSV = "csv"


_SUMS: Final = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens",
    "total_s", "queued_s", "load_s", "device_s",
)  # fmt: skip


@router.get(
    "/usage", name="get_usage", response_model=UsageOut,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)  # fmt: skip
async def get_usage(
    the: The,
    _key: Reader,
    group_by: Annotated[
        str, Query(description="Any of key, model, day and hour, with commas between them; empty: one sum of all.")
    ] = "key,model",
    since: Annotated[
        str | None,
        Query(alias="from", description="From that hour on: `2026-01-31`, `2026-01-31T14:00Z`, or Unix seconds."),
    ] = None,
    until: Annotated[
        str | None, Query(alias="to", description="Before that moment; a part of an hour counts whole.")
    ] = None,
    key: Annotated[str | None, Query(description="Only that key, by id or name.")] = None,
    model: Annotated[str | None, Query(description="Only that model, by id.")] = None,
    format: UsageFormat = UsageFormat.JSON,  # noqa: A002  # the query's name
) -> Any:
    """Requests, tokens, times and costs, added up. Requests of this moment are in it a moment after their end."""
    groups = _groups(group_by)
    first, last = _hour(since, "from"), _hour(until, "to", up=True)
    names = {k.id: k.name for k in await the.keys.all()}
    wanted = key if key is None or key in names else next((i for i, name in names.items() if name == key), key)
    await the.written()
    found = await the.usage.report(groups, UsageFilter(wanted, model, first, last))
    if not any(line.requests or line.energy_j for line in found):
        _must_be_known(the, key if wanted not in names else None, model)
    rows = [_row(line, names) for line in found]
    if format is UsageFormat.CSV:
        return Response(
            _table(groups, rows), media_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="usage.csv"', "Cache-Control": "no-store"},
        )  # fmt: skip
    return UsageOut(since=_moment(first), until=_moment(last), group_by=groups, rows=rows, total=_total(rows))


def _must_be_known(the: Services, key: str | None, model: str | None) -> None:
    """Nothing was used: that is said of what there is, and not of a name that is written wrongly. `key`: one that nobody issued."""
    if key is not None:
        raise NotFound(f"There is no key {key[:100]!r}, by id or name, and none was used in that time.")
    if model is None or the.manager.catalog.get(model) is not None:
        return
    spec = the.manager.catalog.names().get(model)
    hint = "" if spec is None else f" It is a name of {spec.id}: ask for that."
    raise NotFound(f"There is no model with the id {model[:100]!r}, and none was used in that time.{hint}")


def _groups(text: str) -> list[GroupBy]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        return list(dict.fromkeys(GroupBy(word) for word in words))
    except ValueError as error:
        raise BadRequest(
            f"group_by takes {', '.join(GroupBy)}, with commas between them, and not {text[:100]!r}.", param="group_by"
        ) from error


def _hour(text: str | None, name: str, *, up: bool = False) -> int | None:
    """The hour of that moment, in hours since 1970; `up`: the next one, unless the moment is the beginning of one."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise BadRequest(
                f"`{name}` has to be a day (2026-01-31), a time (2026-01-31T14:00Z) or Unix seconds, not {text[:50]!r}.",
                param=name,
            ) from error
        seconds = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds <= _LATEST:
        raise BadRequest(f"`{name}` has to be between the years 1970 and 9999.", param=name)
    return int(-(-seconds // HOUR)) if up else int(seconds // HOUR)


def _moment(hour: int | None) -> str | None:
    return None if hour is None else datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _row(line: UsageSum, names: dict[str, str]) -> UsageRowOut:
    return UsageRowOut(
        key=line.key, key_name=None if line.key is None else names.get(line.key), model=line.model, day=line.day, hour=line.hour,
        outcomes=line.outcomes, cost=line.cost, energy_j=line.energy_j, **{name: getattr(line, name) for name in _SUMS},
    )  # fmt: skip


def _total(rows: Sequence[UsageRowOut]) -> UsageRowOut:
    outcomes: dict[str, int] = {}
    for row in rows:
        for outcome, count in row.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    costs = [row.cost for row in rows if row.cost is not None]
    joules = [row.energy_j for row in rows if row.energy_j is not None]
    return UsageRowOut(
        key=None, key_name=None, model=None, day=None, hour=None, outcomes=outcomes, cost=sum(costs) if costs else None,
        energy_j=sum(joules) if joules else None,
        **{name: sum(getattr(row, name) for row in rows) for name in _SUMS},
    )  # fmt: skip


def _table(groups: Sequence[GroupBy], rows: Sequence[UsageRowOut]) -> str:
    """One column for each group, for each sum, and for each outcome."""
    names = [
        name for group in groups for name in ((group.value, "key_name") if group is GroupBy.KEY else (group.value,))
    ]
    columns = [*names, *_SUMS, "cost", "energy_j"]
    outcomes = [outcome.value for outcome in Outcome]
    lines = ([*(getattr(row, name) for name in columns), *(row.outcomes.get(o, 0) for o in outcomes)] for row in rows)
    return csv_lines([[*columns, *outcomes], *lines])
