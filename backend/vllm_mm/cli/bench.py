"""`bench`: a small load test against a running server, by the way that every client goes."""

import asyncio
import json as jsonlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_mm.cli.exits import Exit, fail
from vllm_mm.cli.options import Json, Model
from vllm_mm.cli.output import print_json, print_table
from vllm_mm.cli.server import CONNECT_TIMEOUT, Server, the_server

if TYPE_CHECKING:
    import httpx

WORDS = "The quick brown fox jumps over the lazy dog while it rains in the old town."
PERCENTILES = (50, 90, 95, 99)
SILENCE = 600.0
"""Seconds without a byte after which a request is given up."""


@dataclass(slots=True)
class Sample:
    """How one request went. Times in seconds from when it was sent."""

    total: float = 0.0
    ttft: float | None = None
    """To the first piece with text in it."""
    gaps: list[float] = field(default_factory=list[float])
    """Between two such pieces."""
    tokens: int = 0
    """As the engine counts them; pieces, where it does not tell."""
    error: str = ""


Send = Callable[[], Awaitable[Sample]]


def add_to(app: typer.Typer) -> None:
    app.command("bench", epilog="Example: vllm-mm bench demo --requests 100 --concurrency 10")(bench)


def bench(
    context: typer.Context,
    model: Model,
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, max=100_000, help="How many.")] = 50,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=1000, help="So many at a time.")] = 8,
    prompt_words: Annotated[int, typer.Option("--prompt-words", min=1, max=100_000, help="Length of a prompt.")] = 50,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Length of an answer.")] = 64,
    json: Json = False,
) -> None:
    """Measure a running server: requests and tokens a second, times to the first token (TTFT) and between tokens (ITL). The
    model is loaded first. Exit code 1 when a request failed."""
    server = the_server(context)
    body = {
        "model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": prompt(prompt_words)}],
    }  # fmt: skip
    progress = None if json else partial(_progress, requests)
    try:
        first, samples, took = asyncio.run(_measure(server, body, requests, concurrency, progress))
    except KeyboardInterrupt:
        fail("interrupted", Exit.INTERRUPTED)
    if first is not None:
        fail(first.error, Exit.UNREACHABLE if first.error.startswith("no server") else Exit.FAILED)
    found = summary(samples, took)
    if json:
        print_json({"model": model, "concurrency": concurrency, "max_tokens": max_tokens, **found})
    else:
        _print(found)
    if found["failed"]:
        raise typer.Exit(Exit.FAILED)


def prompt(words: int) -> str:
    """A text of so many words."""
    source = WORDS.split()
    return " ".join(source[n % len(source)] for n in range(words))


async def _measure(
    server: Server, body: dict[str, Any], requests: int, concurrency: int, progress: Callable[[int], None] | None
) -> tuple[Sample | None, Sequence[Sample], float]:
    """One request that loads the model and is not counted, then the rest; the first, if it failed."""
    import httpx  # noqa: PLC0415  # takes a third of a second: only for commands that talk

    headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    timeout = httpx.Timeout(SILENCE, connect=CONNECT_TIMEOUT)
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, limits=limits, timeout=timeout, trust_env=False,
        verify=server.url.startswith("https:"),
    ) as client:  # fmt: skip
        first = await one(client, {**body, "max_tokens": 1}, wait=600)
        if first.error:
            return first, (), 0.0
        began = time.perf_counter()
        samples = await run(lambda: one(client, body, wait=60), requests, concurrency, progress)
        return None, samples, time.perf_counter() - began


async def run(
    send: Send, requests: int, concurrency: int, progress: Callable[[int], None] | None = None
) -> Sequence[Sample]:
    """`requests` of them, never more than `concurrency` at a time."""
    samples: list[Sample] = []
    left = iter(range(requests))

    async def worker() -> None:
        for _ in left:
            samples.append(await send())
            if progress is not None:
                progress(len(samples))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, requests)):
            group.create_task(worker())
    return samples


