"""Every way in which a request can end badly: what each side sees, and the one row that remains."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from plane import FORMS, SECRET, ask, get, plane, post, read_answer
from upstreams import Peer, Script, answers, chunk, upstream
from vllm_mm.domain.errors import RequestCut
from vllm_mm.domain.keys import Key, Scope, digest
from vllm_mm.domain.running import Stage
from vllm_mm.domain.usage import Outcome
from vllm_mm.engine.ports import Address
from vllm_mm.gateway import again
from vllm_mm.gateway.ports import Rules
from vllm_mm.gateway.underway import under_way

CHAT = "/v1/chat/completions"
BODY = b'{"model":"org/model-1","messages":[]}'
STREAM = b'{"model":"org/model-1","stream":true,"stream_options":{"include_usage":true}}'
"""Relayed with the engine's own framing: nothing has to be taken out."""
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
OK = JSON_HEAD + b"content-length: 2\r\n\r\n{}"
EVENT = b'data: {"id":"c","choices":[{"delta":{"content":"x"}}]}\n\n'


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines here live on when a connection breaks; that is believed at once."""
    monkeypatch.setattr(again, "NOTICED", 0.0)


def dies_after(sent: bytes, how: str = "close") -> Script:
    async def script(peer: Peer) -> None:
        await peer.read()
        if sent:
            await peer.send(sent)
        await asyncio.sleep(0.03)
        peer.reset() if how == "reset" else peer.close()

    return script


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_engine_dies_before_its_head(form: str, tmp_path: Path, how: str) -> None:
    """502 with a reason, not retried: the engine may have begun to work on it."""
    for sent in (b"", b"HTTP/1.1 200 OK\r\ncontent-ty"):
        async with upstream(dies_after(sent, how), tmp_path) as engine, plane(form, engine.address) as server:
            answer = await ask(server, post(CHAT, STREAM))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_died")
            await server.settled(1)
            row = server.rows[0]
            assert (row.outcome, row.status, row.ttft_s, len(engine.heard)) == (Outcome.UPSTREAM_DIED, 502, None, 1)


MID_STREAM = {
    "after the head": (b"", True),
    "between events": (chunk(EVENT), True),
    "between chunks of one event": (chunk(EVENT[:20]), True),
    "in a chunk": (chunk(EVENT) + b"40\r\ndata: {", False),
    "in a chunk that ends a line": (chunk(EVENT) + b"40\r\ndata: {}\r\n", False),
    "in a chunk size": (chunk(EVENT) + b"4", False),
    "before the end of a chunk size": (chunk(EVENT) + b"40\r", False),
    "in the end of a chunk": (chunk(EVENT)[:-1], False),
    "in the last chunk": (chunk(EVENT) + b"0\r\n", False),
}


@pytest.mark.parametrize("case", MID_STREAM)
async def test_engine_dies_mid_stream(form: str, tmp_path: Path, case: str) -> None:
    """Never a clean end: an error event where one can stand, no [DONE], no last chunk. What came before is untouched."""
    sent, boundary = MID_STREAM[case]
    async with upstream(dies_after(SSE_HEAD + sent), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, STREAM))
        assert (answer.status, answer.complete) == (200, False)
        assert b"[DONE]" not in answer.body
        if form == "protocol":
            assert answer.framed.startswith(sent)
        if boundary or form == "asgi":
            last = answer.body.rsplit(b"\n\n", 2)[-2]
            assert last.startswith(b"data: ")
            assert json.loads(last[6:])["error"]["code"] == "upstream_died"
        else:
            assert answer.framed == sent, "nothing was put into the middle of the engine's chunk"
        await server.settled(1)
        row = server.rows[0]
        assert (row.outcome, row.status) == (Outcome.UPSTREAM_DIED, 200)
        assert row.error


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_engine_dies_in_a_plain_answer(form: str, tmp_path: Path, version: str) -> None:
    """A short body stays short, with the length that was announced."""
    sent = JSON_HEAD + b'content-length: 100\r\n\r\n{"model":'
    async with upstream(dies_after(sent), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, BODY, version=version))
        assert (answer.status, answer.complete, answer.body) == (200, False, b'{"model":')
        assert answer.header("content-length") == "100"
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.UPSTREAM_DIED


async def test_cut_for_http10_is_a_reset(tmp_path: Path) -> None:
    """Where the connection's end is the answer's end, a cut must not look like one."""
    async with (
        upstream(dies_after(SSE_HEAD + chunk(EVENT)), tmp_path) as engine,
        plane("protocol", engine.address) as server,
    ):
        reader, writer = await server.open()
        writer.write(post(CHAT, STREAM, version="1.0"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"chunked" not in head
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, [b"data"]),
        ("/v1/messages", [b"event: error\ndata", b'"type":"error"']),
        ("/v1/responses", [b"event: error\ndata", b'"type":"error"', b'"error":{']),
    ],
)
async def test_error_events_speak_the_api_of_the_route(
    form: str, tmp_path: Path, path: str, expected: list[bytes]
) -> None:
    """Each API's own form of an error in a stream."""
    async with upstream(dies_after(SSE_HEAD + chunk(EVENT)), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(path, STREAM))
        assert not answer.complete
        event = answer.body.removeprefix(EVENT)
        assert event.startswith(expected[0])
        assert all(part in event for part in expected)


