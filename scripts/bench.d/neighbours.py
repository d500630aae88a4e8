"""What streams of one model notice while two others swap without pause on another device.

The streams' engine has no model and stamps each event when it sends it, so that its own unevenness does not count: what is measured is
by how much the gap between two events is longer for the client than it was for the engine. Three ways, interleaved: `quiet`; `swaps`,
with two simulated engines that take turns on one device; `engines`, where the same engines start and stop with nobody managing
them, which is what starting processes does to a machine of that many cores whoever starts them.
"""

import asyncio
import contextlib
import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packages
import peers
from product import Product
from start import Case, Failed, bench, host

from vllm_mm.domain.specs import EngineKind, LauncherKind, ModelSpec

WAYS = ("quiet", "swaps", "engines")
INTERVAL_US = 50_000
WARM = 2.0
LIMIT_MS = 5.0
"""The p99 of the extra gap may grow by so much."""
PROFILE = {
    "weights": "4GiB", "kv_cache": "1GiB", "load_bandwidth": "8GiB/s", "startup": "200ms", "sleep_bandwidth": "8GiB/s",
}  # fmt: skip


async def measure(options: Any, say: Any) -> dict[str, Any]:
    try:
        tools = peers.build_tools(packages.cache_dir())
    except packages.Unavailable as error:
        raise Failed(str(error)) from error
    runs: list[dict[str, Any]] = []
    facts = host()
    sims = {
        m: {
            "engine": "sim",
            "sim": PROFILE,
            "memory": "8GiB",
            "devices": {"ids": ["dev1"]},
            "launcher": "local",
            "sleep": {"mode": options.sleep},
        }
        for m in "bc"
    }
    config = {
        "devices": [{"id": f"dev{n}", "memory": "12GiB", "simulated": True} for n in range(2)],
        "swap": {"min_dwell": "0s", "max_wait": "1s"},
        "models": {
            "a": {
                "engine": "command", "command": [str(tools["upstream"]), "0", "{socket}"], "memory": "1GiB",
                "devices": {"ids": ["dev0"]}, "pinned": True, "concurrency": 4096,
            },
            **sims,
        },
    }  # fmt: skip
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="mmnb-") as folder:
        body = Path(folder) / "body.json"
        events = int((options.seconds + WARM + 10) * 1e6 / INTERVAL_US)
        body.write_text(json.dumps({
            "model": "a", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": events, "seed": INTERVAL_US,
        }))  # fmt: skip
        async with bench(say) as (it, launcher), Product.running(Path(folder), config) as product:
            await product.http.post("/api/models/a/start", params={"wait": 30})
            address = product.url.removeprefix("http://")
            for number in range(options.rounds):
                order = list(WAYS)
                rng.shuffle(order)
                for way in order:
                    stop = asyncio.Event()
                    churn = asyncio.create_task(_churn(way, product, it, launcher, stop))
                    said = await streams(tools["loadgen"], address, options.streams, options.seconds, body)
                    stop.set()
                    swaps = await churn
                    run = {"round": number, "way": way, "swaps": swaps, "events": said["events"], "errors": said["err"],
                           "gap_p99_ms": said["gap_us"]["p99"] / 1e3, "gap_p50_ms": said["gap_us"]["p50"] / 1e3,
                           "delay_p99_ms": said["delay_us"]["p99"] / 1e3}  # fmt: skip
                    runs.append(run)
                    say(f"{number + 1}/{options.rounds} {way}: {swaps} swaps, extra gap p50 {run['gap_p50_ms']:.2f} ms, "
                        f"p99 {run['gap_p99_ms']:.2f} ms, {run['events']} events")  # fmt: skip
    return {"host": facts, "runs": runs, "ratios": summary(runs)}


async def streams(loadgen: Path, address: str, number: int, seconds: float, body: Path) -> dict[str, Any]:
    """So many of them for so many seconds; what the load generator says of them."""
    argv = [
        str(loadgen),
        "-t",
        address,
        "-c",
        str(number),
        "-d",
        str(seconds),
        "-w",
        str(WARM),
        "-r",
        "1",
        "-b",
        str(body),
        "-s",
    ]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), seconds + 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return json.loads(out)


async def _churn(way: str, product: Product, it: Any, launcher: Any, stop: asyncio.Event) -> int:
    """Swaps, or starts by hand, until `stop`; how many."""
    count = 0
    while not stop.is_set():
        if way == "quiet":
            await stop.wait()
        elif way == "swaps":
            await product.token("bc"[count % 2])
            count += 1
        else:
            spec = ModelSpec("bc"[count % 2], EngineKind.SIM, sim=PROFILE)
            plan = it.plan(Case(spec.id, "sim", spec), LauncherKind.LOCAL)
            process = await launcher.start(plan)
            hand = it.channels(plan.address, 5.0)
            for _ in range(600):
                if await hand.healthy():
                    break
                await asyncio.sleep(0.05)
            await hand.close()
            await process.stop(graceful=True, grace=10.0, deadline=30.0)
            await process.close()
            count += 1
    return count


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for way in WAYS:
        these = [r for r in runs if r["way"] == way]
        found[way] = {
            "gap_p50_ms": statistics.median(r["gap_p50_ms"] for r in these),
            "gap_p99_ms": statistics.median(r["gap_p99_ms"] for r in these),
            "swaps": sum(r["swaps"] for r in these), "errors": sum(r["errors"] for r in these),
        }  # fmt: skip
    extra = found["swaps"]["gap_p99_ms"] - found["quiet"]["gap_p99_ms"]
    found["extra_p99_ms"] = extra
    found["extra_over_engines_ms"] = found["swaps"]["gap_p99_ms"] - found["engines"]["gap_p99_ms"]
    found["held"] = extra <= LIMIT_MS
    return found


def table(found: dict[str, Any]) -> Iterator[str]:
    facts, told = found["host"], found["ratios"]
    yield f"\n{facts['cores']} cores of {facts['cpu']}, Linux {facts['kernel']}; load {facts['load_before']:.1f} before"
    for way in WAYS:
        row = told[way]
        yield f"{way:8} {row['swaps']:4} swaps  extra gap p50 {row['gap_p50_ms']:6.2f} ms  p99 {row['gap_p99_ms']:6.2f} ms  {row['errors']} errors"
    yield (
        f"p99 with swaps over quiet: {told['extra_p99_ms']:+.2f} ms (at most {LIMIT_MS:g}: "
        f"{'held' if told['held'] else 'NOT HELD'}); over the same engines without a manager: {told['extra_over_engines_ms']:+.2f} ms"
    )