async def one(client: "httpx.AsyncClient", body: dict[str, Any], *, wait: int) -> Sample:
    """Send it, and take the time of each piece. Never raises for what goes wrong on the way."""
    import httpx  # noqa: PLC0415  # as above

    sample = Sample()
    began = time.perf_counter()
    try:
        async with client.stream(
            "POST", "/v1/chat/completions", json=body, headers={"X-VLLM-MM-Wait": str(wait)}
        ) as answer:
            if answer.is_error:
                sample.error = _refusal(answer.status_code, await answer.aread())
            else:
                await _read(answer, sample, began)
    except httpx.ConnectError as error:
        sample.error = f"no server at {client.base_url} ({error})"
    except httpx.HTTPError as error:
        sample.error = f"{type(error).__name__}: {error}".rstrip(": ")
    sample.total = time.perf_counter() - began
    return sample


async def _read(answer: "httpx.Response", sample: Sample, began: float) -> None:
    last: float | None = None
    pieces, ended = 0, False
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            ended = True
        elif line.startswith("data: "):
            event: dict[str, Any] = jsonlib.loads(line.removeprefix("data: "))
            if "error" in event:
                sample.error = str(event["error"].get("message", "the engine failed"))
                return
            usage: dict[str, int] = event.get("usage") or {}
            sample.tokens = usage.get("completion_tokens", sample.tokens)
            if any(_says(choice) for choice in event.get("choices", ())):
                now = time.perf_counter()
                pieces += 1
                if last is None:
                    sample.ttft = now - began
                else:
                    sample.gaps.append(now - last)
                last = now
    sample.tokens = sample.tokens or pieces
    if not ended:
        sample.error = "the answer was cut"


def _says(choice: dict[str, Any]) -> bool:
    """Whether a piece has text in it."""
    delta: dict[str, Any] = choice.get("delta") or {}
    return bool(delta.get("content"))


def _refusal(status: int, body: bytes) -> str:
    try:
        return f"{status}: {jsonlib.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the server answered {status}"


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles, by the nearest rank; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {f"p{p}": ordered[max(0, -(-len(ordered) * p // 100) - 1)] for p in PERCENTILES}
    return {"mean": sum(ordered) / len(ordered), **ranks, "max": ordered[-1]}


def summary(samples: Sequence[Sample], took: float) -> dict[str, Any]:
    """What came of it. Times in seconds; those of requests that failed are left out."""
    good = [s for s in samples if not s.error]
    tokens = sum(s.tokens for s in good)
    return {
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "seconds": took,
        "requests_per_second": len(good) / took if took else 0.0,
        "tokens_per_second": tokens / took if took else 0.0,
        "tokens": tokens,
        "ttft_s": percentiles([s.ttft for s in good if s.ttft is not None]),
        "itl_s": percentiles([gap for s in good for gap in s.gaps]),
        "total_s": percentiles([s.total for s in good]),
        "errors": dict(Counter(s.error for s in samples if s.error).most_common(10)),
    }


def _print(found: dict[str, Any]) -> None:
    typer.echo(
        f"{found['requests']} requests in {found['seconds']:.1f} s: {found['requests_per_second']:.1f} requests/s, "
        f"{found['tokens_per_second']:.0f} tokens/s, {found['failed']} failed"
    )
    names = {"ttft_s": "first token", "itl_s": "between tokens", "total_s": "whole request"}
    rows = [
        (text, *(f"{value * 1000:.1f}" for value in found[name].values()))
        for name, text in names.items()
        if found[name]
    ]
    if rows:
        print_table(("ms", "mean", *(f"p{p}" for p in PERCENTILES), "max"), rows, "")
    for error, times in found["errors"].items():
        typer.echo(f"failed {times} times: {error}", err=True)


def _progress(requests: int, done: int) -> None:
    """On a terminal, in one line."""
    import sys  # noqa: PLC0415  # only here

    if sys.stderr.isatty():
        typer.echo(f"\r{done} of {requests}" + ("\r\x1b[K" if done == requests else ""), nl=False, err=True)
