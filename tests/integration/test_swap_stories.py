"""Swaps as users see them, in real time and with generous bounds; `scripts/bench swap` has the figures (docs/scheduling.md)."""

import asyncio
import json
import time
from typing import Any

import pytest

from hard_cases import Case, running, sim
from vllm_mm.domain.reasons import Reason

ONE = "12GiB"
"""Room for one model of 10 GiB."""
SLACK = 3.0
"""Seconds for a stop, a start, and a machine that has other things to do."""


Answer = tuple[int, str, bool]
"""Status, text, and whether it ended as a whole answer does."""


async def stream(it: Case, model: str, tokens: int) -> Answer:
    status, body = await it.streamed(model, tokens=tokens)
    events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(event["choices"][0]["text"] for event in events if event.get("choices"))
    return status, text, body.endswith(b"data: [DONE]\n\n")


async def busy(it: Case, model: str, tokens: int, over: asyncio.Event, delay: float = 0.0) -> list[Answer]:
    """A customer of `model` who asks again as soon as an answer is there."""
    await asyncio.sleep(delay)
    seen: list[Answer] = []
    while not over.is_set():
        seen.append(await stream(it, model, tokens))
        if seen[-1][0] == 503:
            await asyncio.sleep(0.1)
    return seen


@pytest.mark.parametrize(
    ("drain_timeout", "on_timeout", "tokens", "longest_drain"),
    [("10s", "cut", 240, 0.6), ("500ms", "preempt", 1200, 0.5)],
    ids=["drained", "preempted"],
)
async def test_overlapping_streams_keep_a_busy_and_one_request_wants_b(
    drain_timeout: str, on_timeout: str, tokens: int, longest_drain: float
) -> None:
    """B is served within `max_wait` and the drain, whether A's streams end by themselves or are frozen at the drain's
    deadline; each stream of A that began ends whole, with all of its tokens."""
    swap = {
        "max_wait": "1s", "min_dwell": "0s", "quantum": "500ms", "drain_timeout": drain_timeout, "on_drain_timeout": on_timeout,
    }  # fmt: skip
    asleep = {"host_memory": {"sleep_budget": "64GiB"}}
    async with running({"a": sim(), "b": sim()}, memory=ONE, swap=swap, **asleep) as it:
        await it.ready("a")
        undisturbed = await stream(it, "a", tokens)
        over = asyncio.Event()
        customers = [asyncio.create_task(busy(it, "a", tokens, over, 0.1 * n)) for n in range(6)]
        await it.in_flight("a", 6)
        began = time.monotonic()
        answer = await it.complete("b")
        took = time.monotonic() - began
        over.set()
        seen = [one for customer in customers for one in await customer]
        assert answer.status_code == 200
        assert 0.9 < took < 1.0 + longest_drain + SLACK, took
        whole = [one for one in seen if one[0] == 200]
        assert len(whole) >= 3
        assert all(one == undisturbed for one in whole), "a token was lost, repeated or changed"
        [waited] = await it.serving.rows_when(
            "select reason, queued_s from requests where model = 'b'", lambda rows: len(rows) == 1
        )
        assert waited[0] == Reason.MAX_WAIT
        assert waited[1] > 0.9


async def test_a_b_a_a_c_a_b_c_costs_three_swaps_at_most() -> None:
    """Each model is loaded once for all who want it; the ledger says what each request waited for."""
    async with running({m: sim() for m in "abc"}, memory=ONE) as it:
        tasks: list[Any] = []
        for model in "abaacabc":
            tasks.append(asyncio.create_task(it.complete(model)))
            await asyncio.sleep(0.02)
        answers = await asyncio.gather(*tasks)
        assert [a.status_code for a in answers] == [200] * 8, [a.text for a in answers]
        assert await it.starts() <= 3
        rows = await it.serving.rows_when("select model, reason, queued_s from requests", lambda rows: len(rows) == 8)
        assert all(reason in set(Reason) for _, reason, queued in rows if queued > 0.05), rows


async def test_neighbours_do_not_notice_swaps_on_another_device() -> None:
    """Streams on A go on without a long gap while B and C swap without pause on a device of their own."""
    models = {
        "a": sim(model={"devices": {"ids": ["d0"]}}, tokens_per_second=20),
        **{m: sim(model={"devices": {"ids": ["d1"]}}) for m in "bc"},
    }
    devices = [{"id": d, "memory": ONE, "simulated": True} for d in ("d0", "d1")]
    async with running(models, devices=devices) as it:
        await it.ready("a")
        gaps: list[float] = []

        async def listen() -> None:
            last = 0.0
            async with it.stream("a", tokens=80) as answer:
                async for line in answer.aiter_lines():
                    now = time.monotonic()
                    if line.startswith("data: {"):
                        if last:
                            gaps.append(now - last)
                        last = now

        streams = [asyncio.create_task(listen()) for _ in range(20)]
        swaps = 0
        while not all(s.done() for s in streams):
            assert (await it.complete("bc"[swaps % 2])).status_code == 200
            swaps += 1
        await asyncio.gather(*streams)
        gaps.sort()
        assert len(gaps) == 20 * 79
        assert swaps >= 3
        assert gaps[int(0.99 * len(gaps))] < 0.05 + 0.5, gaps[-20:]


async def test_refusals_carry_the_code_in_both_shapes() -> None:
    """A client that does not wait for a busy model learns why in OpenAI's and in Anthropic's error, and so does the ledger."""
    async with running({"a": sim(), "b": sim()}, memory=ONE, swap={"max_wait": "30s", "min_dwell": "0s"}) as it:
        await it.ready("a")
        over = asyncio.Event()
        stream = asyncio.create_task(busy(it, "a", 400, over))
        await it.in_flight("a", 1)
        openai = await it.complete("b", wait=0.3)
        body = {"model": "b", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
        anthropic = await it.client.post(f"{it.url}/v1/messages", json=body, headers={"x-vllm-mm-wait": "0.3"})
        queue = asyncio.create_task(it.complete("b", wait=5.0))
        await it.until_queued(1)
        [entry] = (await it.get("/api/queue"))["entries"]
        plan = await it.get("/api/plan?model=b")
        over.set()
        await stream
        assert (await queue).status_code == 200
        assert (openai.status_code, anthropic.status_code) == (503, 503)
        held = openai.json()["error"]["reason"]
        assert held in set(Reason)
        assert anthropic.json()["error"]["reason"] == held
        assert 1 <= int(openai.headers["retry-after"]) <= 60
        assert entry["reason"] == held
        assert entry["why"]
        assert entry["at_latest_s"] >= entry["eta_s"] > 0
        assert plan["code"] in set(Reason)
        assert [v["model"] for v in plan["victims"]] in (["a"], [])
        rows = await it.serving.rows_when(
            "select reason, outcome from requests where model = 'b' order by row", lambda rows: len(rows) == 3
        )
        assert rows[:2] == [(held, "wait_expired"), (held, "wait_expired")]


async def test_etas_are_measured() -> None:
    """After some swaps the server says how far off its ETAs were, and the metrics count them."""
    async with running({"a": sim(), "b": sim()}, memory=ONE) as it:
        for model in "abab":
            assert (await it.complete(model)).status_code == 200
        status = await it.get("/api/status")
        decided = status["forecasts"]["decided"]
        assert decided["compared"] == 4
        assert 0 <= decided["typical_error_s"] < 5
        text = (await it.client.get(f"{it.url}/metrics")).text
        counts = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("vllm_mm_eta_error_seconds_count")
        ]
        assert sum(counts) == 8
