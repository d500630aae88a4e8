"""Hard cases of processes: kills of anybody in any state, children that hide, and a controller that dies (docs/hard-cases.md)."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest

from hard_cases import Case, kill, locked_database, running, sim, until
from vllm_mm.engine import procfs

RETRY = {"retry": {"backoff": "100ms", "backoff_max": "200ms", "max_failures": 50}}


async def reach(it: Case, model: str, state: str) -> int:
    """Bring a model of slow ways into `state`; its leader's pid."""
    match state:
        case "starting":
            await it.act(model, "start")
            await until(lambda: _has_pid(it, model), "its leader")
            leader = (await it.until(model, "starting"))["pid"]
            await until(lambda: it.tree(leader), "the engine's core")
        case "ready":
            await it.ready(model)
        case "draining":
            await it.ready(model)
            asyncio.get_running_loop().create_task(_ignored(it, model))
            await it.in_flight(model, 1)
            await it.act(model, "stop")
        case "stopping":
            await it.ready(model)
            await it.act(model, "stop")
        case "suspending" | "sleeping" | "waking":
            await it.ready(model)
            await it.act(model, "sleep", **({} if state == "suspending" else {"wait": 20}))
            if state == "waking":
                await it.act(model, "wake")
    instance = await it.until(model, state)
    assert instance["pid"] is not None
    return instance["pid"]


async def _has_pid(it: Case, model: str) -> bool:
    return (await it.instance(model))["pid"] is not None