ENGINE = textwrap.dedent(
    """
    import asyncio, sys
    async def serve(reader, writer):
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
            while True:
                writer.write(b"a\\r\\ndata: {}\\n\\n\\r\\n")
                await writer.drain()
                await asyncio.sleep(0.005)
    async def main():
        server = await asyncio.start_unix_server(serve, sys.argv[1])
        print("ready", flush=True)
        await server.serve_forever()
    asyncio.run(main())
    """
)


async def test_a_killed_engine_process_never_ends_a_stream(form: str, tmp_path: Path) -> None:
    """SIGKILL to a real process with 20 streams: each is cut with an error event, each leaves its row."""
    path = str(tmp_path / "e.sock")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ENGINE, path, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        async with plane(form, Address(socket=path)) as server:
            asking = [asyncio.ensure_future(ask(server, post(CHAT, STREAM))) for _ in range(20)]
            async with asyncio.timeout(30):
                while sum(relay.meter.size > 0 for relay in server.gateway.running) < len(asking):
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            for answer in await asyncio.gather(*asking):
                assert (answer.status, answer.complete) == (200, False)
                assert b"upstream_died" in answer.body
                assert b"[DONE]" not in answer.body
            await server.settled(20)
            assert {row.outcome for row in server.rows} == {Outcome.UPSTREAM_DIED}
            assert (await ask(server, post(CHAT, STREAM))).status == 502
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# The client goes away.


