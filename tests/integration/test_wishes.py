"""What is wanted by nobody's request, on the product as it runs: pins, times of the week, and what operators say about them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from hard_cases import Case, kill, locked_database, running, sim, until

ALWAYS = ["mon-sun 00:00-24:00"]
BEAT = 4.5
"""Seconds in which whoever keeps models ready has looked twice."""


@contextlib.asynccontextmanager
async def kept_busy(it: Case, model: str) -> AsyncGenerator[None]:
    """Streams of a second that overlap, so that there is never a moment without one."""
    ended = False

    async def stream(after: float) -> None:
        await asyncio.sleep(after)
        while not ended:
            await it.streamed(model, tokens=60)

    tasks = [asyncio.create_task(stream(0.27 * lane)) for lane in range(4)]
    try:
        await it.in_flight(model, 3)
        yield
    finally:
        ended = True
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("how", ["pin", "schedule"])
async def test_what_is_kept_ready_gets_the_room_of_a_busy_model_after_max_wait(how: str) -> None:
    """That it is wanted anew every two seconds does not make its wait begin anew."""
    models = {"a": sim(tokens_per_second=60), "b": sim()}
    swap = {"max_wait": "4s", "min_dwell": "0s", "quantum": "1s", "drain_timeout": "3s", "on_drain_timeout": "wait"}
    async with running(models, memory="12GiB", swap=swap) as it:
        await it.ready("a")
        async with kept_busy(it, "a"):
            if how == "pin":
                assert (await it.act("b", "pin")).status_code == 202
            else:
                it.rewrite(models={**models, "b": sim(model={"schedule": ALWAYS})})
                await it.reload()

            async def came() -> (
                bool
            ):  # a time of the week does not keep it there when others wait: it may be gone again
                await it.written()
                return "instance.ready" in it.events("b")

            await until(came, "b to be ready", 4 + 2 + 3 + 3)
            await it.act("b", "unpin")
            if how == "schedule":
                it.rewrite(models=models)
                await it.reload()


async def test_what_a_pin_or_a_time_wanted_is_not_loaded_when_that_is_over() -> None:
    """Both wait for a busy model. One is unpinned, of the other the time is taken away: neither is loaded when there is room."""
    models = {"a": sim(), "p": sim(), "s": sim()}
    async with running(models, memory="12GiB", swap={"max_wait": "60s"}) as it:
        await it.ready("a")
        stream = asyncio.create_task(it.streamed("a", tokens=8000))
        await it.in_flight("a", 1)
        assert (await it.act("p", "pin")).status_code == 202
        it.rewrite(models={**models, "s": sim(model={"schedule": ALWAYS})})
        await it.reload()
        for model in ("p", "s"):
            await waits(it, model)
        await it.act("p", "unpin")
        it.rewrite(models=models)
        await it.reload()
        rows = await it.serving.rows_when(
            "select model, cause from events where kind = 'swap.withdrawn' order by model", lambda rows: len(rows) == 2
        )
        assert rows == [("p", "unwanted: it is not pinned any more"), ("s", "unwanted: its time of the week is over")]
        stream.cancel()
        await it.in_flight("a", 0)
        assert (await it.act("a", "stop", wait=10)).json()["state"] == "stopped"
        assert await it.starts("p") == await it.starts("s") == 0


async def waits(it: Case, model: str) -> None:
    """Until it is wanted, and said why it is not there."""

    async def there() -> bool:
        return bool((await it.instance(model)).get("pending"))

    await until(there, f"{model} to be wanted")


async def test_a_sleeper_that_a_request_waits_for_is_not_stopped_for_being_idle() -> None:
    """Its idle time runs out while a busy model drains for it: the request is answered, by the same engine."""
    idle = {"idle": {"sleep_after": None, "stop_after": "3s"}}
    models = {"a": sim(tokens_per_second=20), "b": sim(model=idle)}
    swap = {"max_wait": "500ms", "min_dwell": "0s", "quantum": "0s", "drain_timeout": "30s", "on_drain_timeout": "wait"}
    async with running(models, memory="12GiB", swap=swap, host_memory={"sleep_budget": "60GiB"}) as it:
        await it.ready("b")
        await it.ready("a")
        stream = asyncio.create_task(it.streamed("a", tokens=140))
        await it.in_flight("a", 1)
        assert (await it.complete("b", wait=60)).status_code == 200
        assert (await it.instance("b"))["generation"] == 1
        assert b"[DONE]" in (await stream)[1]


async def test_a_stop_drain_or_sleep_of_what_is_kept_ready_holds_until_somebody_wants_it() -> None:
    """Neither a pin nor a time of the week undoes it; a request does, and from then on the model is kept as before."""
    models = {"p": sim(model={"pinned": True}), "s": sim(model={"schedule": ALWAYS})}
    async with running(models, memory="24GiB", host_memory={"sleep_budget": "60GiB"}) as it:
        await asyncio.gather(it.until("p", "ready"), it.until("s", "ready"))
        for act, state in (("drain", "stopped"), ("sleep", "sleeping"), ("stop", "stopped")):
            for model in models:
                assert (await it.act(model, act, wait=10)).json()["state"] == state
            await asyncio.sleep(BEAT)
            assert [await it.state(model) for model in models] == [state, state], act
            for model in models:
                assert (await it.complete(model)).status_code == 200
        before = {model: await it.instance(model) for model in models}
        for instance in before.values():
            kill(instance["pid"])

        async def back() -> bool:
            now = [await it.instance(model) for model in models]
            return all(i["state"] == "ready" and i["generation"] > before[i["model"]]["generation"] for i in now)

        await until(back, "both to be back", 20)


async def test_a_busy_model_that_is_put_to_sleep_finishes_what_runs_and_sleeps() -> None:
    """Longer than the drain may take for a swap: nothing is frozen in it that would wake it."""
    swap = {"drain_timeout": "500ms", "on_drain_timeout": "preempt", "min_dwell": "0s"}
    async with running({"a": sim(tokens_per_second=60)}, swap=swap, host_memory={"sleep_budget": "60GiB"}) as it:
        await it.ready("a")
        stream = asyncio.create_task(it.streamed("a", tokens=120))
        await it.in_flight("a", 1)
        assert (await it.act("a", "sleep", wait=10)).json()["state"] == "sleeping"
        assert b"[DONE]" in (await stream)[1]
        await asyncio.sleep(1.0)
        assert await it.state("a") == "sleeping"
        await it.written()
        assert "instance.waking" not in it.events("a")


async def test_a_pin_of_a_sleeper_wakes_it_and_a_declaration_has_the_last_word_on_pins() -> None:
    """Unpinned over the API, declared as pinned after that: it is pinned, and stays when another model wants its room."""
    models = {"a": sim(), "b": sim()}
    async with running(models, memory="12GiB", host_memory={"sleep_budget": "60GiB"}) as it:
        await it.ready("a")
        await it.act("a", "sleep", wait=10)
        assert (await it.act("a", "pin")).status_code == 202
        await it.until("a", "ready")
        await it.act("a", "unpin")
        it.rewrite(models={"a": sim(model={"pinned": True}), "b": sim()})
        await it.reload()
        assert (await it.instance("a"))["pinned"] is True
        assert (await it.complete("b", wait=2)).status_code == 503
        assert await it.state("a") == "ready"


@pytest.mark.parametrize("how", ["pin", "stream"])
async def test_who_is_pinned_or_used_between_the_decision_and_the_start_of_a_load_stays(how: str) -> None:
    """The database takes its time with the row of the load. What an operator is told of a pin holds; no stream is cut for a
    load that was decided when there was none. The request that waits is served then, or told that a pin is in the way."""
    models = {"a": sim(tokens_per_second=60), "b": sim()}
    swap = {"max_wait": "60s", "min_dwell": "0s", "quantum": "300ms", "drain_timeout": "1s", "on_drain_timeout": "cut"}
    async with running(models, memory="12GiB", swap=swap) as it:
        await it.ready("a")
        with locked_database(it.serving.data / "state.db"):
            request = asyncio.create_task(it.complete("b", wait=60))
            await until_planned(it)
            if how == "pin":
                assert (await it.act("a", "pin")).json()["pinned"] is True
            stream = asyncio.create_task(it.streamed("a", tokens=120))
            await it.in_flight("a", 1)
        status, body = await stream
        assert (status, b"[DONE]" in body) == (200, True)
        answer = await request
        if how == "pin":
            assert "pinned a holds" in answer.text
            assert await it.state("a") == "ready"
        else:
            assert answer.status_code == 200


async def until_planned(it: Case) -> None:
    """Until a load of b was decided, which no row tells while the database is locked."""

    async def there() -> bool:
        return any(r["model"] == "b" for d in await it.get("/api/devices") for r in d["reservations"])

    await until(there, "a load of b to be decided")


async def test_a_time_of_the_week_that_nobody_uses_does_not_cost_two_swaps_per_request() -> None:
    """Another model is asked for every second, and there is room for one: the scheduled one waits for `swap.max_wait`, and has
    the room then, once."""
    models = {"a": sim(), "b": sim(model={"schedule": ALWAYS})}
    async with running(models, memory="12GiB", swap={"max_wait": "12s", "min_dwell": "0s"}) as it:
        await it.until("b", "ready")
        assert (await it.complete("a")).status_code == 200
        for _ in range(7):
            await asyncio.sleep(1.0)
            assert (await it.complete("a")).status_code == 200
        assert await it.starts("a") == 1
        await it.until("b", "ready", seconds=20)
        await it.written()
        assert await it.starts("b") == 2
