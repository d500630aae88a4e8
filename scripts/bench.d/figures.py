"""What the runs of `scripts/bench proxy` come to: medians, our ratios to each peer, and tables."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

OURS = "vllm-mm"
DIRECT = "direct"


@dataclass(frozen=True)
class Run:
    """One measurement."""

    round: int
    target: str
    case: str
    requests_per_s: float
    chunks_per_s: float
    p50_us: float
    p99_us: float
    ttft_p50_us: float
    delay_p99_us: float
    gap_p99_us: float
    """Of the gaps that were added between two events."""
    cpu_us: float
    """Of the target, per request, or per chunk where streams are measured."""
    rss_mb: float
    errors: int


Medians = dict[str, dict[str, dict[str, float]]]
"""By case, target and figure."""


def medians(runs: Sequence[Run]) -> Medians:
    found: Medians = {}
    for case in dict.fromkeys(r.case for r in runs):
        for target in dict.fromkeys(r.target for r in runs):
            same = [asdict(r) for r in runs if (r.case, r.target) == (case, target)]
            if same:
                found.setdefault(case, {})[target] = {
                    figure: statistics.median(r[figure] for r in same)
                    for figure in same[0]
                    if figure not in {"round", "target", "case"}
                }
    return found


def ratios(found: Medians) -> dict[str, dict[str, float]]:
    """Ours over each peer's. `added_*` are what is above the engine alone."""
    told: dict[str, dict[str, float]] = {}

    def add(name: str, case: str, figure: str, base: str | None = None) -> None:
        by = found.get(case, {})
        if OURS not in by:
            return
        zero = by[DIRECT][base] if base is not None and DIRECT in by else 0.0
        for peer, figures in by.items():
            if peer not in {OURS, DIRECT} and figures[figure] - zero > 0:
                told.setdefault(name, {})[peer] = round((by[OURS][figure] - zero) / (figures[figure] - zero), 3)

    for case in found:
        kind, _, size = case.partition("_")
        if kind == "req":
            add(f"req_s_{size}", case, "requests_per_s")
            add(f"cpu_req_{size}", case, "cpu_us")
        elif kind == "streams":
            add(f"cpu_{size}_streams", case, "cpu_us")
            add(f"delay_p99_{size}_streams", case, "delay_p99_us")
            add(f"gap_p99_{size}_streams", case, "gap_p99_us")
            add(f"rss_{size}_streams", case, "rss_mb")
        elif kind == "flat":
            add(f"cpu_chunk_{case}", case, "cpu_us")
            add(f"chunks_s_{case}", case, "chunks_per_s")
        elif kind == "body":
            add(f"cpu_{case}", case, "cpu_us")
            add(f"rss_{case}", case, "rss_mb")
    add("added_p50", "req_1", "p50_us", "p50_us")
    add("added_p99", "req_1", "p99_us", "p99_us")
    add("added_ttft_p50", "ttft", "ttft_p50_us", "ttft_p50_us")
    return told


def _lines(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _columns(case: str) -> list[tuple[str, str, str]]:
    """Title, figure and format of what is told of a case."""
    kind, _, size = case.partition("_")
    if kind == "req":
        told = [(f"req/s at {size}", "requests_per_s", ",.0f"), ("us CPU", "cpu_us", ",.1f")]
        return [*told, ("p50 us", "p50_us", ",.0f"), ("p99", "p99_us", ",.0f")] if size == "1" else told
    if kind == "ttft":
        return [("TTFT us", "ttft_p50_us", ",.0f")]
    if kind == "streams":
        return [
            (f"{size} streams: us CPU/chunk", "cpu_us", ",.1f"), ("delay p99 us", "delay_p99_us", ",.0f"),
            ("added gap p99 us", "gap_p99_us", ",.0f"), ("RSS MB", "rss_mb", ",.0f"),
        ]  # fmt: skip
    if kind == "flat":
        return [(f"{size} flat out: chunks/s", "chunks_per_s", ",.0f"), ("us CPU/chunk", "cpu_us", ",.2f")]
    return [(f"body {size}: ms CPU", "cpu_ms", ",.2f"), ("RSS MB", "rss_mb", ",.0f")]


def _by_size(case: str) -> tuple[int, str]:
    """Cases come in the random order of their first measurement."""
    size = case.partition("_")[2]
    number = size.rstrip("km")
    return (int(number) << {"k": 10, "m": 20}.get(size[-1], 0) if number else 1 << 40, case)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rest))


def tables(found: Medians, order: Iterable[str], *, markdown: bool = False) -> str:
    """One table for each kind of case."""
    names = list(order)
    told: list[str] = []
    groups: dict[str, list[str]] = {}
    for case in sorted(found, key=_by_size):
        groups.setdefault("req" if case == "ttft" else case.partition("_")[0], []).append(case)
    for cases in groups.values():
        columns = [(case, *column) for case in cases for column in _columns(case)]
        rows = [["", *(title for _, title, _, _ in columns)]]
        for name in names:
            row = [name]
            for case, _, figure, form in columns:
                figures = found[case].get(name)
                if figures is not None:
                    figures = {**figures, "cpu_ms": figures["cpu_us"] / 1000}
                row.append("-" if figures is None else format(figures[figure], form))
            rows.append(row)
        told.append(_markdown(rows) if markdown else _lines(rows))
    return "\n\n".join(told)