async def test_client_leaves_while_queued(form: str, tmp_path: Path) -> None:
    """Its ticket goes at once, no engine hears of it, and the row says 499."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.hold = asyncio.Event()
        _reader, writer = await server.open()
        writer.write(post(CHAT, STREAM))
        async with asyncio.timeout(30):
            while not server.leases.waiting:
                await asyncio.sleep(0.005)
        writer.transport.abort()
        await server.settled(1, 0.5)
        row = server.rows[0]
        assert (row.outcome, row.status, row.queued_s, row.model) == (Outcome.CLIENT_GONE, 499, None, "org/model-1")
        assert engine.connections == 0


@pytest.mark.parametrize("stage", ["prefill", "mid-stream"])
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_client_leaves_while_the_engine_works(form: str, tmp_path: Path, stage: str, body: bytes) -> None:
    """The engine sees the close within half a second, and the lease is free by then."""
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        if stage == "mid-stream":
            await peer.send(SSE_HEAD + chunk(EVENT))
        arrived.set()
        await peer.until_gone()
        closed.set()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        writer.write(post(CHAT, body))
        async with asyncio.timeout(30):
            await arrived.wait()
            if stage == "mid-stream":
                await reader.readuntil(b"\n\n")
        began = time.monotonic()
        writer.transport.abort()
        async with asyncio.timeout(0.5):
            await closed.wait()
        assert time.monotonic() - began < 0.5
        await server.settled(1, 0.5)
        row = server.rows[0]
        assert (row.outcome, row.status) == (Outcome.CLIENT_GONE, 200 if stage == "mid-stream" else 499)


async def test_client_leaves_in_the_first_instant(tmp_path: Path) -> None:
    """A client that is gone before its request was even begun still leaves a row, and nothing else."""
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        for _ in range(30):
            _reader, writer = await server.open()
            writer.write(post(CHAT, BODY) * 3)
            writer.transport.abort()
        await asyncio.sleep(0.2)
        await server.settled(len(server.rows))
        assert {row.outcome for row in server.rows} <= {Outcome.CLIENT_GONE, Outcome.OK}


async def test_client_leaves_with_pipelined_requests(tmp_path: Path) -> None:
    """Each of them was a request: each has its row."""
    arrived = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        arrived.set()
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine, plane("protocol", engine.address) as server:
        _reader, writer = await server.open()
        writer.write(post(CHAT, BODY) * 4 + post(CHAT, BODY)[:-3])
        async with asyncio.timeout(30):
            await arrived.wait()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await server.settled(5, 1)
        assert {row.outcome for row in server.rows} == {Outcome.CLIENT_GONE}
        assert engine.connections == 1


async def test_client_leaves_during_its_upload(form: str, tmp_path: Path) -> None:
    """A body that never came to its end reaches no engine."""
    for body in (b"x" * 1000, b"x" * 500_000):
        async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
            _reader, writer = await server.open()
            writer.write(post(CHAT, body)[:-100])
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.transport.abort()
            await server.settled(1, 1)
            assert (server.rows[0].outcome, server.rows[0].status) == (Outcome.CLIENT_GONE, 499)
            assert engine.connections == 0


# Revoked, cancelled, late.


async def test_a_revoked_stream_is_cut_with_its_reason(form: str, tmp_path: Path) -> None:
    """As when a drain runs out of time."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + chunk(EVENT))
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        asking = asyncio.ensure_future(ask(server, post(CHAT, STREAM)))
        async with asyncio.timeout(30):
            while not (server.leases.out and next(iter(server.gateway.running)).meter.size):
                await asyncio.sleep(0.005)
        exchange = next(iter(server.leases.out)).exchange_running
        assert exchange is not None
        exchange.abort(RequestCut("taken away: drain_timeout"))
        answer = await asking
        assert (answer.complete, b"taken away" in answer.body) == (False, True)
        await server.settled(1)
        assert (server.rows[0].outcome, server.rows[0].error) == (Outcome.CUT, "taken away: drain_timeout")


@pytest.mark.parametrize("stage", ["queued", "prefill", "mid-stream"])
async def test_an_operator_cancels(form: str, tmp_path: Path, stage: str) -> None:
    """By the client's own id, in any stage."""

    async def script(peer: Peer) -> None:
        await peer.read()
        if stage == "mid-stream":
            await peer.send(SSE_HEAD + chunk(EVENT))
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        if stage == "queued":
            server.leases.hold = asyncio.Event()
        asking = asyncio.ensure_future(ask(server, post(CHAT, STREAM, {"x-request-id": "me"})))
        listed = {"queued": Stage.WAITS, "prefill": Stage.PROMPT, "mid-stream": Stage.ANSWERS}[stage]
        async with asyncio.timeout(30):
            while [row.stage for row in under_way(server.gateway, 10).requests] != [listed]:
                await asyncio.sleep(0.005)
        (row,) = under_way(server.gateway, 10).requests
        assert (row.request_id, row.model, row.key, row.route) == ("me", "org/model-1", "k1", "/v1/chat/completions")
        assert not server.gateway.cancel("other", "ada")
        assert server.gateway.cancel("me", "ada")
        answer = await asking
        assert answer.status == (200 if stage == "mid-stream" else 410)
        assert answer.complete == (stage != "mid-stream")
        assert b"cancelled by ada" in answer.body
        assert b'"code":"cancelled"' in answer.body
        assert answer.header("retry-after") is None
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.CUT
        assert under_way(server.gateway, 10).total == 0


