"""A mixed load for as long as you like, and whether the server keeps what it should have let go.

Chats whole and streamed, every API, embeddings, clients that leave, models that swap on one device, broken requests, large bodies, and readers of
the admin API. Every few seconds memory, descriptors, tasks, leases and the queue are written to soak.csv, and at the end drawn as soak.png
(needs matplotlib). Exit code 1 when memory grows, or something is left once the load is over.
"""

import argparse
import asyncio
import contextlib
import csv
import importlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import httpx
from product import Product
from start import Failed

QUICK: Mapping[str, Any] = {
    "weights": "6GiB", "kv_cache": "1GiB", "load_bandwidth": "20GiB/s", "startup": "100ms", "tokens_per_second": 300,
}  # fmt: skip
GROWTH, SPARE = 0.05, 8 * 1024 * 1024
"""By how much memory may be more in the last quarter than in the second: a share, or bytes, the larger of both."""
WARM_UP = 0.25
"""Of the time: caches fill, and pools find their size."""


@dataclass(frozen=True)
class Sample:
    """One line of the table."""

    seconds: float
    rss: int
    descriptors: int
    threads: int
    tasks: float
    in_flight: float
    queued: float
    requests: int


def config() -> dict[str, Any]:
    def model(device: str, **profile: Any) -> dict[str, Any]:
        return {"engine": "sim", "devices": {"ids": [device]}, "sim": {**QUICK, **profile}}

    return {
        "devices": [{"id": name, "memory": "8GiB", "simulated": True} for name in ("one", "two", "three")],
        "swap": {"max_wait": "2s", "min_dwell": "500ms"},
        "queue": {"max_wait": "60s"},
        "models": {
            "chat": {**model("one"), "aliases": ["gpt-4o-mini"], "concurrency": 16},
            "vectors": model("two", task="embed"),
            "left": model("three"),
            "right": model("three"),
        },
    }


class Load:
    """What clients do, at random, and what came of it."""

    def __init__(self, product: Product, seed: int) -> None:
        self._http = product.http
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self.stop = False

    async def client(self) -> None:
        """One client, until it is told to stop."""
        acts: Sequence[tuple[int, Callable[[], Awaitable[object]]]] = (
            (8, self._chat), (8, self._stream), (4, self._messages), (4, self._responses), (4, self._vectors), (4, self._leave),
            (2, self._swap), (3, self._broken), (1, self._large), (2, self._look),
        )  # fmt: skip
        weights = [weight for weight, _ in acts]
        while not self.stop:
            ((_, act),) = self.random.choices(acts, weights)
            try:
                await act()
            except httpx.HTTPError as error:
                self.faults.append(f"{act.__name__}: {error!r}")
            self.done[act.__name__.strip("_")] += 1

    async def _post(self, path: str, body: Any, *expected: int) -> httpx.Response:
        answer = await self._http.post(path, json=body)
        if answer.status_code not in (expected or (200,)):
            self.faults.append(f"{path}: {answer.status_code} {answer.text[:200]}")
        return answer

    def _messages_of(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"Say {self.random.randrange(10**6)}."}]

    async def _chat(self) -> None:
        model = self.random.choice(("chat", "gpt-4o-mini"))
        body = {"model": model, "messages": self._messages_of(), "max_tokens": self.random.randrange(1, 60)}
        await self._post("/v1/chat/completions", body)

    async def _stream(self) -> None:
        model = self.random.choice(("chat", "gpt-4o-mini"))
        body = {"model": model, "messages": self._messages_of(), "max_tokens": 40, "stream": True}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            content = await answer.aread()
        if answer.status_code != 200 or not content.endswith(b"data: [DONE]\n\n"):
            self.faults.append(f"a stream: {answer.status_code} {content[-200:]!r}")

    async def _messages(self) -> None:
        await self._post("/v1/messages", {"model": "chat", "messages": self._messages_of(), "max_tokens": 20})

    async def _responses(self) -> None:
        await self._post("/v1/responses", {"model": "chat", "input": "hi", "max_output_tokens": 20})

    async def _vectors(self) -> None:
        await self._post("/v1/embeddings", {"model": "vectors", "input": ["a", "b"] * self.random.randrange(1, 20)})

    async def _leave(self) -> None:
        body = {"model": "chat", "prompt": "hi", "max_tokens": 4000, "stream": True, "ignore_eos": True}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(0.01, 0.5)):
                await self._http.post("/v1/completions", json=body)

    async def _swap(self) -> None:
        model = self.random.choice(("left", "right"))
        await self._post("/v1/completions", {"model": model, "prompt": "hi", "max_tokens": 5})

    async def _broken(self) -> None:
        body = self.random.choice(
            ({"model": "nobody"}, {}, {"model": "chat", "messages": 5}, {"model": "vectors", "prompt": "x"})
        )
        await self._post("/v1/completions" if "prompt" in body else "/v1/chat/completions", body, 400, 404)

    async def _large(self) -> None:
        body = {
            "model": "chat",
            "prompt": "hi",
            "max_tokens": 2,
            "unheard_of": "x" * self.random.randrange(10**5, 2 * 10**6),
        }
        await self._post("/v1/completions", body)

    async def _look(self) -> None:
        path = self.random.choice(
            ("/api/status", "/api/requests", "/api/instances", "/metrics", "/v1/models", "/api/queue")
        )
        answer = await self._http.get(path)
        if answer.status_code != 200:
            self.faults.append(f"{path}: {answer.status_code}")


