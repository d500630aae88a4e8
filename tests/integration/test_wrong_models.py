"""Requests for a model that cannot do what the route is for: refused in the API's own words, and before an engine is started."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

import vllm_mm
from hard_cases import running, sim
from plane import FORMS, ask, plane, post
from upstreams import answers, upstream
from vllm_mm.domain.usage import Outcome

CHAT = "/v1/chat/completions"
BODY = b'{"model":"org/model-1","messages":[]}'


def packets(status: bytes, body: bytes, *, chunked: bool = False, size: int = 100_000) -> list[bytes]:
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    whole = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n" + framing + b"\r\n\r\n" + sent
    return [whole[i : i + size] for i in range(0, len(whole), size)]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


NO_ROUTE = {
    "vllm": packets(b"404 Not Found", b'{"detail":"Not Found"}'),
    "chunked": packets(b"404 Not Found", b'{"detail":"Not Found"}', chunked=True),
    "in any split": packets(b"404 Not Found", b'{"detail":"Not Found"}', chunked=True, size=1),
    "a page": packets(b"404 Not Found", b"<html>no such page</html>"),
    "nothing": packets(b"404 Not Found", b""),
    "another method": packets(b"405 Method Not Allowed", b'{"detail":"Method Not Allowed"}'),
}


@pytest.mark.parametrize("case", NO_ROUTE)
async def test_an_engine_without_the_route_is_told_as_a_wrong_model(form: str, tmp_path: Path, case: str) -> None:
    """400 in our shape with what to do; the row says so; the next request for it is not sent at all, others are."""
    async with upstream(answers(*NO_ROUTE[case]), tmp_path) as engine, plane(form, engine.address) as server:
        for asked in (b'{"model":"org/model-1"}', b'{"model":"short"}'):
            answer = await ask(server, post(CHAT, asked))
            error = json.loads(answer.body)["error"]
            assert (answer.status, answer.complete) == (400, True)
            assert (error["code"], error["type"], error["param"]) == ("model_cannot", "invalid_request_error", "model")
            assert "`org/model-1` cannot serve /v1/chat/completions: its engine has no such route" in error["message"]
            assert "Models that can: `other`." in error["message"]
        await server.settled(2)
        assert [(r.outcome, r.status) for r in server.rows] == [(Outcome.BAD_REQUEST, 400)] * 2
        assert len(engine.heard) == 1
        assert (await ask(server, post("/v1/completions", BODY))).status == 400
        assert len(engine.heard) == 2, "another route was not known to be missing"


async def test_it_speaks_anthropic_where_asked(form: str, tmp_path: Path) -> None:
    """On /v1/messages the refusal has Anthropic's shape."""
    async with upstream(answers(*NO_ROUTE["vllm"]), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post("/v1/messages", BODY))
        body = json.loads(answer.body)
        assert (answer.status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")


async def test_it_is_an_event_where_the_status_is_out(form: str, tmp_path: Path) -> None:
    """A client that asked for progress has its 200 already."""
    async with upstream(answers(*NO_ROUTE["vllm"]), tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.hold = hold = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, hold.set)
        stream = b'{"model":"org/model-1","stream":true}'
        answer = await ask(server, post(CHAT, stream, {"x-vllm-mm-progress": "1"}))
        assert (answer.status, answer.complete) == (200, False)
        assert b'"code":"model_cannot"' in answer.body
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.BAD_REQUEST


REFUSAL = b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}'


@pytest.mark.parametrize("size", [7, 100_000])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(
    "body", [REFUSAL, b'{"message":"' + b"x" * 9000 + b'"}', b'{"model":"org/model-1","error":"x"}']
)
@pytest.mark.parametrize("name", ["org/model-1", "short"])
async def test_other_404s_are_relayed_untouched(
    form: str, tmp_path: Path, size: int, chunked: bool, body: bytes, name: str
) -> None:
    """An answer with an error in it is the model's own, and one that is long is no word of a server about a path; it comes
    whole, once, however it was packed, and nothing is learned from it."""
    sent = packets(b"404 Not Found", body, chunked=chunked, size=max(size, len(body) // 20))
    async with upstream(answers(*sent), tmp_path) as engine, plane(form, engine.address) as server:
        for _ in range(2):
            answer = await ask(server, post(CHAT, b'{"model":"%b"}' % name.encode()))
            shown = body.replace(b'"org/model-1"', b'"%b"' % name.encode())
            assert (answer.status, answer.body, answer.complete) == (404, shown, True)
            assert answer.header("content-type") == "application/json"
        await server.settled(2)
        assert [(r.outcome, r.status) for r in server.rows] == [(Outcome.UPSTREAM_ERROR, 404)] * 2
        assert len(engine.heard) == 2


async def test_an_engine_that_dies_in_such_an_answer_is_a_dead_engine(form: str, tmp_path: Path) -> None:
    """Half a 404 proves nothing."""
    half = b"HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n" + b'{"detail"'
    async with upstream(answers(half, close=True), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, BODY))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_died")
        await server.settled(1)
        await ask(server, post(CHAT, BODY))
        assert len(engine.heard) == 2


async def test_no_engine_is_started_for_what_it_cannot_serve() -> None:
    """Declared tasks are known at once. Where nobody said it, the first request starts the engine and learns; after that,
    and after a restart of the server, no request of that kind starts it again."""
    undeclared = {
        "engine": "command", "memory": "1GiB", "env": {"PYTHONPATH": str(Path(vllm_mm.__file__).parents[1])},
        "command": [sys.executable, "-m", "vllm_mm.sim", "undeclared", "--uds", "{socket}", "--sim", "task=embed"],
    }  # fmt: skip
    models = {"chat": sim(), "embed": sim(model={"task": "embed"}), "undeclared": undeclared}
    async with running(models, own_devices=True) as it:

        async def asked(route: str, model: str, **body: object) -> tuple[int, str]:
            answer = await it.client.post(f"{it.url}{route}", json={"model": model, **body})
            return answer.status_code, answer.text

        messages = [{"role": "user", "content": "hi"}]
        for route, model, body, able in (
            (CHAT, "embed", {"messages": messages}, "`chat`"),
            ("/v1/embeddings", "chat", {"input": "hi"}, "`embed`"),
            ("/v1/rerank", "chat", {"query": "a", "documents": ["b"]}, "`embed`"),
        ):
            status, text = await asked(route, model, **body)
            assert status == 400, text
            assert "model_cannot" in text
            assert able in text
        assert await it.starts() == 0

        status, text = await asked(CHAT, "undeclared", messages=messages)
        assert (status, "its engine has no such route" in text, "Not Found" in text) == (400, True, False), text
        assert await it.starts("undeclared") == 1
        status, text = await asked("/v1/embeddings", "undeclared", input="hi")
        assert status == 200, text
        await it.act("undeclared", "stop", wait=20)
        assert (await asked(CHAT, "undeclared", messages=messages))[0] == 400
        assert await it.starts("undeclared") == 1

        assert await it.serving.stop() == 0
        await it.serving.start()
        assert (await asked(CHAT, "undeclared", messages=messages))[0] == 400
        assert await it.starts("undeclared") == 1
        assert await it.state("undeclared") == "stopped"
