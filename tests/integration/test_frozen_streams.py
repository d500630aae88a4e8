"""What the client of a frozen request sees: its stream, unchanged, and comments between its events if it asked for progress."""

import asyncio
from pathlib import Path

import pytest

from plane import FORMS, Answer, PlainLease, Plane, plane, post, read_answer
from upstreams import Peer, Script, chunk, upstream
from vllm_mm.domain.usage import Outcome
from vllm_mm.gateway import progress
from vllm_mm.gateway.ports import Rules

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: keep-alive\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
CHAT = "/v1/chat/completions"
END = b"0\r\n\r\n"
FROZEN = b": frozen model=org/model-1 position=1 eta=12s\n\n"
RESUMED = b": resumed\n\n"
PROGRESS = {"x-vllm-mm-progress": "1"}
QUICK = Rules(progress=0.05)


def body(model: str = "org/model-1", *, usage: bool = False) -> bytes:
    """With `usage` the client asks for it, so that nothing is taken out, and parts of events pass as they come."""
    options = b',"stream_options":{"include_usage":true}' if usage else b""
    return b'{"model":"%b","stream":true%b}' % (model.encode(), options)


def event(text: str, model: str = "org/model-1") -> bytes:
    return b'data: {"model":"%b","choices":[{"text":"%b"}]}\n\n' % (model.encode(), text.encode())


DONE = b"data: [DONE]\n\n"


class Engine:
    """Sends packets when it is told to."""

    def __init__(self) -> None:
        self.packets: asyncio.Queue[bytes | None] = asyncio.Queue()

    def script(self) -> Script:
        async def run(peer: Peer) -> None:
            await peer.read()
            while (packet := await self.packets.get()) is not None:
                await peer.send(packet)
            await peer.read()

        return run

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.packets.put_nowait(packet)


class Client:
    """Asks, and sees what has come so far."""

    def __init__(
        self, server: Plane, headers: dict[str, str], model: str = "org/model-1", *, usage: bool = False
    ) -> None:
        self.seen = b""
        self._server = server
        self.answer: asyncio.Task[Answer] = asyncio.create_task(
            self._ask(post(CHAT, body(model, usage=usage), headers))
        )

    async def _ask(self, request: bytes) -> Answer:
        reader, writer = await self._server.open()

        async def on_body(piece: bytes) -> None:
            self.seen += piece

        try:
            writer.write(request)
            return await read_answer(reader, on_body=on_body)
        finally:
            writer.close()

    async def until(self, text: bytes, count: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.seen.count(text) < count:
                await asyncio.sleep(0.002)

    async def lease(self) -> PlainLease:
        async with asyncio.timeout(30):
            while not self._server.leases.out:
                await asyncio.sleep(0.002)
        return next(iter(self._server.leases.out))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A freeze is told after 20 ms instead of 300."""
    monkeypatch.setattr(progress, "STILL", 0.02)


def freeze(lease: PlainLease, frozen: bool) -> None:
    assert lease.on_freeze is not None
    lease.on_freeze(frozen)


async def test_a_freeze_is_told_between_two_events(form: str, tmp_path: Path) -> None:
    """`frozen`, again and again, then `resumed` right before the next event; without the comments it is the engine's stream."""
    engine = Engine()
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, PROGRESS)
        engine.send(HEAD + chunk(event("one")))
        await client.until(event("one"))
        lease = await client.lease()
        freeze(lease, True)
        await client.until(FROZEN, 3)
        lease.stood_still = 1.5
        engine.send(chunk(event("two")))  # an engine goes on a moment before its wake is known to be good
        await client.until(event("two"))
        freeze(lease, False)
        engine.send(chunk(event("three")) + chunk(DONE) + END)
        answer = await client.answer
        assert answer.complete
        assert answer.body.replace(FROZEN, b"") == event("one") + RESUMED + event("two") + event("three") + DONE
        assert answer.body.index(RESUMED) > answer.body.rindex(FROZEN)
        async with asyncio.timeout(30):
            while not server.rows:
                await asyncio.sleep(0.002)
        assert (server.rows[0].outcome, server.rows[0].frozen_s) == (Outcome.OK, 1.5)


