"""A request whose engine went away is sent once more, unseen, where no work can be done twice; else its client is told why not."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from hard_cases import Case, kill, running, sim
from plane import FORMS, ask, plane, post
from upstreams import Peer, Script, answers, upstream
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.usage import Outcome
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire import InferenceChannel
from vllm_mm.gateway import again
from vllm_mm.gateway.ports import InstanceState

CHAT = "/v1/chat/completions"
BODY = b'{"model":"org/model-1","messages":[]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
LARGE = b'{"model":"org/model-1","x":"%b"}' % (b"x" * 8_000_000)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


async def breaks(peer: Peer) -> None:
    """Reads the request, and is gone without an answer."""
    await peer.read()
    peer.close()


async def test_a_dead_launch_is_replaced_by_the_next(form: str, tmp_path: Path) -> None:
    """It had the whole request and died with it; the next launch gets it, and the client sees one good answer. The model is another
    launch's in the headers, and the row says so."""
    (tmp_path / "a").mkdir()
    async with (
        upstream(breaks, tmp_path / "a") as first,
        upstream(answers(OK), tmp_path) as second,
        plane(form, second.address) as server,
    ):
        server.leases.channels.append(InferenceChannel(first.address, limit=2))
        server.leases.launched(1)
        server.leases.now.state = State.STOPPING

        async def next_launch() -> None:
            while not first.heard:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            server.leases.launched(2)
            server.leases.now.state = State.READY

        starting = asyncio.create_task(next_launch())
        answer = await ask(server, post(CHAT, BODY))
        await starting
        assert (answer.status, answer.body) == (200, b"{}")
        assert answer.header("x-vllm-mm-instance") == "org/model-1#2"
        await server.settled(1)
        assert (len(first.heard), len(second.heard)) == (1, 1)
        assert [(row.outcome, row.retried, row.generation) for row in server.rows] == [(Outcome.OK, True, 2)]


