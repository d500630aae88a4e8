"""Requests as clients really send them: compressed, old, odd, and by halves."""

import asyncio
import contextlib
import dataclasses
import gzip
import json
import socket
import zlib
from pathlib import Path
from typing import cast

import pytest

from plane import AUTH, FORMS, Plane, ask, get, plane, post, read_answer
from upstreams import Peer, answers, chunk, upstream
from vllm_mm.api import timed
from vllm_mm.domain.specs import ModelSpec, Task
from vllm_mm.domain.usage import Outcome
from vllm_mm.gateway.ports import Rules

CHAT = "/v1/chat/completions"
BODY = b'{"model":"org/model-1","messages":[]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LARGE = b'{"model":"org/model-1","messages":["' + b"a b c " * 60_000 + b'"]}'


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


def raw_deflate(data: bytes) -> bytes:
    work = zlib.compressobj(wbits=-15)
    return work.compress(data) + work.flush()


def told(answer: object) -> tuple[int, str]:
    status: int = answer.status  # type: ignore[attr-defined]
    return status, json.loads(answer.body)["error"]["code"]  # type: ignore[attr-defined]


async def test_compressed_bodies(form: str, tmp_path: Path) -> None:
    """What came compressed reaches the engine plain, however it was made and however large it is."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
        cases = [
            ("gzip", gzip.compress(BODY), BODY),
            ("X-GZip", gzip.compress(BODY), BODY),
            ("gzip", gzip.compress(BODY[:9]) + gzip.compress(b"") + gzip.compress(BODY[9:]), BODY),
            ("deflate", zlib.compress(BODY), BODY),
            ("deflate", raw_deflate(BODY), BODY),
            ("identity", BODY, BODY),
            ("gzip", gzip.compress(LARGE), LARGE),
            ("identity, gzip", gzip.compress(LARGE, 0), LARGE),
        ]
        for coding, sent, _ in cases:
            answer = await ask(server, post(CHAT, sent, {"content-encoding": coding}))
            assert answer.status == 200, (coding, answer.body)
        assert [heard.body for heard in engine.heard] == [body for _, _, body in cases]
        assert {heard.header("content-encoding") for heard in engine.heard} == {None}
        assert [heard.header("content-length") for heard in engine.heard] == [str(len(body)) for _, _, body in cases]


async def test_compressed_bodies_that_are_refused(form: str, tmp_path: Path) -> None:
    """What is not what it says, or becomes too large, or is in a coding that is not read here, never reaches an engine."""
    rules = Rules(body=1_000_000)
    bomb = gzip.compress(b'{"model":"org/model-1","x":"' + b" " * 8_000_000 + b'"}')
    assert len(bomb) < 10_000
    good = gzip.compress(BODY)
    cases = [
        ("gzip", BODY, 400, "invalid_request"),
        ("gzip", good[:-9], 400, "invalid_request"),
        ("gzip", good + b"x", 400, "invalid_request"),
        ("gzip", good[:30] + b"\0\0\0" + good[33:], 400, "invalid_request"),
        ("deflate", zlib.compress(BODY) + b"x", 400, "invalid_request"),
        ("gzip", bomb, 413, "payload_too_large"),
        ("gzip", gzip.compress(b"x") * 2_001, 400, "invalid_request"),
        ("br", BODY, 415, "unsupported_encoding"),
        ("gzip, gzip", gzip.compress(good), 415, "unsupported_encoding"),
    ]
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address, rules=rules) as server:
        for coding, sent, status, code in cases:
            answer = await ask(server, post(CHAT, sent, {"content-encoding": coding}))
            assert told(answer) == (status, code), (coding, answer.body)
            assert answer.header("accept-encoding") == ("gzip, deflate" if status == 415 else None)
        answer = await ask(server, post("/v1/messages", BODY, {"content-encoding": "zstd"}))
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert engine.heard == []
        await server.settled(len(cases) + 1)


async def test_what_is_compressed_is_taken_in_only_for_who_may(form: str, tmp_path: Path) -> None:
    """Without a good key nothing is decompressed."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
        request = post(CHAT, b"no gzip", {"content-encoding": "gzip", "authorization": "Bearer mm-nobody"})
        assert (await ask(server, request)).status == 401


