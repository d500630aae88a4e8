"""SIGKILL on real vLLM: whatever dies, in whatever state, the whole tree of the launch is gone before its memory is given
to anybody, the model comes back, and a killed controller's engine is adopted rather than doubled."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from real_vllm import START, TINY, Direct, Installation
from serving import MARK, Serving
from vllm_mm.engine import procfs
from vllm_mm.engine.launchers.pool import ZYGOTE_TOKEN

VICTIMS = ("leader", "VLLM::EngineCore", "VLLM::Worker")
STATES = ("ready", "draining", "stopping", "starting")
"""`starting` last: a forked engine that dies there is tried again locally, and its model is not forked any more."""
IN_CI = {("VLLM::Worker", "ready"), ("leader", "ready"), ("leader", "starting")}
"""The rest of the matrix takes a start of half a minute each, and runs with --real-full."""
GONE = 45.0
"""Seconds from the kill to the last process of the launch being gone. By itself vLLM takes up to 23 to notice the death of a child."""


def engine_tree(server: Serving) -> dict[int, str]:
    """Living processes of the server's engines, with their names: its mark, and an engine's. Not its zygotes."""
    found: dict[int, str] = {}
    engine = b"MM_ENGINE_LAUNCH="
    zygote = engine + ZYGOTE_TOKEN.encode()
    for pid, stat in procfs.table().items():
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            marks = f"{MARK}={server.mark}".encode() in environ and any(
                v.startswith(engine) and v != zygote for v in environ
            )
            if marks and not stat.dead:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def label(pid: int, command: str, leader: int | None) -> str:
    if pid == leader:
        return "leader"
    if command.startswith("VLLM::"):
        return command
    return "resource_tracker" if "resource_tracker" in command else "child, not yet named"


def shared_memory(pids: Iterable[int]) -> set[str]:
    """The segments in /dev/shm that these processes have mapped."""
    lines = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids).splitlines()
    return {line.rpartition(" ")[2] for line in lines if " /dev/shm/" in line}


async def until(look: Any, what: str, seconds: float) -> Any:
    """The first true value; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.05)
    return found


class Bench:
    """A server with the tiny model, and a client for it."""

    def __init__(self, server: Serving, client: httpx.AsyncClient) -> None:
        self.server = server
        self.client = client

    async def instance(self) -> dict[str, Any]:
        return (await self.server.instances(self.client)).get(TINY, {})

    async def act(self, verb: str) -> None:
        answer = await self.client.post(f"{self.server.url}/api/models/{TINY}/{verb}")
        assert answer.status_code < 300, answer.text

    async def begin(self) -> None:
        """A start from rest, or one that is under way already."""
        deadline = time.monotonic() + 60
        while (state := (await self.instance()).get("state", "stopped")) not in {"stopped", "backoff"}:
            if state in {"starting", "ready"}:
                return
            assert time.monotonic() < deadline, f"it does not come to rest: {state}"
            await asyncio.sleep(0.05)
        await self.act("start")

    async def ready(self) -> dict[str, Any]:
        return await self.server.until(self.client, TINY, "ready", START)

    async def complete(self, tokens: int = 4, choices: int = 1) -> httpx.Response:
        body = {"model": TINY, "prompt": "a", "max_tokens": tokens, "ignore_eos": True, "n": choices, "temperature": 1}
        return await self.client.post(f"{self.server.url}/v1/completions", json=body, timeout=START)

    async def victim(self, name: str) -> int:
        """The pid to kill; waits for it to be there."""

        async def leader() -> int | None:
            return (await self.instance()).get("pid")

        deadline = time.monotonic() + START
        while True:
            if name == "leader":
                pid = await leader()
            else:
                pid = next((p for p, c in engine_tree(self.server).items() if c.startswith(name)), None)
            if pid is not None:
                return pid
            assert time.monotonic() < deadline, f"there is no {name}"
            await asyncio.sleep(0.05)


@pytest.fixture
async def bench(vllm: Installation, tmp_path: Path, launcher: str, full: bool) -> AsyncIterator[Bench]:
    if launcher == "local" and not full:
        pytest.skip(
            "only with --real-full (each start takes half a minute); engines that are forked are killed in CI too"
        )
    model = vllm.declare(TINY, retry={"backoff": "1s", "max_failures": 20}, launcher=launcher)
    server = Serving(
        tmp_path,
        {
            "devices": [{"id": "cpu", "memory": "4GiB", "headroom": 0}],
            "queue": {"max_wait": "5m"},
            "swap": {"drain_timeout": "60s"},
            "models": {TINY: model},
        },
    )
    try:
        await server.start()
        async with httpx.AsyncClient(timeout=30) as client:
            yield Bench(server, client)
    finally:
        server.end()


