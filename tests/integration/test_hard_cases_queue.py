"""Hard cases of the queue: clients with little patience, and somebody who would fill it (docs/hard-cases.md)."""

import asyncio
import contextlib
import json
import time

import httpx

from hard_cases import Case, running, sim


async def busy(it: Case, model: str) -> None:
    """One long stream after the other, also when one was cut, so that it is never idle."""
    while True:
        with contextlib.suppress(httpx.HTTPError):
            await it.streamed(model, tokens=8000)


async def test_clients_that_come_again_and_again_are_served_although_another_model_is_never_idle() -> None:
    """Each waits for less than `swap.max_wait`, and has its 503 with Retry-After: their model has its turn all the same."""
    swap = {"max_wait": "1500ms", "min_dwell": "0s", "drain_timeout": "100ms", "on_drain_timeout": "cut"}
    async with running({"a": sim(), "b": sim()}, memory="12GiB", swap=swap) as it:
        await it.ready("a")
        others = asyncio.create_task(busy(it, "a"))
        await it.in_flight("a", 1)
        codes, end = list[int](), time.monotonic() + 40
        while 200 not in codes and time.monotonic() < end:
            answer = await it.complete("b", wait=0.7)
            codes.append(answer.status_code)
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1
                await asyncio.sleep(0.3)
        others.cancel()
        assert codes[-1] == 200, codes
        assert codes[0] == 503, "it never had to come again"
        await it.written()
        rows = it.serving.rows("select data from events where kind = 'swap.planned' and model = 'b'")
        assert json.loads(rows[0][0])["code"] == "max_wait"


async def test_a_model_that_never_comes_does_not_fill_the_queue() -> None:
    """Room for six: three wait for the one that hangs, more are told that the rest is for others, and others are served."""
    models = {"slow": sim(startup="60s"), "quick": sim(), "other": sim()}
    async with running(models, own_devices=True, queue={"max_size": 6}) as it:
        assert (await it.complete("other")).status_code == 200
        waiting = [asyncio.create_task(it.complete("slow", wait=30)) for _ in range(3)]
        await it.until_queued(3)
        refused = await it.complete("slow", wait=30)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.json()["error"]["reason"] == "queue_share"
        assert "3 requests for this model are waiting already" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert (await it.complete("quick")).status_code == 200
        assert not any(task.done() for task in waiting), "nobody who waits is sent away"
        assert (await it.act("slow", "stop", wait=10)).json()["state"] == "stopped"
        assert {(await task).status_code for task in waiting} == {503}