async def test_a_page_that_may_not_is_refused_before_its_form_is_read(form: str, tmp_path: Path) -> None:
    """Also where there are no keys: 403 as on every route, and no 500."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address, mode_none=True) as server:
        audio = {"content-type": "multipart/form-data; boundary=b", "host": "name.example"}
        for request in (post("/v1/audio/transcriptions", b"x", audio), post(CHAT, LARGE, {"host": "name.example"})):
            assert told(await ask(server, request)) == (403, "permission_denied")


async def test_other_spellings(form: str, tmp_path: Path) -> None:
    """A slash at the end, an absolute target, any case of header names, a byte order mark, any content type: they are what they mean,
    and the engine is asked as it knows it."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
        odd = post(CHAT, BODY).replace(b"content-length", b"CONTENT-Length").replace(b"host: ", b"HoSt: ")
        mark = b"\xef\xbb\xbf"
        for request in (
            post(CHAT + "/", BODY), post("http://test" + CHAT, BODY), odd, b"\r\n" + post(CHAT, BODY), post(CHAT, mark + BODY),
            post(CHAT, BODY, {"content-type": "text/plain; charset=latin-1"}), post(CHAT, BODY, {"content-type": ""}),
        ):  # fmt: skip
            assert (await ask(server, request)).status == 200, request
        assert {(heard.target, heard.body) for heard in engine.heard} == {(CHAT, BODY)}
        kinds = [heard.header("content-type") for heard in engine.heard]
        assert kinds[-2:] == ["text/plain; charset=latin-1", None], "whether that is JSON is the engine's to say"
        assert set(kinds[:-2]) == {"application/json"}
        for path in (
            "/v1/models/",
            "/v1/models/org/model-1/",
            "/v1/models/org%2Fmodel-1",
            "/v1/models/org%2fmodel-1?x",
        ):
            assert (await ask(server, get(path))).status == 200, path
        for path in ("//v1/chat/completions", "/v1//chat/completions", "/v1/Chat/completions/"):
            answer = await ask(server, post(path, BODY))
            assert told(answer) == (404, "unknown_route")
            assert f"Did you mean {CHAT}?" in json.loads(answer.body)["error"]["message"]
        for path, near in (
            ("/v1/chat/completion", CHAT),
            ("/v1/rerankk", "/v1/rerank"),
            ("/v1/audio/transcription", "/v1/audio/transcriptions"),
            ("/v1/tokenize", "/tokenize"),
            ("/v1/modells", "/v1/models"),
        ):
            answer = await ask(server, post(path, BODY))
            assert told(answer) == (404, "unknown_route")
            assert f"Did you mean {near}?" in json.loads(answer.body)["error"]["message"]
        for path in ("/v1/files", "/v1/chat/completion" + 1000 * "s"):
            answer = await ask(server, post(path, BODY))
            assert "GET /docs lists what there is." in json.loads(answer.body)["error"]["message"]