@pytest.mark.parametrize("stage", ["queued", "prefill", "mid-stream"])
async def test_what_a_revoked_key_asked_for_ends(form: str, tmp_path: Path, stage: str) -> None:
    """In any stage, with the status or the event that says so; others go on. Where what runs is let finish, what waits is refused all
    the same."""

    async def script(peer: Peer) -> None:
        await peer.read()
        if stage == "mid-stream":
            await peer.send(SSE_HEAD + chunk(EVENT))
        await peer.until_gone()

    async with (
        upstream(script, tmp_path) as engine,
        plane(form, engine.address, rules=Rules(revoke_running=stage != "queued")) as server,
    ):
        if stage == "queued":
            server.leases.hold = asyncio.Event()
        other = asyncio.ensure_future(ask(server, post(CHAT, STREAM, {"authorization": "Bearer mm-second"})))
        asking = asyncio.ensure_future(ask(server, post(CHAT, STREAM)))

        def in_stage() -> bool:
            if stage == "queued":
                return len(server.leases.waiting) == 2
            got = [relay.meter.size > 0 for relay in server.gateway.running]
            return len(engine.heard) == len(got) == 2 and all(got) == (stage == "mid-stream")

        async with asyncio.timeout(30):
            while not in_stage():
                await asyncio.sleep(0.005)
        keys = server.gateway.keys
        good = Key("k5", "second", digest("mm-second"), frozenset({Scope.INFER}))
        keys.replace([good, Key("k1", "tester", digest(SECRET), frozenset({Scope.INFER}), revoked_at=2.0)])
        answer = await asking
        assert answer.status == (200 if stage == "mid-stream" else 401)
        assert answer.complete == (stage != "mid-stream")
        assert b"was revoked" in answer.body
        assert not other.done()
        keys.replace([])
        assert b"was revoked" in (await other).body
        await server.settled(2)
        ended = Outcome.CUT if stage == "mid-stream" else Outcome.REFUSED
        assert {(row.outcome, row.error) for row in server.rows} == {
            (ended, "The API key of this request was revoked. Ask for a new one.")
        }


async def test_what_runs_for_a_revoked_key_may_finish(form: str, tmp_path: Path) -> None:
    """With `auth.revoke_running: false`."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + chunk(EVENT))
        await go.wait()
        await peer.send(b"0\r\n\r\n")

    rules = Rules(revoke_running=False)
    async with upstream(script, tmp_path) as engine, plane(form, engine.address, rules=rules) as server:
        asking = asyncio.ensure_future(ask(server, post(CHAT, STREAM)))
        async with asyncio.timeout(30):
            while not (server.leases.out and next(iter(server.gateway.running)).meter.size):
                await asyncio.sleep(0.005)
        server.gateway.keys.replace([])
        assert (await ask(server, post(CHAT, STREAM))).status == 401
        go.set()
        assert (await asking).complete
        await server.settled(2)
        assert [row.outcome for row in server.rows] == [Outcome.REFUSED, Outcome.OK]


@pytest.mark.parametrize("stage", ["prefill", "mid-stream"])
async def test_a_request_has_a_deadline(form: str, tmp_path: Path, stage: str) -> None:
    """An engine that falls silent does not hold a client for ever."""

    async def script(peer: Peer) -> None:
        await peer.read()
        if stage == "mid-stream":
            await peer.send(SSE_HEAD + chunk(EVENT))
        await peer.until_gone()

    rules = Rules(request_timeout=0.5)
    async with upstream(script, tmp_path) as engine, plane(form, engine.address, rules=rules) as server:
        answer = await ask(server, post(CHAT, STREAM))
        assert answer.status == (200 if stage == "mid-stream" else 504)
        assert b"queue.request_timeout" in answer.body
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.TIMEOUT
        assert server.rows[0].total_s < 3


# Slow clients.


async def test_a_slow_client_slows_the_engine_down(form: str, tmp_path: Path) -> None:
    """While the client does not read, little is held here: the engine's own writes block. Nothing is lost."""
    total, sent = 48 << 20, 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.read()
        await peer.send(SSE_HEAD)
        piece = chunk(b"data: " + b"x" * 65528 + b"\n\n")
        while sent < total:
            await peer.send(piece)
            sent += 65536
        await peer.send(b"0\r\n\r\n")

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=65536)
        writer.write(post(CHAT, STREAM))
        await asyncio.sleep(1.0)
        held = sent
        assert held < 24 << 20, "what the kernel's socket buffers take, and little more"
        await asyncio.sleep(0.3)
        assert sent == held
        connection = next(iter(server.server.server_state.connections))
        assert connection.transport.get_write_buffer_size() < 1 << 20
        got = 0
        async with asyncio.timeout(30):
            while got < total:
                got += len(await reader.read(1 << 20))
        writer.close()


