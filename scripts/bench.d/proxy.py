"""The product's data plane against its peers, interleaved in one run: only the ratios carry over to other machines.

One core for whatever is measured, another for the load and the engine (which has no model: upstream.c). Every round
visits all targets and cases in a new random order; medians over the rounds are told. CPU microseconds per request and
per chunk are the steadiest figures; requests per second need a quiet machine.
"""

import argparse
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import peers
from figures import DIRECT, OURS, Run, medians, ratios, tables
from packages import Unavailable, cache_dir
from peers import Target

PLAIN = ("req_1", "req_16", "req_64", "ttft", "streams_500")
"""What is measured where nothing is asked for."""
SLOW = ("litellm",)
"""Peers that cannot carry a thousand events a second: they are not asked to carry many streams."""
SIZES = {"1k": 1 << 10, "100k": 100 << 10, "5m": 5 << 20, "50m": 50 << 20}


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    concurrency: int
    events: int = 0
    """0: no stream."""
    interval_us: int = 0
    """Between two events; 0: as fast as they go."""
    ramp: float = 0.0
    """Seconds over which the streams begin."""
    size: int = 1024
    """Bytes of the request's body."""

    @property
    def per_chunk(self) -> bool:
        return self.name.startswith(("streams", "flat"))


KINDS = f"req_N (N connections), ttft, streams_N (20 events a second each), flat_N (as many events as go), body_SIZE with {', '.join(SIZES)}"


def case_of(name: str) -> Case:
    """As `KINDS` names them."""
    kind, _, size = name.partition("_")
    if kind == "req" and size.isdecimal():
        return Case(name, int(size))
    if name == "ttft":
        return Case(name, 1, events=1)
    if kind == "streams" and size.isdecimal():
        return Case(name, int(size), events=200, interval_us=50_000, ramp=2.0)
    if kind == "flat" and size.isdecimal():
        return Case(name, int(size), events=1000)
    if kind == "body" and size in SIZES:
        return Case(name, 1, size=SIZES[size])
    raise argparse.ArgumentTypeError(f"there is no case `{name}`; there are {KINDS}")


def cases_of(names: str) -> list[Case]:
    return [case_of(name) for name in names.split(",")]


def body(case: Case) -> bytes:
    """A chat of about the case's size."""
    text = ("The quick brown fox jumps over the lazy dog. " * (case.size // 45 + 1))[: max(0, case.size - 130)]
    request: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": text}]}
    if case.events:
        request |= {"stream": True, "max_tokens": case.events, "seed": case.interval_us}
    return json.dumps(request).encode()


def measure(loadgen: Path, target: Target, case: Case, number: int, seconds: float, payload: Path) -> Run:
    argv = [
        "taskset", "-c", peers.LOAD_CORE, str(loadgen), "-t", target.address, "-c", str(case.concurrency), "-d", str(seconds),
        "-w", "0.5", "-r", str(case.ramp), "-b", str(payload), "-K", target.key, "-P", ",".join(map(str, target.pids)),
    ]  # fmt: skip
    if case.events:
        argv.append("-s")
    said = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=seconds + 60).stdout)
    per_s = said["eps"] if case.per_chunk else said["rps"]
    cpu = said["cpu_u"] + said["cpu_s"]
    return Run(
        number, target.name, case.name, said["rps"], said["eps"], said["lat_us"]["p50"], said["lat_us"]["p99"], said["ttft_us"]["p50"],
        said["delay_us"]["p99"], said["gap_us"]["p99"], 1e6 * cpu / per_s if per_s else 0.0, said["rss_mb"], said["err"],
    )  # fmt: skip


Maker = Callable[[], contextlib.AbstractContextManager[Target]]


