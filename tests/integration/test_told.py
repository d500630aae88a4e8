"""What an answer tells beside itself: headers, times at its end, that its engine lives; and the end of a stream that stands still."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from hard_cases import running, sim, until
from plane import FORMS, MODEL, ask, plane, post, read_answer
from upstreams import Peer, answers, chunk, upstream
from vllm_mm.domain.errors import StillLoading
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import Outcome
from vllm_mm.gateway.ports import Rules

CHAT = "/v1/chat/completions"
BODY = b'{"model":"short","messages":[]}'
STREAM = b'{"model":"org/model-1","stream":true,"stream_options":{"include_usage":true}}'
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = SSE_HEAD + chunk(EVENT) + chunk(DONE) + b"0\r\n\r\n"
TIMINGS = {"x-vllm-mm-timings": "1"}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_headers(form: str, tmp_path: Path) -> None:
    """The model whatever its alias, the launch, the wait and the part of it until the model was ready; of errors what is known."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, BODY))
        assert answer.header("x-vllm-mm-model") == "org/model-1"
        assert answer.header("x-vllm-mm-instance") == "org/model-1#1"
        assert int(answer.header("x-vllm-mm-queue-ms") or -1) >= int(answer.header("x-vllm-mm-load-ms") or -1) == 0
        server.leases.fail.append(StillLoading("Not yet.", retry_after=3))
        refused = await ask(server, post(CHAT, BODY))
        assert refused.status == 503
        assert refused.header("x-vllm-mm-model") == "org/model-1"
        assert refused.header("x-vllm-mm-queue-ms") is not None
        assert refused.header("x-vllm-mm-instance") is None
        unknown = await ask(server, post(CHAT, b'{"model":"nobody"}'))
        assert unknown.header("x-request-id")
        assert unknown.header("x-vllm-mm-model") is None
        wrong = await ask(server, post(CHAT, BODY, {"x-vllm-mm-timings": "yes"}))
        assert (wrong.status, json.loads(wrong.body)["error"]["param"]) == (400, "X-VLLM-MM-Timings")


async def test_times_at_the_end(form: str, tmp_path: Path) -> None:
    """A last comment behind the stream of who asks, or of everybody; else not a byte more. Where there are trailers, they are those."""
    async with (
        upstream(answers(WHOLE), tmp_path) as engine,
        plane(form, engine.address) as server,
    ):
        assert (await ask(server, post(CHAT, STREAM))).body == EVENT + DONE
        told = await ask(server, post(CHAT, STREAM, TIMINGS))
        stream, _, comment = told.body.partition(DONE)
        assert (stream, told.complete) == (EVENT, True)
        name, first, total = comment.decode().removesuffix("\n\n").split(" ")[1:]
        assert (name, first.partition("=")[0], total.partition("=")[0]) == ("timings", "ttft_ms", "total_ms")
        assert 0 <= int(first.partition("=")[2]) <= int(total.partition("=")[2])
        reader, writer = await server.open()
        writer.write(post(CHAT, STREAM, {**TIMINGS, "te": "trailers", "connection": "close"}))
        framed = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if form == "protocol":
            assert b"trailer: x-vllm-mm-ttft-ms, x-vllm-mm-total-ms" in framed[0]
            end = framed[2].partition(b"\r\n0\r\n")[2]
            assert end.startswith(b"x-vllm-mm-ttft-ms: ")
            assert b"\r\nx-vllm-mm-total-ms: " in end
            assert end.endswith(b"\r\n\r\n")
            assert b"timings" not in framed[2]
        else:
            assert b": timings " in framed[2]
    async with (
        upstream(answers(WHOLE), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(timings=True)) as server,
    ):
        assert b": timings " in (await ask(server, post(CHAT, STREAM))).body
        assert (await ask(server, post(CHAT, STREAM, {"x-vllm-mm-timings": "0"}))).body == EVENT + DONE


async def test_times_behind_a_plain_answer(tmp_path: Path) -> None:
    """In trailers, for who can read them; its body is the engine's, with an end that is told by chunks."""
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        for body in (BODY, BODY.replace(b"short", b"org/model-1")):
            answer = await ask(server, post(CHAT, body, {**TIMINGS, "te": "trailers"}))
            assert (answer.body, answer.complete) == (b"{}", True)
            assert b"x-vllm-mm-total-ms: " in answer.framed
            assert (await ask(server, post(CHAT, body, TIMINGS))).framed == b"{}"


