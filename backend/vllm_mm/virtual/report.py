"""Results for people and for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vllm_mm.virtual.results import Result, Spread

SUMMARY = (
    "policy", "wait mean", "p50", "p95", "p99", "max", "ttft mean", "p99", "starts", "wakes", "lost", "cut", "refused", "gave up", "bound",
)  # fmt: skip
BY_MODEL = (
    "policy",
    "model",
    "served",
    "wait mean",
    "p50",
    "p95",
    "p99",
    "max",
    "ttft p50",
    "p99",
    "loads",
    "resident",
)


def summary_rows(results: Sequence[Result]) -> list[list[str]]:
    """One row per policy, under `SUMMARY`."""
    return [
        [
            r.policy, *_five(r.wait), _s(r.ttft.mean), _s(r.ttft.p99), str(r.starts), str(r.wakes),
            f"{_s(r.lost)} ({100 * r.lost / r.span:.0f} %)" if r.span else "0", str(r.cut), str(r.refused), str(r.timed_out),
            f"{'held' if r.bound.held else 'BROKEN'} ({_s(r.bound.worst)} of {_s(r.bound.allowed)})",
        ]
        for r in results
    ]  # fmt: skip


def model_rows(results: Sequence[Result]) -> list[list[str]]:
    """One row per policy and model, under `BY_MODEL`."""
    return [
        [
            r.policy, m.model, str(m.wait.count), *_five(m.wait), _s(m.ttft.p50), _s(m.ttft.p99), str(m.loads),
            f"{100 * m.resident:.0f} %",
        ]
        for r in results
        for m in r.models
    ]  # fmt: skip


def document(results: Sequence[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for `--json`. Times in seconds, sizes in bytes."""
    return {**about, "results": [{**asdict(r), "swaps": r.swaps} for r in results]}


def _five(spread: Spread) -> list[str]:
    return [_s(v) for v in (spread.mean, spread.p50, spread.p95, spread.p99, spread.max)]


def _s(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds < 1000 else f"{seconds:,.0f}"
