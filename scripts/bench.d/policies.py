"""Scheduling policies in virtual time, side by side: mean waits over models, loads and swap times, and how far each is from
the offline optimum on small windows. The same seeds give the same figures on every machine.
"""

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Rules
from vllm_mm.virtual.engine import EngineTimes, VirtualModel
from vllm_mm.virtual.fleet import simulate
from vllm_mm.virtual.generate import Kind, generate
from vllm_mm.virtual.optimum import least_mean_wait
from vllm_mm.virtual.policies import Policy, pick
from vllm_mm.virtual.results import summary
from vllm_mm.virtual.terms import Terms
from vllm_mm.virtual.trace import Request

SIZE = 10 * 2**30
WINDOWS = 200
LOADS = {"light": (Kind.ZIPF, 60.0, 4.0), "heavy": (Kind.ZIPF, 603.0, 2.0), "bursty": (Kind.BURSTS, 300.0, 2.0)}
"""Kind, requests an hour, hours."""


@dataclass(frozen=True)
class Case:
    """Models that take turns on memory for one, a load, and the seconds of a swap (a start, or sleep and wake)."""

    models: int
    load: str
    swap: float
    seed: int

    @property
    def names(self) -> list[str]:
        return [f"model-{n}" for n in range(1, self.models + 1)]

    def trace(self) -> tuple[Request, ...]:
        kind, rate, hours = LOADS[self.load]
        return generate(kind, self.names, rate / 3600, hours * 3600, seed=self.seed)

    def fleet(self) -> list[VirtualModel]:
        return [VirtualModel(name, SIZE, EngineTimes(load=self.swap - 1, stop=1.0)) for name in self.names]


def measure(case: Case, policies: list[Policy], terms: Terms) -> dict[str, dict[str, Any]]:
    """Figures by policy."""
    trace, fleet = case.trace(), case.fleet()
    found: dict[str, dict[str, Any]] = {}
    for policy in policies:
        outcome = simulate(trace, fleet, [Device("sim0", SIZE, kind="sim")], policy, terms)
        result = summary(outcome, fleet, terms)
        found[policy.name] = {
            "mean": result.wait.mean, "p99": result.wait.p99, "swaps": result.swaps, "cut": result.cut,
            "lost": result.lost / result.span, "held": result.bound.held,
        }  # fmt: skip
    return found


def windows(seed: int) -> list[list[Request]]:
    """Four to eight requests for two or three models within a few minutes."""
    rng = random.Random(seed)
    made: list[list[Request]] = []
    for _ in range(WINDOWS):
        models, span = rng.choice(["ab", "abc"]), rng.choice([20, 60, 120, 240])
        ats = sorted(rng.uniform(0, span) for _ in range(rng.randint(4, 8)))
        made.append([Request(t - ats[0], rng.choice(models), 0, rng.choice([75, 225, 600])) for t in ats])
    return made


def distances(policies: list[Policy], terms: Terms, seed: int) -> dict[str, dict[str, list[float]]]:
    """By swap time and policy: sorted ratios of the mean wait to the least possible one."""
    found: dict[str, dict[str, list[float]]] = {}
    for swap in (20.0, 3.0):
        engine = EngineTimes(load=swap - 1, stop=1.0, batch_slowdown=0.0)
        fleet = [VirtualModel(name, SIZE, engine) for name in "abc"]
        by = found.setdefault(f"{swap:g} s", {p.name: [] for p in policies})
        for window in windows(seed):
            least = least_mean_wait(window, dict.fromkeys("abc", engine))
            for policy in policies:
                outcome = simulate(window, fleet, [Device("sim0", SIZE, kind="sim")], policy, terms)
                mean = sum(s.leased - s.arrived for s in outcome.served) / len(window)
                by[policy.name].append(mean / least)
        for ratios in by.values():
            ratios.sort()
    return found


def average(runs: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Over seeds; a bound has to be held in all of them."""
    return {
        name: {
            figure: all(r[name][figure] for r in runs)
            if figure == "held"
            else sum(r[name][figure] for r in runs) / len(runs)
            for figure in runs[0][name]
        }
        for name in runs[0]
    }


def policies(options: argparse.Namespace) -> int:
    chosen = list(pick(options.policy))
    terms = Terms(Rules(options.max_wait, options.min_dwell))
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for swap in (20.0, 3.0):
        for models in (2, 6, 20):
            for load in LOADS:
                case = Case(models, load, swap, options.seed)
                runs = [measure(replace(case, seed=options.seed + n), chosen, terms) for n in range(options.seeds)]
                rows.append({"swap": swap, "models": models, "load": load, "policies": average(runs)})
    far = distances(chosen, terms, options.seed)
    if options.json:
        json.dump({"rows": rows, "optimum": far, "seconds": time.monotonic() - started}, sys.stdout, indent=1)
        print()
        return 0
    print(
        f"mean wait in seconds (p99; swaps); * the least, ! the bound was broken; min_dwell {options.min_dwell:g} s\n"
    )
    print(f"{'swap':>6} {'models':>6} {'load':>7}  " + "  ".join(f"{p.name:>24}" for p in chosen))
    for row in rows:
        by = row["policies"]
        least = min(figures["mean"] for figures in by.values())
        cells = [
            f"{f['mean']:,.1f}{'*' if f['mean'] <= least * 1.005 else ''}{'' if f['held'] else '!'} ({f['p99']:,.0f}; {f['swaps']:,.0f})"
            for f in by.values()
        ]
        print(f"{row['swap']:>4g} s {row['models']:>6} {row['load']:>7}  " + "  ".join(f"{c:>24}" for c in cells))
    print(f"\nover the offline optimum, {WINDOWS} windows of 4 to 8 requests for 2 or 3 models:")
    for swap, by in far.items():
        for name, ratios in by.items():
            middle, most = ratios[len(ratios) // 2], ratios[int(0.95 * len(ratios))]
            print(
                f"  {swap:>5} {name:>10}: mean {sum(ratios) / len(ratios):.3f}  p50 {middle:.3f}  p95 {most:.3f}  max {ratios[-1]:.2f}"
            )
    print(f"\n{time.monotonic() - started:.0f} s")
    return 0


def add_to(kinds: Any) -> None:
    """`scripts/bench policies`."""
    one = kinds.add_parser("policies", help="scheduling policies in virtual time, and the offline optimum")
    one.add_argument("--json", action="store_true", help="print one JSON object")
    one.add_argument("--policy", default="brain,first,lru,arrival,fifo", help="what to compare")
    one.add_argument("--max-wait", type=float, default=20.0, help="seconds")
    one.add_argument("--min-dwell", type=float, default=5.0, help="seconds")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--seeds", type=int, default=3, help="traces per row, whose figures are averaged")
    one.set_defaults(act=policies)
