"""HTTP as no client should send it, and event streams cut anywhere: the server answers or closes, never fails or hangs, and keeps nothing.

`MM_FUZZ_CASES=50000` for so many random cases in each test.
"""

import asyncio
import contextlib
import itertools
import json
import re
import socket
import time
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fuzzing import Level, bounded, healthy
from hard_cases import Case, running, sim
from vllm_mm.gateway.rename import EventRewriter, JsonRewriter

FEW = 150
SECONDS = 60.0
"""Within which an answer or an end has to come, on a machine that is busy."""
MODEL = "m"
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def framed(path: str, body: bytes, *headers: str, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: localhost", "content-type: application/json", *headers]
    if not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append(f"content-length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def in_chunks(body: bytes, sizes: Sequence[int]) -> bytes:
    out, at = b"", 0
    for size in sizes:
        piece = body[at : at + size]
        if not piece:
            break
        out += b"%x\r\n%b\r\n" % (len(piece), piece)
        at += size
    rest = body[at:]
    return out + (b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n"


BODY = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2}).encode()
STREAM = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2, "stream": True}).encode()
UNKNOWN = json.dumps({"model": "nobody", "prompt": "hi"}).encode()
PATHS = ("/v1/completions", "/v1/models", "/health", "/api/status", "/v1/responses/x", "/nothing", "/v1/audio/transcriptions", "/", "*")  # fmt: skip
whole = st.one_of(
    st.sampled_from([framed("/v1/completions", body) for body in (BODY, STREAM, UNKNOWN, b"{", b"")]),
    st.builds(
        lambda body, sizes: framed("/v1/completions", in_chunks(body, sizes), "transfer-encoding: chunked"),
        st.sampled_from([BODY, STREAM, UNKNOWN]),
        st.lists(st.integers(1, 30), max_size=5),
    ),
    st.builds(
        lambda path, method, version: framed(path, b"", method=method, version=version),
        st.sampled_from(PATHS),
        st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "CONNECT", "TRACE", "PRI", "BREW", "get"]),
        st.sampled_from(["1.1", "1.0", "2.0", "0.9", "1.2"]),
    ),
    st.builds(
        lambda header: framed("/v1/completions", BODY, header),
        st.sampled_from(
            [
                "content-length: 5", "content-length: -1", "content-length: 99999999999999999999", "content-length: 1, 1",
                "transfer-encoding: gzip", "transfer-encoding: chunked, chunked", "expect: 100-continue", "expect: x",
                "upgrade: websocket", "connection: close", "connection: upgrade", "content-encoding: gzip", "x-vllm-mm-wait: x",
                "x-vllm-mm-wait: 0", "x-vllm-mm-progress: 1", "authorization: \x01", "x: " + "y" * 70000, "accept-encoding: gzip",
                "host: elsewhere", "origin: http://elsewhere", ": x", "a b: c", "x-request-id: \xff",
            ]
        ),
    ),
)  # fmt: skip
damage = st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 3))


def damaged(data: bytes, spoils: Sequence[tuple[float, bytes, int]]) -> bytes:
    """Bytes put in, and some taken out, at these parts of the whole."""
    for where, extra, lost in spoils:
        at = int(where * len(data))
        data = data[:at] + extra + data[at + lost :]
    return data


def split(data: bytes, cuts: Sequence[float]) -> list[bytes]:
    at = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(at) if a < b]


def talk(port: int, pieces: Sequence[bytes]) -> bytes:
    """Send them one by one, end our side, and read to the server's end. Fails when that does not come."""
    answer = b""
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(SECONDS)
        connection.connect(("127.0.0.1", port))
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        with contextlib.suppress(OSError):  # it is closed already
            connection.shutdown(socket.SHUT_WR)
        until = time.monotonic() + SECONDS
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65536):
                answer += data
                assert time.monotonic() < until, "the server goes on and on"
    return answer


def judge(answer: bytes, said: Any) -> list[int]:
    statuses = [int(status) for status in STATUS.findall(answer)]
    for status in statuses:
        healthy(status, repr(said), answer)
    return statuses


async def test_any_bytes_are_answered_or_refused() -> None:
    """Requests whole and damaged, one after the other on a connection, split anywhere: no 500, no hang, nothing left open; and in whatever
    pieces a good request comes, it is served."""
    async with running({MODEL: sim(tokens_per_second=5000)}) as case:
        await case.ready(MODEL)
        level = Level(case)
        await asyncio.to_thread(talk, case.serving.port, [framed("/v1/completions", BODY)])
        await level.measure()
        await asyncio.to_thread(wire, case)
        await level.holds(spare=2)
        rows = {outcome for (outcome,) in case.serving.rows("select distinct outcome from requests")}
        assert "internal" not in rows


