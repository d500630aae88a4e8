"""`/api/series`: how models and devices did over time."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query

from vllm_mm.api.dependencies import Reader, The, operation_id
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.domain.errors import BadRequest
from vllm_mm.domain.events import Event
from vllm_mm.domain.series import Kind, Metric, Row, kind_of, plan, points, start_of, unit_of
from vllm_mm.vocabulary.quantities import parse_duration

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", tags=["usage"], responses=REFUSALS)

POINTS: Final = 400
"""Points of a line where no step was asked for."""
MOST_POINTS: Final = 2000
"""Of a line; and of all lines together fifty times as many."""
MARKS: Final = 500
"""Marks in one answer; the latest."""
_LATEST: Final = 253_402_300_799.0
"""The end of the year 9999."""
_KINDS: Final = {
    "swap.planned": "load", "instance.ready": "ready", "instance.sleeping": "sleep", "instance.stopped": "stop",
    "instance.failed": "failed", "instance.backoff": "failed",
}  # fmt: skip


class LineOut(Out):
    """One line of a chart."""

    metric: Metric
    unit: str
    model: str | None
    device: str | None
    values: list[float | None]
    """One for each of `at`; null where nothing is known."""


class MarkOut(Out):
    """Something that was done to a model's engine."""

    at: float
    kind: str
    """`load` (it was decided), `ready`, `sleep`, `stop`, or `failed`."""
    model: str
    reason: str
    """The scheduler's, or who wanted it."""
    victims: list[str]
    """Models that have to go for a load."""


class SeriesOut(Out):
    since: int
    """Unix time; the points are `step` apart from there on."""
    step: int
    """Seconds that a point stands for: what was asked for, or more where only coarser rows are left."""
    at: list[int]
    lines: list[LineOut]
    marks: list[MarkOut]
    marks_left_out: bool
    """There were more."""


@router.get("/series", name="get_series")
async def get_series(
    the: The,
    _key: Reader,
    metric: Annotated[str, Query(max_length=400, description=f"Any of {', '.join(Metric)}, with commas between them.")],
    model: Annotated[str | None, Query(max_length=400, description="Only that model, by id.")] = None,
    device: Annotated[str | None, Query(max_length=200, description="Only that device.")] = None,
    since: Annotated[
        str | None,
        Query(
            alias="from",
            max_length=60,
            description="From then on: a time, Unix seconds, or how long before `to`, such as 6h; an hour.",
        ),
    ] = None,
    until: Annotated[str | None, Query(alias="to", max_length=60, description="Before that moment; now.")] = None,
    step: Annotated[
        int | None, Query(ge=1, le=31_536_000, description="Seconds between two points; what gives about 400.")
    ] = None,
    marks: Annotated[bool, Query(description="Also what was loaded, slept, stopped or failed in that time.")] = False,
) -> SeriesOut:
    """Samples of every 10 seconds, of every minute when they are older, then of every 15 minutes (`series`). A time of which
    nothing is known has null: the server was down, or the model had no engine and nobody waited."""
    metrics = _metrics(metric)
    now = the.clock.wall()
    end = _moment(until, "to") if until is not None else now
    begin = end - 3600 if since is None else _moment(since, "from", end)
    if not 0 <= begin < end:
        raise BadRequest("`from` has to be before `to`.", param="from")
    chosen = plan(begin, end, step, the.series.kept, now, POINTS)
    first = start_of(begin, chosen.step)
    times = range(first, int(-(-end // 1)), chosen.step)
    if len(times) > MOST_POINTS:
        raise BadRequest(
            f"That are {len(times)} points, and {MOST_POINTS} are the most: ask for a longer step or a shorter time.",
            param="step",
        )
    reads: dict[Kind, Callable[[], Sequence[Row]]] = {}
    for kind in dict.fromkeys(kind_of(m) for m in metrics):
        only = model if kind is Kind.MODEL else device
        reads[kind] = await the.series.read(kind, only, chosen.source, first, end)
    lines = await asyncio.to_thread(_lines, metrics, reads, times, model)
    events: Sequence[Event] = ()
    if marks:
        events = await the.journal.between(begin, end, tuple(_KINDS), model=model, limit=MARKS + 1)
    return SeriesOut(
        since=first, step=chosen.step, at=list(times), lines=lines,
        marks=[_mark(e) for e in events[-MARKS:] if e.model is not None], marks_left_out=len(events) > MARKS,
    )  # fmt: skip


def _metrics(text: str) -> list[Metric]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    known = {m.value for m in Metric}
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        told = f"not {unknown[0]!r}" if unknown else "at least one"
        raise BadRequest(
            f"`metric` takes any of {', '.join(Metric)}, with commas between them, and {told}.", param="metric"
        )
    return list(dict.fromkeys(map(Metric, words)))


def _moment(text: str, name: str, end: float | None = None) -> float:
    """Unix time. `end`: a time such as 6h is one before that."""
    try:
        seconds = float(text)
    except ValueError:
        if end is not None:
            with suppress(ValueError):
                return end - parse_duration(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise BadRequest(
                f"`{name}` has to be a time (2026-01-31T14:00Z) or Unix seconds, not {text[:50]!r}.", param=name
            ) from error
        seconds = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds <= _LATEST:  # also what is no number
        raise BadRequest(f"`{name}` has to be between the years 1970 and 9999.", param=name)
    return seconds


def _lines(
    metrics: Sequence[Metric], reads: dict[Kind, Callable[[], Sequence[Row]]], times: range, model: str | None
) -> list[LineOut]:
    """In a thread: thousands of rows."""
    rows = {kind: read() for kind, read in reads.items()}
    lines: list[LineOut] = []
    for metric in metrics:
        kind = kind_of(metric)
        for (subject, holder), values in points(rows[kind], metric, times.step).items():
            if holder and model not in {None, holder}:
                continue
            if (len(lines) + 1) * len(times) > 50 * MOST_POINTS:
                raise BadRequest(
                    "That are too many points: ask for one model, fewer metrics, a longer step or a shorter time.",
                    param="step",
                )
            lines.append(
                LineOut(
                    metric=metric, unit=unit_of(metric), model=subject if kind is Kind.MODEL else holder or None,
                    device=subject if kind is Kind.DEVICE else None, values=[_short(values.get(at)) for at in times],
                )
            )  # fmt: skip
    return lines


def _short(value: float | None) -> float | None:
    """What a chart can show."""
    return None if value is None else float(f"{value:.6g}")


def _mark(event: Event) -> MarkOut:
    reason = event.data.get("reason") if event.kind == "swap.planned" else None
    return MarkOut(
        at=event.at, kind=_KINDS[event.kind], model=event.model or "", reason=str(reason or event.cause),
        victims=[str(v) for v in event.data.get("victims", ())] if event.kind == "swap.planned" else [],
    )  # fmt: skip