async def _ignored(it: Case, model: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        await it.streamed(model, tokens=4000)


SLOW = sim("ignore_term", startup="800ms", sleep_bandwidth="10GiB/s", model=RETRY)
"""Long enough in every state to be killed in it: 0.8 s to start and to sleep and to wake, and a stop that needs SIGKILL."""
STATES = ("starting", "ready", "draining", "suspending", "sleeping", "waking", "stopping")


@pytest.mark.parametrize("victim", ["leader", "core"])
async def test_kills_in_every_state_leave_nothing_and_the_model_comes_back(victim: str) -> None:
    """SIGKILL of the API server, or of the engine core below it, in each state: the rest of the tree is found and ended,
    the memory given back, nobody waits for ever, and the next request is served by a new launch."""
    names = {state: f"m-{state}" for state in STATES}
    async with running(dict.fromkeys(names.values(), SLOW), own_devices=True) as it:
        await asyncio.gather(*(_killed(it, names[state], state, victim) for state in STATES))
        await it.quiet()
        assert len(it.launches()) == len(STATES)


async def _killed(it: Case, model: str, state: str, victim: str) -> None:
    leader = await reach(it, model, state)
    tree = it.tree(leader)
    assert tree, (state, "no child to kill")
    old = [leader, *tree]
    kill(leader if victim == "leader" else next(iter(tree)))
    await until(lambda: not any(_alive(p) for p in old), f"the end of {old}, {victim} of {state}", 15)
    async with asyncio.timeout(30):
        while (answer := await it.complete(model)).status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, (state, answer.text)
    assert (await it.instance(model))["pid"] not in old


def _alive(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and not stat.dead


async def test_children_that_hide_are_ended_with_their_engine() -> None:
    """Ignoring SIGTERM, leaving the session, wiping the environment, and all of it together: gone after an unload and after
    a kill of the leader; the orphans are in the events."""
    faults = {
        "deaf": ["ignore_term"], "moved": ["leave_session"], "masked": ["wipe_environment"],
        "all": ["ignore_term", "leave_session", "wipe_environment"],
    }  # fmt: skip
    async with running({name: sim(*f, model=RETRY) for name, f in faults.items()}, own_devices=True) as it:
        await it.ready(*faults)
        trees = {name: [pid, *it.tree(pid)] for name in faults if (pid := (await it.instance(name))["pid"])}
        assert all(len(t) >= 2 for t in trees.values()), trees
        await asyncio.gather(*(it.act(name, "stop", wait=20) for name in faults))
        assert not [p for tree in trees.values() for p in tree if _alive(p)]
        pids = await it.ready(*faults)
        # Every child was seen by the controller's walks down the tree before its parent goes.
        await asyncio.sleep(1.2)
        trees = {name: [pid, *it.tree(pid)] for name, pid in zip(faults, pids, strict=True)}
        for pid in pids:
            kill(pid)
        await until(lambda: not [p for tree in trees.values() for p in tree if _alive(p)], "the end of the trees", 15)
        for name in faults:
            await it.until(name, "backoff", "stopped")
        await it.written()
        assert it.events().count("orphan.swept") >= len(faults)


async def test_useless_engines_are_replaced() -> None:
    """Dies after some tokens, exits with 0 while ready, answers nothing while health is 200, or stops answering health:
    each is noticed, told to its callers, and replaced; none ends a stream as if it were whole."""
    quick = {"stop_grace": "300ms", "health": "100ms"}

    async def hung(it: Case, model: str, pids: list[int]) -> None:
        got = bytearray()

        async def read() -> None:
            async with it.stream(model, tokens=1800) as answer:
                async for chunk in answer.aiter_bytes():
                    if not got:
                        for pid in pids:
                            os.kill(pid, signal.SIGSTOP)
                    got.extend(chunk)

        with pytest.raises(httpx.RemoteProtocolError):
            async with asyncio.timeout(15):
                await read()
        assert b"[DONE]" not in got
        assert b'"error"' in got

    async def replaced(it: Case, *models: str) -> str:
        for model in models:
            await it.until(model, "backoff", "stopped")
            assert (await _eventually(it, model)).status_code == 200
        await it.written()
        return " ".join(d for (d,) in it.serving.rows("select data from events where kind = 'instance.stopping'"))

    # The core alone: health stays 200 and no token comes.
    models = {
        "dies": sim("crash_after_tokens:30", model=RETRY),
        "hangs": sim(model={**RETRY, "start": {"probe": "300ms"}}),
    }
    async with running(models, own_devices=True, timeouts={**quick, "stuck": "500ms"}) as it:
        _, hangs = await it.ready(*models)
        # The server survives its core for a moment, and tells the error itself.
        _, body = await it.streamed("dies", tokens=200)
        assert b'"error"' in body
        await hung(it, "hangs", [next(iter(it.tree(hangs)))])
        assert "a probe failed" in await replaced(it, *models)
    # Both: health does not answer either, and that alone is enough.
    async with running(
        {"frozen": sim(model={**RETRY, "start": {"probe": "300ms"}})}, timeouts={**quick, "stuck": "1h"}
    ) as it:
        [frozen] = await it.ready("frozen")
        await hung(it, "frozen", [frozen, *it.tree(frozen)])
        assert "health did not answer 3 times" in await replaced(it, "frozen")


async def _eventually(it: Case, model: str) -> httpx.Response:
    async with asyncio.timeout(20):
        while (answer := await it.complete(model)).status_code == 503:
            await asyncio.sleep(0.1)
    return answer


async def test_sleepers_that_lie_or_refuse_never_answer_gibberish() -> None:
    """A wake that is refused, and one after which the engine talks nonsense: who waited is served by a cold start in the same
    load, never with nonsense; the answers are those of before, and the events tell what went wrong."""
    models = {
        "refuses": sim("refuse_wake", model=RETRY),
        "lies": sim("lie_wake", model=RETRY),
        "honest": sim(model=RETRY),
    }
    async with running(models, own_devices=True) as it:
        before = {m: (await it.complete(m)).json()["choices"] for m in models}
        for model in models:
            assert (await it.act(model, "sleep", wait=20)).json()["state"] == "sleeping"
        # Neither a listing nor a scrape wakes anybody.
        await it.client.get(f"{it.url}/metrics")
        await it.get("/v1/models")
        assert {m: await it.state(m) for m in models} == dict.fromkeys(models, "sleeping")
        answers = dict(zip(models, await asyncio.gather(*(it.complete(m) for m in models)), strict=True))
        assert {m: a.status_code for m, a in answers.items()} == dict.fromkeys(models, 200)
        assert {m: a.json()["choices"] for m, a in answers.items()} == before
        assert {m: await it.starts(m) for m in models} == {"refuses": 2, "lies": 2, "honest": 1}
        assert {m: "wake.failed" in it.events(m) for m in models} == {"refuses": True, "lies": True, "honest": False}


async def test_requests_and_orders_meet_a_sleep_under_way() -> None:
    """A request that comes while the model falls asleep is served after a wake; a stop in that moment, and in the wake,
    ends it; a second sleep is no error."""
    slow = sim(sleep_bandwidth="16GiB/s")
    async with running({"a": slow, "b": slow, "c": slow}, own_devices=True) as it:
        await it.ready("a", "b", "c")
        await asyncio.gather(*(it.act(m, "sleep") for m in "abc"))
        await it.until("a", "suspending")
        assert (await it.act("a", "sleep")).status_code == 202
        waiting = asyncio.create_task(it.complete("a"))
        assert (await it.act("b", "stop", wait=10)).json()["state"] == "stopped"
        await it.until("c", "sleeping")
        await it.act("c", "wake")
        await it.until("c", "waking")
        assert (await it.act("c", "stop", wait=10)).json()["state"] == "stopped"
        assert (await waiting).status_code == 200
        assert await it.starts("a") == 1
        await it.quiet()


@pytest.mark.parametrize("outlive", [True, False])
async def test_a_controller_that_dies_in_any_state_of_its_engines(outlive: bool) -> None:
    """SIGKILL to the controller with engines in every state. `engines_outlive_controller`: the next one adopts those that
    are sound (same pid, no second start) and ends the others; without it they all end with the first. Either way every
    model is served afterwards, by one launch."""
    states = ("starting", "ready", "draining", "sleeping", "stopping")
    names = {state: f"m-{state}" for state in states}
    models = dict.fromkeys(names.values(), SLOW)
    async with running(models, own_devices=True, engines_outlive_controller=outlive) as it:
        pids = dict(zip(states, await asyncio.gather(*(reach(it, names[s], s) for s in states)), strict=True))
        old = it.engines()
        it.serving.kill()
        if not outlive:
            await until(lambda: not it.serving.left(), "the end of all engines", 15)
        await it.serving.start()
        after = {s: await it.instance(names[s]) for s in states}
        if outlive:
            assert (after["ready"]["state"], after["ready"]["pid"]) == ("ready", pids["ready"])
            assert (after["sleeping"]["state"], after["sleeping"]["pid"]) == ("sleeping", pids["sleeping"])
            # Each of the others was sound by then, and is somebody's, or it was ended.
            kept = {i["pid"] for i in after.values() if i["pid"]}
            assert kept <= set(pids.values())
            whole = kept.union(*(it.tree(p) for p in kept))
            await until(lambda: {p for p in old if _alive(p)} <= whole, "the end of the engines that were not adopted")
        else:
            assert not [p for p in old if _alive(p)]
        answers = await asyncio.gather(*(it.complete(n) for n in names.values()))
        assert [a.status_code for a in answers] == [200] * len(states), [a.text for a in answers]
        assert len(it.launches()) == len(states)
        await it.quiet()


@contextlib.asynccontextmanager
async def bystander(title: str) -> AsyncGenerator[int]:
    """A process of somebody else, which looks like an engine's."""
    code = (
        "import setproctitle, sys, time\n"
        f"setproctitle.setproctitle({title!r}); print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"up\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_a_process_that_is_not_ours_is_never_touched() -> None:
    """A process named as vLLM's are, which has the pid of a recorded engine (with its start time or with another one):
    the next controller neither adopts nor kills it."""
    changes: list[Callable[[int, int], tuple[int, int]]] = [
        lambda pid, ticks: (pid, ticks),
        lambda pid, ticks: (pid, ticks - 1),
    ]
    async with bystander("VLLM::EngineCore") as other, running({"a": sim(), "b": sim()}, own_devices=True) as it:
        pids = await it.ready("a", "b")
        it.serving.kill()
        for pid in pids:
            kill(pid)
        stat = procfs.read_stat(other)
        assert stat is not None
        with sqlite3.connect(it.serving.data / "state.db") as database:
            for model, change in zip("ab", changes, strict=True):
                row = (*change(other, stat.start_ticks), model)
                assert (
                    database.execute("update instances set pid = ?, start_ticks = ? where model = ?", row).rowcount == 1
                )
        database.close()
        await it.serving.start()
        assert {await it.state(m) for m in "ab"} == {"stopped"}
        for model in "ab":
            assert (await it.complete(model)).status_code == 200
            await it.act(model, "stop", force=True, wait=10)
        assert _alive(other)
        assert procfs.read_stat(other) is not None


async def test_a_term_with_everything_under_way_ends_in_order() -> None:
    """SIGTERM while models start, drain, sleep and serve: streams finish within the grace, waiters are told 503, and
    nothing is left (the fixture looks)."""
    states = ("starting", "draining", "sleeping")
    models = {**dict.fromkeys((f"m-{s}" for s in states), SLOW), "busy": sim(), "late": sim(startup="5s")}
    async with running(models, own_devices=True, server={"shutdown_grace": "10s"}) as it:
        await it.ready("busy")
        await asyncio.gather(*(reach(it, f"m-{s}", s) for s in states))
        stream = asyncio.create_task(it.streamed("busy", tokens=500))
        waiting = asyncio.create_task(it.complete("late"))
        await it.in_flight("busy", 1)
        await it.until("late", "starting")
        it.serving.signal(signal.SIGTERM)
        answer = await waiting
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        status, body = await stream
        assert (status, body[-14:]) == (200, b"data: [DONE]\n\n")
        it.serving.signal(signal.SIGTERM)  # the stream of the draining model has no end: hurry
        assert await it.serving.wait(20) == 0


async def test_the_workers_of_a_killed_engine_are_swept() -> None:
    """A model over two devices whose ranks outlive their core by seconds: all of the launch is ended at once, and both
    devices are given back before the next launch takes them (each has room for one)."""
    devices = {"leader": ["g0", "g1"], "core": ["g2", "g3"]}
    models = {
        victim: sim(worker_linger="20s", model={**RETRY, "devices": {"ids": ids}}) for victim, ids in devices.items()
    }
    own = [{"id": d, "memory": "8GiB", "simulated": True} for ids in devices.values() for d in ids]
    async with running(models, devices=own) as it:

        async def check(victim: str, leader: int) -> None:
            tree = it.tree(leader)
            assert sum("Worker" in name for name in tree.values()) == 2, tree
            kill(leader if victim == "leader" else next(p for p, name in tree.items() if "EngineCore" in name))
            await until(lambda: not any(_alive(p) for p in (leader, *tree)), "the end of the launch", 5)
            assert (await _eventually(it, victim)).status_code == 200

        await asyncio.gather(*(check(v, p) for v, p in zip(models, await it.ready(*models), strict=True)))
        assert len(it.launches()) == 2


async def test_an_end_while_the_database_is_locked() -> None:
    """SIGTERM while another process holds the database: the engines end in time, and nothing of them is left; the next
    controller starts as ever."""
    async with running({"a": sim(), "b": sim()}, own_devices=True) as it:
        await it.ready("a", "b")
        with locked_database(it.serving.data / "state.db"):
            it.serving.signal(signal.SIGTERM)
            await until(lambda: it.engines() == {}, "the end of the engines", 5)
        assert await it.serving.wait(20) == 0
        await it.serving.start()
        assert (await it.complete("a")).status_code == 200
