"""Hard cases of sleep on real processes: evicted models sleep and come back, and nothing that an engine says is believed unseen."""

import time

from hard_cases import kill, running, sim, until

ONE = "13GiB"
"""Room for one model of 10 GiB and what sleepers keep."""
SLOW = {"startup": "1500ms", "sleep_residual": "1GiB"}
ROOMY = {"sleep_budget": "20GiB"}


async def test_an_evicted_model_sleeps_and_is_back_sooner_than_by_a_start() -> None:
    """Its device keeps what stays of it, the host's memory its weights; the wake takes less than half of a start."""
    async with running({m: sim(**SLOW) for m in "ab"}, memory=ONE, host_memory=ROOMY) as it:
        began = time.monotonic()
        await it.ready("a")
        start = time.monotonic() - began
        assert (await it.complete("b")).status_code == 200
        told = await it.instance("a")
        assert told["state"] == "sleeping"
        assert told["reason"].startswith("evicted: room for b")
        [device] = await it.get("/api/devices")
        held = {r["model"]: r["bytes"] for r in device["reservations"]}
        assert held == {"a": 2**30, "b": 10 * 2**30}
        assert (await it.get("/api/status"))["host_memory"]["held"] == {"a": 8 * 2**30}
        began = time.monotonic()
        assert (await it.complete("a")).status_code == 200
        assert time.monotonic() - began < start / 2
        assert await it.starts() == 2
        assert (await it.get("/api/status"))["host_memory"]["held"] == {"b": 8 * 2**30}


async def test_the_hosts_memory_bounds_the_sleepers() -> None:
    """Room for one sleeper of 8 GiB: the one that slept longer goes for the one that comes."""
    async with running({m: sim(**SLOW) for m in "abc"}, memory=ONE, host_memory={"sleep_budget": "10GiB"}) as it:
        await it.ready("a")
        for model in "bc":
            assert (await it.complete(model)).status_code == 200
        await it.until("a", "stopped")
        assert await it.state("b") == "sleeping"
        assert (await it.get("/api/status"))["host_memory"]["held"] == {"b": 8 * 2**30}


async def test_a_plan_names_the_sleeper_that_goes_for_the_sleep_of_a_victim() -> None:
    """Two go for a big one, and the host's memory has room for two sleepers of three: what the plan says is what happens."""
    models = {m: sim(**SLOW) for m in ("old", "a", "b")} | {"big": sim(**SLOW | {"kv_cache": "11GiB"})}
    async with running(models, host_memory={"sleep_budget": "18GiB"}) as it:
        await it.ready("old")
        assert (await it.act("old", "sleep", wait=20)).json()["state"] == "sleeping"
        await it.ready("a")
        await it.ready("b")
        plan = await it.get("/api/plan?model=big")
        assert {v["model"]: v["goal"] for v in plan["victims"]} == {"a": "sleep", "b": "sleep"}
        [stopped] = plan["stopped"]
        last = plan["victims"][-1]["model"]
        assert (stopped["model"], stopped["sleeps_for"], stopped["host_bytes"]) == ("old", last, 8 * 2**30)
        assert await it.state("old") == "sleeping", "a plan changes nothing"
        await it.ready("big")
        await it.until("old", "stopped")
        assert (await it.state("a"), await it.state("b")) == ("sleeping", "sleeping")
        rows = await it.serving.rows_when(
            "select data from events where kind = 'instance.stopping' and model = 'old'", lambda rows: len(rows) == 1
        )
        assert f"sleep_room: host memory for the sleep of {last}" in rows[0][0]


