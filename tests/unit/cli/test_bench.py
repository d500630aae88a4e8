"""`vllm-mm bench`: what is counted, and what is made of it."""

import asyncio
from typing import Any

import httpx
import pytest

from vllm_mm.cli import bench
from vllm_mm.cli.bench import Sample

BODY: dict[str, Any] = {"model": "demo", "messages": []}


def client(status: int, *lines: str) -> httpx.AsyncClient:
    text = "".join(f"{line}\n\n" for line in lines)
    answer = lambda _: httpx.Response(status, text=text)  # noqa: E731
    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://mm")


def piece(text: str) -> str:
    return f'data: {{"choices": [{{"delta": {{"content": "{text}"}}}}]}}'


async def test_a_stream_is_taken_the_time_of() -> None:
    """The first piece with text, the gaps between those, and the engine's own count of tokens."""
    usage = 'data: {"choices": [], "usage": {"completion_tokens": 7}}'
    role = 'data: {"choices": [{"delta": {"role": "assistant"}}], "usage": null}'
    async with client(200, role, piece("a"), piece("b"), piece("c"), usage, "data: [DONE]") as http:
        sample = await bench.one(http, BODY, wait=1)
    assert (sample.error, sample.tokens, len(sample.gaps)) == ("", 7, 2)
    assert sample.ttft is not None
    assert 0 < sample.ttft <= sample.total


async def test_pieces_are_counted_where_the_engine_does_not_tell() -> None:
    async with client(200, piece("a"), piece("b"), "data: [DONE]") as http:
        assert (await bench.one(http, BODY, wait=1)).tokens == 2


@pytest.mark.parametrize(
    ("status", "lines", "told"),
    [
        (200, [piece("a")], "the answer was cut"),
        (200, ['data: {"error": {"message": "the engine died"}}'], "the engine died"),
        (503, ['{"error": {"message": "no room"}}'], "503: no room"),
        (502, ["<html>"], "the server answered 502"),
    ],
)
async def test_what_fails_says_why(status: int, lines: list[str], told: str) -> None:
    async with client(status, *lines) as http:
        assert (await bench.one(http, BODY, wait=1)).error == told


async def test_never_more_at_a_time_than_were_asked_for() -> None:
    """And all of them."""
    running = most = 0

    async def send() -> Sample:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return Sample()

    seen: list[int] = []
    assert len(await bench.run(send, 20, 3, seen.append)) == 20
    assert (most, seen) == (3, list(range(1, 21)))


def test_percentiles_are_values_that_were_seen() -> None:
    """By the nearest rank."""
    found = bench.percentiles([float(n) for n in range(1, 101)])
    assert found == {"mean": 50.5, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
    assert bench.percentiles([3.0]) == {"mean": 3, "p50": 3, "p90": 3, "p95": 3, "p99": 3, "max": 3}
    assert bench.percentiles([]) is None


def test_the_summary_leaves_out_the_times_of_what_failed() -> None:
    """It counts them, by their errors."""
    samples = [Sample(total=1.0, ttft=0.5, gaps=[0.1], tokens=4), Sample(total=9.0, error="x"), Sample(error="x")]
    found = bench.summary(samples, 2.0)
    assert (found["requests"], found["failed"], found["errors"]) == (3, 2, {"x": 2})
    assert (found["requests_per_second"], found["tokens_per_second"]) == (0.5, 2.0)
    assert found["total_s"]["max"] == 1.0


def test_a_prompt_has_so_many_words() -> None:
    assert len(bench.prompt(123).split()) == 123