# Bad requests to the connection itself.


async def test_a_head_too_large_is_431(tmp_path: Path) -> None:
    """In one packet or many, complete or endless."""
    async with (
        upstream(answers(OK), tmp_path) as engine,
        plane("protocol", engine.address, rules=Rules(header=8192)) as server,
    ):
        for data in (
            post(CHAT, BODY, {"x-long": "y" * 9000}),
            b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x: y\r\n" * 3000,
            b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000,
        ):
            reader, writer = await server.open()
            for i in range(0, len(data), 4096):
                writer.write(data[i : i + 4096])
                await asyncio.sleep(0)
            async with asyncio.timeout(30):
                answer = await read_answer(reader)
                assert (answer.status, answer.header("connection")) == (431, "close")
                assert json.loads(answer.body)["error"]["code"] == "request_header_too_large"
                assert answer.header("x-request-id")
            writer.close()
        assert (await ask(server, post(CHAT, BODY, {"x-long": "y" * 7000}))).status == 200
        assert engine.connections == 1


async def test_a_slow_head_is_given_up(tmp_path: Path) -> None:
    """Neither a silent connection nor one that drips its head is kept."""
    rules = Rules(header_timeout=0.4)
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address, rules=rules) as server:
        silent, dripping = await server.open(), await server.open()
        began = time.monotonic()
        for _ in range(20):
            dripping[1].write(b"P" if time.monotonic() - began < 0.01 else b"")
            await asyncio.sleep(0.02)
        async with asyncio.timeout(30):
            assert await silent[0].read() == b""
            answer = await read_answer(dripping[0])
        assert answer.status == 408
        for _, writer in (silent, dripping):
            writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_garbage_is_400(tmp_path: Path, data: bytes) -> None:
    """What is no HTTP is told so, in the API's own form."""
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()
        writer.write(data)
        async with asyncio.timeout(30):
            answer = await read_answer(reader)
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "invalid_request")
        writer.close()


@pytest.mark.parametrize(
    "framing",
    [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "transfer-encoding: chunked, identity\r\n",
    ],
)
async def test_ambiguous_framing_is_refused(tmp_path: Path, framing: str) -> None:
    """Two readings of where a request ends are how requests are smuggled."""
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nauthorization: Bearer {SECRET}\r\n{framing}\r\n0\r\n\r\n".encode()
            + get("/v1/models")
        )
        async with asyncio.timeout(30):
            assert (await read_answer(reader)).status == 400
            assert await reader.read() == b""
        writer.close()
        assert engine.connections == 0