async def test_an_offer_of_another_protocol_is_declined(tmp_path: Path) -> None:
    """curl --http2 offers h2c with its first request: it is answered in HTTP/1.1, body and all, and so is what comes behind."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQ"}
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()
        data = post(CHAT, BODY, offer) + get("/v1/models", offer) + post(CHAT, LARGE, offer) + post(CHAT, BODY)
        for start in range(0, len(data), 100_000):
            writer.write(data[start : start + 100_000])
        assert [(await read_answer(reader)).status for _ in range(4)] == [200] * 4
        writer.close()
        assert [heard.body for heard in engine.heard] == [BODY, LARGE, BODY]


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer mm-test-secret\r\n"
FAULTS = {
    "no host": (HEAD + b"content-length: 2\r\n\r\n{}", 400),
    "two hosts": (HEAD + b"host: a\r\nhost: b\r\ncontent-length: 2\r\n\r\n{}", 400),
    "two lengths": (HEAD + b"host: a\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}", 400),
    "lengths in one": (HEAD + b"host: a\r\ncontent-length: 2, 2\r\n\r\n{}", 400),
    "signed length": (HEAD + b"host: a\r\ncontent-length: +2\r\n\r\n{}", 400),
    "length and chunks": (HEAD + b"host: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "gzip and chunks": (HEAD + b"host: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunks twice": (HEAD + b"host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "odd chunks": (HEAD + b"host: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "chunks in 1.0": (HEAD.replace(b"1.1", b"1.0") + b"host: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "folded": (HEAD + b"host: a\r\nx: y\r\n  z\r\ncontent-length: 2\r\n\r\n{}", 400),
    "bare line feeds": ((HEAD + b"host: a\r\ncontent-length: 2\r\n\r\n{}").replace(b"\r\n", b"\n"), 400),
    "a bare line feed in chunks": (HEAD + b"host: a\r\ntransfer-encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", 400),
    "a bare carriage return": (HEAD + b"host: a\rx: y\r\ncontent-length: 2\r\n\r\n{}", 400),
    "a blank before the colon": (HEAD + b"host: a\r\ncontent-length : 2\r\n\r\n{}", 400),
    "a null": (HEAD + b"host: a\r\nx: a\0b\r\ncontent-length: 2\r\n\r\n{}", 400),
    "0.9": (b"GET /v1/models\r\n\r\n", 505),
    "2.0": (HEAD.replace(b"1.1", b"2.0") + b"host: a\r\ncontent-length: 2\r\n\r\n{}", 505),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 501),
    "endless trailers": (HEAD + b"host: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x-t: y\r\n" * 200_000, 400),
    "an endless trailer": (HEAD + b"host: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-t: " + b"y" * 2_000_000, 400),
    "an endless extension": (HEAD + b"host: a\r\ntransfer-encoding: chunked\r\n\r\n2;a=" + b"y" * 2_000_000, 400),
}  # fmt: skip


async def test_heads_that_others_may_read_differently(tmp_path: Path) -> None:
    """Each is refused in the API's form, the connection ends, and what comes behind it is no request."""
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        for name, (data, status) in FAULTS.items():
            reader, writer = await server.open()
            for start in range(0, len(data), 50_000):
                writer.write(data[start : start + 50_000])
            writer.write(post(CHAT, BODY))
            answer = await read_answer(reader)
            assert (answer.status, answer.header("connection")) == (status, "close"), name
            message = json.loads(answer.body)["error"]["message"]
            assert "limits.header" in message if "endless" in name else "limits" not in message, (name, message)
            assert await reader.read() == b"", name
            writer.close()
        assert engine.heard == []


async def test_what_comes_behind_a_body_is_not_of_the_head(tmp_path: Path) -> None:
    """Trailers change neither who asks nor how long it waits."""
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address) as server:
        start = post(CHAT, b"", {"content-length": "", "transfer-encoding": "chunked"})
        trailers = b"0\r\nx-vllm-mm-wait: 7\r\nx-other: 1\r\n\r\n"
        assert (await ask(server, start + chunk(BODY) + trailers)).status == 200
        assert engine.heard[0].header("x-other") is None
        assert server.leases.tickets[0].deadline - server.leases.tickets[0].arrived == pytest.approx(30)
        nobody = post(CHAT, b"", {"content-length": "", "transfer-encoding": "chunked", "authorization": ""})
        trailers = f"0\r\nauthorization: {AUTH['authorization']}\r\n\r\n".encode()
        assert (await ask(server, nobody + chunk(BODY) + trailers)).status == 401


async def test_http10_connections_that_are_kept(tmp_path: Path) -> None:
    """A client of HTTP/1.0 that asks for it may send its next request on the same connection; never behind an answer without a length,
    and it is not asked to go on with a body."""
    stream = SSE + chunk(b"data: 1\n\n") + b"0\r\n\r\n"

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            await peer.send(stream if b"stream" in heard.body else OK)

    async with upstream(script, tmp_path) as engine, plane("protocol", engine.address) as server:
        reader, writer = await server.open()
        asked = {"connection": "keep-alive", "expect": "100-continue"}
        for _ in range(2):
            writer.write(post(CHAT, BODY, asked, version="1.0"))
            answer = await read_answer(reader)
            assert (answer.status, answer.header("connection")) == (200, "keep-alive")
        writer.write(post(CHAT, b'{"model":"org/model-1","stream":true}', asked, version="1.0"))
        answer = await read_answer(reader)
        assert (answer.body, answer.header("transfer-encoding"), answer.header("connection")) == (
            b"data: 1\n\n",
            None,
            "close",
        )
        writer.close()


