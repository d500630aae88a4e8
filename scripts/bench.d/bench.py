"""Measures the product's data plane against its peers (`proxy`; for `start` see start.py), interleaved in one run: only the
ratios carry over to other machines.

One core for whatever is measured, another for the load and the engine (which has no model: upstream.c). Every round
visits all targets and cases in a new random order; medians over the rounds are told. CPU microseconds per request and
per chunk are the steadiest figures; requests per second need a quiet machine.
"""

import argparse
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peers
import policies
import start
import swap
from peers import Target, Unavailable

OURS = "vllm-mm"


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    concurrency: int
    stream: bool = False
    events: int = 0
    interval_us: int = 0
    ramp: float = 0.0
    """Seconds over which the streams begin."""


@dataclass
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
    cpu_us: float
    """Of the target, per request, or per chunk where streams are measured."""
    rss_mb: float
    errors: int


def cases(streams: int) -> list[Case]:
    return [
        Case("req_1", 1),
        Case("req_16", 16),
        Case("req_64", 64),
        Case("ttft", 1, stream=True, events=1),
        Case(f"streams_{streams}", streams, stream=True, events=200, interval_us=50_000, ramp=2.0),
    ]


def body(case: Case, size: int) -> bytes:
    """A chat of about `size` bytes."""
    text = ("The quick brown fox jumps over the lazy dog. " * (size // 45 + 1))[: max(0, size - 130)]
    request: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": text}]}
    if case.stream:
        request |= {"stream": True, "max_tokens": case.events, "seed": case.interval_us}
    return json.dumps(request).encode()


def measure(loadgen: Path, target: Target, case: Case, number: int, seconds: float, payload: Path) -> Run:
    argv = [
        "taskset", "-c", peers.LOAD_CORE, str(loadgen), "-t", target.address, "-c", str(case.concurrency), "-d", str(seconds),
        "-w", "0.5", "-r", str(case.ramp), "-b", str(payload), "-K", target.key, "-P", ",".join(map(str, target.pids)),
    ]  # fmt: skip
    if case.stream:
        argv.append("-s")
    said = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=seconds + 60).stdout)
    per_s = said["eps"] if case.interval_us else said["rps"]
    cpu = said["cpu_u"] + said["cpu_s"]
    return Run(
        number, target.name, case.name, said["rps"], said["eps"], said["lat_us"]["p50"], said["lat_us"]["p99"], said["ttft_us"]["p50"],
        said["delay_us"]["p99"], 1e6 * cpu / per_s if per_s else 0.0, said["rss_mb"], said["err"],
    )  # fmt: skip


