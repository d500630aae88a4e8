"""What streams notice of many open tabs of the dashboard.

Two servers serve the same paced streams. The tabs, of a real browser, are open on the other server or on the one that is measured, in a random
order: what the browser itself takes of the machine is the same both times, and the difference is what tabs cost their server. Told is the
p99 of the time between two events of a stream, as its client sees it. Needs Chromium.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
import packages
import peers
from neighbours import INTERVAL_US, WARM, streams
from product import Product
from start import Failed, host

PAGES = ("", "requests", "events", "charts", "models/m1")
"""Of the dashboard, one after the other."""
SETTLE = 6.0
"""Seconds for the tabs to load."""
LIMIT = 1.05
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.asynccontextmanager
async def tabs(url: str, number: int, folder: Path) -> AsyncGenerator[None]:
    """So many tabs are open on the dashboard at `url` until the end of the block."""
    binary = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if binary is None:
        raise Failed("there is no Chromium here (Debian: apt-get install chromium)")
    profile = Path(tempfile.mkdtemp(prefix="profile-", dir=folder))
    argv = [
        binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0",
        f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    browser = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = await _port(profile)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:
            for n in range(number):
                (await http.put(f"/json/new?{url}/ui/{PAGES[n % len(PAGES)]}")).raise_for_status()
            await asyncio.sleep(SETTLE)
            open_now = [t for t in (await http.get("/json")).json() if t["type"] == "page" and "/ui" in t["url"]]
            if len(open_now) != number:
                raise Failed(f"{len(open_now)} of {number} tabs are open")
            yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            browser.terminate()
        await browser.wait()


async def _port(profile: Path) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            return int((profile / "DevToolsActivePort").read_text().split()[0])
        await asyncio.sleep(0.05)
    raise Failed("the browser did not start")


def config(upstream: Path) -> dict[str, Any]:
    model = {
        "engine": "command", "command": [str(upstream), "0", "{socket}"], "memory": "1GiB", "pinned": True, "concurrency": 4096,
    }  # fmt: skip
    return {"devices": [{"id": "dev0", "memory": "12GiB", "simulated": True}], "models": {"m1": model}}


async def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    try:
        tools = peers.build_tools(packages.cache_dir())
    except packages.Unavailable as error:
        raise Failed(str(error)) from error
    runs: list[dict[str, Any]] = []
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="mm-tabs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        body = folder / "body.json"
        events = int((options.seconds + WARM + 10) * 1e6 / INTERVAL_US)
        asked = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": events}
        body.write_text(json.dumps({**asked, "seed": INTERVAL_US}))
        for side in ("here", "there"):
            (folder / side).mkdir()
        async with (
            Product.running(folder / "here", config(tools["upstream"])) as here,
            Product.running(folder / "there", config(tools["upstream"])) as there,
        ):
            for product in (here, there):
                await product.http.post("/api/models/m1/start", params={"wait": 30})
            for number in range(options.rounds):
                for way in rng.sample(["elsewhere", "here"], 2):
                    target = here if way == "here" else there
                    async with tabs(target.url, options.tabs, folder):
                        said, _ = await asyncio.gather(
                            *(
                                streams(
                                    tools["loadgen"],
                                    p.url.removeprefix("http://"),
                                    options.streams,
                                    options.seconds,
                                    body,
                                )
                                for p in (here, there)
                            )
                        )
                    gap = (INTERVAL_US + said["gap_us"]["p99"]) / 1e3
                    runs.append({"round": number, "way": way, "gap_p99_ms": gap, "errors": said["err"]})
                    say(f"{number + 1}/{options.rounds} tabs {way}: p99 between two events {gap:.2f} ms")
    by_way = {w: statistics.median(r["gap_p99_ms"] for r in runs if r["way"] == w) for w in ("elsewhere", "here")}
    ratio = by_way["here"] / by_way["elsewhere"]
    return {
        "host": host(), "runs": runs, "tabs": options.tabs, "gap_p99_ms": by_way, "ratio": ratio,
        "held": ratio <= LIMIT and not any(r["errors"] for r in runs),
    }  # fmt: skip


def act(options: argparse.Namespace) -> int:
    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        found = asyncio.run(measure(options, say))
    except Failed as error:
        say(f"failed: {error}")
        return 1
    if options.json:
        print(json.dumps(found))
    else:
        told = found["gap_p99_ms"]
        say(
            f"p99 between two events with {found['tabs']} tabs on another server {told['elsewhere']:.2f} ms, on this one {told['here']:.2f} ms: "
            f"{found['ratio']:.3f} (at most {LIMIT:g}: {'held' if found['held'] else 'NOT HELD'})"
        )
    return 0 if found["held"] else 1


def add_to(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`scripts/bench tabs`."""
    one = kinds.add_parser(
        "tabs",
        help="what streams notice of open dashboards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--seconds", type=float, default=15.0, help="length of one measurement")
    one.add_argument("--streams", type=int, default=50, help="on each server, 20 events a second each")
    one.add_argument("--tabs", type=int, default=20)
    one.add_argument("--seed", type=int, default=1, help="of the random order")
    one.set_defaults(act=act)