async def test_a_thaw_is_told_before_anything_comes(form: str, tmp_path: Path) -> None:
    """The wake was good, and the engine still computes: the client learns of it, once."""
    engine = Engine()
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, PROGRESS)
        engine.send(HEAD + chunk(event("one")))
        await client.until(event("one"))
        lease = await client.lease()
        for count in (1, 2):
            freeze(lease, True)
            await client.until(FROZEN, count)
            freeze(lease, False)
            await client.until(RESUMED, count)
        engine.send(chunk(event("two")) + END)
        answer = await client.answer
        assert answer.body.replace(FROZEN, b"") == event("one") + RESUMED + RESUMED + event("two")


async def test_no_comment_stands_inside_an_event(form: str, tmp_path: Path) -> None:
    """Frozen between two halves of an event, whatever the packets: nothing is written until the event is whole."""
    engine = Engine()
    whole = event("a longer one")
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, PROGRESS, usage=True)
        engine.send(HEAD + chunk(whole[:20]))
        await client.until(whole[:20])
        lease = await client.lease()
        freeze(lease, True)
        await asyncio.sleep(0.2)
        assert client.seen == whole[:20]
        engine.send(b"%x\r\n%b" % (len(whole) - 20, whole[20:30]))  # the engine's own chunk is not whole either
        await client.until(whole[:30])
        await asyncio.sleep(0.1)
        assert client.seen == whole[:30]
        engine.send(whole[30:] + b"\r\n")
        await client.until(FROZEN)
        freeze(lease, False)
        engine.send(chunk(DONE) + END)
        answer = await client.answer
        assert answer.body.replace(FROZEN, b"") == whole + RESUMED + DONE


async def test_a_short_freeze_is_not_told(form: str, tmp_path: Path) -> None:
    """What was over before it could be told leaves no trace."""
    engine = Engine()
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, PROGRESS)
        engine.send(HEAD + chunk(event("one")))
        await client.until(event("one"))
        lease = await client.lease()
        freeze(lease, True)
        freeze(lease, False)
        await asyncio.sleep(0.1)
        engine.send(END)
        assert (await client.answer).body == event("one")


async def test_frozen_before_its_first_token(form: str, tmp_path: Path) -> None:
    """It had no status yet: that goes out with the first comment, and the engine's answer follows behind it."""
    engine = Engine()
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, PROGRESS)
        lease = await client.lease()
        freeze(lease, True)
        await client.until(FROZEN)
        freeze(lease, False)
        engine.send(HEAD + chunk(event("one")) + chunk(DONE) + END)
        answer = await client.answer
        assert (answer.status, answer.complete) == (200, True)
        assert answer.body.replace(FROZEN, b"") == RESUMED + event("one") + DONE


async def test_under_another_name(form: str, tmp_path: Path) -> None:
    """Comments stand between the rewritten events of an alias too."""
    engine = Engine()
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, PROGRESS, "short")
        engine.send(HEAD + chunk(event("one")))
        await client.until(event("one", "short"))
        lease = await client.lease()
        freeze(lease, True)
        await client.until(FROZEN)
        engine.send(chunk(event("two")) + END)
        answer = await client.answer
        assert answer.body.replace(FROZEN, b"") == event("one", "short") + RESUMED + event("two", "short")


async def test_who_did_not_ask_sees_nothing_of_it(form: str, tmp_path: Path) -> None:
    """Nobody listens for a freeze on such a request: its bytes are the engine's, framing included."""
    engine = Engine()
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=QUICK) as server:
        client = Client(server, {})
        engine.send(HEAD + chunk(event("one")))
        await client.until(event("one"))
        lease = await client.lease()
        assert lease.on_freeze is None
        engine.send(chunk(event("two")) + END)
        answer = await client.answer
        assert answer.body == event("one") + event("two")
        assert server.rows == [] or server.rows[0].frozen_s == 0.0


async def test_a_frozen_request_that_is_cut_is_told(form: str, tmp_path: Path) -> None:
    """Its deadline comes while it stands still: an error event, and no clean end."""
    engine = Engine()
    rules = Rules(progress=0.05, request_timeout=0.3)
    async with upstream(engine.script(), tmp_path) as up, plane(form, up.address, rules=rules) as server:
        client = Client(server, PROGRESS)
        engine.send(HEAD + chunk(event("one")))
        await client.until(event("one"))
        freeze(await client.lease(), True)
        async with asyncio.timeout(30):
            answer = await client.answer
        assert not answer.complete
        assert FROZEN in answer.body
        assert RESUMED not in answer.body
        assert b'"error"' in answer.body.split(FROZEN)[-1]
        assert up.peers[0].gone.is_set() or not server.leases.out