async def test_garbage_behind_a_running_request(tmp_path: Path) -> None:
    """The running one is answered; then the connection closes."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await asyncio.sleep(0.1)
        await peer.send(OK)

    async with upstream(script, tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()
        writer.write(post(CHAT, BODY) + b"\x00\x01\x02garbage")
        async with asyncio.timeout(30):
            answer = await read_answer(reader)
            assert (answer.status, answer.body) == (200, b"{}")
            assert await reader.read() == b""
        writer.close()


async def test_an_unwanted_body_is_not_taken_in(form: str, tmp_path: Path) -> None:
    """Too large, or from nobody: refused before it is read, and the refusal arrives although the body goes on."""
    rules = Rules(body=1_000_000)
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address, rules=rules) as server:
        big = post(CHAT, b"x" * 20_000_000)
        nobody = post(CHAT, b"x" * 900_000, {"authorization": "Bearer mm-nobody"})
        for request, status in ((big, 413), (nobody, 401)):
            reader, writer = await server.open()
            head = request[: request.index(b"\r\n\r\n") + 4]
            writer.write(head)
            async with asyncio.timeout(30):
                answer = await read_answer(reader)
            assert answer.status == status
            writer.close()
            if form == "protocol":
                assert answer.header("connection") == "close"
                asked = head.replace(b"host: test", b"host: test\r\nexpect: 100-continue")
                assert (await ask(server, asked)).status == status, "not told to go on"
                assert (await ask(server, request)).status == status, "sent the whole body without waiting"
        chunked = post(CHAT, b"", {"content-length": "", "transfer-encoding": "chunked"})
        assert (await ask(server, chunked + chunk(b"x" * 600_000) * 2)).status == 413
        assert engine.connections == 0


# Shutdown.


async def test_shutdown_waits_for_what_runs(form: str, tmp_path: Path) -> None:
    """Streams in flight are finished; idle connections close at once; new ones are not accepted."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + chunk(EVENT))
        await go.wait()
        await peer.send(chunk(EVENT) + b"0\r\n\r\n")

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        idle_reader, idle_writer = await server.open()
        idle_writer.write(get("/v1/models"))
        await read_answer(idle_reader)
        asking = asyncio.ensure_future(ask(server, post(CHAT, STREAM)))
        async with asyncio.timeout(30):
            while not server.leases.out:
                await asyncio.sleep(0.005)
        server.server.should_exit = True
        async with asyncio.timeout(2):
            assert await idle_reader.read() == b""
        idle_writer.close()
        await asyncio.sleep(0.3)
        assert server.serving is not None
        assert not server.serving.done()
        with pytest.raises(OSError, match=r"Connect call failed|refused"):
            await server.open()
        go.set()
        answer = await asking
        assert (answer.complete, answer.body) == (True, EVENT * 2)
        async with asyncio.timeout(3):
            await server.serving
        await server.settled(1)


async def test_shutdown_has_an_end(form: str, tmp_path: Path) -> None:
    """What does not finish in time is told so, and has its row."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + chunk(EVENT))
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        server.server.config.timeout_graceful_shutdown = 1
        asking = asyncio.ensure_future(ask(server, post(CHAT, STREAM)))
        async with asyncio.timeout(30):
            while not server.leases.out:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        server.server.should_exit = True
        answer = await asking
        assert not answer.complete
        assert b"shutting_down" in answer.body
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.SHUTDOWN


# Nothing stays behind.


async def test_a_request_leaves_no_cycles(tmp_path: Path) -> None:
    """The collector has nothing to do after requests, so it can run seldom."""
    import gc

    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()

        async def some(count: int) -> None:
            for _ in range(count):
                writer.write(post(CHAT, BODY))
                await read_answer(reader)

        await some(20)
        gc.collect()
        gc.disable()
        try:
            await some(200)
            found = gc.collect()
        finally:
            gc.enable()
        writer.close()
        assert found < 200, "less than one object for each request"


async def test_nothing_fell_back_to_pure_python(tmp_path: Path) -> None:
    """uvloop and the C parsers are what runs, in the server and towards the engine."""
    import httptools
    import msgspec
    import uvloop

    from vllm_mm.engine.gathering import Outbox
    from vllm_mm.engine.http1 import Connection, Traffic

    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()
        writer.write(post(CHAT, BODY))
        await read_answer(reader)
        connection = next(iter(server.server.server_state.connections))
        assert type(connection.parser) is httptools.HttpRequestParser
        assert type(connection.transport._inner).__module__ == "uvloop.loop"
        assert (
            type(Connection(lambda _: None, Traffic(), Outbox(lambda _: None))._parser) is httptools.HttpResponseParser
        )
        writer.close()
    for module in ("httptools.parser.parser", "uvloop.loop", "msgspec._core"):
        __import__(module)
        assert sys.modules[module].__file__.endswith(".so"), module
    assert msgspec.json.decode(b"1") == 1
    assert os.environ.get("PYTHONASYNCIODEBUG", "") == ""
