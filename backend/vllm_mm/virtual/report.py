"""Results for people and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_mm.virtual.results import ModelResult, Result, Spread

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
    """One row per policy and model that the trace asks for, under `BY_MODEL`."""
    return [
        [
            r.policy, m.model, str(m.wait.count), *_five(m.wait), _s(m.ttft.p50), _s(m.ttft.p99), str(m.loads),
            f"{100 * m.resident:.0f} %",
        ]
        for r in results
        for m in r.models
        if _requests(m)
    ]  # fmt: skip


def unwanted(results: Sequence[Result]) -> int:
    """How many models the trace never asks for: they have no row."""
    return sum(not _requests(m) for m in results[0].models)


def document(results: Sequence[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for `--json`. Times in seconds, sizes in bytes; names that end in `_s` are seconds."""
    return {**about, "policies": [_policy(r) for r in results]}


def _policy(r: Result) -> dict[str, Any]:
    """The first nine are what programs rely on (the contract of the command line); the others may grow."""
    return {
        "policy": r.policy, "wait": _spread(r.wait), "ttft": _spread(r.ttft),
        "swaps": r.swaps, "swap_time_s": r.lost, "requests": r.requests,
        "bound_s": r.bound.allowed, "bound_held": r.bound.held, "by_model": {m.model: _model(m) for m in r.models},
        "served": r.wait.count, "refused": r.refused, "timed_out": r.timed_out, "cut": r.cut,
        "starts": r.starts, "wakes": r.wakes, "evictions": r.evictions, "draining_s": r.draining, "span_s": r.span,
        "bound": {"worst_s": r.bound.worst, "swap_s": r.bound.swap, "quantum_s": r.bound.quantum},
    }  # fmt: skip


def _model(m: ModelResult) -> dict[str, Any]:
    return {
        "wait": _spread(m.wait), "ttft": _spread(m.ttft), "requests": _requests(m), "served": m.wait.count,
        "unserved": m.unserved, "loads": m.loads, "resident": m.resident, "cut": m.cut,
    }  # fmt: skip


def _requests(m: ModelResult) -> int:
    return m.wait.count + m.unserved


def _spread(s: Spread) -> dict[str, float]:
    return {
        "mean_s": s.mean,
        "p50_s": s.p50,
        "p95_s": s.p95,
        "p99_s": s.p99,
        "max_s": s.max,
        "count": s.count,
    }


def _five(spread: Spread) -> list[str]:
    return [_s(v) for v in (spread.mean, spread.p50, spread.p95, spread.p99, spread.max)]


def _s(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds < 1000 else f"{seconds:,.0f}"
