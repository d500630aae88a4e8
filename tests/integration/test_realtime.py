"""WS /v1/realtime of the whole product, with simulated engines in processes of their own: loads, swaps, drains, deaths and the end."""

import asyncio
import contextlib
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import speech
from hard_cases import Case, running, sim
from speech import COMMIT, FINAL, append, audio, say, update

EARS = sim(model={"task": "realtime", "aliases": ["listener"]}, tokens_per_second=2000)

hear = partial(speech.hear, seconds=60)
until_done = partial(speech.until_done, seconds=60)


def session(case: Case, query: str = "", **options: Any) -> connect:
    address = case.url.replace("http://", "ws://") + "/v1/realtime" + query
    return connect(address, **{"open_timeout": 60, "close_timeout": 20, "compression": None, **options})


async def ends(ws: Any) -> tuple[dict[str, Any], int | None]:
    """The error event that it ends with, and the close code."""
    last: dict[str, Any] = {}
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(60):
            while True:
                heard = await hear(ws)
                last = heard if heard["type"] == "error" else last
    return last.get("error", {}), ws.close_code


async def begun(ws: Any, name: str = "ears") -> None:
    """A session under way: its engine has said something."""
    await hear(ws)
    await say(ws, update(name), COMMIT, append(audio(1)))
    assert (await hear(ws))["type"] == "transcription.delta"