async def test_wakes_that_fail_become_starts_and_end_sleep_for_that_model() -> None:
    """One is refused, one answers gibberish: both times those who wait are served, by a start; then it is stopped instead."""
    faults = {"a": sim("refuse_wake", **SLOW), "b": sim(**SLOW)}
    async with running(faults, memory=ONE, host_memory=ROOMY) as it:
        await it.ready("a")
        for _ in range(2):
            assert (await it.complete("b")).status_code == 200
            assert await it.state("a") == "sleeping"
            status, body = await it.streamed("a")
            assert (status, body[-14:]) == (200, b"data: [DONE]\n\n")
        assert (await it.complete("b")).status_code == 200
        await it.until("a", "stopped")
        await it.written()
        assert it.events("a").count("wake.failed") == 2
        assert "sleep went wrong before" in (await it.get("/api/models/a"))["sleep"]["why_not"]
        text = (await it.client.get(f"{it.url}/metrics")).text
        assert 'vllm_mm_wakes_total{model="a",outcome="refused"} 2.0' in text


async def test_a_wake_that_lies_is_found_out() -> None:
    """200, and gibberish afterwards: no client sees a token of it."""
    async with running({"a": sim("lie_wake", **SLOW), "b": sim(**SLOW)}, memory=ONE, host_memory=ROOMY) as it:
        await it.ready("a")
        before = (await it.complete("a")).json()["choices"][0]["text"]
        assert (await it.complete("b")).status_code == 200
        assert (await it.complete("a")).json()["choices"][0]["text"] == before
        await it.written()
        rows = it.serving.rows("select data from events where kind = 'wake.failed'")
        assert len(rows) == 1
        assert '"outcome": "lied"' in rows[0][0] or '"outcome":"lied"' in rows[0][0]


async def test_a_sleep_that_frees_nothing_is_a_stop() -> None:
    """200, and the memory stays: the engine is ended, so that the other one gets its room."""
    async with running({"a": sim("lie_sleep", **SLOW), "b": sim(**SLOW)}, memory=ONE, host_memory=ROOMY) as it:
        await it.ready("a")
        assert (await it.complete("b")).status_code == 200
        assert await it.state("a") == "stopped"
        await it.written()
        assert it.events("a").count("sleep.failed") == 1
        assert "instance.sleeping" not in it.events("a")
        await it.quiet()
        why_not = (await it.get("/api/models/a"))["sleep"]["why_not"]
        assert "it says that it sleeps and keeps" in why_not
        assert await it.serving.stop() == 0
        await it.serving.start()
        assert (await it.get("/api/models/a"))["sleep"]["why_not"] == why_not, "the next server does not know it"
        assert (await it.act("a", "reset")).status_code == 202
        assert (await it.get("/api/models/a"))["sleep"]["why_not"] == ""


async def test_a_sleeper_that_was_killed_is_started_when_it_is_wanted() -> None:
    """Its death is noticed; what it held, the host's memory too, is free."""
    async with running({m: sim(**SLOW) for m in "ab"}, memory=ONE, host_memory=ROOMY) as it:
        [leader] = await it.ready("a")
        assert (await it.complete("b")).status_code == 200
        assert await it.state("a") == "sleeping"
        kill(leader)
        await it.until("a", "stopped")

        async def free() -> bool:
            return (await it.get("/api/status"))["host_memory"]["held"] == {}

        await until(free, "the host's memory to be free")
        assert (await it.complete("a")).status_code == 200
        assert await it.starts("a") == 2


async def test_level_two_comes_back_with_its_weights() -> None:
    """Without the reload in between it would answer gibberish."""
    deep = {"sleep": {"level": 2}}
    async with running({"a": sim(model=deep, **SLOW), "b": sim(**SLOW)}, memory=ONE, host_memory=ROOMY) as it:
        await it.ready("a")
        before = (await it.complete("a")).json()["choices"][0]["text"]
        assert (await it.complete("b")).status_code == 200
        assert await it.state("a") == "sleeping"
        assert (await it.get("/api/status"))["host_memory"]["held"] == {"a": 0}
        assert (await it.complete("a")).json()["choices"][0]["text"] == before
        assert await it.starts("a") == 1
