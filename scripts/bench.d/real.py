"""Real vLLM on the CPU, streamed tokens: what the product costs beside it.

The same streams are sent to the engine itself, over its unix socket, and through the product, in a random order. Told are the CPU
seconds of the controller and of vLLM's API server (the leader of its process tree), for the same tokens, and the product's over the
API server's in the same rounds. The engine's core, which does the arithmetic, is told too but compared with nothing.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from product import Product
from start import Case, Failed, cases, host

TICKS = os.sysconf("SC_CLK_TCK")
SETTLE = 1.5
"""Seconds after a round in which what is written behind is written, and still counts."""
DEVICE = {"id": "cpu", "memory": "8GiB"}


@dataclass(frozen=True)
class Run:
    """One round. CPU seconds."""

    round: int
    way: str
    """`direct` or `vllm-mm`."""
    tokens: int
    seconds: float
    proxy_cpu_s: float
    api_server_cpu_s: float
    core_cpu_s: float


def spent(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def tree(pid: int) -> list[int]:
    """Everything below."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *tree(int(child))]
    return found


async def stream(http: httpx.AsyncClient, model: str, tokens: int) -> int:
    """Tokens that came."""
    body = {
        "model": model, "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "max_tokens": tokens,
        "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    came = 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise Failed(f"{answer.status_code} {(await answer.aread())[:300]!r}")
        async for line in answer.aiter_lines():
            if line.startswith('data: {"') and '"usage":{' in line:
                came = json.loads(line[6:])["usage"]["completion_tokens"]
    if came != tokens:
        raise Failed(f"a stream had {came} tokens instead of {tokens}")
    return came


async def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    case: Case = cases(options)[0]
    spec = case.spec
    declared = {
        "model": spec.model, "executable": spec.executable, "args": dict(spec.args), "env": dict(spec.env), "memory": "3GiB",
        "preload": True, "pinned": True,
    }  # fmt: skip
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="mmrl-") as name:
        folder = Path(name)
        async with Product.running(folder, {"devices": [DEVICE], "models": {"m": declared}}) as it:
            say(f"{spec.model} starts")
            await it.token("m")
            leader = next(i["pid"] for i in (await it.http.get("/api/instances")).json() if i["model"] == "m")
            sockets = list((folder / "d" / "run").glob("*/s"))
            transport = httpx.AsyncHTTPTransport(uds=str(sockets[0]))
            async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=600) as direct:
                await stream(direct, "m", options.tokens)
                rng = random.Random(options.seed)
                for number in range(options.rounds):
                    for way in rng.sample(["direct", "vllm-mm"], 2):
                        http = direct if way == "direct" else it.http
                        before = spent(it.pid), spent(leader), sum(map(spent, tree(leader)))
                        began = time.monotonic()
                        streams = (stream(http, "m", options.tokens) for _ in range(options.streams))
                        came = sum(await asyncio.gather(*streams))
                        took = time.monotonic() - began
                        await asyncio.sleep(SETTLE)
                        after = spent(it.pid), spent(leader), sum(map(spent, tree(leader)))
                        proxy, server, core = (b - a for a, b in zip(before, after, strict=True))
                        runs.append(Run(number, way, came, took, proxy, server, core))
                        say(
                            f"  round {number + 1}, {way}: {came} tokens in {took:.1f} s; CPU of the controller {proxy:.2f} s, "
                            f"API server {server:.2f} s, core {core:.1f} s"
                        )
    return {"host": host(), "runs": [asdict(r) for r in runs], "ratios": ratios(runs)}


def ratios(runs: list[Run]) -> dict[str, Any]:
    """The controller's CPU time over the API server's, with the controller's rest without requests taken off."""
    rest = statistics.median(r.proxy_cpu_s / (r.seconds + SETTLE) for r in runs if r.way == "direct")
    ours = [r for r in runs if r.way == "vllm-mm"]
    work = [r.proxy_cpu_s - rest * (r.seconds + SETTLE) for r in ours]
    return {
        "proxy_of_api_server": round(statistics.median(w / r.api_server_cpu_s for w, r in zip(work, ours, strict=True)), 4),
        "proxy_us_a_token": round(1e6 * statistics.median(w / r.tokens for w, r in zip(work, ours, strict=True)), 1),
        "api_server_us_a_token": round(1e6 * statistics.median(r.api_server_cpu_s / r.tokens for r in runs), 1),
        "controller_at_rest_of_a_core": round(rest, 4),
    }  # fmt: skip


def run(options: argparse.Namespace) -> int:
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr if options.json else sys.stdout, flush=True)  # noqa: E731
    try:
        found = asyncio.run(measure(options, say))
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        told = found["ratios"]
        say(
            f"\nthe controller takes {told['proxy_us_a_token']:.0f} us of CPU a token, vLLM's API server {told['api_server_us_a_token']:.0f}: "
            f"{told['proxy_of_api_server']:.1%} (at most 5 % is the target). Without requests the controller takes "
            f"{told['controller_at_rest_of_a_core']:.1%} of a core."
        )
    return 0


def add_to(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`scripts/bench vllm`."""
    one = kinds.add_parser(
        "vllm", help="CPU time of the product beside real vLLM's, for the same tokens", description=__doc__
    )
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--streams", type=int, default=16, help="at once")
    one.add_argument("--tokens", type=int, default=200, help="of each stream")
    one.add_argument("--models", default="smollm2-135m", help="an installed model, or a folder")
    one.add_argument("--executable", help="vLLM's command line")
    one.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the engine")
    one.add_argument("--seed", type=int, default=1, help="of the random order")
    one.set_defaults(act=run, sim=False, compiled=False)
