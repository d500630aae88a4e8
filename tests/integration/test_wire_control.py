"""The instance's own questions to its engine, against a real socket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from upstreams import Heard, Peer, Upstream, upstream
from vllm_mm.domain.errors import UpstreamDied, UpstreamTimeout
from vllm_mm.domain.specs import Task
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire import ControlChannel

Answerer = Callable[[Heard], tuple[int, Any]]


@asynccontextmanager
async def engine(answer: Answerer, where: Path | None) -> AsyncIterator[tuple[ControlChannel, Upstream]]:
    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            status, body = answer(heard)
            if status == 0:
                await peer.until_gone()
                return
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            await peer.send(
                b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data))
                + data
            )

    async with upstream(script, where) as server:
        channel = ControlChannel(server.address, timeout=0.5)
        try:
            yield channel, server
        finally:
            await channel.close()


@pytest.fixture(params=["unix", "tcp"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "unix" else None


async def test_healthy(where: Path | None, tmp_path: Path) -> None:
    """Only 200 is healthy; everything else, silence and refusal included, is not, and never raises."""
    for status, healthy in ((200, True), (204, False), (503, False), (0, False)):
        async with engine(lambda _, s=status: (s, b""), where) as (channel, server):
            assert await channel.healthy() is healthy
            assert server.heard[0].target == "/health"
    nobody = ControlChannel(Address(socket=str(tmp_path / "nobody")), timeout=0.5)
    assert await nobody.healthy() is False
    await nobody.close()


async def test_probe_of_a_generating_model(where: Path | None) -> None:
    """One token at temperature 0; the essence is the text alone."""

    def answer(heard: Heard) -> tuple[int, Any]:
        return 200, {"id": heard.target, "choices": [{"text": " Paris", "index": 0}]}

    async with engine(answer, where) as (channel, server):
        assert await channel.probe("m", Task.GENERATE) == " Paris"
        body = json.loads(server.heard[0].body)
        assert (server.heard[0].target, body["model"], body["max_tokens"], body["temperature"]) == (
            "/v1/completions",
            "m",
            1,
            0,
        )


async def test_probe_falls_back_to_chat_and_then_to_the_list(where: Path | None) -> None:
    """Other servers than vLLM have not every route."""

    def chat(heard: Heard) -> tuple[int, Any]:
        if heard.target == "/v1/chat/completions":
            return 200, {"choices": [{"message": {"content": "Hi"}}]}
        return 404, {}

    async with engine(chat, where) as (channel, _):
        assert await channel.probe("m", Task.GENERATE) == "Hi"

    def listing(heard: Heard) -> tuple[int, Any]:
        return (200, {"object": "list", "data": []}) if heard.target == "/v1/models" else (405, {})

    async with engine(listing, where) as (channel, server):
        assert await channel.probe("m", Task.GENERATE)
        assert [h.target for h in server.heard] == ["/v1/completions", "/v1/chat/completions", "/v1/models"]


async def test_probes_of_pooling_models(where: Path | None) -> None:
    """Embeddings and scores have their own."""
    async with engine(lambda _: (200, {"data": [{"embedding": [0.5]}]}), where) as (channel, server):
        first = await channel.probe("m", Task.EMBED)
        assert first == await channel.probe("m", Task.EMBED)
        await channel.probe("m", Task.SCORE)
        assert [h.target for h in server.heard] == ["/v1/embeddings", "/v1/embeddings", "/v1/score"]


@pytest.mark.parametrize("answer", [(500, {"error": "no"}), (200, b"not json"), (200, []), (200, {"choices": []})])
async def test_a_bad_probe_raises(tmp_path: Path, answer: tuple[int, Any]) -> None:
    """Everything but a real answer is a failure that names what came."""
    async with engine(lambda _: answer, tmp_path) as (channel, _):
        with pytest.raises(UpstreamDied):
            await channel.probe("m", Task.GENERATE)


async def test_silence_is_a_timeout(tmp_path: Path) -> None:
    """Each question has a deadline, and says which it was."""
    async with engine(lambda _: (0, b""), tmp_path) as (channel, _):
        with pytest.raises(UpstreamTimeout, match=r"POST /v1/completions within 0.5 s"):
            await channel.probe("m", Task.GENERATE)
        with pytest.raises(UpstreamTimeout, match=r"within 0.1 s"):
            await channel.sleep(1, timeout=0.1)


async def test_refused_connection(tmp_path: Path) -> None:
    """Nothing was sent."""
    channel = ControlChannel(Address(socket=str(tmp_path / "nobody")), timeout=0.5)
    with pytest.raises(UpstreamDied) as caught:
        await channel.metrics()
    assert caught.value.sent is False
    await channel.close()


async def test_sleep_and_wake(where: Path | None) -> None:
    """The level is a query parameter (vLLM ignores a body), and so are the tags; a refusal raises."""
    async with engine(lambda h: (200, b""), where) as (channel, server):
        await channel.sleep(2)
        await channel.sleep(1, keep=True)
        await channel.wake(("weights",))
        await channel.reload_weights()
        await channel.wake(("kv_cache", "x"))
        await channel.reset_prefix_cache()
        await channel.wake()
        assert [h.target for h in server.heard] == [
            "/sleep?level=2", "/sleep?level=1&mode=keep", "/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache&tags=x", "/reset_prefix_cache", "/wake_up",
        ]  # fmt: skip
        assert {h.method for h in server.heard} == {"POST"}
        assert json.loads(server.heard[3].body) == {"method": "reload_weights"}
    async with engine(lambda h: (500, {"error": "out of memory"}), where) as (channel, _):
        with pytest.raises(UpstreamDied, match="out of memory"):
            await channel.wake()


KNOWN = {"name": "level", "in": "query"}


@pytest.mark.parametrize(
    ("answer", "keeps"),
    [
        ((200, {"paths": {"/sleep": {"post": {"parameters": [KNOWN, {"name": "mode", "in": "query"}]}}}}), True),
        ((200, {"paths": {"/sleep": {"post": {"parameters": [KNOWN]}}}}), False),
        ((200, {"paths": {"/sleep": {"post": {"summary": "Sleep"}}}}), False),
        ((200, {"paths": {"/v1/models": {"get": {}}}}), True),
        ((200, b"<html>"), True),
        ((404, {"detail": "Not Found"}), True),
    ],
)
async def test_what_an_engine_says_of_its_sleep(answer: tuple[int, Any], keeps: bool, tmp_path: Path) -> None:
    """One whose /sleep has no `mode` would abort what it has; one that describes nothing is believed."""
    async with engine(lambda _: answer, tmp_path) as (channel, server):
        assert await channel.keeps_requests() is keeps
        assert [h.target for h in server.heard] == ["/openapi.json"]


async def test_facts(where: Path | None) -> None:
    """Sleep state, metrics, models and version."""
    answers: dict[str, Any] = {
        "/is_sleeping": {"is_sleeping": True}, "/metrics": b"vllm:x 1\n", "/v1/models": {"data": [{"id": "m"}, 3]}, "/version": {"version": "0.32.0"},
    }  # fmt: skip
    async with engine(lambda h: (200, answers[h.target]), where) as (channel, _):
        assert await channel.is_sleeping() is True
        assert await channel.metrics() == "vllm:x 1\n"
        assert await channel.models() == [{"id": "m"}]
        assert await channel.version() == "0.32.0"
        await asyncio.sleep(0)


async def test_what_is_no_status_line_is_no_health(where: Path | None) -> None:
    for line in (b"", b"\r\n\r\n", b"220 mail\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 100_000):

        async def script(peer: Peer, line: bytes = line) -> None:
            await peer.read()
            await peer.send(line)

        async with upstream(script, where) as server:
            channel = ControlChannel(server.address, timeout=0.5)
            assert await channel.healthy() is False, line[:20]
            await channel.close()


async def test_listens(where: Path | None, tmp_path: Path) -> None:
    """Nothing is asked for that; the engine sees a connection that ends."""
    async with engine(lambda _: (200, b""), where) as (channel, server):
        assert channel.listens()
        address = server.address
    closed = ControlChannel(address, timeout=0.5)
    assert not closed.listens()
    await closed.close()


async def test_a_channel_that_is_closed_under_a_question_is_a_dead_engine(where: Path | None) -> None:
    """Whether it was closed before or while the question is asked: the launch is being ended, and that is no fault to be logged."""
    async with engine(lambda _: (0, b""), where) as (channel, _):
        asking = asyncio.create_task(channel.is_sleeping())
        await asyncio.sleep(0.05)
        await channel.close()
        with pytest.raises(UpstreamDied):
            await asking
        with pytest.raises(UpstreamDied, match="the channel was closed"):
            await channel.is_sleeping()


async def test_questions_that_are_given_up_leave_no_connection(where: Path | None) -> None:
    """At whatever moment: a pool that kept one of each would have no place for another in the end."""

    def sockets() -> int:
        targets = []
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                targets.append(str(fd.readlink()))
        return sum(target.startswith("socket:") for target in targets)

    async with engine(lambda _: (200, b"x"), where) as (channel, _):
        assert await channel.metrics() == "x"
        await asyncio.sleep(0.05)
        before = sockets()
        for turn in range(300):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(turn % 30 * 0.0002):
                    await channel.metrics()
        async with asyncio.timeout(30):
            while sockets() > before + 2:
                await asyncio.sleep(0.05)