async def sample(product: Product, began: float, requests: int) -> Sample:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{product.pid}/status").read_text().splitlines() if ":" in line
    )
    text = (await product.http.get("/metrics")).text

    def gauge(name: str) -> float:
        lines = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    return Sample(
        round(time.monotonic() - began, 1),
        int(status["VmRSS"].split()[0]) * 1024,
        sum(1 for _ in Path(f"/proc/{product.pid}/fd").iterdir()),
        int(status["Threads"]),
        gauge("vllm_mm_tasks"),
        gauge("vllm_mm_in_flight"),
        gauge("vllm_mm_queue_length"),
        requests,
    )


async def idle(product: Product, began: float, requests: int) -> Sample:
    """A sample when nothing is asked for: connections of ours are closed, and what the server keeps has had time to go."""
    until = time.monotonic() + 30
    while True:
        found = await sample(product, began, requests)
        if (found.in_flight == 0 and found.queued == 0) or time.monotonic() > until:
            return found
        await asyncio.sleep(0.2)


async def soak(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    options.out.mkdir(parents=True, exist_ok=True)
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="mm-soak-") as folder:
        async with Product.running(Path(folder), config()) as product:
            for model in ("chat", "vectors"):
                answer = await product.http.post(f"/api/models/{model}/start", params={"wait": 120})
                if answer.status_code >= 400:
                    raise Failed(f"{model}: {answer.text[:300]}")
            for model in (
                "left",
                "right",
            ):  # each engine that there is, asleep or not, has tasks and descriptors of its own
                await product.http.post("/v1/completions", json={"model": model, "prompt": "hi", "max_tokens": 1})
            load = Load(product, options.seed)
            began = time.monotonic()
            before = await idle(product, began, 0)
            clients = [asyncio.create_task(load.client()) for _ in range(options.clients)]
            with (options.out / "soak.csv").open("w", newline="") as file:
                table = csv.writer(file)
                table.writerow([field.name for field in fields(Sample)])
                while (passed := time.monotonic() - began) < 60 * options.minutes:
                    await asyncio.sleep(min(options.every, max(0.1, 60 * options.minutes - passed)))
                    found = await sample(product, began, load.done.total())
                    samples.append(found)
                    table.writerow(astuple(found))
                    file.flush()
                    if len(samples) % 12 == 0:
                        say(
                            f"{passed / 60:.1f} min: {found.requests} requests, {found.rss / 2**20:.1f} MiB, {found.descriptors} descriptors"
                        )
            load.stop = True
            await asyncio.gather(*clients)
            after = await idle(product, began, load.done.total())
    return verdict(samples, before, after, load)


def verdict(samples: Sequence[Sample], before: Sample, after: Sample, load: Load) -> dict[str, Any]:
    last = samples[-1].seconds
    second = [s.rss for s in samples if WARM_UP <= s.seconds / last < 2 * WARM_UP] or [samples[0].rss]
    fourth = [s.rss for s in samples if s.seconds / last >= 1 - WARM_UP]
    early, late = statistics.median(second), statistics.median(fourth)
    return {
        "seconds": last,
        "requests": load.done.total(),
        "by_kind": dict(load.done),
        "rss_second_quarter": early,
        "rss_last_quarter": late,
        "growth": late / early - 1,
        "tasks": [before.tasks, after.tasks],
        "descriptors": [before.descriptors, after.descriptors],
        "faults": load.faults[:20],
        "level": late - early <= max(GROWTH * early, SPARE)
        and after.in_flight == 0
        and after.queued == 0
        and after.tasks <= before.tasks + 8,
        "samples": len(samples),
    }  # fmt: skip


def draw(table: Path, picture: Path) -> str:
    """The table as a picture; returns what was done."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return "no picture: matplotlib is not installed (`pip install 'vllm-mm[plot]'`)"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    minutes = [float(row["seconds"]) / 60 for row in rows]
    figure, axes = pyplot.subplots(3, 1, figsize=(10, 8), sharex=True, layout="constrained")
    axes[0].plot(minutes, [int(row["rss"]) / 2**20 for row in rows], color="#3b7dd8")
    axes[0].set(ylabel="memory of the server (MiB)", ylim=(0, None))
    for name, colour in (("descriptors", "#3b7dd8"), ("tasks", "#e0a030"), ("threads", "#60a060")):
        axes[1].plot(minutes, [float(row[name]) for row in rows], label=name, color=colour)
    axes[1].set(ylim=(0, None))
    axes[1].legend()
    for name, colour in (("in_flight", "#3b7dd8"), ("queued", "#e0a030")):
        axes[2].plot(minutes, [float(row[name]) for row in rows], label=name.replace("_", " "), color=colour)
    axes[2].set(xlabel="minutes", ylim=(0, None))
    axes[2].legend()
    for axis in axes:
        axis.grid(visible=True, alpha=0.3)
    figure.savefig(picture, dpi=100)
    pyplot.close(figure)
    return f"drawn: {picture}"


def act(options: argparse.Namespace) -> int:
    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    say(f"{options.minutes:g} minutes with {options.clients} clients, seed {options.seed}")
    try:
        found = asyncio.run(soak(options, say))
    except Failed as error:
        say(f"failed: {error}")
        return 1
    say(draw(options.out / "soak.csv", options.out / "soak.png"))
    if options.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            say(f"{key}: {value}")
    return 0 if found["level"] and not found["faults"] else 1


def add_to(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`scripts/bench soak`."""
    one = kinds.add_parser("soak", help="a mixed load, and whether memory stays level", description=__doc__)
    one.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    one.add_argument("--minutes", type=float, default=60.0)
    one.add_argument("--clients", type=int, default=24, help="that ask at the same time")
    one.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--out", type=Path, default=Path("soak"), help="folder for soak.csv and soak.png (soak)")
    one.set_defaults(act=act)
