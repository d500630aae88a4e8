"""The engine side of the byte path: exact about bytes, and about where an answer ends."""

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from upstreams import Collected, Peer, Script, answers, upstream
from vllm_mm.domain.errors import RequestCut, UpstreamDied
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire import InferenceChannel, UpstreamRequest

POST = UpstreamRequest(b"POST", b"/v1/completions", [(b"content-type", b"application/json")], (b'{"a": 1}',))
GET = UpstreamRequest(b"GET", b"/v1/models")
HEAD = b"HTTP/1.1 200 OK\r\nserver: test\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


async def ask(channel: InferenceChannel, sink: Collected, request: UpstreamRequest = POST) -> None:
    async with asyncio.timeout(30):
        await channel.send(request, sink).done


async def died(channel: InferenceChannel, sink: Collected, request: UpstreamRequest = POST) -> UpstreamDied:
    with pytest.raises(UpstreamDied) as caught:
        await ask(channel, sink, request)
    assert sink.ended == 0
    return caught.value


def split(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.fixture(params=["unix", "tcp"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "unix" else None


async def test_request_arrives_as_given(where: Path | None) -> None:
    """Method, target, headers and body reach the engine unchanged; framing headers are the channel's."""
    async with upstream(answers(HEAD + b"content-length: 2\r\n\r\n{}"), where) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        body = (b"[1,", bytearray(b"2,"), memoryview(b"3]"))
        request = UpstreamRequest(b"POST", b"/x?y=%20z", [(b"x-request-id", b"r1"), (b"content-type", b"a/b")], body)
        await ask(channel, Collected(), request)
        channel.close()
        heard = engine.heard[0]
        assert heard.raw_head == (
            b"POST /x?y=%20z HTTP/1.1\r\nhost: localhost\r\nx-request-id: r1\r\ncontent-type: a/b\r\ncontent-length: 7\r\n\r\n"
        )
        assert heard.body == b"[1,2,3]"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("raw", [True, False])
async def test_length_delimited_in_any_split(tmp_path: Path, size: int, raw: bool) -> None:
    """However the packets fall, status, headers and body are the engine's."""
    body = b'{"answer": "\xc3\xa9"}' * 20
    whole = HEAD + b"X-Odd:  v;w\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with upstream(answers(*split(whole, size)), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        sink = Collected(raw=raw)
        await ask(channel, sink)
        channel.close()
    assert (sink.status, sink.length, sink.chunked, sink.body, sink.ended) == (200, len(body), False, body, 1)
    assert sink.headers == [(b"server", b"test"), (b"content-type", b"application/json"), (b"x-odd", b"v;w")]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 100_000])
@pytest.mark.parametrize(
    "framed",
    [
        b"3\r\nabc\r\n0\r\n\r\n",
        b"3;ext=1\r\nabc\r\n1\r\n\r\r\n0;last\r\nx-trailer: 0\r\n\r\n",
        b"0\r\n\r\n",
        b"2\r\n\r\n\r\n0\r\n\r\n",
        b"A\r\n0123456789\r\n00\r\n\r\n",
    ],
)
async def test_chunked_framing_is_relayed_byte_for_byte(tmp_path: Path, size: int, framed: bytes) -> None:
    """A raw sink gets the engine's own chunk sizes, extensions and trailers, in any split; the connection is reused."""
    async with upstream(answers(*split(CHUNKED + framed, size)), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        for _ in range(2):
            sink = Collected()
            await ask(channel, sink)
            assert (sink.body, sink.chunked, sink.length, sink.ended) == (framed, True, None, 1)
        assert engine.connections == 1
        channel.close()


@pytest.mark.parametrize("size", [1, 3, 100_000])
async def test_decoded_body(tmp_path: Path, size: int) -> None:
    """A sink that is not raw gets the body without its framing; raw and decoded exchanges share a connection."""
    framed = b"3\r\nabc\r\n4;e\r\n\r\n\r\n\r\n0\r\nt: 1\r\n\r\n"
    async with upstream(answers(*split(CHUNKED + framed, size)), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        for raw in (False, True, False):
            sink = Collected(raw=raw)
            await ask(channel, sink)
            assert sink.body == (framed if raw else b"abc\r\n\r\n")
            assert sink.headers == [(b"server", b"test"), (b"content-type", b"application/json")]
        assert engine.connections == 1
        channel.close()


async def test_chunks_come_as_they_are_read(tmp_path: Path) -> None:
    """Nothing waits for a later packet: each is handed on when it is read, the head alone with an empty one."""
    seen: list[list[bytes]] = []

    async def script(peer: Peer) -> None:
        await peer.read()
        for packet in (CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"):
            await peer.send(packet)
            await asyncio.sleep(0.02)
            seen.append(list(sink.chunks))

    sink = Collected()
    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        await ask(channel, sink)
        channel.close()
    assert seen[:3] == [[b""], [b"", b"1\r\na\r\n"], [b"", b"1\r\na\r\n", b"1\r\nb\r\n"]]


async def test_until_eof(where: Path | None) -> None:
    """Without length and chunks the end of the connection is the end of the answer, and the connection is not reused."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(HEAD + b"\r\nabc")
        await peer.send(b"def")

    async with upstream(script, where) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        sink = Collected()
        await ask(channel, sink)
        assert (sink.body, sink.chunked, sink.length, sink.ended) == (b"abcdef", False, None, 1)
        assert channel.idle == 0


async def test_interim_answers_are_skipped(tmp_path: Path) -> None:
    """100 and 103 are not the answer, alone or together with it."""
    final = HEAD + b"content-length: 2\r\n\r\nok"
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\ncontent-length: 5\r\n\r\n"
    for packets in ([interim, final], [interim + final], split(interim + final, 1)):
        async with upstream(answers(*packets), tmp_path) as engine:
            channel = InferenceChannel(engine.address, limit=4)
            for _ in range(2):
                sink = Collected()
                await ask(channel, sink)
                assert (sink.status, sink.body, sink.length) == (200, b"ok", 2)
                assert b"link" not in dict(sink.headers)
            channel.close()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_without_a_body(tmp_path: Path, status: bytes) -> None:
    """204 and 304 end at their head, whatever length they name."""
    length = b"content-length: 9\r\n" if status.startswith(b"304") else b""
    async with upstream(answers(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n"), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        for _ in range(2):
            sink = Collected()
            await ask(channel, sink)
            assert (sink.body, sink.ended) == (b"", 1)
        assert engine.connections == 1
        channel.close()


async def test_head_has_no_body(tmp_path: Path) -> None:
    """An answer to HEAD ends at its head, and its connection is not trusted further."""
    async with upstream(answers(HEAD + b"content-length: 9\r\n\r\n"), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        sink = Collected()
        await ask(channel, sink, UpstreamRequest(b"HEAD", b"/"))
        assert (sink.body, sink.length, sink.ended, channel.idle) == (b"", 9, 1, 0)


async def test_hop_by_hop_headers_go(tmp_path: Path) -> None:
    """Also those that Connection names."""
    head = b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Secret\r\nx-secret: 1\r\nKeep-Alive: 5\r\nx-mine: 2\r\ncontent-length: 0\r\n\r\n"
    async with upstream(answers(head), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        sink = Collected()
        await ask(channel, sink)
        channel.close()
        assert sink.headers == [(b"x-mine", b"2")]


CUT_LENGTH = HEAD + b"content-length: 10\r\n\r\n12345"
BAD = {
    "before head": (b"", "before it answered"),
    "in the head": (HEAD, "middle of an answer"),
    "short body": (CUT_LENGTH, "5 of 10 bytes"),
    "no chunk": (CHUNKED, "middle of an answer"),
    "in a chunk": (CHUNKED + b"5\r\nab", "middle of an answer"),
    "in a chunk size": (CHUNKED + b"5", "middle of an answer"),
    "between chunks": (CHUNKED + b"1\r\na\r\n", "middle of an answer"),
    "in the last chunk": (CHUNKED + b"1\r\na\r\n0\r\n", "middle of an answer"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("raw", [True, False])
async def test_a_cut_answer_never_ends(where: Path | None, case: str, how: str, raw: bool) -> None:
    """Wherever the engine goes away, the exchange fails, says whether the client saw something, and `end` is not called."""
    sent, why = BAD[case]

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(sent)
        await asyncio.sleep(0.02)
        peer.reset() if how == "reset" else peer.close()

    async with upstream(script, where) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        sink = Collected(raw=raw)
        error = await died(channel, sink)
        assert error.sent
        assert error.started == (case not in {"before head", "in the head"})
        assert sink.heads == error.started
        assert engine.connections == 1, "nothing was retried"
        if how == "close":
            assert why in error.message


async def test_reset_of_an_answer_until_eof_is_a_cut() -> None:
    """Only a clean end of the connection ends an answer without framing."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(HEAD + b"\r\nabc")
        await asyncio.sleep(0.05)
        sock = peer.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.reset()

    async with upstream(script) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        error = await died(channel, Collected())
        assert error.started


EXTRA = {
    "bytes after the length": HEAD + b"content-length: 2\r\n\r\n{}x",
    "line end after the length": HEAD + b"content-length: 2\r\n\r\n{}\r\n",
    "line end after the last chunk": CHUNKED + b"1\r\na\r\n0\r\n\r\n\r\n",
    "half a line end after the last chunk": CHUNKED + b"1\r\na\r\n0\r\n\r\n\r",
    "line end after a trailer": CHUNKED + b"0\r\na: b\r\n\r\n\r\n",
    "a second answer": HEAD + b"content-length: 2\r\n\r\n{}" + HEAD + b"content-length: 2\r\n\r\n{}",
    "a second chunked answer": CHUNKED + b"0\r\n\r\n" + CHUNKED + b"0\r\n\r\n",
    "a body for 204": b"HTTP/1.1 204 No Content\r\n\r\nx",
    "a line end for 204": b"HTTP/1.1 204 No Content\r\n\r\n\r\n",
    "both framings": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "bad chunk size": CHUNKED + b"zz\r\n",
    "bad chunk end": CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
    "unknown coding": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "not http": b"hello\r\n\r\n",
    "not http at all": b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000,
    "a long head": b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("case", EXTRA)
@pytest.mark.parametrize("raw", [True, False])
async def test_an_answer_that_is_not_exactly_one_is_refused(tmp_path: Path, case: str, raw: bool) -> None:
    """Bytes after the end (even a line end), contradictory or unknown framing: never an end, never a reuse."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(EXTRA[case])
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=4)
        sink = Collected(raw=raw)
        error = await died(channel, sink)
        assert "not valid HTTP" in error.message
        assert channel.idle == 0
        if raw:
            assert sink.body == b"", "the block in which it went wrong was not handed on"


async def test_reuse_is_last_in_first_out_and_bounded(tmp_path: Path) -> None:
    """Idle connections are reused, the latest first, and no more are kept than the limit."""
    ready = asyncio.Event()

    async def script(peer: Peer) -> None:
        while await peer.read() is not None:
            await ready.wait()
            await peer.send(HEAD + b"content-length: 0\r\n\r\n")

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        running = [channel.send(POST, Collected()) for _ in range(3)]
        await asyncio.sleep(0.05)
        ready.set()
        await asyncio.gather(*(exchange.done for exchange in running))
        assert channel.idle == 2
        await ask(channel, Collected())
        assert (channel.idle, engine.connections) == (2, 3)
        channel.close()
        assert channel.idle == 0


async def test_idle_connections_expire(tmp_path: Path) -> None:
    """Before the engine's own keep-alive would close them."""
    async with upstream(answers(HEAD + b"content-length: 0\r\n\r\n"), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2, idle=0.1)
        await ask(channel, Collected())
        assert channel.idle == 1
        await asyncio.sleep(0.3)
        assert channel.idle == 0
        await ask(channel, Collected())
        assert engine.connections == 2
        channel.close()


async def test_close_of_an_idle_connection_is_noticed(tmp_path: Path) -> None:
    """A connection that the engine closed, or on which it spoke unasked, is not used again."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(HEAD + b"content-length: 0\r\n\r\n")
        await asyncio.sleep(0.02)
        if len(peer.server.heard) == 1:
            await peer.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            await peer.until_gone()

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        for connections in (1, 2, 3):
            await ask(channel, Collected())
            assert engine.connections == connections
            await asyncio.sleep(0.1)
            assert channel.idle == 0


def stale_after(answered: int, *, fate: bytes = b"") -> Script:
    """Each connection answers so many requests; then it reads one more, sends `fate` and closes."""

    async def script(peer: Peer) -> None:
        for _ in range(answered):
            if await peer.read() is None:
                return
            await peer.send(HEAD + b"content-length: 2\r\n\r\nok")
        await peer.read()
        await peer.send(fate)

    return script


async def test_a_stale_connection_is_replaced_once(where: Path | None) -> None:
    """A reused connection that closes before the first byte: the request goes again, on a fresh connection."""
    async with upstream(stale_after(1), where) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        await ask(channel, Collected())
        sink = Collected()
        await ask(channel, sink)
        assert (sink.body, engine.connections, len(engine.heard)) == (b"ok", 2, 3)
        channel.close()


async def test_no_retry_after_the_first_byte(tmp_path: Path) -> None:
    """One byte of an answer proves that the engine took the request."""
    async with upstream(stale_after(1, fate=b"H"), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        await ask(channel, Collected())
        error = await died(channel, Collected())
        assert (error.sent, error.started, engine.connections) == (True, False, 1)


async def test_no_second_retry(tmp_path: Path) -> None:
    """The fresh connection's failure is final, also for a request that could be repeated."""
    async with upstream(stale_after(0), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        error = await died(channel, Collected(), GET)
        assert (error.sent, engine.connections) == (True, 2)
        error = await died(channel, Collected(), POST)
        assert (error.sent, engine.connections) == (True, 3), "a POST on a fresh connection is not repeated"


async def test_refused_connection_says_that_nothing_was_sent(tmp_path: Path) -> None:
    """So the gateway may try another launch."""
    channel = InferenceChannel(Address(socket=str(tmp_path / "absent.sock")), limit=2)
    error = await died(channel, Collected())
    assert (error.sent, error.started) == (False, False)
    assert "cannot reach the engine at unix:" in error.message


async def test_connect_timeout_has_a_reason(tmp_path: Path) -> None:
    """A listener that accepts nothing does not hold a request for ever."""
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        fillers = []
        for _ in range(8):
            fillers.append(socket.socket(socket.AF_UNIX))
            fillers[-1].setblocking(False)
            if fillers[-1].connect_ex(path):
                break
        channel = InferenceChannel(Address(socket=path), limit=2, connect_timeout=0.2)
        error = await died(channel, Collected())
        assert not error.sent
        assert "did not accept a connection within 0.2 s" in error.message
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("when", ["connecting", "before the head", "mid-body"])
async def test_abort_closes_at_once(tmp_path: Path, when: str) -> None:
    """The engine sees the close within half a second; the exchange gives the abort's own reason, and no end."""
    arrived = asyncio.Event()
    took: list[float] = []

    async def script(peer: Peer) -> None:
        if await peer.read() is None:
            return
        if when == "mid-body":
            await peer.send(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(0.05)
        arrived.set()
        took.append(await peer.until_gone())

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        sink = Collected()
        exchange = channel.send(POST, sink)
        if when != "connecting":
            await arrived.wait()
        exchange.abort(RequestCut("enough"))
        exchange.abort(RequestCut("again"))
        with pytest.raises(RequestCut, match="enough"):
            await exchange.done
        await asyncio.sleep(0.1)
        assert (sink.ended, channel.idle) == (0, 0)
        if when == "connecting":
            assert engine.heard == []
        else:
            assert took
            assert took[0] < 0.5


async def test_abort_closes_although_the_waiter_was_cancelled(tmp_path: Path) -> None:
    """Cancelling whoever awaits `done` cancels that too; the engine has to see a close all the same."""
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        arrived.set()
        await peer.until_gone()
        gone.set()

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        exchange = channel.send(POST, Collected())

        async def wait() -> None:
            try:
                await exchange.done
            finally:
                exchange.abort(RequestCut("given up"))

        waiter = asyncio.ensure_future(wait())
        await arrived.wait()
        waiter.cancel()
        async with asyncio.timeout(0.5):
            await gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await waiter


async def test_abort_after_the_end_is_harmless(tmp_path: Path) -> None:
    """The connection went back to the pool; a late abort must not take it from its next user."""
    async with upstream(answers(HEAD + b"content-length: 0\r\n\r\n"), tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        exchange = channel.send(POST, Collected())
        await exchange.done
        exchange.abort(RequestCut("late"))
        exchange.pause()
        await ask(channel, Collected())
        assert engine.connections == 1
        channel.close()


async def test_pause_stops_the_engine(tmp_path: Path) -> None:
    """While paused nothing is read beyond what was in flight, the engine's writes block, and nothing is lost."""
    total = 16 << 20
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.read()
        await peer.send(HEAD + b"content-length: %d\r\n\r\n" % total)
        while sent < total:
            await peer.send(b"x" * 65536)
            sent += 65536

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        sink = Collected()
        exchange = channel.send(POST, sink)
        exchange.pause()
        await asyncio.sleep(0.2)
        assert sent < total / 4
        assert len(sink.body) < 1 << 20
        exchange.resume()
        await asyncio.sleep(0.005)
        exchange.pause()
        held = len(sink.body)
        await asyncio.sleep(0.1)
        assert len(sink.body) <= held + (1 << 19)
        exchange.resume()
        async with asyncio.timeout(30):
            await exchange.done
        assert len(sink.body) == total
        channel.close()


async def test_large_bodies_both_ways(where: Path | None) -> None:
    """5 MB up in several buffers and 5 MB down, unchanged, and the connection is reused."""
    blob = bytes(range(256)) * 20_480

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            await peer.send(HEAD + b"content-length: %d\r\n\r\n" % len(heard.body) + heard.body)

    async with upstream(script, where) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        for _ in range(2):
            sink = Collected()
            buffers = (b"[", memoryview(blob)[: 1 << 20], bytearray(blob[1 << 20 :]), b"]")
            await ask(channel, sink, UpstreamRequest(b"POST", b"/", [], buffers))
            assert sink.body == b"[" + blob + b"]"
        assert engine.connections == 1
        channel.close()


async def test_an_answer_that_overtakes_its_request_is_relayed(tmp_path: Path) -> None:
    """A refusal may come before the whole body was read; it reaches the client, and the connection is dropped."""

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await peer.until_gone()

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=2)
        sink = Collected()
        await ask(channel, sink, UpstreamRequest(b"POST", b"/", [], (b"x" * (8 << 20),)))
        assert (sink.status, sink.body, sink.ended, channel.idle) == (413, b"big", 1, 0)


async def test_many_at_once(tmp_path: Path) -> None:
    """300 requests at a time each get their own answer."""

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            await asyncio.sleep(0.01)
            await peer.send(CHUNKED + b"%x\r\n" % len(heard.body) + heard.body + b"\r\n0\r\n\r\n")

    async with upstream(script, tmp_path) as engine:
        channel = InferenceChannel(engine.address, limit=300)
        for _ in range(2):
            sinks = [Collected(raw=False) for _ in range(300)]
            await asyncio.gather(
                *(ask(channel, s, UpstreamRequest(b"POST", b"/", [], (b"%d" % i,))) for i, s in enumerate(sinks))
            )
            assert [s.body for s in sinks] == [b"%d" % i for i in range(300)]
        assert engine.connections <= 300
        channel.close()
