"""Time series: what is sampled, how samples become rows of 10 seconds, of a minute and of 15 minutes, and what charts read off them. Pure.

A row holds numbers by name that can be put together whatever their order, so that a coarse row says exactly what the fine ones
said together: sums, counts of a histogram (`ttft.3`, by bucket) and highest values (`max.oldest`). A gauge is kept as its sum over
time (`queued`: requests times seconds), beside the seconds for which it was known (`s`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor
from typing import Final, NamedTuple, TypeAlias

from vllm_mm.domain.usage import GAP_BOUNDS

Values: TypeAlias = Mapping[str, float]

STEPS: Final = (10, 60, 900)
"""Seconds that a row covers, finest first; each is a whole multiple of the one before."""
TTFT_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Seconds: the upper bounds by which times to the first token are counted."""
MAX: Final = "max."
HELD: Final = "held:"
"""Before the model's id: bytes on a device, times seconds."""


class Kind(StrEnum):
    """What a row is about."""

    MODEL = "model"
    DEVICE = "device"


class Row(NamedTuple):
    """What is known of a model or device in the `step` seconds from `at` on (Unix time, a multiple of `step`)."""

    step: int
    kind: Kind
    subject: str
    at: int
    values: Values


def start_of(moment: float, step: int) -> int:
    """The beginning of the step that a moment lies in."""
    return floor(moment / step) * step


def merged(parts: Iterable[Values]) -> dict[str, float]:
    """All of them as one."""
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            before = found.get(name)
            if before is None:
                found[name] = value
            else:
                found[name] = max(before, value) if name.startswith(MAX) else before + value
    return found


def rolled(rows: Iterable[Row], step: int) -> list[Row]:
    """Fine rows as coarse ones; `step` is a multiple of theirs. In order of kind, subject and time."""
    groups: dict[tuple[Kind, str, int], list[Values]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.subject, start_of(row.at, step)), []).append(row.values)
    return [Row(step, kind, subject, at, merged(parts)) for (kind, subject, at), parts in sorted(groups.items())]


class Metric(StrEnum):
    """What can be asked for."""

    TOKENS = "tokens"
    """Tokens of answers a second, of a model."""
    REQUESTS = "requests"
    """Requests that ended, a second."""
    TTFT_P50 = "ttft_p50"
    """Seconds to the first token: half of the requests had it sooner."""
    TTFT_P95 = "ttft_p95"
    ITL_P50 = "itl_p50"
    """Seconds between two pieces of a stream."""
    ITL_P95 = "itl_p95"
    QUEUED = "queued"
    """Requests that wait for a model, on average."""
    OLDEST = "oldest"
    """Seconds that the longest waiting request had waited, at most."""
    IN_FLIGHT = "in_flight"
    """Requests in the engine, on average."""
    KV = "kv"
    """Share of the KV cache that is in use, from 0 to 1, on average."""
    MEMORY = "memory"
    """Bytes of a device by model, on average."""
    FOREIGN = "foreign"
    """Bytes of a device that others use, on average."""
    FREE = "free"
    """Bytes of a device that nobody has, on average."""


@dataclass(frozen=True, slots=True)
class _Reading:
    kind: Kind
    unit: str
    name: str
    """Of the values: a sum, the highest, or the histogram's counts."""
    over: str = "s"
    """What a sum is divided by."""
    quantile: float | None = None
    bounds: Sequence[float] = ()


_READINGS: Final = {
    Metric.TOKENS: _Reading(Kind.MODEL, "tokens/s", "tokens"),
    Metric.REQUESTS: _Reading(Kind.MODEL, "requests/s", "requests"),
    Metric.TTFT_P50: _Reading(Kind.MODEL, "s", "ttft", quantile=0.5, bounds=TTFT_BOUNDS),
    Metric.TTFT_P95: _Reading(Kind.MODEL, "s", "ttft", quantile=0.95, bounds=TTFT_BOUNDS),
    Metric.ITL_P50: _Reading(Kind.MODEL, "s", "itl", quantile=0.5, bounds=GAP_BOUNDS),
    Metric.ITL_P95: _Reading(Kind.MODEL, "s", "itl", quantile=0.95, bounds=GAP_BOUNDS),
    Metric.QUEUED: _Reading(Kind.MODEL, "requests", "queued"),
    Metric.OLDEST: _Reading(Kind.MODEL, "s", "max.oldest"),
    Metric.IN_FLIGHT: _Reading(Kind.MODEL, "requests", "in_flight"),
    Metric.KV: _Reading(Kind.MODEL, "share", "kv", over="kv_s"),
    Metric.MEMORY: _Reading(Kind.DEVICE, "bytes", HELD),
    Metric.FOREIGN: _Reading(Kind.DEVICE, "bytes", "foreign"),
    Metric.FREE: _Reading(Kind.DEVICE, "bytes", "free"),
}


def kind_of(metric: Metric) -> Kind:
    """What the metric is one of."""
    return _READINGS[metric].kind


def unit_of(metric: Metric) -> str:
    """For people and axes."""
    return _READINGS[metric].unit