def medians(runs: list[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """By case, target and figure."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for run in runs:
        found.setdefault(run.case, {}).setdefault(run.target, {})
    for case, targets in found.items():
        for target, figures in targets.items():
            same = [asdict(r) for r in runs if r.case == case and r.target == target]
            for figure in same[0]:
                if figure not in {"round", "target", "case"}:
                    figures[figure] = statistics.median(r[figure] for r in same)
    return found


def ratios(found: dict[str, dict[str, dict[str, float]]], streams: int) -> dict[str, dict[str, float]]:
    """Ours over each peer's."""
    told: dict[str, dict[str, float]] = {}

    def add(name: str, case: str, figure: str, base: str | None = None) -> None:
        by = found.get(case, {})
        if OURS not in by:
            return
        zero = by["direct"][base] if base is not None and "direct" in by else 0.0
        for peer, figures in by.items():
            if peer in {OURS, "direct"} or figures[figure] - zero <= 0:
                continue
            told.setdefault(name, {})[peer] = round((by[OURS][figure] - zero) / (figures[figure] - zero), 3)

    for n in (1, 16, 64):
        add(f"req_s_{n}", f"req_{n}", "requests_per_s")
        add(f"cpu_req_{n}", f"req_{n}", "cpu_us")
    add("added_p50", "req_1", "p50_us", "p50_us")
    add("added_p99", "req_1", "p99_us", "p99_us")
    add("added_ttft_p50", "ttft", "ttft_p50_us", "ttft_p50_us")
    add(f"cpu_{streams}_streams", f"streams_{streams}", "cpu_us")
    add(f"delay_p99_{streams}_streams", f"streams_{streams}", "delay_p99_us")
    add(f"rss_{streams}_streams", f"streams_{streams}", "rss_mb")
    return told


def table(found: dict[str, dict[str, dict[str, float]]], streams: int) -> str:
    rows = [
        [
            "",
            "req/s 1",
            "16",
            "64",
            "us CPU/req 64",
            "p50 us, 1",
            "TTFT us",
            f"{streams} streams: us CPU/chunk",
            "delay p99 us",
            "RSS MB",
        ]
    ]
    names = sorted({t for by in found.values() for t in by}, key=lambda n: (n != "direct", n != OURS, n))
    for name in names:

        def of(case: str, figure: str, form: str = ",.0f", name: str = name) -> str:
            value = found.get(case, {}).get(name, {}).get(figure)
            return "-" if value is None else format(value, form)

        paced = f"streams_{streams}"
        rows.append(
            [
                name, of("req_1", "requests_per_s"), of("req_16", "requests_per_s"), of("req_64", "requests_per_s"),
                of("req_64", "cpu_us", ",.1f"), of("req_1", "p50_us"), of("ttft", "ttft_p50_us"), of(paced, "cpu_us", ",.1f"),
                of(paced, "delay_p99_us"), of(paced, "rss_mb"),
            ]
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def proxy(options: argparse.Namespace) -> int:
    say = (
        (lambda text: print(text, file=sys.stderr, flush=True))
        if options.json
        else (lambda text: print(text, flush=True))
    )
    cache = peers.cache_dir()
    wanted = set(options.only.split(",")) if options.only else None
    left_out: dict[str, str] = {}
    runs: list[Run] = []
    work = Path(tempfile.mkdtemp(prefix="mmb-"))
    try:
        with contextlib.ExitStack() as stack:
            tools = peers.build_tools(cache)
            upstream_port = stack.enter_context(peers.engine(tools, work))
            targets = [Target("direct", f"127.0.0.1:{upstream_port}", ())]
            makers = {
                OURS: lambda: peers.product(tools, work),
                "nginx": lambda: peers.nginx(cache, work, upstream_port),
                "vllm-router": lambda: peers.router(cache, work, upstream_port),
            }
            if options.bare:
                makers |= {
                    f"bare-{form}": lambda form=form: peers.bare(tools, work, form) for form in ("protocol", "asgi")
                }
            for name, make in makers.items():
                if wanted is not None and name not in wanted:
                    continue
                try:
                    targets.append(stack.enter_context(make()))
                except Unavailable as error:
                    left_out[name] = str(error)
                    say(f"{name} is left out: {error}")
            kinds = [c for c in cases(options.streams) if options.case is None or c.name in options.case.split(",")]
            payloads = {c.name: work / f"{c.name}.json" for c in kinds}
            for case in kinds:
                payloads[case.name].write_bytes(body(case, options.size))
            rng = random.Random(options.seed)
            for number in range(options.rounds):
                plan = [(target, case) for target in targets for case in kinds]
                rng.shuffle(plan)
                for target, case in plan:
                    runs.append(measure(tools["loadgen"], target, case, number, options.seconds, payloads[case.name]))
                say(f"round {number + 1} of {options.rounds} done")
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    found = medians(runs)
    told = ratios(found, options.streams)
    if options.json:
        print(
            json.dumps(
                {"runs": [asdict(r) for r in runs], "ratios": told, "medians": found, "left_out": left_out}, indent=1
            )
        )
    else:
        print(table(found, options.streams))
        print("\nours over theirs:")
        for name, by in told.items():
            print(f"  {name:24}" + "".join(f"  {peer} {value:.2f}" for peer, value in by.items()))
    failed = sum(r.errors for r in runs)
    if failed:
        print(f"bench: {failed} requests failed", file=sys.stderr)
    return 1 if failed or OURS in left_out else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("proxy", help="the data plane against nginx and vllm-router")
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    one.add_argument("--streams", type=int, default=500, help="paced streams, 20 events a second each")
    one.add_argument("--size", type=int, default=1024, help="bytes of a request's body")
    one.add_argument("--seed", type=int, default=1, help="of the random order")
    one.add_argument("--only", help="comma-separated names of targets, besides `direct`")
    one.add_argument("--case", help="comma-separated: req_1, req_16, req_64, ttft, streams_N")
    one.add_argument(
        "--bare", action="store_true", help="also the data plane without the rest of the product, in both forms"
    )
    one.set_defaults(act=proxy)
    start.add_to(kinds)
    policies.add_to(kinds)
    swap.add_to(kinds)
    options = parser.parse_args()
    return options.act(options)


if __name__ == "__main__":
    raise SystemExit(main())