async def reach(bench: Bench, state: str) -> asyncio.Task[httpx.Response] | None:
    """Bring the model to `state`; the request that keeps it in DRAINING."""
    streaming: asyncio.Task[httpx.Response] | None = None
    await bench.begin()
    if state == "starting":
        await bench.victim("VLLM::EngineCore")  # from here on there is something to leave behind
    else:
        await bench.ready()
    if state == "draining":
        # One answer of 2,000 tokens is over in two seconds: this keeps it busy for as long as a slow machine may need.
        streaming = asyncio.create_task(bench.complete(2000, choices=64))
        while (await bench.instance())["in_flight"] == 0:
            await asyncio.sleep(0.02)
        await bench.act("stop")
    if state == "stopping":
        # vLLM is gone half a second after its SIGTERM. One that stands still is in STOPPING for as long as its grace.
        os.kill((await bench.instance())["pid"], signal.SIGSTOP)
        await bench.act("stop")
    await bench.server.until(bench.client, TINY, state, 10)
    return streaming


async def kill_one(bench: Bench, name: str, state: str, say: Any) -> None:
    """Bring the model to `state`, kill `name`, and see that its launch is gone before the next one begins."""
    server = bench.server
    streaming = await reach(bench, state)
    pid = await bench.victim(name)
    before = engine_tree(server)
    instance = await bench.instance()
    leader, generation = instance["pid"], instance["generation"]
    how = "forked" if instance["launcher"] == "warm" else "started"
    assert pid in before
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()

    def rest() -> list[int]:
        return [p for p in before if p in engine_tree(server)]

    await until(lambda: not rest(), f"the tree of {name} killed in {state} to be gone", GONE)
    gone = time.monotonic() - killed
    deadline = time.monotonic() + 30
    # The same generation with another leader is a start that is tried again locally.
    while (now := await bench.instance())["state"] == state and (now["generation"], now["pid"]) == (generation, leader):
        assert time.monotonic() < deadline, f"the death of {name} in {state} went unnoticed: {now}"
        await asyncio.sleep(0.02)
    names = ", ".join(sorted(label(p, c, leader) for p, c in before.items()))
    say.note(
        f"{state:9} {how:7} {name:17} killed; had: {names}; all gone {gone:.2f} s later; then {now['state']}: {now['reason'].split('; last lines')[0]}"
    )
    if state in {"draining", "stopping"}:
        after = await server.until(bench.client, TINY, "stopped", 30)
        assert after["failures"] == 0, "an end that was asked for is no failure, however it came"
    if streaming is not None:
        answer = await streaming
        assert answer.status_code >= 500, "a cut answer must not look like a whole one"
        say.note(f"          its request in flight was told: {answer.status_code} {answer.json()['error']['code']}")


@pytest.mark.parametrize("launcher", ["local", "auto"])
async def test_a_kill_in_any_state_leaves_nothing(bench: Bench, kills_transcript: Any, full: bool) -> None:
    """API server, engine core or worker killed while starting, ready, draining or stopping: noticed, swept, and served
    again. The resource tracker, which serves nobody, is not missed, and what it would have tidied up is not left."""
    say = kills_transcript
    matrix = [(v, s) for s in STATES for v in VICTIMS if full or (v, s) in IN_CI]
    say.heading("The controller is killed")
    await bench.begin()
    await bench.ready()
    await kill_the_controller(bench, say)
    if full:
        await kill_the_controller_in_a_teardown(bench, say)
    say.heading("One process of the engine is killed")
    if full:
        await kill_the_tracker(bench, say)
    for name, state in matrix:
        await kill_one(bench, name, state, say)
    await bench.begin()
    await bench.ready()
    assert (await bench.complete()).status_code == 200
    await bench.server.written(bench.client)
    rows = bench.server.rows("select kind, count(*) from events where kind like 'orphan%' group by kind")
    say.note(f"afterwards it serves again; swept on the way: {rows}")
    assert await bench.server.stop() == 0
    assert not bench.server.left()
    say.note("SIGTERM: exit code 0, no process left")