def makers(
    options: argparse.Namespace, tools: dict[str, Path], cache: Path, work: Path, upstream: int
) -> dict[str, Maker]:
    """Everything that is to be measured, by name."""
    found: dict[str, Maker] = {
        OURS: partial(peers.product, tools, work),
        "nginx": partial(peers.nginx, cache, work, upstream),
        "haproxy": partial(peers.haproxy, cache, work, upstream),
        "vllm-router": partial(peers.router, cache, work, upstream),
    }
    if options.litellm:
        found["litellm"] = partial(peers.litellm, cache, work, upstream)
    for count in options.models:
        found[f"{OURS}+{count}-models"] = partial(peers.product, tools, work, models=count)
    for count in options.rows:
        found[f"{OURS}+{count}-rows"] = partial(peers.product, tools, work, rows=count)
    for count in options.workers:
        found[f"{OURS}+{count}-workers"] = partial(peers.product, tools, work, workers=count)
    for form in ("protocol", "asgi") if options.bare else ():
        found[f"bare-{form}"] = partial(peers.bare, tools, work, form)
    wanted = set(options.only.split(",")) if options.only else set(found)
    unknown = wanted - set(found)
    if unknown:
        raise Unavailable(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return {name: make for name, make in found.items() if name in wanted or not options.only}


def run(options: argparse.Namespace) -> int:
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    left_out: dict[str, str] = {}
    runs: list[Run] = []
    targets: list[Target] = []
    work = Path(tempfile.mkdtemp(prefix="mmb-"))
    try:
        with contextlib.ExitStack() as stack:
            cache = cache_dir()
            tools = peers.build_tools(cache)
            upstream = stack.enter_context(peers.engine(tools, work))
            targets.append(Target(DIRECT, f"127.0.0.1:{upstream}", ()))
            for name, make in makers(options, tools, cache, work, upstream).items():
                try:
                    targets.append(stack.enter_context(make()))
                except Unavailable as error:
                    left_out[name] = str(error)
                    say(f"{name} is left out: {error}")
            payloads = {case.name: work / f"{case.name}.json" for case in options.case}
            for case in options.case:
                payloads[case.name].write_bytes(body(case))
            rng = random.Random(options.seed)
            for number in range(options.rounds):
                plan = [
                    (target, case)
                    for target in targets
                    for case in options.case
                    if not (case.per_chunk and target.name in SLOW)
                ]
                rng.shuffle(plan)
                for target, case in plan:
                    runs.append(measure(tools["loadgen"], target, case, number, options.seconds, payloads[case.name]))
                say(f"round {number + 1} of {options.rounds} done")
    except Unavailable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return report(runs, targets, left_out, as_json=options.json, markdown=options.markdown)


def report(
    runs: list[Run], targets: list[Target], left_out: dict[str, str], *, as_json: bool, markdown: bool = False
) -> int:
    """Print it; 1 when requests to us failed."""
    found = medians(runs)
    told = ratios(found)
    idle = {t.name: {"rss_mb": round(t.rss_mb, 1), "up_s": round(t.up_s, 2)} for t in targets if t.pids}
    if as_json:
        print(
            json.dumps(
                {
                    "runs": [asdict(r) for r in runs],
                    "ratios": told,
                    "medians": found,
                    "idle": idle,
                    "left_out": left_out,
                },
                indent=1,
            )
        )
    else:
        print(tables(found, [t.name for t in targets], markdown=markdown))
        print("\nbefore any load: " + "; ".join(f"{n}: {i['rss_mb']} MB, up in {i['up_s']} s" for n, i in idle.items()))
        print("\nours over theirs:")
        for name, by in told.items():
            print(f"  {name:24}" + "".join(f"  {peer} {value:.2f}" for peer, value in by.items()))
    failed = {f"{r.target}, {r.case}": r.errors for r in runs if r.errors}
    if failed:
        print(f"bench: requests failed: {failed}", file=sys.stderr)
    return 1 if any(r.errors for r in runs if r.target.startswith(OURS)) or OURS in left_out else 0


def add_to(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    one = kinds.add_parser(
        "proxy", help="the data plane against nginx, HAProxy, vllm-router and LiteLLM", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--markdown", action="store_true", help="the tables as docs/performance.md has them")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    one.add_argument("--seed", type=int, default=1, help="of the random order")
    one.add_argument("--only", help="comma-separated names of targets, besides `direct`")
    one.add_argument("--case", type=cases_of, default=[case_of(n) for n in PLAIN], help=f"comma-separated: {KINDS}")
    one.add_argument("--litellm", action="store_true", help="LiteLLM too, in an environment of its own (large, slow)")
    one.add_argument("--models", type=int, nargs="*", default=[], help="also the product with so many models besides")
    one.add_argument(
        "--rows", type=int, nargs="*", default=[], help="also the product with so many rows in its ledger already"
    )
    one.add_argument(
        "--workers", type=lambda text: [int(n) for n in text.split(",")], default=[],
        help="comma-separated: also the product with so many workers, on both cores (which the engine and the load need too)",
    )  # fmt: skip
    one.add_argument(
        "--bare", action="store_true", help="also the data plane without the rest of the product, in both forms"
    )
    one.set_defaults(act=run)
