"""Hard cases of everyday service: clients, readers, scrapes, idle times, the database, reloads (docs/hard-cases.md)."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from pathlib import Path

import httpx
import pytest

import vllm_mm
from hard_cases import Case, locked_database, running, sim, until


async def test_clients_that_leave_at_every_stage_are_accounted_for() -> None:
    """While the model loads, while they wait for a slot, during prefill, in the middle of a stream: the place is free at
    once, the row says client_gone, and the engine works for nobody."""
    slow_prefill = {"prefill_tokens_per_second": 200}
    async with running(
        {"a": sim(startup="700ms", model={"concurrency": 2}), "p": sim(**slow_prefill)}, own_devices=True
    ) as it:
        loading = asyncio.create_task(it.complete("a"))
        await it.until_queued(1)
        loading.cancel()
        await it.until_queued(0)
        await it.ready("a", "p")
        streams = [asyncio.create_task(it.streamed("a", tokens=1800)) for _ in range(2)]
        await it.in_flight("a", 2)
        slot = asyncio.create_task(it.complete("a"))
        await it.until_queued(1)
        slot.cancel()
        await it.until_queued(0)
        prefill = asyncio.create_task(it.complete("p", prompt="word " * 2000))
        await it.in_flight("p", 1)
        prefill.cancel()
        for stream in streams:
            stream.cancel()
        left = time.monotonic()
        await asyncio.gather(it.in_flight("a", 0), it.in_flight("p", 0))
        await until(lambda: _running(it, 0.0), "the engines to stop working")
        assert time.monotonic() - left < 1.0
        await asyncio.wait({loading, slot, prefill, *streams})
        assert await it.outcomes(5) == {"client_gone": 5}
        await it.quiet()


async def _running(it: Case, count: float) -> bool:
    text = (await it.client.get(f"{it.url}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
    return bool(lines) and sum(float(line.rsplit(" ", 1)[1]) for line in lines) == count


async def test_more_streams_than_a_usual_pool_has_connections() -> None:
    """150 streams at once, with a slow reader among them that never reads: all others come whole, none waits for another."""
    async with running({"a": sim(tokens_per_second=40, batch_slowdown=0)}) as it:
        await it.ready("a")
        host, port = "127.0.0.1", it.serving.port
        body = json.dumps(
            {"model": "a", "prompt": "hi", "max_tokens": 4000, "stream": True, "ignore_eos": True}
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, port)) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.sendall(head.encode() + body)
            await it.in_flight("a", 1)
            streams = [asyncio.create_task(it.streamed("a", tokens=320)) for _ in range(150)]
            await it.in_flight("a", 111, or_more=True)
            for status, answer in await asyncio.gather(*streams):
                assert status == 200
                assert answer.endswith(b"data: [DONE]\n\n")
        await it.quiet()
        assert await it.outcomes(151) == {"ok": 150, "client_gone": 1}


async def slowest(it: Case, seconds: float, **more: int) -> tuple[float, int]:
    """Of the requests to `a`, one after the other for so many seconds: the slowest, in seconds; and how many they were."""
    worst, sent, end = 0.0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        assert (await it.complete("a", **more)).status_code == 200
        worst = max(worst, time.monotonic() - began)
        sent += 1
    return worst, sent


async def test_readers_that_do_not_read_stall_nobody() -> None:
    """An engine that floods its log, readers of logs and events that never read: requests are answered as before."""
    flood = (
        "import sys, threading, runpy\n"
        "def shout():\n"
        "    while True: sys.stdout.write(('INFO nothing to see here ' * 6 + chr(10)) * 50); sys.stdout.flush(); pause.wait(0.02)\n"
        "pause = threading.Event()\n"
        "threading.Thread(target=shout, daemon=True).start()\n"
        "sys.argv = ['sim', 'loud', '--port', sys.argv[1]]\n"
        "runpy.run_module('vllm_mm.sim', run_name='__main__')\n"
    )
    loud = {
        "engine": "command", "memory": "2GiB", "env": {"PYTHONPATH": str(Path(vllm_mm.__file__).parent.parent)},
        "command": [sys.executable, "-c", flood, "{port}"],
    }  # fmt: skip
    async with running({"a": sim(), "loud": loud}, own_devices=True) as it:
        await it.ready("a", "loud")
        usual, _ = await slowest(it, 2.0, tokens=1)
        with contextlib.ExitStack() as readers:
            for path in ["/api/models/loud/logs?follow=1"] * 3 + ["/api/events?after=0"] * 3:
                reader = readers.enter_context(socket.create_connection(("127.0.0.1", it.serving.port)))
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.settimeout(5)
                reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert await asyncio.to_thread(reader.recv, 15) == b"HTTP/1.1 200 OK"
            worst, _ = await slowest(it, 2.0, tokens=1)
            assert worst < max(0.5, 3 * usual), (worst, usual)
        lines = (await it.client.get(f"{it.url}/api/models/loud/logs?tail=2000")).text.splitlines()
        assert len(lines) <= 2000


async def test_scrapes_and_polls_are_no_use_and_wake_nothing() -> None:
    """Metrics, health, lists and plans, again and again: the idle model falls asleep and stops in its time, and stays so;
    a generation longer than these times, and a slow load, are not punished."""
    idle = {"idle": {"sleep_after": "1s", "stop_after": "3s"}}
    models = {"a": sim(model=idle), "busy": sim(model=idle), "slow": sim(startup="3500ms", model=idle)}
    async with running(models, own_devices=True) as it:
        await it.ready("a", "busy")
        busy = asyncio.create_task(it.streamed("busy", tokens=1500))
        slow = asyncio.create_task(it.complete("slow"))
        seen: list[str] = []
        began = time.monotonic()
        while not seen or seen[-1] != "stopped":
            assert time.monotonic() - began < 10, seen
            for path in (
                "/metrics",
                "/health",
                "/ready",
                "/v1/models",
                "/v1/models/a",
                "/api/models",
                "/api/plan?model=a",
                "/api/status",
            ):
                assert (await it.client.get(f"{it.url}{path}")).status_code == 200, path
            if (state := await it.state("a")) not in seen[-1:]:
                seen.append(state)
        assert [s for s in seen if s in {"ready", "sleeping", "stopped"}] == ["ready", "sleeping", "stopped"]
        assert await it.state("busy") in {"ready"}
        assert (await slow).status_code == 200
        assert (await busy)[1].endswith(b"data: [DONE]\n\n")
        assert await it.starts() == 3


async def test_a_database_that_somebody_else_has_locked() -> None:
    """Another process holds an exclusive transaction for six seconds, longer than SQLite's own patience: requests to ready
    models run on, engines live on, nothing is lost: each request has its row afterwards, and /ready is green again."""
    async with running({"a": sim(), "b": sim(), "c": sim()}, own_devices=True) as it:
        await it.ready("a")
        usual, asked = await slowest(it, 2.0)
        loading = asyncio.create_task(it.complete("b", wait=30))
        worst, sent = 0.0, asked
        await it.until("b", "starting", "ready")
        with locked_database(it.serving.data / "state.db"):
            end = time.monotonic() + 6.0
            assert (await loading).status_code == 200
            stopping = asyncio.create_task(it.act("b", "stop", wait=20))
            while time.monotonic() < end:
                began = time.monotonic()
                assert (await it.complete("a")).status_code == 200
                worst = max(worst, time.monotonic() - began)
                sent += 1
                await asyncio.sleep(0.05)
            assert (await it.client.get(f"{it.url}/health")).status_code == 200
        assert worst < max(0.5, 3 * usual), (worst, usual)
        assert (await stopping).json()["state"] == "stopped"
        assert await it.state("a") == "ready"
        assert (await it.complete("c")).status_code == 200
        assert await it.outcomes(sent + 2) == {"ok": sent + 2}
        assert await it.starts("a") == await it.starts("b") == 1
        assert (await it.client.get(f"{it.url}/ready")).status_code == 200
        assert "internal error" not in it.serving.log


async def test_a_load_while_the_database_is_locked_waits_or_says_why() -> None:
    """The row of a launch cannot be written: the load comes when the lock is gone in time; else 503 with the reason, the
    victim is left as it was, and the next request swaps as ever."""
    async with running({"a": sim(), "b": sim()}, memory="12GiB") as it:
        await it.ready("a")
        with locked_database(it.serving.data / "state.db"):
            waiting = asyncio.create_task(it.complete("b", wait=30))
            await asyncio.sleep(1.0)
            assert not waiting.done()
            assert await it.state("a") == "ready"
        assert (await waiting).status_code == 200
        with locked_database(it.serving.data / "state.db"):
            answer = await it.complete("a", wait=30)
            assert answer.status_code == 503, answer.text
            assert "database" in answer.text
            assert int(answer.headers["retry-after"]) >= 1
            assert (await it.complete("b")).status_code == 200
        answer = await it.complete("a", wait=30)
        assert answer.status_code == 200, answer.text
        await it.quiet()


async def test_a_reload_touches_what_changed_and_nothing_else() -> None:
    """SIGHUP while streams run: an unchanged model's stream and process go on; a changed one finishes its stream and is new
    afterwards; a removed one finishes, and those who waited for it get 404; a broken file changes nothing."""
    models = {"same": sim(), "changed": sim(), "gone": sim(model={"concurrency": 1}), "pinned": sim()}
    async with running(models, own_devices=True) as it:
        pids = dict(zip(models, await it.ready(*models), strict=True))
        streams = {m: asyncio.create_task(it.streamed(m, tokens=700)) for m in models}
        await asyncio.gather(*(it.in_flight(m, 1) for m in models))
        waiting = asyncio.create_task(it.complete("gone"))
        await it.until_queued(1)
        new = {
            "same": {**models["same"], "devices": {"ids": ["dev-same"]}},
            "changed": {**sim(tokens_per_second=500), "devices": {"ids": ["dev-changed"]}},
            "pinned": {**models["pinned"], "devices": {"ids": ["dev-pinned"]}, "pinned": True},
            "added": {**sim(), "devices": {"ids": ["dev-gone"]}},
        }
        it.rewrite(models=new)
        await it.reload()
        answer = await waiting
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["code"] == "model_not_found"
        assert (await it.complete("gone")).status_code == 404
        assert {m: (await it.instance(m))["state"] for m in ("same", "changed", "pinned")} == {
            "same": "ready", "changed": "draining", "pinned": "ready",
        }  # fmt: skip
        it.serving.config.write_text("models: {a: {engin: sim}}")
        it.serving.signal(signal.SIGHUP)
        await until(lambda: "was not reloaded" in it.serving.log, "the refusal of a broken file")
        assert "did you mean `engine`" in it.serving.log
        for model, stream in streams.items():
            status, body = await stream
            assert status == 200, model
            assert body.endswith(b"data: [DONE]\n\n"), model
        assert (await it.complete("changed")).status_code == 200
        assert (await it.complete("added", wait=20)).status_code == 200
        assert (await it.instance("same"))["pid"] == pids["same"]
        assert (await it.instance("pinned"))["pid"] == pids["pinned"]
        assert (await it.instance("changed"))["pid"] != pids["changed"]
        assert await it.starts("gone") == 1


async def test_progress_is_shown_in_comments_and_never_in_the_content() -> None:
    """With X-VLLM-MM-Progress: comments while the model loads, then the very answer that others get; a failure comes as an
    event and no [DONE]. Without it the status is honest."""
    slow = {"startup": "400ms", "weights": "8GiB", "load_bandwidth": "8GiB/s"}
    # Its tokens are far apart: a late engine sends several in one event, and then no two answers have the same events.
    models = {"a": sim(**slow, tokens_per_second=8), "b": sim("die_at:weights", startup="400ms")}
    asked = {"x-vllm-mm-progress": "1"}
    async with running(models, own_devices=True) as it:
        async with it.stream("a", tokens=6, headers=asked) as answer:
            assert answer.status_code == 200
            text = (await answer.aread()).decode()
        comments = [line for line in text.splitlines() if line.startswith(":")]
        assert comments
        assert comments[0].startswith(": queued position=1 model=a")
        content = text[text.index("data: ") :]
        _, plain = await it.streamed("a", tokens=6)
        assert _texts(content) == _texts(plain.decode())
        assert content.endswith("data: [DONE]\n\n")
        got = bytearray()

        async def read() -> None:
            async with it.stream("b", headers=asked) as answer:
                assert answer.status_code == 200
                async for chunk in answer.aiter_bytes():
                    got.extend(chunk)

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        assert b'"error"' in got
        assert b"[DONE]" not in got
        assert (await it.streamed("b"))[0] == 503


def _texts(events: str) -> list[str]:
    lines = [line[6:] for line in events.splitlines() if line.startswith("data: {")]
    return [choice["text"] for line in lines for choice in json.loads(line)["choices"]]