def wire(case: Case) -> None:
    port = case.serving.port

    @bounded(FEW)
    @given(
        st.lists(whole, min_size=1, max_size=3),
        st.lists(damage, max_size=3),
        st.lists(st.floats(0, 1), max_size=5),
    )
    def anything(requests: list[bytes], spoils: list[tuple[float, bytes, int]], cuts: list[float]) -> None:
        data = damaged(b"".join(requests), spoils)
        judge(talk(port, split(data, cuts)), data[:3000])

    @bounded(FEW // 3)
    @given(
        st.lists(st.sampled_from([BODY, STREAM]), min_size=1, max_size=4),
        st.lists(st.integers(1, 40), max_size=4),
        st.lists(st.floats(0, 1), max_size=12),
        st.booleans(),
    )
    def good(bodies: list[bytes], sizes: list[int], cuts: list[float], chunked: bool) -> None:
        data = b"".join(
            framed("/v1/completions", in_chunks(body, sizes), "transfer-encoding: chunked")
            if chunked
            else framed("/v1/completions", body)
            for body in bodies
        )
        pieces = split(data, cuts)
        answer = exchange(port, pieces, len(bodies))
        assert judge(answer, pieces) == [200] * len(bodies), answer

    anything()
    good()


def exchange(port: int, pieces: Sequence[bytes], count: int) -> bytes:
    """Like `talk`, but our side stays open until so many answers came: each ends with what it has to end with."""
    answer = b""
    with socket.socket() as connection:
        connection.settimeout(SECONDS)
        connection.connect(("127.0.0.1", port))
        for piece in pieces:
            connection.sendall(piece)
        while answer.count(b'"usage":') + answer.count(b"data: [DONE]") < count:
            data = connection.recv(65536)
            assert data, f"closed after {answer!r}"
            answer += data
    return answer


EVENTS = st.lists(
    st.one_of(
        st.builds(
            lambda model, text, more: b"data: " + json.dumps({**more, "model": model, "choices": [{"text": text, "model": "in"}]}).encode() + b"\n\n",
            st.sampled_from([MODEL, "", "a\\\"b", "é" * 30]),
            st.text(max_size=20),
            st.dictionaries(st.sampled_from(["id", "a", "message", "response"]), st.text(max_size=5), max_size=2),
        ),
        st.sampled_from([b": a comment\n\n", b"data: [DONE]\n\n", b"\n", b"event: x\ndata: {\"message\": {\"model\": \"m\"}}\r\n\r\n", b"data:{\"model\":\"m\"}\n\n"]),
        st.binary(max_size=20),
    ),
    max_size=6,
)  # fmt: skip


@bounded(400)
@given(EVENTS, st.lists(st.floats(0, 1), max_size=20))
def test_events_are_renamed_alike_however_they_are_split(events: list[bytes], cuts: list[float]) -> None:
    """The same bytes come out, whole or in pieces; only `model` changes, and every line is still there."""
    data = b"".join(events)
    rewriter = EventRewriter("alias")
    at_once = rewriter.feed(data) + rewriter.flush()
    rewriter = EventRewriter("alias")
    in_pieces = b"".join(rewriter.feed(piece) for piece in split(data, cuts)) + rewriter.flush()
    assert in_pieces == at_once
    assert at_once.count(b"\n") == data.count(b"\n")
    for before, after in zip(data.split(b"\n"), at_once.split(b"\n"), strict=True):
        if before.startswith(b"data: {"):
            told, renamed = json.loads(before[6:]), json.loads(after[6:])
            if "model" in told:
                assert renamed == {**told, "model": "alias"}


@bounded(300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["model", "a", "message", "response"]), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.lists(st.floats(0, 1), max_size=12),
    st.sampled_from([None, 1]),
)
def test_an_answer_is_renamed_alike_however_it_is_split(value: Any, cuts: list[float], indent: int | None) -> None:
    """The same for a plain answer, whose new length is known when its beginning goes out."""
    data = json.dumps(value, indent=indent).encode()
    whole = JsonRewriter("alias")
    at_once = whole.feed(data) + whole.flush()
    pieces = JsonRewriter("alias")
    assert b"".join(pieces.feed(piece) for piece in split(data, cuts)) + pieces.flush() == at_once
    assert len(at_once) == len(data) + whole.delta
    if isinstance(value, dict) and isinstance(value.get("model"), str):
        json.loads(at_once)
