"""Hard cases of starting: every way in which a start can fail, stall, be slow, or be called off (docs/hard-cases.md)."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import vllm_mm
from hard_cases import running, sim, until
from serving import Serving
from vllm_mm.sim import ledger

OFTEN = {"retry": {"backoff": "30s"}}
STALL = {"start": {"stall": "700ms", "deadline": "20s", "probe": "300ms"}, **OFTEN}

FAILURES: dict[str, tuple[dict[str, Any], str, str, float]] = {
    # name: model, state afterwards, words of the reason, seconds at most
    "dies in its load": (sim("die_at:weights", model=OFTEN), "backoff", "weights", 3.0),
    "exits with 0 in its load": (sim("exit_0", model=OFTEN), "backoff", "exit", 3.0),
    "hangs in its load": (sim("hang_at:weights", model=STALL), "backoff", "no progress for 0.7 s in phase", 4.0),
    "hangs before its first word": (sim("hang_at:version", model=STALL), "backoff", "no progress for 0.7 s", 4.0),
    "is healthy but never answers": (sim("no_readiness", model=STALL), "backoff", "in phase probe", 5.0),
    "never gets ready in time": (
        sim(startup="5s", model={"start": {"deadline": "800ms"}, **OFTEN}), "backoff", "not ready after 0.8 s", 4.0,
    ),
    "is not there": (
        {"engine": "command", "command": ["/nonexistent/engine", "{port}"], "memory": "1GiB"}, "failed", "no such program", 2.0,
    ),
    "refuses its arguments": (
        {
            "engine": "command", "memory": "1GiB", **OFTEN,
            "command": ["sh", "-c", "echo 'serve: error: unrecognized arguments: --nope'; exit 2", "{port}"],
        },
        "failed", "--nope", 3.0,
    ),
    "finds its port taken": (
        {
            "engine": "command", "memory": "1GiB", **OFTEN,
            "command": ["sh", "-c", "echo 'OSError: [Errno 98] Address already in use'; exit 1", "{port}"],
        },
        "backoff", "address is taken by another process", 3.0,
    ),
    "says nothing and ends": (
        {"engine": "command", "memory": "1GiB", **OFTEN, "command": ["sh", "-c", "exit 0", "{port}"]}, "backoff", "unasked", 3.0,
    ),
    "is larger than its device": (sim(weights="30GiB"), "stopped", "more than there can ever be", 1.0),
}  # fmt: skip


async def test_every_failing_start_answers_those_who_wait_with_its_reason() -> None:
    """Each failure in turn: three waiters get 503 with Retry-After and the reason, within seconds, from one start; who
    comes during the backoff is told at once; and nothing of the engine is left, in memory or in the ledger."""
    names = {case: f"m{i}" for i, case in enumerate(FAILURES)}
    models = {names[case]: spec for case, (spec, *_) in FAILURES.items()}
    async with running(models, own_devices=True) as it:
        two_at_a_time = asyncio.Semaphore(2)  # or a start that is late for want of a processor counts as one that hangs

        async def check(case: str) -> None:
            async with two_at_a_time:
                await check_alone(case)

        async def check_alone(case: str) -> None:
            _, state, words, seconds = FAILURES[case]
            model, began = names[case], time.monotonic()
            answers = await asyncio.gather(*(it.complete(model) for _ in range(3)))
            took = time.monotonic() - began
            for answer in answers:
                assert answer.status_code == 503, (case, answer.text)
                assert 1 <= int(answer.headers["retry-after"]) <= 60, case
                assert words in answer.json()["error"]["message"], (case, answer.text)
            assert took < seconds + 2, (case, took)
            await it.until(model, state)
            if state != "stopped":
                began = time.monotonic()
                again = await it.complete(model)
                assert again.status_code == 503, case
                assert words in again.json()["error"]["message"], (case, again.text)
                assert time.monotonic() - began < 2, case
                assert await it.starts(model) == 1, case

        await asyncio.gather(*map(check, FAILURES))
        await it.quiet()
        assert it.engines() == {}


async def test_slow_but_sound_starts_become_ready() -> None:
    """Health that takes 1.0 s, progress for longer than the stall limit, and an engine that prints all the while: none of
    them is taken for a failure."""
    limits = {"start": {"stall": "900ms", "deadline": "20s", "probe": "5s"}}
    talks = (
        "import sys, time, runpy\n"
        "for i in range(25): print('still at it', i, flush=True); time.sleep(0.1)\n"
        "sys.argv = ['sim', 'talker', '--port', sys.argv[1]]\n"
        "runpy.run_module('vllm_mm.sim', run_name='__main__')\n"
    )
    models = {
        "slow-health": sim("slow_health:1.0", model={"start": {"stall": "4s", "deadline": "20s", "probe": "5s"}}),
        "long": sim(weights="16GiB", load_bandwidth="8GiB/s", shards=20, model=limits),
        "talker": {
            "engine": "command", "memory": "2GiB", **limits, "env": {"PYTHONPATH": str(_backend())},
            "command": [sys.executable, "-c", talks, "{port}"],
        },
    }  # fmt: skip
    async with running(models, own_devices=True) as it:
        answers = await asyncio.gather(*(it.complete(m) for m in models))
        assert [a.status_code for a in answers] == [200, 200, 200], [a.text for a in answers]
        for model in models:
            assert await it.starts(model) == 1
        [long] = (await it.get("/api/models/long/history"))["starts"]
        assert long["phases"]["weights"] > 1.5, long
        # Health that stays slow is no reason to end a ready engine.
        await asyncio.sleep(1.5)
        assert await it.state("slow-health") == "ready"


def _backend() -> Path:
    return Path(vllm_mm.__file__).parent.parent


async def test_a_crash_loop_ends_in_failed_and_a_start_forgets_it() -> None:
    """Failures are counted up to `max_failures`, each after its backoff; then the model is left alone, until somebody says
    start."""
    retry = {"retry": {"backoff": "50ms", "backoff_max": "100ms", "max_failures": 3}}
    async with running({"a": sim("die_at:init", model=retry)}) as it:
        codes: list[int] = []

        async def failed() -> bool:
            codes.append((await it.complete("a")).status_code)
            return await it.state("a") == "failed"

        await until(failed, "FAILED", 20)
        assert set(codes) == {503}
        assert await it.starts("a") == 3
        assert (await it.complete("a")).status_code == 503
        assert await it.starts("a") == 3
        answer = await it.act("a", "start", wait=10)
        assert answer.json()["failures"] == 1, answer.text
        assert await it.starts("a") == 4


async def test_a_start_shared_by_many_waits_within_the_bound_of_the_queue() -> None:
    """14 requests at once for a loading model with room for 10: 10 are served by one start, 4 get 503 with Retry-After at
    once. Who does not want to wait gets it at once too."""
    async with running({"a": sim(startup="800ms")}, queue={"max_size": 10}) as it:
        began = time.monotonic()
        tasks = [asyncio.create_task(it.complete("a")) for _ in range(14)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert time.monotonic() - began < 0.7
        answers = await asyncio.gather(*tasks)
        assert sorted(a.status_code for a in answers) == [200] * 10 + [503] * 4
        refused = [a for a in answers if a.status_code == 503]
        assert {a.json()["error"]["code"] for a in refused} == {"queue_full"}
        assert all(1 <= int(a.headers["retry-after"]) <= 60 for a in refused)
        assert await it.starts() == 1
        await it.act("a", "stop", wait=10)
        began = time.monotonic()
        answer = await it.complete("a", wait=0)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert time.monotonic() - began < 0.5
        await it.until("a", "ready")  # it was asked for: who polls gets it
        assert await it.outcomes(15) == {"ok": 10, "queue_full": 4, "wait_expired": 1}


async def test_a_second_unload_and_load_during_a_load() -> None:
    """Load and unload, again and again and at once: never two processes, never an answer that was forgotten, and who comes
    after the unload gets a start of its own."""
    async with running({"a": sim(startup="600ms")}) as it:
        first = [asyncio.create_task(it.complete("a")) for _ in range(3)]
        await it.until("a", "starting")
        stops = await asyncio.gather(*(it.act("a", "stop") for _ in range(3)))
        assert {s.status_code for s in stops} == {202}
        for answer in await asyncio.gather(*first):
            assert answer.status_code == 503, answer.text
            assert "stopped by" in answer.text
            assert int(answer.headers["retry-after"]) >= 1
        second = [asyncio.create_task(it.complete("a")) for _ in range(3)]
        assert [a.status_code for a in await asyncio.gather(*second)] == [200] * 3
        assert await it.starts() == 2

        async def storm() -> None:
            for act in ("start", "stop", "start", "restart", "stop", "start"):
                assert (await it.act("a", act)).status_code in {200, 202}
                await asyncio.sleep(0.07)

        async def watch() -> None:
            while True:
                assert len(it.launches()) <= 1
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        await asyncio.gather(storm(), storm())
        await it.act("a", "start", wait=20)
        await it.until("a", "ready")
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert (await it.complete("a")).status_code == 200
        await it.quiet()


async def test_a_load_that_nobody_wants_any_more_is_called_off_where_that_is_set() -> None:
    """All who waited have gone: with `cancel_unwanted_loads` the load ends at once, without it goes on; an operator's
    wish keeps it alive; the rows say client_gone."""
    async with running(
        {"a": sim(startup="3s"), "b": sim(startup="3s")}, queue={"cancel_unwanted_loads": True}, own_devices=True
    ) as it:
        one, two = (asyncio.create_task(it.complete("a")) for _ in range(2))
        await it.until("a", "starting")
        one.cancel()
        await it.until_queued(1)
        assert await it.state("a") == "starting"
        two.cancel()
        await it.until("a", "stopped", seconds=2)
        await it.act("b", "start")
        three = asyncio.create_task(it.complete("b"))
        await it.until_queued(1)
        three.cancel()
        await it.until_queued(0)
        assert (await it.until("b", "starting", "ready"))["state"] == "starting"
        assert await it.outcomes(3) == {"client_gone": 3}
        await asyncio.wait({one, two, three})


async def test_memory_in_foreign_use_is_waited_for_and_said() -> None:
    """Another program holds the device: the model waits, with the reason in the answer, and comes when the memory is
    back; two starts on one device, of which each is right alone, come one after the other."""

    def claim(serving: Serving, size: int = 20 * 2**30) -> None:
        ledger.claim(serving.data / "sim", "sim0", os.getpid(), size, capacity=None)

    async with running({"a": sim(startup="200ms"), "b": sim(startup="200ms")}, before=claim) as it:
        assert (await it.get("/api/devices"))[0]["foreign"] == 20 * 2**30
        answer = await it.complete("a", wait=0.5)
        assert answer.status_code == 503
        assert "needs 10.0 GiB" in answer.text, answer.text
        waiting = asyncio.gather(it.complete("a"), it.complete("b"))
        await it.until_queued(2)
        claim(it.serving, 0)
        answers = await waiting
        assert [a.status_code for a in answers] == [200, 200], [a.text for a in answers]
        await it.written()
        kinds = [k.removeprefix("instance.") for k in it.events()]
        # The second began when the first had sized its memory, not before: no failure, no retry.
        assert kinds.count("starting") == kinds.count("ready") == 2
        assert "backoff" not in kinds


async def test_engines_that_ask_for_a_key_get_their_own() -> None:
    """`{api_key}` in the arguments or the environment of a command is a secret of its launch, which the server sends and
    nobody else knows; a later controller knows it too. For `vllm` and `sim` engines a key is refused with the reason."""
    engine = [sys.executable, "-m", "vllm_mm.sim"]
    env = {"PYTHONPATH": str(_backend())}
    models = {
        "argued": {
            "engine": "command", "memory": "1GiB", "env": env,
            "command": [*engine, "argued", "--port", "{port}", "--api-key", "{api_key}"],
        },
        "silent": {
            "engine": "command", "memory": "1GiB", "env": {**env, "VLLM_API_KEY": "{api_key}"},
            "command": [*engine, "silent", "--uds", "{socket}"],
        },
        "own": sim(model={"env": {"VLLM_API_KEY": "sk-1"}}),
    }  # fmt: skip
    async with running(models, own_devices=True) as it:
        keyed = ("argued", "silent")
        pids = await it.ready(*keyed)
        it.client.headers["authorization"] = "Bearer the-clients-own"
        for model in keyed:
            answer = await it.complete(model)
            assert answer.status_code == 200, answer.text
        [(host, port)] = it.serving.rows("select host, port from instances where model = 'argued'")
        async with httpx.AsyncClient(trust_env=False) as stranger:
            assert (await stranger.get(f"http://{host}:{port}/v1/models")).status_code == 401
        answer = await it.complete("own")
        assert answer.status_code == 503
        assert "VLLM_API_KEY" in answer.text
        await it.until("own", "failed")
        it.serving.kill()
        await it.serving.start()
        assert [(await it.instance(m))["pid"] for m in keyed] == pids
        for model in keyed:
            assert (await it.complete(model)).status_code == 200
