"""Hard cases of what a frozen or draining model was promised, while its declaration or its device changes (docs/hard-cases.md)."""

import asyncio
import json
import time

import pytest

from freezing import SWAP, Stream, frozen
from hard_cases import running, sim, until

ROOMY = {"sleep_budget": "60GiB"}


async def whole(stream: Stream) -> None:
    """It came to its end, and that is the engine's own."""
    async with asyncio.timeout(30):
        await stream.task
    assert stream.clean
    assert b"[DONE]" in stream.body


@pytest.mark.parametrize("act", ["drain", "remove", "change"])
async def test_a_drain_for_room_that_a_reload_or_an_operator_joins_cuts_nobody(act: str) -> None:
    """`a` drains for `b` and would be frozen at the deadline; a reload or `drain` promises that its stream is let finish. It is
    frozen as it would have been, `b` has its turn, and `a` stops once its stream is whole."""
    models = {"a": sim(tokens_per_second=100), "b": sim()}
    swap = {**SWAP, "drain_timeout": "1500ms"}
    async with running(models, memory="12GiB", swap=swap, host_memory=ROOMY) as it:
        await it.ready("a")
        stream = Stream(it, progress=False)
        await it.in_flight("a", 1)
        other = asyncio.create_task(it.complete("b", wait=30))
        await it.until("a", "draining")
        if act == "drain":
            assert (await it.act("a", "drain")).status_code < 300
        else:
            it.rewrite(models={"b": sim()} if act == "remove" else {"a": sim(tokens_per_second=101), "b": sim()})
            await it.reload()
        await whole(stream)
        assert (await other).status_code == 200
        await it.until("a", "stopped")
        await it.written()
        assert it.events("a").count("lease.frozen") >= 1
        assert "lease.revoked" not in it.events("a")
        await it.quiet()


@pytest.mark.parametrize("weights", ["1GiB", "40GiB"])
async def test_a_frozen_model_whose_size_is_changed_is_woken_as_it_is(weights: str) -> None:
    """Smaller, or too big for any device: its engine is the old one. The stream goes on in the old one's room and is whole."""
    async with frozen(progress=False) as (it, stream):
        other = asyncio.create_task(it.complete("b", wait=20, tokens=400))
        await it.until("a", "sleeping")
        it.rewrite(models={"a": sim(weights=weights), "b": sim()})
        await it.reload()
        await whole(stream)
        assert (await other).status_code == 200
        await it.until("a", "stopped")
        await it.written()
        planned = it.serving.rows("select data from events where kind = 'swap.planned' and model = 'a' order by seq")
        sizes = {tuple(json.loads(data)["devices"].values()) for (data,) in planned}
        assert len(planned) >= 2
        assert len(sizes) == 1
        await it.quiet()


@pytest.mark.parametrize("fault", ["unreadable", "Xid 79"])
async def test_a_frozen_stream_outlives_a_device_that_is_out_of_use_for_a_while(fault: str) -> None:
    """Its engine is not stopped, nobody is frozen for a wake that cannot be, and it goes on once the device is well again."""
    models = {name: sim(tokens_per_second=30) for name in "abc"}
    async with running(models, memory="12GiB", swap={**SWAP, "max_wait": "9s"}, host_memory=ROOMY) as it:
        await it.ready("a")
        stream = Stream(it, progress=False)
        await it.in_flight("a", 1)
        other = asyncio.create_task(it.streamed("b", tokens=400))
        await it.until("a", "sleeping")
        await it.until("b", "ready")
        (device,) = (p for p in it.serving.data.rglob("sim0") if p.is_dir())
        (device / ".fault").write_text(fault)
        # While somebody waits for memory the devices are read every second; three bad readings put one out of use.
        third = asyncio.create_task(it.complete("c", wait=120))

        async def out() -> bool:
            return bool((await it.get("/api/devices"))[0]["problem"])

        await until(out, "the device to be out of use", 8.0)
        until_overdue = time.monotonic() + 8.0
        while time.monotonic() < until_overdue:
            assert await it.state("a") == "sleeping"
            assert await it.state("b") == "ready"
            await asyncio.sleep(0.2)
        (device / ".fault").unlink()
        await whole(stream)
        assert b"[DONE]" in (await other)[1]
        assert (await third).status_code == 200
        await it.written()
        assert "lease.revoked" not in it.events()
        await it.quiet()


async def test_a_lease_on_a_device_lets_streams_finish() -> None:
    """Under `preempt` too, for a frozen stream would stand still for the lease's whole time. The lease names whom it waits for."""
    models = {"a": sim(tokens_per_second=100)}
    async with running(models, memory="12GiB", swap=SWAP, host_memory=ROOMY) as it:
        await it.ready("a")
        stream = Stream(it, progress=False)
        await it.in_flight("a", 1)
        url = f"{it.url}/api/devices/sim0/leases"
        asked = await it.client.post(url, params={"wait": 1}, json={"free": "12GiB", "for": "1h"})
        assert asked.json()["stage"] == "asked"
        assert asked.json()["reason"] == "waits until what runs has finished: a (1 in flight)"
        await whole(stream)
        await it.until("a", "stopped", "sleeping")
        await it.written()
        assert "lease.frozen" not in it.events("a")
        await it.client.delete(f"{it.url}/api/devices/leases/{asked.json()['id']}")
        await it.until("a", "ready")


async def test_the_priority_of_a_request_decides_between_models() -> None:
    """As its header asks: the model of the more urgent one goes first, though fewer wait for it and they came later."""
    models = {"a": sim(), "low": sim(), "zhigh": sim()}
    async with running(models, memory="12GiB", swap={"max_wait": "60s", "min_dwell": "3s"}) as it:
        await it.ready("a")

        async def ask(model: str, priority: int) -> int:
            body = {"model": model, "prompt": "hi", "max_tokens": 4}
            headers = {"x-vllm-mm-priority": str(priority), "x-vllm-mm-wait": "60"}
            return (await it.client.post(f"{it.url}/v1/completions", json=body, headers=headers)).status_code

        asked = [asyncio.create_task(ask("low", 0)) for _ in range(3)]
        await it.until_queued(3)
        asked.append(asyncio.create_task(ask("zhigh", 10)))
        assert await asyncio.gather(*asked) == [200] * 4
        await it.written()
        planned = it.serving.rows("select model from events where kind = 'swap.planned' order by seq")
        assert [model for (model,) in planned] == ["a", "zhigh", "low"]