WHISPER = ModelSpec(id="whisper", task=Task.TRANSCRIBE)
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nxyz\r\n--b--\r\n'
)
AUDIO = {"content-type": "multipart/form-data; boundary=b"}


async def audio(server: Plane, request: bytes) -> object:
    server.leases.catalog = server.leases.catalog.with_spec(WHISPER)
    return await ask(server, request)


async def test_the_applications_answers_for_http10(form: str, tmp_path: Path) -> None:
    """Answers without a length have no chunks for a client of HTTP/1.0 either where the application makes them; one that is cut does not
    end as if it were whole."""
    stream = SSE + chunk(b"data: 1\n\n")
    async with upstream(answers(stream + b"0\r\n\r\n"), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await audio(server, post("/v1/audio/transcriptions", FORM, AUDIO, version="1.0"))
        assert (answer.body, answer.header("transfer-encoding")) == (b"data: 1\n\n", None)  # type: ignore[attr-defined]
        if form == "protocol":
            answer = await ask(server, post("/api/x", b"y", version="1.0"))
            assert (answer.body, answer.header("transfer-encoding")) == (b"admin /api/x y", None)
    async with upstream(answers(stream, close=True), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await audio(server, post("/v1/audio/transcriptions", FORM, AUDIO, version="1.0"))
        assert not answer.complete or answer.status == 502  # type: ignore[attr-defined]
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.UPSTREAM_DIED


async def test_forms_are_not_compressed(form: str, tmp_path: Path) -> None:
    """They are passed on as they come."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address) as server:
        compressed = post("/v1/audio/transcriptions", gzip.compress(FORM), {**AUDIO, "content-encoding": "gzip"})
        assert told(await audio(server, compressed)) == (415, "unsupported_encoding")


SLOW = Rules(header_timeout=0.4, body_timeout=0.4, body_rate=1_000_000, send_timeout=0.4, keep_alive=30)
SLOW_HEADS = {
    "chat": post(CHAT, LARGE)[:200],
    "chat in chunks": post(CHAT, b"", {"content-length": "", "transfer-encoding": "chunked"}),
    "a form": post("/v1/audio/transcriptions", FORM, AUDIO)[:-20],
}


async def drip(writer: asyncio.StreamWriter, byte: bytes) -> None:
    """A byte now and then, until the connection ends."""
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(byte)
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("dripping", [False, True])
@pytest.mark.parametrize("kind", SLOW_HEADS)
async def test_slow_bodies_end_with_408(form: str, tmp_path: Path, kind: str, *, dripping: bool) -> None:
    """A body that pauses, or that comes by single bytes for ever, is given up: with 408, and a row that says so."""
    async with upstream(answers(OK), tmp_path) as engine, plane(form, engine.address, rules=SLOW) as server:
        server.leases.catalog = server.leases.catalog.with_spec(WHISPER)
        reader, writer = await server.open()
        writer.write(SLOW_HEADS[kind])
        byte = b"1\r\n \r\n" if "chunks" in kind else b" "
        dripper = asyncio.ensure_future(drip(writer, byte) if dripping else asyncio.sleep(0))
        async with asyncio.timeout(20):
            answer = await read_answer(reader)
        assert told(answer) == (408, "request_timeout")
        assert "limits.body_timeout" in json.loads(answer.body)["error"]["message"]
        await server.settled(1, 20)
        dripper.cancel()
        assert (server.rows[0].status, server.rows[0].outcome) == (408, Outcome.BAD_REQUEST)
        assert [heard.body for heard in engine.heard] == []
        writer.close()


async def test_slow_bodies_of_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin API's clients are held to the same."""
    monkeypatch.setattr(timed, "SLACK", 0.1)
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address, rules=SLOW) as server:
        reader, writer = await server.open()
        writer.write(post("/api/models", LARGE)[:300])
        dripper = asyncio.ensure_future(drip(writer, b" "))
        async with asyncio.timeout(20):
            assert told(await read_answer(reader)) == (408, "request_timeout")
            with contextlib.suppress(ConnectionError):
                await reader.read()
        dripper.cancel()
        writer.close()


async def test_a_body_that_waits_for_its_engine_is_not_slow(tmp_path: Path) -> None:
    """While nobody reads what a client sends, its time does not count."""
    rules = dataclasses.replace(SLOW, upload_held=1000)
    body = FORM.replace(b"xyz", b"x" * 3_000_000)
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address, rules=rules) as server:
        server.leases.hold = hold = asyncio.Event()
        asking = asyncio.ensure_future(audio(server, post("/v1/audio/transcriptions", body, AUDIO)))
        await asyncio.sleep(1.2)  # three times what a body may pause
        hold.set()
        assert (await asking).status == 200  # type: ignore[attr-defined]
        assert engine.heard[0].body == body


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_takes_nothing_is_cut(tmp_path: Path, *, streaming: bool) -> None:
    """It does not keep its engine: the engine's connection ends, the lease is back, the row says why."""
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE if streaming else b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        piece = chunk(b"data: " + b"x" * 65_000 + b"\n\n") if streaming else b"x" * 65_000
        with contextlib.suppress(ConnectionError):
            while not peer.writer.is_closing():
                await peer.send(piece)
        gone.set()

    async with upstream(script, tmp_path) as engine, plane("protocol", engine.address, rules=SLOW) as server:
        reader, writer = await server.open()
        cast("asyncio.Transport", writer.transport).pause_reading()
        writer.write(post(CHAT, BODY))
        async with asyncio.timeout(30):
            await gone.wait()
        await server.settled(1, 20)
        assert server.rows[0].outcome is Outcome.CUT
        assert "limits.send_timeout" in (server.rows[0].error or "")
        assert not reader.at_eof()
        writer.close()