async def test_speech_is_transcribed_by_a_model_that_is_loaded_for_it() -> None:
    """Two sessions at once share the load, under its id and under an alias; what was said while it loads is not lost; a model that
    does something else is refused without a load; the rows say what was used."""
    models = {"ears": EARS, "judge": sim(model={"task": "classify"})}
    async with running(models, own_devices=True) as case:

        async def talk(name: str, seed: int) -> list[dict[str, Any]]:
            async with session(case) as ws:
                assert (await hear(ws))["type"] == "session.created"
                await say(ws, append(audio(1, seed)), update(name), COMMIT, append(audio(2, seed + 1)), FINAL)
                heard = await until_done(ws)
                await say(ws, COMMIT, append(audio(1, seed)), FINAL)
                return [*heard, *await until_done(ws)]

        first, second = await asyncio.gather(talk("ears", 1), talk("listener", 5))
        for heard in (first, second):
            assert [e["type"].removeprefix("transcription.") for e in heard] == [
                *["delta"] * 3,
                "done",
                "delta",
                "done",
            ]
            assert heard[3]["text"] == "".join(e["delta"] for e in heard[:3])
        assert first[3]["text"] != second[3]["text"]
        async with session(case, "?model=ears") as ws:
            assert (await hear(ws))["type"] == "session.created"
            await say(ws, COMMIT, append(audio(1, 1)), FINAL)
            assert (await until_done(ws))[-1]["text"] == first[-1]["text"]
        async with session(case, "?model=judge") as ws:
            error, code = await ends(ws)
            assert (error["code"], code) == ("model_cannot", 1008)
            assert "Models that can: `ears`." in error["message"]
        assert await case.starts() == 1
        assert await case.outcomes(4) == {"ok": 3, "bad_request": 1}
        rows = case.serving.rows(
            "select completion_tokens, status, route from requests where outcome = 'ok' order by completion_tokens"
        )
        assert rows == [(1, 101, "/v1/realtime"), (4, 101, "/v1/realtime"), (4, 101, "/v1/realtime")]

        example = (
            (Path(__file__).parents[2] / "docs/realtime.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
        )
        assert "ws://127.0.0.1:8000/" in example
        told: list[Any] = []
        script = example.replace("ws://127.0.0.1:8000", case.url.replace("http", "ws"))
        await asyncio.to_thread(exec, script, {"print": lambda *words, **_: told.append(words[0])})
        assert told[-1]["type"] == "transcription.done"
        assert told[-1]["text"] == "".join(told[1:-1])
        assert len(told) == 2 + 13  # the last word is that of a rest

        answer = await case.client.post(f"{case.url}/classify", json={"model": "judge", "input": "hm"})
        assert answer.json()["data"][0]["num_classes"] == 2
        refused = await case.client.post(f"{case.url}/v1/score", json={"model": "judge", "text_1": "a", "text_2": "b"})
        assert refused.status_code == 400
        assert "it classifies texts" in refused.json()["error"]["message"]
        await case.quiet()


async def test_an_engine_that_dies_in_a_session_and_operators_who_end_one() -> None:
    """Never a clean end: the engine's death, a stop, and a drain, which waits for `swap.drain_timeout` and no longer. A client that
    leaves gives its slot back. Each session after an end has a new engine."""
    async with running({"ears": EARS}, swap={"min_dwell": "0s", "drain_timeout": "300ms"}) as case:
        async with session(case) as ws:
            await begun(ws)
            ws.transport.abort()
            await case.in_flight("ears", 0)
        async with session(case) as ws:
            await begun(ws)
            await case.in_flight("ears", 1)
            assert (await case.act("ears", "drain")).status_code == 202
            error, code = await ends(ws)
            assert (error["code"], error["reason"], code) == ("request_cut", "cut", 1012)
            assert "swap.drain_timeout" in error["message"]
        await case.until("ears", "stopped")
        async with session(case) as ws:
            await begun(ws)
            assert (await case.act("ears", "stop")).status_code == 202
            error, code = await ends(ws)
            assert (error["code"], code) == ("request_cut", 1012)
        await case.until("ears", "stopped")
        async with session(case) as ws:
            await begun(ws)
            os.kill((await case.instance("ears"))["pid"], signal.SIGKILL)
            error, code = await ends(ws)
            assert (error["code"], code) == ("upstream_died", 1011)
        assert await case.outcomes(4) == {"client_gone": 1, "cut": 2, "upstream_died": 1}
        await case.quiet()


async def test_a_session_makes_room_and_is_never_frozen_with_its_engine() -> None:
    """Its model sleeps for another one when the drain has had its time; the session is told and cut, and the next one wakes it.
    (What becomes of other requests of the same model is in unit/manager/test_freeze.py.)"""
    swap = {"min_dwell": "0s", "drain_timeout": "200ms", "max_wait": "100ms", "on_drain_timeout": "preempt"}
    models = {"ears": EARS, "other": sim()}
    async with running(models, memory="12GiB", swap=swap, host_memory={"sleep_budget": "64GiB"}) as case:
        async with session(case) as ws:
            await begun(ws)
            asking = asyncio.create_task(case.complete("other", wait=60))
            error, code = await ends(ws)
            assert (error["code"], error["reason"], code) == ("request_cut", "cut", 1012)
            assert (await asking).status_code == 200
        assert await case.state("ears") == "sleeping"
        async with session(case) as ws:
            await begun(ws)
        assert await case.outcomes(3) == {"cut": 1, "ok": 2}
        frozen = case.serving.rows("select data from events where kind = 'lease.frozen'")
        assert [json.loads(data)["count"] for (data,) in frozen] in ([], [0])


async def test_the_end_of_the_server_is_told() -> None:
    """1001 and why, to a session under way, to one that waits, and to one that has not named its model."""
    slow = sim(model={"task": "realtime"}, startup="30s")
    async with running({"ears": EARS, "slow": slow}, own_devices=True) as case:
        async with session(case) as ws, session(case, "?model=slow") as waiting, session(case) as silent:
            await begun(ws)
            await case.until_queued(1)
            await hear(silent)
            case.serving.signal(signal.SIGTERM)
            for each in (ws, waiting, silent):
                error, code = await ends(each)
                assert (error["code"], code) == ("shutting_down", 1001)
        assert await case.serving.wait() == 0


async def test_progress_of_a_load_is_told_to_those_who_ask() -> None:
    slow = sim(model={"task": "realtime"}, startup="500ms")
    async with running({"ears": slow}) as case, session(case, "?model=ears&x-vllm-mm-progress=1") as ws:
        heard = [await hear(ws)]
        while heard[-1]["type"] == "vllm_mm.progress":
            heard.append(await hear(ws))
        assert heard[0]["type"] == "vllm_mm.progress"
        assert heard[0]["model"] == "ears"
        assert heard[-1]["type"] == "session.created"
