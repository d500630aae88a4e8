"""Hard cases of preemption: a busy model has to go, and its answers are longer than a drain (docs/hard-cases.md)."""

import asyncio
import time

import pytest

from freezing import Stream, frozen, put_aside
from hard_cases import kill


@pytest.mark.parametrize("progress", [True, False])
async def test_a_busy_model_is_frozen_and_its_stream_goes_on(progress: bool) -> None:
    """The other model is served long before the stream would have ended; the stream is whole, its text as undisturbed, and
    its client sees comments only if it asked for them; one start each."""
    async with frozen(progress=progress) as (it, stream):
        began = time.monotonic()
        await put_aside(it)
        assert time.monotonic() - began < 3
        assert not stream.task.done()
        await stream.task
        assert stream.clean
        alone = Stream(it, progress=False)
        await alone.task
        assert stream.text == alone.text
        assert (b": frozen model=a" in stream.body) == (b": resumed" in stream.body) == progress
        assert await it.outcomes(3) == {"ok": 3}
        assert await it.starts("a") == 1
        assert it.events("a").count("lease.frozen") == it.events("a").count("lease.thawed") >= 1
        (longest,) = it.serving.rows("select max(frozen_s) from requests where model = 'a'")[0]
        assert 0.1 < longest < 10


async def test_who_is_woken_gives_up_its_sleep_and_no_stream_is_cut() -> None:
    """The host's memory holds one of them asleep, and that is `b`, which is asked for while `a` streams: `b` is stopped, and started anew
    when `a` sleeps with its stream, which goes on to its end. The plan has said so, with `late`."""
    async with frozen(asleep=True) as (it, stream):
        plan = await it.get("/api/plan?model=b")
        [victim], [gives_up] = plan["victims"], plan["stopped"]
        assert (plan["act"], victim["goal"], victim["on_timeout"]) == ("wake", "stop", "keep")
        assert (gives_up["model"], gives_up["sleeps_for"], gives_up["late"]) == ("b", "a", True)
        await put_aside(it)
        assert not stream.task.done()
        await stream.task
        assert stream.clean
        assert b": frozen model=a" in stream.body
        assert await it.outcomes(2) == {"ok": 2}
        assert (await it.starts("a"), await it.starts("b")) == (1, 2)
        assert it.events("a").count("lease.frozen") == it.events("a").count("lease.thawed") >= 1


async def test_a_frozen_engine_that_is_killed_is_told() -> None:
    """Its stream ends with an error and not as if it were whole, its row says so, and the model comes back by a start."""
    async with frozen() as (it, stream):
        pid = (await it.instance("a"))["pid"]
        waiting = asyncio.create_task(put_aside(it))
        await it.until("a", "sleeping")
        kill(pid)
        await stream.task
        await waiting
        assert stream.clean is False
        assert b'"error"' in stream.body
        assert b"[DONE]" not in stream.body
        assert (await it.complete("a", wait=20)).status_code == 200
        assert await it.outcomes(3) == {"ok": 2, "upstream_died": 1}
        assert await it.starts("a") == 2
        await it.quiet()


async def test_the_end_of_the_server_tells_frozen_streams() -> None:
    """SIGTERM while a stream stands still: it is told, the server ends in order, and nothing is left."""
    async with frozen() as (it, stream):
        waiting = asyncio.create_task(put_aside(it))
        await it.until("a", "sleeping")
        assert await it.serving.stop() == 0
        await asyncio.gather(stream.task, waiting, return_exceptions=True)
        assert stream.clean is False
        assert b"[DONE]" not in stream.body


async def test_a_killed_controller_leaves_an_engine_that_has_forgotten() -> None:
    """SIGKILL of the controller while a stream stands still: the next one adopts the sleeper, wakes it for a new request, and
    nothing is generated for the client that is gone."""
    async with frozen() as (it, stream):
        waiting = asyncio.create_task(put_aside(it))
        await it.until("a", "sleeping")
        it.serving.kill()
        await asyncio.gather(stream.task, waiting, return_exceptions=True)
        await it.serving.start()
        assert (await it.complete("a", wait=20)).json()["usage"]["completion_tokens"] == 4
        metrics = (await it.client.get(f"{it.url}/metrics")).text
        running_now = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
        assert running_now
        assert all(line.endswith(" 0.0") for line in running_now)
        await it.quiet()