async def test_signs_of_life(form: str, tmp_path: Path) -> None:
    """While a prompt is taken in: comments for who asked, by header or by the model, from time to time, none of them within or behind the
    answer; and none for who refuses."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        while await peer.read() is not None:
            await peer.send(SSE_HEAD)
            await go.wait()
            await peer.send(WHOLE[len(SSE_HEAD) :])

    spec = ModelSpec("org/model-1", progress=True)
    rules = Rules(progress=0.02)
    for specs, headers, wanted in (
        ([MODEL], {"x-vllm-mm-progress": "1"}, True),
        ([spec], {}, True),
        ([spec], {"x-vllm-mm-progress": "0"}, False),
        ([MODEL], {}, False),
    ):
        go.clear()
        async with (
            upstream(script, tmp_path) as engine,
            plane(form, engine.address, rules=rules, specs=specs) as server,
        ):
            reader, writer = await server.open()
            writer.write(post(CHAT, STREAM, headers))
            seen = b""

            async def on_body(piece: bytes) -> None:
                nonlocal seen
                seen += piece
                if seen.count(b": keep-alive\n\n") >= 3:  # read in this turn of the loop
                    go.set()

            if not wanted:
                async with asyncio.timeout(10):
                    while not engine.heard:
                        await asyncio.sleep(0.005)
                go.set()
            async with asyncio.timeout(20):
                answer = await read_answer(reader, on_body=on_body)
            writer.close()
            assert answer.complete
            assert answer.body.replace(b": keep-alive\n\n", b"") == EVENT + DONE
            assert answer.body.startswith(b": keep-alive\n\n" * 3) == wanted
            assert answer.body.endswith(EVENT + DONE)
            await server.settled(1)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_a_stream_that_stands_still(form: str, tmp_path: Path, path: str) -> None:
    """After its first token and a while without a byte it ends with an error in the words of its API, and not as if it were whole; its
    engine is suspected. One that waits for its first token, and one that stands still with its engine asleep, go on."""
    token = {
        CHAT: EVENT,
        "/v1/messages": b'data: {"type":"content_block_delta"}\n\n',
        "/v1/responses": b'data: {"type":"x.delta"}\n\n',
    }[path]
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        heard = await peer.read()
        assert heard is not None
        await peer.send(SSE_HEAD)
        if b"slow" in heard.body:
            await go.wait()
        await peer.send(chunk(token))
        if b"slow" in heard.body:
            await peer.send(chunk(DONE) + b"0\r\n\r\n")
        await peer.until_gone(30)

    async with upstream(script, tmp_path) as engine, plane(form, engine.address, rules=Rules(stall=0.5)) as server:
        slow = asyncio.create_task(ask(server, post(path, STREAM.replace(b"stream_options", b"slow"))))
        async with asyncio.timeout(10):
            while not server.leases.out:
                await asyncio.sleep(0.005)
        answer = await ask(server, post(path, STREAM))
        assert (answer.status, answer.complete) == (200, False)
        assert answer.body.startswith(token)
        assert b"has sent nothing of this answer" in answer.body
        assert b"[DONE]" not in answer.body
        events = [json.loads(line[6:]) for line in answer.body.splitlines() if line.startswith(b"data: ")]
        error = events[-1] if path == "/v1/responses" else events[-1]["error"]
        assert error["type"] == {CHAT: "timeout_error", "/v1/messages": "timeout_error", "/v1/responses": "error"}[path]
        go.set()
        assert (await slow).complete
        await server.settled(2)
        assert [(row.outcome, row.status) for row in server.rows] == [(Outcome.TIMEOUT, 200), (Outcome.OK, 200)]


async def test_time_in_a_sleeping_engine_does_not_count(tmp_path: Path) -> None:
    """Nor does time in which the client reads nothing."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + chunk(EVENT))
        await go.wait()
        await peer.send(chunk(DONE) + b"0\r\n\r\n")

    async with (
        upstream(script, tmp_path) as engine,
        plane("protocol", engine.address, rules=Rules(stall=0.5)) as server,
    ):
        asked = asyncio.create_task(ask(server, post(CHAT, STREAM)))
        async with asyncio.timeout(10):
            while not server.gateway.running or server.gateway.running[0].meter.token_at is None:
                await asyncio.sleep(0.005)
        relay = server.gateway.running[0]
        looks: list[float] = []
        async with asyncio.timeout(30):
            while len(looks) < 3:  # looks of the sweep, a second apart
                [lease] = server.leases.out
                lease.stood_still += 0.001
                if not looks or relay.seen_at != looks[-1]:
                    looks.append(relay.seen_at)
                await asyncio.sleep(0.01)
        go.set()
        assert (await asked).complete


async def test_a_suspected_engine_has_to_prove_itself() -> None:
    """Its core hangs, its server is healthy: a stream that stands still is ended, and the engine, which would have had an hour, is asked for
    a token and replaced."""
    retry = {"retry": {"backoff": "50ms", "backoff_max": "100ms", "max_failures": 50}, "start": {"probe": "300ms"}}
    timeouts = {"stop_grace": "200ms", "health": "100ms", "stuck": "1h", "stream_stall": "600ms"}
    async with running({"m": sim(tokens_per_second=50, model=retry)}, timeouts=timeouts) as it:
        [leader] = await it.ready("m")
        launch = (await it.instance("m"))["id"]
        async with it.stream("m", tokens=2000) as stream:
            text = b""
            with contextlib.suppress(httpx.RemoteProtocolError):
                async for piece in stream.aiter_bytes():
                    if not text:
                        os.kill(next(iter(it.tree(leader))), signal.SIGSTOP)
                    text += piece
            assert b"has sent nothing of this answer" in text

        async def replaced() -> bool:
            return (await it.instance("m")).get("id") != launch or await it.state("m") in {
                "stopping",
                "backoff",
                "stopped",
            }

        await until(replaced, "the engine to be replaced", 20.0)
        await it.written()
        reasons = " ".join(d for (d,) in it.serving.rows("select data from events where kind = 'instance.stopping'"))
        assert "a stream of it was given up" in reasons