@pytest.mark.parametrize("state", [State.READY, State.FAILED])
async def test_a_launch_that_lives_is_asked_once(
    form: str, tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be at work on it; and one that is left alone after too many failures has no next launch. The client is told."""
    monkeypatch.setattr(again, "NOTICED", 0.1)
    async with upstream(breaks, tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.launched(1)
        server.leases.now.state = state
        answer = await ask(server, post(CHAT, BODY))
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"]) == (502, "upstream_died")
        assert "before it answered" in error["message"]
        await server.settled(1)
        assert (len(engine.heard), server.rows[0].retried) == (1, False)


async def test_a_second_death_is_told(form: str, tmp_path: Path) -> None:
    """Once more, and not again and again."""
    async with upstream(breaks, tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.now.generation = 99
        server.leases.launch = None
        server.leases.describe = lambda _model: server.leases.now  # type: ignore[method-assign]  # every launch is gone at once
        answer = await ask(server, post(CHAT, BODY))
        assert answer.status == 502
        await server.settled(1)
        assert (len(engine.heard), server.rows[0].retried) == (2, True)


def resets_early(times: int) -> Script:
    """Connections that are reset while the body is on its way, then good ones."""
    left = times

    async def script(peer: Peer) -> None:
        nonlocal left
        if left:
            left -= 1
            await peer.reader.readexactly(100)
            peer.reset()
            return
        while await peer.read() is not None:
            await peer.send(OK)

    return script


async def test_a_body_that_was_not_sent_whole_is_sent_again(form: str, tmp_path: Path) -> None:
    """The engine lives and cannot have begun: a fresh connection, at once; a second time it is told."""
    async with upstream(resets_early(1), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, LARGE))
        assert (answer.status, answer.body) == (200, b"{}")
        await server.settled(1)
        assert ([heard.body for heard in engine.heard], engine.connections) == ([LARGE], 2)
        assert (server.rows[0].outcome, server.rows[0].retried, server.leases.taken) == (Outcome.OK, True, 1)


async def test_an_engine_that_cannot_be_reached_is_known_to_be_dead_before_it_is_asked_again(
    form: str, tmp_path: Path
) -> None:
    """A dying engine closes its socket before anybody knows that it is dead. Nothing was sent: the request waits for the next launch,
    and is not lost to the same one."""
    async with upstream(answers(OK), tmp_path) as second, plane(form, second.address) as server:
        gone = InferenceChannel(Address(socket=str(tmp_path / "gone.sock")), limit=2)
        server.leases.channels += [gone]
        server.leases.launched(1)
        describe, states = server.leases.describe, [State.READY, State.STOPPING, State.BACKOFF]

        def look(model: str) -> InstanceState:
            assert server.leases.taken == 1, "asked again before it was known"
            server.leases.now.state = states.pop(0)
            return describe(model)

        server.leases.describe = look  # type: ignore[method-assign]
        assert (await ask(server, post(CHAT, BODY))).status == 200
        await server.settled(1)
        assert (states, [row.retried for row in server.rows]) == ([], [True])


async def test_refused_and_stale_connections(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that cannot be reached although it lives, and a pooled connection that the engine has closed: the row knows of both."""
    monkeypatch.setattr(again, "NOTICED", 0.1)

    async def once(peer: Peer) -> None:
        if await peer.read() is not None:
            await peer.send(OK)
            if len(peer.server.heard) == 1:
                await peer.reader.read(1)

    async with upstream(once, tmp_path) as engine, plane(form, engine.address) as server:
        gone = InferenceChannel(Address(socket=str(tmp_path / "gone.sock")), limit=2)
        server.leases.channels.append(gone)
        for _ in range(2):
            assert (await ask(server, post(CHAT, BODY))).status == 200
        await server.settled(2)
        assert [row.retried for row in server.rows] == [True, True]
        assert len(engine.heard) == 2


async def test_a_client_that_leaves_meanwhile(form: str, tmp_path: Path) -> None:
    """Nothing more is asked for it."""
    async with upstream(breaks, tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.launched(1)
        server.leases.now.state = State.STOPPING
        _, writer = await server.open()
        writer.write(post(CHAT, BODY))
        async with asyncio.timeout(10):
            while not engine.heard or server.leases.out:
                await asyncio.sleep(0.005)
        writer.close()
        await server.settled(1)
        assert (server.rows[0].outcome, len(engine.heard)) == (Outcome.CLIENT_GONE, 1)


# Real engines that are killed


async def counted(it: Case, model: str) -> float:
    """Requests that the running engine has finished."""
    metrics = (await it.client.get(f"{it.url}/metrics")).text
    return sum(float(n) for n in re.findall(r"^vllm:request_success_total{[^}]*} (\S+)$", metrics, re.MULTILINE))


async def test_engines_that_are_killed_before_they_answer() -> None:
    """The leader, or all of it, while a prompt is taken in: the next launch answers, once, and the client waits a little longer. After
    the first byte nothing is sent again."""
    model = {"retry": {"backoff": "50ms", "backoff_max": "100ms", "max_failures": 50}}
    async with running({"m": sim(prefill_tokens_per_second=2, model=model)}) as it:
        body = {"model": "m", "prompt": "a b c", "max_tokens": 3, "ignore_eos": True}
        [leader] = await it.ready("m")
        launch = (await it.instance("m"))["id"]
        asked = asyncio.create_task(it.client.post(f"{it.url}/v1/completions", json=body))
        await it.in_flight("m", 1)
        for pid in [leader, *it.tree(leader)]:
            kill(pid)
        answer = await asked
        assert answer.status_code == 200
        assert answer.headers["x-vllm-mm-instance"] != launch
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert await counted(it, "m") == 2, "its probe, and the request, once"
        # The head of a stream comes before its first token: from then on it is told.
        [leader] = await it.ready("m")
        async with it.stream("m") as stream:
            assert stream.status_code == 200
            kill(leader)
            with pytest.raises(httpx.RemoteProtocolError):
                assert b"[DONE]" not in await stream.aread()
        rows = await it.serving.rows_when(
            "select retried, outcome from requests order by row", lambda rows: len(rows) == 2
        )
        assert rows == [(1, "ok"), (0, "upstream_died")]