async def test_a_client_that_reads_slowly_is_let_be(tmp_path: Path) -> None:
    """Who takes little at a time takes something."""
    size = 3_000_000
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    rules = dataclasses.replace(SLOW, send_timeout=5.0)
    async with upstream(answers(large), tmp_path) as engine, plane("protocol", engine.address, rules=rules) as server:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            sock.connect(("127.0.0.1", server.port))
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, post(CHAT, BODY))
            got = b""
            while got.partition(b"\r\n\r\n")[2].count(b"x") < size:
                got += (piece := await loop.sock_recv(sock, 65_536))
                assert piece
                await asyncio.sleep(0.02)
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.OK


async def test_slow_connections_leave_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 connections that drip their heads or bodies or say nothing cost nobody else an answer, and all end."""
    monkeypatch.setattr(timed, "SLACK", 0.1)
    rules = dataclasses.replace(SLOW, header_timeout=2.0, body_timeout=2.0)
    async with upstream(answers(OK), tmp_path) as engine, plane("protocol", engine.address, rules=rules) as server:
        slow = [await server.open() for _ in range(200)]
        starts = (
            b"",
            b"POST /v1/chat/completions HTTP/1.1\r\nx: ",
            post(CHAT, LARGE)[:200],
            post("/api/x", LARGE)[:200],
        )
        for number, (_, writer) in enumerate(slow):
            writer.write(starts[number % 4])
        drips = [asyncio.ensure_future(drip(writer, b"y")) for number, (_, writer) in enumerate(slow) if number % 4]
        for _ in range(20):
            assert (await ask(server, post(CHAT, BODY))).status == 200
        async with asyncio.timeout(60):
            for reader, writer in slow:
                with contextlib.suppress(ConnectionError):
                    end = await reader.read()
                    assert not end or end.startswith(b"HTTP/1.1 408 "), end
                writer.close()
        for task in drips:
            task.cancel()
        await server.settled(20 + 50, 20)
