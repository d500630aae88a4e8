"""The stories that the project starts from, told against the product as it runs, on simulated engines."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import Serving

QUICK = {
    "weights": "8GiB",
    "kv_cache": "2GiB",
    "load_bandwidth": "100GiB/s",
    "startup": "100ms",
    "tokens_per_second": 400,
}
SLOW = {**QUICK, "startup": "3s"}
Start = Callable[..., AbstractAsyncContextManager[tuple[Serving, httpx.AsyncClient]]]


@pytest.fixture
def serve() -> Start:
    """`async with serve(models, memory=...) as (serving, client)`; nothing is left of it."""

    @asynccontextmanager
    async def start(
        models: Mapping[str, Any], *, memory: str = "24GiB", **config: Any
    ) -> AsyncIterator[tuple[Serving, httpx.AsyncClient]]:
        with tempfile.TemporaryDirectory(prefix="mm-") as folder:
            serving = Serving(
                Path(folder),
                {"devices": [{"id": "sim0", "memory": memory, "simulated": True}], "models": models, **config},
                forked=True,
            )
            async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
                try:
                    await serving.start()
                    yield serving, client
                    assert await serving.stop() == 0, serving.log[-2000:]  # or was, if the story stopped it
                    assert serving.left() == {}
                finally:
                    serving.end()

    return start


def sim(**profile: Any) -> dict[str, Any]:
    return {"engine": "sim", "sim": profile}


async def complete(serving: Serving, client: httpx.AsyncClient, model: str, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"model": model, "prompt": "hi", "max_tokens": 4, **more}
    return await client.post(f"{serving.url}/v1/completions", json=body, headers=headers)


async def test_a_load_elsewhere_does_not_touch_a_ready_model(serve: Start) -> None:
    """The first story, with room for both: while B loads, requests to A are served at once, and the start of B is
    answered at once. (By how much a request may be slower is measured by scripts/bench, not here.)"""
    async with serve({"a": sim(**QUICK), "b": sim(**SLOW)}) as (serving, client):
        await complete(serving, client, "a")
        began = time.monotonic()
        answer = await client.post(f"{serving.url}/api/models/b/start")
        assert answer.status_code == 202
        assert time.monotonic() - began < 1.0
        served = 0
        while (await serving.instances(client))["b"]["state"] != "ready":
            answer = await complete(serving, client, "a")
            assert answer.status_code == 200
            assert int(answer.headers["x-vllm-mm-queue-ms"]) < 1000
            assert (await client.get(f"{serving.url}/api/queue")).json()["length"] == 0
            served += 1
        assert served > 20
        assert time.monotonic() - began > 3


async def test_a_swap_finishes_holds_or_refuses_and_never_cuts(serve: Start) -> None:
    """The first story, with room for one: requests to A end well, are held, or get 503 with Retry-After."""
    models = {"a": sim(**QUICK), "b": sim(**QUICK)}
    async with serve(models, memory="12GiB", swap={"max_wait": "1s", "min_dwell": "500ms"}) as (serving, client):
        await complete(serving, client, "a")
        stop, seen = asyncio.Event(), Counter[str]()

        async def customer(stream: bool) -> None:
            while not stop.is_set():
                body = {"model": "a", "prompt": "hi", "max_tokens": 40, "stream": stream}
                async with client.stream("POST", f"{serving.url}/v1/completions", json=body) as answer:
                    text = (await answer.aread()).decode()
                if answer.status_code == 503:
                    assert 1 <= int(answer.headers["retry-after"]) <= 60
                    seen["refused"] += 1
                    await asyncio.sleep(0.05)
                    continue
                assert answer.status_code == 200, text
                assert not stream or text.endswith("data: [DONE]\n\n"), text
                assert '"error"' not in text
                seen["stream" if stream else "plain"] += 1

        async def served(times: int) -> None:
            async with asyncio.timeout(20):
                while min(seen["stream"], seen["plain"]) <= times:
                    await asyncio.sleep(0.02)

        customers = [asyncio.create_task(customer(stream)) for stream in (True, False, True, False)]
        await served(3)
        assert (await client.post(f"{serving.url}/api/models/b/start?wait=30")).status_code == 200
        seen.clear()
        await served(3)  # of a swap back to A, which is wanted again
        stop.set()
        await asyncio.gather(*customers)
        await serving.written(client)
        kinds = Counter(k for (k,) in serving.rows("select kind from events where model = 'a'"))
        assert kinds["instance.draining"] >= 1
        assert kinds["lease.revoked"] == 0


async def test_fifty_requests_for_a_stopped_model_cause_one_start(serve: Start) -> None:
    """All fifty are served by one start."""
    async with serve({"a": sim(**QUICK)}) as (serving, client):
        answers = await asyncio.gather(*(complete(serving, client, "a") for _ in range(50)))
        assert {a.status_code for a in answers} == {200}
        await serving.stop()
        assert serving.rows("select count(*) from events where kind = 'instance.starting'") == [(1,)]
        assert serving.rows("select count(*), count(distinct id) from requests where outcome = 'ok'") == [(50, 50)]


async def test_a_failing_start_answers_all_fifty_with_the_reason(serve: Start) -> None:
    """Within a second of the failure, with the phase and the last lines of the log."""
    async with serve({"a": sim(**QUICK, fault="die_at:weights")}) as (serving, client):
        ended: list[float] = []

        async def one() -> httpx.Response:
            answer = await complete(serving, client, "a")
            ended.append(time.time())
            return answer

        answers = await asyncio.gather(*(one() for _ in range(50)))
        assert {a.status_code for a in answers} == {503}
        error = answers[0].json()["error"]
        assert error["code"] == "model_start_failed"
        assert "weights" in json.dumps(error)
        assert 1 <= int(answers[0].headers["retry-after"]) <= 60
        await serving.stop()
        [(failed,)] = serving.rows("select min(at) from events where kind = 'instance.stopping'")
        assert max(ended) - failed < 1.0
        assert serving.rows("select count(*) from events where kind = 'instance.starting'") == [(1,)]


async def test_a_dead_controllers_engines_are_adopted(serve: Start) -> None:
    """SIGKILL to the controller: the engine goes on, the next one takes it over, and nothing starts twice."""
    async with serve({"a": sim(**QUICK)}) as (serving, client):
        before = (await complete(serving, client, "a")).json()["choices"]
        pid = (await serving.instances(client))["a"]["pid"]
        await serving.written(client)
        serving.kill()
        await serving.start()
        instance = (await serving.instances(client))["a"]
        assert (instance["state"], instance["pid"]) == ("ready", pid)
        after = await complete(serving, client, "a")
        assert after.json()["choices"] == before
        await serving.written(client)
        assert serving.rows("select count(*) from events where kind = 'instance.starting'") == [(1,)]


async def test_engines_that_must_not_outlive_their_controller_do_not(serve: Start) -> None:
    """`engines_outlive_controller: false`: SIGKILL to the controller ends its engines too, children included."""
    async with serve({"a": sim(**QUICK)}, engines_outlive_controller=False) as (serving, client):
        await complete(serving, client, "a")
        assert len(serving.left()) >= 4  # controller, guard, API server, engine core
        serving.kill()
        deadline = time.monotonic() + 10
        while serving.left() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert serving.left() == {}
        await serving.start()
        assert (await complete(serving, client, "a")).status_code == 200


async def test_hand_over_keeps_the_engine(serve: Start) -> None:
    """SIGUSR2: the controller ends with code 0, its engine lives on for the next one."""
    async with serve({"a": sim(**QUICK)}) as (serving, client):
        await complete(serving, client, "a")
        pid = (await serving.instances(client))["a"]["pid"]
        serving.signal(signal.SIGUSR2)
        assert await serving.wait() == 0
        assert pid in serving.left()
        await serving.start()
        assert (await serving.instances(client))["a"]["pid"] == pid


async def test_a_client_that_leaves_frees_its_place_and_the_engine(serve: Start) -> None:
    """While it waits: the ticket is gone. While it streams: the engine stops within half a second."""
    async with serve({"a": sim(**{**QUICK, "startup": "1s"}, max_num_seqs=8)}) as (serving, client):
        waiting = asyncio.create_task(complete(serving, client, "a"))
        while (await client.get(f"{serving.url}/api/queue")).json()["length"] != 1:
            await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.wait([waiting])
        deadline = time.monotonic() + 2
        while (await client.get(f"{serving.url}/api/queue")).json()["length"] and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert (await client.get(f"{serving.url}/api/queue")).json()["length"] == 0
        await serving.until(client, "a", "ready")
        body = {"model": "a", "prompt": "hi", "max_tokens": 1800, "stream": True, "ignore_eos": True}
        async with client.stream("POST", f"{serving.url}/v1/completions", json=body) as answer:
            chunks = answer.aiter_bytes()  # a name, or it would be collected, and close the connection
            await anext(chunks)
            began = time.monotonic()
            while await running(serving, client) != 1:
                assert time.monotonic() - began < 3
        left = time.monotonic()
        while await running(serving, client):
            assert time.monotonic() - left < 3
        print(f"the engine stopped within {time.monotonic() - left:.2f} s")
        assert (await serving.instances(client))["a"]["in_flight"] == 0
        await serving.stop()
        outcomes = Counter(o for (o,) in serving.rows("select outcome from requests"))
        assert outcomes == {"client_gone": 2}


async def running(serving: Serving, client: httpx.AsyncClient) -> float:
    text = (await client.get(f"{serving.url}/metrics")).text
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running{")
    )


async def test_an_engine_that_dies_in_a_stream_is_told(serve: Start) -> None:
    """The API server is killed mid-stream: an error event, no [DONE], no clean end; the row says so; its children go."""
    async with serve({"a": sim(**QUICK)}) as (serving, client):
        await complete(serving, client, "a")
        pid = (await serving.instances(client))["a"]["pid"]
        got = b""

        async def read() -> None:
            nonlocal got
            body = {"model": "a", "prompt": "hi", "max_tokens": 1800, "stream": True, "ignore_eos": True}
            async with client.stream("POST", f"{serving.url}/v1/completions", json=body) as answer:
                async for chunk in answer.aiter_bytes():
                    if not got:
                        os.kill(pid, signal.SIGKILL)
                    got += chunk

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        assert b"[DONE]" not in got
        assert b'"error"' in got
        await serving.until(client, "a", "backoff", 10)
        assert serving.engines() == {}
        await serving.stop()
        assert serving.rows("select outcome, status from requests where stream") == [("upstream_died", 200)]