async def kill_the_tracker(bench: Bench, say: Any) -> None:
    """vLLM does not miss its resource tracker, and so the product must not either; all is gone after the stop."""
    await bench.begin()
    await bench.ready()
    before = await bench.instance()
    tree = engine_tree(bench.server)
    pid = next(p for p, c in tree.items() if "resource_tracker" in c)
    segments = shared_memory(tree)
    assert segments
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(3)
    assert (await bench.complete()).status_code == 200
    after = await bench.instance()
    assert (after["state"], after["generation"]) == ("ready", before["generation"])
    await bench.act("stop")
    await bench.server.until(bench.client, TINY, "stopped", 60)
    assert not engine_tree(bench.server)
    await until(lambda: not any(map(os.path.exists, segments)), f"{segments} to be removed", 10)
    say.note(
        f"ready     resource_tracker  killed: it goes on serving; stopped later: no process left, and none of the "
        f"{len(segments)} segments of shared memory that the tree had mapped"
    )


async def kill_the_controller(bench: Bench, say: Any) -> None:
    """The controller is killed: its engine lives on, and the next controller adopts it; also one that was still
    starting is settled. Nothing is started twice."""
    server = bench.server
    before, tree = await bench.instance(), engine_tree(server)
    server.kill()
    await asyncio.sleep(0.5)
    assert engine_tree(server) == tree, "the engine died with its controller"
    await server.start()
    after = await bench.ready()
    assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
    assert engine_tree(server) == tree
    assert (await bench.complete()).status_code == 200
    say.note(f"ready: the next controller adopted pid {after['pid']} with its {len(tree)} processes, and it serves")

    await bench.act("stop")
    await server.until(bench.client, TINY, "stopped", 60)
    assert not engine_tree(server)
    await bench.begin()
    await bench.victim("VLLM::EngineCore")
    before, tree = await bench.instance(), engine_tree(server)
    server.kill()
    await server.start()
    after = await bench.instance()
    if after.get("state") == "ready":
        # A forked engine may be ready before the next controller looks: it is of use, and so it is adopted.
        assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
        assert (await bench.complete()).status_code == 200
        say.note(f"starting: it was ready when the next controller came, which adopted pid {after['pid']}")
        await bench.act("stop")
        await server.until(bench.client, TINY, "stopped", 60)
        assert not engine_tree(server)
    else:
        await until(lambda: not (set(tree) & set(engine_tree(server))), "the half-started engine to be ended", GONE)
        say.note(f"starting: the {len(tree)} processes of the half-started engine were ended at boot")


async def kill_the_controller_in_a_teardown(bench: Bench, say: Any) -> None:
    """Killed while the engine drains or stops: the next controller either adopts that very engine, which is of use, or
    ends it. None is started, and none is left beside the one that the controller knows."""
    server = bench.server
    for state in ("draining", "stopping"):
        request = await reach(bench, state)
        before, tree = await bench.instance(), engine_tree(server)
        server.kill()
        if request is not None:
            with pytest.raises(httpx.TransportError):
                await request
        began = time.monotonic()
        await server.start()
        after = await bench.instance()
        settled = time.monotonic() - began
        if state == "draining":
            assert (after["state"], after["pid"], after["generation"]) == ("ready", before["pid"], before["generation"])
            assert engine_tree(server) == tree
            assert (await bench.complete()).status_code == 200
            say.note(f"draining: the next controller adopted pid {after['pid']} after {settled:.1f} s, and it serves")
            await bench.act("stop")
            await server.until(bench.client, TINY, "stopped", 60)
            assert not engine_tree(server)
        else:
            await until(lambda: not engine_tree(server), "the engine that was stopping to be ended", GONE)
            assert (await bench.instance()).get("state", "stopped") == "stopped"
            say.note(
                f"stopping: the {len(tree)} processes were ended at boot, {time.monotonic() - began:.1f} s from its start"
            )


async def test_kills_while_asleep(vllm: Installation, full: bool) -> None:
    """SLEEPING, SUSPENDING and WAKING on real vLLM need a build with a sleep mode, which the one for the CPU is not: it
    says so itself. These states are covered with the simulated engine (tests/integration, tests/chaos)."""
    if not full:
        pytest.skip("only with --real-full; vLLM's CPU build has no sleep mode, so there is nothing to kill")
    engine = Direct(vllm, TINY, **{"enable-sleep-mode": True})
    engine.begin()
    try:
        deadline = time.monotonic() + START
        while engine.process.poll() is None:
            assert time.monotonic() < deadline
            assert "Application startup complete" not in engine.log, "this build has a sleep mode: write the tests"
            await asyncio.sleep(0.2)
        words = "Sleep mode is not supported on current platform."
        assert words in engine.log, engine.log[-3000:]
    finally:
        engine.end()
    pytest.skip(f"vLLM's CPU build cannot sleep: {words!r}")