def read(metric: Metric, values: Values) -> dict[str, float]:
    """What these values say, by model where the metric is one of a device by model, else by the empty text. Without what they say
    nothing of: a histogram in which nothing was counted has no quantiles."""
    reading = _READINGS[metric]
    if reading.quantile is not None:
        found = quantile(reading.quantile, reading.bounds, values, reading.name)
        return {} if found is None else {"": found}
    if reading.name.startswith(MAX):
        return {"": values[reading.name]} if reading.name in values else {}
    seconds = values.get(reading.over, 0.0)
    if seconds <= 0:
        return {}
    if reading.name == HELD:
        return {n.removeprefix(HELD): v / seconds for n, v in values.items() if n.startswith(HELD)}
    return {"": values.get(reading.name, 0.0) / seconds}


def quantile(share: float, bounds: Sequence[float], values: Values, name: str) -> float | None:
    """Below which that share of what was counted lies, as evenly spread within its bucket; what lies above the last bound counts
    as that. None without any."""
    counts = [values.get(f"{name}.{bucket}", 0.0) for bucket in range(len(bounds) + 1)]
    wanted = share * sum(counts)
    if wanted <= 0:
        return None
    below = 0.0
    for bucket, count in enumerate(counts[:-1]):
        if count > 0 and below + count >= wanted:
            low = bounds[bucket - 1] if bucket else 0.0
            return low + (bounds[bucket] - low) * (wanted - below) / count
        below += count
    return float(bounds[-1])


def counted(name: str, counts: Sequence[int]) -> dict[str, float]:
    """A histogram as values: its buckets in which there is something."""
    return {f"{name}.{bucket}": float(count) for bucket, count in enumerate(counts) if count}


class Totals(NamedTuple):
    """What was counted of a model's requests since the server began."""

    requests: int = 0
    tokens: int = 0
    """Of their answers, as they ended."""
    ttft: Sequence[int] = (0,) * (len(TTFT_BOUNDS) + 1)
    """By bucket."""
    itl: Sequence[int] = (0,) * (len(GAP_BOUNDS) + 1)


def of_model(
    seconds: float, before: Totals, now: Totals, *, queued: int, oldest: float, in_flight: int
) -> dict[str, float]:
    """A sample of a model, without what only its engine tells. `seconds`: since the look that gave `before`."""
    found = {
        "s": seconds, "requests": float(now.requests - before.requests), "queued": queued * seconds,
        "in_flight": in_flight * seconds, f"{MAX}oldest": oldest,
    }  # fmt: skip
    found |= counted("ttft", [b - a for a, b in zip(before.ttft, now.ttft, strict=True)])
    return found | counted("itl", [b - a for a, b in zip(before.itl, now.itl, strict=True)])


def of_engine(text: str) -> tuple[float | None, float | None]:
    """What a text of Prometheus tells: the share of the KV cache in use, and the tokens that were made since the engine began. Several
    engines behind one address (data parallelism) count together. None for what is not there."""
    shares, tokens = _samples(text, "vllm:kv_cache_usage_perc"), _samples(text, "vllm:generation_tokens_total")
    return sum(shares) / len(shares) if shares else None, sum(tokens) if tokens else None


def _samples(text: str, name: str) -> list[float]:
    """Found and not parsed: such a text has hundreds of lines."""
    found: list[float] = []
    at = text.find(f"\n{name}{{")
    while at >= 0:
        line = text[at + 1 :].split("\n", 1)[0]
        with suppress(ValueError):  # no number: not of use
            found.append(float(line.rsplit(" ", 1)[-1]))
        at = text.find(f"\n{name}{{", at + 1)
    return found


class Plan(NamedTuple):
    """How an answer is made."""

    step: int
    """Seconds between its points."""
    source: int
    """The rows that it is made of, by their step."""


_NICE: Final = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY: Final = 86_400


def plan(since: float, until: float, step: int | None, kept: Mapping[int, float], now: float, points: int) -> Plan:
    """`step`: what was asked for, None for what gives about `points`, and no more. `kept`: how old rows become, in seconds by step.
    The source is the coarsest that is fine enough, or a coarser one where the rows of that from `since` on are gone; the step
    is a whole multiple of its own."""
    fine = step
    if fine is None:
        wanted = (until - since) / (points - 1)  # where the ends lie within a step there is one more
        fine = next((s for s in _NICE if s >= wanted), ceil(wanted / _DAY) * _DAY)
    enough = [s for s in STEPS if s <= fine] or [STEPS[0]]
    there = [s for s in STEPS if s >= enough[-1] and since >= now - kept[s] - s] or [STEPS[-1]]
    return Plan(ceil(fine / there[0]) * there[0], there[0])


def points(rows: Iterable[Row], metric: Metric, step: int) -> dict[tuple[str, str], dict[int, float]]:
    """Values by time, by what they are about and (of a device by model) the model. Where nothing is known there is no point."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rolled((r for r in rows if r.kind is kind_of(metric)), step):
        for model, value in read(metric, row.values).items():
            found.setdefault((row.subject, model), {})[row.at] = value
    return found
