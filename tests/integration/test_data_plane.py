"""A request from the client's socket to the engine's and back, in both forms of the data plane."""

import asyncio
import json
from pathlib import Path

import pytest

from plane import FORMS, WORKER, Answer, Plane, ask, get, plane, post, read_answer
from upstreams import Peer, Script, Upstream, answers, chunk, upstream
from vllm_mm.domain.errors import QueueFull, StartFailed, StillLoading, TornDown
from vllm_mm.domain.usage import Outcome, Usage
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire import InferenceChannel
from vllm_mm.gateway.ports import Rules

ANSWER = (
    b'{"id":"c-1","object":"chat.completion","model":"org/model-1","choices":[{"message":{"content":"h\xc3\xa9"}}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":32,"total_tokens":44,"prompt_tokens_details":{"cached_tokens":4}}}'
)
JSON_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Wed, 01 Jan 2025 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
)
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Wed, 01 Jan 2025 00:00:00 GMT\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
PLAIN = JSON_HEAD + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
CHAT = "/v1/chat/completions"
BODY = b'{"model":"org/model-1","messages":[]}'
STREAM = b'{"model":"org/model-1","stream":true,"stream_options":{"include_usage":true}}'


def event(n: int, model: str = "org/model-1") -> bytes:
    return b'data: {"id":"c-1","model":"%b","choices":[{"delta":{"content":"t%d"}}]}\n\n' % (model.encode(), n)


USAGE_EVENT = (
    b'data: {"id":"c-1","model":"org/model-1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n'
)
DONE = b"data: [DONE]\n\n"


async def raw(where: Plane, request: bytes) -> bytes:
    """Everything that comes until the server closes."""
    reader, writer = await where.open()
    writer.write(request)
    async with asyncio.timeout(20):
        everything = await reader.read()
    writer.close()
    return everything


@pytest.fixture(params=(*FORMS, WORKER))
def form(request: pytest.FixtureRequest) -> str:
    return request.param


async def one(
    form: str, script: Script, request: bytes, where: Path, rules: Rules | None = None
) -> tuple[Answer, Plane, Upstream]:
    """One request against one script, and its row."""
    async with upstream(script, where) as engine, plane(form, engine.address, rules=rules) as server:
        answer = await ask(server, request)
        await server.settled(1)
        return answer, server, engine


async def test_plain_answer_is_relayed_untouched(form: str, tmp_path: Path) -> None:
    """Status, body and end-to-end headers are the engine's; ours come; the row says what happened."""
    answer, server, engine = await one(form, answers(PLAIN), post(CHAT, BODY, {"x-request-id": "abc-1"}), tmp_path)
    assert (answer.status, answer.body, answer.complete) == (200, ANSWER, True)
    assert answer.header("content-type") == "application/json"
    assert answer.all("x-request-id") == ["abc-1"]
    assert answer.all("content-length") == [str(len(ANSWER))]
    assert answer.header("x-vllm-mm-model") == "org/model-1"
    assert int(answer.header("x-vllm-mm-queue-ms") or -1) >= 0
    heard = engine.heard[0]
    assert (heard.method, heard.target, heard.body) == ("POST", CHAT, BODY)
    assert heard.header("x-request-id") == "abc-1"
    row = server.rows[0]
    assert (row.request_id, row.route, row.model, row.asked, row.key, row.stream) == (
        "abc-1",
        CHAT,
        "org/model-1",
        "org/model-1",
        "k1",
        False,
    )
    assert (row.outcome, row.status, row.error, row.generation) == (Outcome.OK, 200, None, 1)
    assert (row.bytes_in, row.bytes_out) == (len(BODY), len(ANSWER))
    assert row.usage == Usage(12, 32, 4)
    assert row.queued_s is not None
    assert row.ttft_s is not None
    assert 0 <= row.queued_s <= row.ttft_s <= row.total_s < 5


async def test_secrets_and_hop_by_hop_headers_stay_here(form: str, tmp_path: Path) -> None:
    """The engine sees neither the key nor cookies nor what was meant for us; other headers it does see."""
    extra = {
        "cookie": "a=b", "x-api-key": "mm-test-secret", "connection": "keep-alive, x-private", "x-private": "1", "te": "trailers",
        "accept-encoding": "gzip", "x-vllm-mm-wait": "5", "user-agent": "me", "anthropic-version": "2023-06-01", "upgrade": "",
    }  # fmt: skip
    _, _, engine = await one(form, answers(PLAIN), post(CHAT + "?a=%20b", BODY, extra), tmp_path)
    heard = engine.heard[0]
    names = [k for k, _ in heard.headers]
    assert names == ["host", "x-request-id", "content-type", "user-agent", "anthropic-version", "content-length"]
    assert b"secret" not in heard.raw_head
    assert heard.target == CHAT + "?a=%20b"


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_stream_is_relayed_untouched(form: str, tmp_path: Path, size: int) -> None:
    """The bytes of the stream are the engine's, however they were packed; inside the protocol even its chunk sizes."""
    framed = (
        chunk(event(1))
        + b"%x;odd=1\r\n" % len(event(2))
        + event(2)
        + b"\r\n"
        + chunk(USAGE_EVENT)
        + chunk(DONE)
        + b"0\r\n\r\n"
    )
    packets = SSE_HEAD + framed
    answer, server, _ = await one(
        form, answers(*[packets[i : i + size] for i in range(0, len(packets), size)]), post(CHAT, STREAM), tmp_path
    )
    assert (answer.status, answer.body, answer.complete) == (200, event(1) + event(2) + USAGE_EVENT + DONE, True)
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    if form != "asgi":
        assert answer.framed == framed
    row = server.rows[0]
    assert (row.outcome, row.stream, row.status, row.usage) == (Outcome.OK, True, 200, Usage(5, 3, None))


async def test_events_arrive_one_by_one(form: str, tmp_path: Path) -> None:
    """An event is with the client before the engine has sent the next."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD)
        for n in range(3):
            await go.wait()
            go.clear()
            await peer.send(chunk(event(n)))
        await peer.send(b"0\r\n\r\n")

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        writer.write(post(CHAT, STREAM))
        got: list[bytes] = []

        async def on_body(piece: bytes) -> None:
            got.append(piece)
            go.set()

        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n"), "the head came before any event"
        go.set()
        fed = asyncio.StreamReader()
        fed.feed_data(head)

        async def pump() -> None:
            while data := await reader.read(65536):
                fed.feed_data(data)
                if b"0\r\n\r\n" in data:
                    return

        async with asyncio.timeout(30):
            pumping = asyncio.ensure_future(pump())
            answer = await read_answer(fed, on_body=on_body)
            await pumping
        writer.close()
        assert got == [event(0), event(1), event(2)]
        assert answer.complete


async def test_engine_errors_are_relayed(form: str, tmp_path: Path) -> None:
    """An error of the engine's own is the client's to see, and the row says whose it was."""
    refusal = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'
    packet = (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(refusal)
        + refusal
    )
    answer, server, _ = await one(form, answers(packet), post(CHAT, BODY), tmp_path)
    assert (answer.status, answer.body) == (400, refusal)
    assert (server.rows[0].outcome, server.rows[0].status) == (Outcome.UPSTREAM_ERROR, 400)


async def test_error_event_of_the_engine_is_seen(form: str, tmp_path: Path) -> None:
    """vLLM ends a failed stream with an error event, [DONE] and status 200; the row does not call that a success."""
    framed = chunk(event(1)) + chunk(b'data: {"error":{"message":"boom","code":500}}\n\n') + chunk(DONE) + b"0\r\n\r\n"
    answer, server, _ = await one(form, answers(SSE_HEAD + framed), post(CHAT, STREAM), tmp_path)
    assert answer.complete
    assert server.rows[0].outcome is Outcome.UPSTREAM_ERROR


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_answer_without_framing_gets_one(form: str, tmp_path: Path, version: str) -> None:
    """An engine that ends by closing: the client still learns the end from the framing (HTTP/1.0: from the close)."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(JSON_HEAD + b"\r\n" + ANSWER[:50])
        await peer.send(ANSWER[50:])

    answer, _, _ = await one(form, script, post(CHAT, BODY, version=version), tmp_path)
    assert (answer.body, answer.complete) == (ANSWER, True)
    assert answer.header("transfer-encoding") == ("chunked" if version == "1.1" else None)


async def test_http10_client_gets_no_chunks(form: str, tmp_path: Path) -> None:
    """A stream for HTTP/1.0 is decoded and ends with the connection."""
    framed = chunk(event(1)) + chunk(DONE) + b"0\r\n\r\n"
    answer, _, _ = await one(form, answers(SSE_HEAD + framed), post(CHAT, STREAM, version="1.0"), tmp_path)
    assert (answer.body, answer.header("transfer-encoding"), answer.header("connection")) == (
        event(1) + DONE,
        None,
        "close",
    )


@pytest.mark.parametrize("size", [5_000_000, 70_000, 65_537, 65_536])
async def test_large_bodies(form: str, tmp_path: Path, size: int) -> None:
    """Megabytes up and down, unchanged, on a connection that goes on being used, with the next request right behind."""
    blob = json.dumps({"messages": ["é" * 100, "x" * (size - 200)], "model": "org/model-1"}).encode()

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            await peer.send(JSON_HEAD + b"content-length: %d\r\n\r\n" % len(heard.body) + heard.body)

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        for sent in (blob, BODY, blob):
            writer.write(post(CHAT, sent))
        async with asyncio.timeout(20):
            for sent in (blob, BODY, blob):
                answer = await read_answer(reader)
                assert answer.status == 200
                assert answer.body == sent
        writer.close()
        assert [heard.body for heard in engine.heard] == [blob, BODY, blob]
        await server.settled(3)


async def test_chunked_upload(form: str, tmp_path: Path) -> None:
    """A body without a length reaches the engine with one."""
    pieces = [b'{"model":"org/', b'model-1","stream":', b"false}"]
    request = post(CHAT, b"", {"content-length": "", "transfer-encoding": "chunked"})
    request += b"".join(chunk(p) for p in pieces) + b"0\r\n\r\n"
    answer, _, engine = await one(form, answers(PLAIN), request, tmp_path)
    assert answer.body == ANSWER
    assert engine.heard[0].body == b"".join(pieces)


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_requests_in_any_split(form: str, tmp_path: Path, size: int) -> None:
    """However a request's bytes arrive, it is the same request."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        data = post(CHAT, BODY)
        for i in range(0, len(data), size):
            writer.write(data[i : i + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_answer(reader)).body == ANSWER
        writer.close()
        assert engine.heard[0].body == BODY


async def test_pipelined_requests_are_answered_in_order(form: str, tmp_path: Path) -> None:
    """Data plane, model list and the rest of the application, mixed in one packet: each answer in its place."""

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            await asyncio.sleep(0.03 if b"slow" in heard.body else 0)
            await peer.send(JSON_HEAD + b"content-length: %d\r\n\r\n" % len(heard.body) + heard.body)

    def body(n: int) -> bytes:
        return b'{"model":"org/model-1","n":"%d%s"}' % (n, b" slow" if n % 2 else b"")

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        requests = [
            post(CHAT, body(1)), get("/v1/models"), post(CHAT, body(2)), post("/api/x", b"hello"), post(CHAT, body(3)),
            post("/v1/nothing", b""), *(post(CHAT, body(n)) for n in range(4, 30)),
        ]  # fmt: skip
        writer.write(b"".join(requests))
        async with asyncio.timeout(30):
            got = [await read_answer(reader) for _ in requests]
        assert [a.status for a in got] == [200, 200, 200, 200, 200, 404] + [200] * 26
        assert [got[i].body for i in (0, 2, 4)] == [body(1), body(2), body(3)]
        assert got[3].body == b"admin /api/x hello"
        assert [a.body for a in got[6:]] == [body(n) for n in range(4, 30)]
        writer.close()
        await server.settled(29)


async def test_expect_100_continue(form: str, tmp_path: Path) -> None:
    """A client that asks before it sends its body is told to go on."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        request = post(CHAT, BODY, {"expect": "100-continue"})
        writer.write(request[: -len(BODY)])
        async with asyncio.timeout(30):
            assert (await read_answer(reader)).status == 100
            writer.write(BODY)
            assert (await read_answer(reader)).body == ANSWER
        writer.close()
        assert engine.heard[0].header("expect") is None


async def test_keep_alive_ends(form: str, tmp_path: Path) -> None:
    """An idle connection is closed after its time, and not before."""
    async with (
        upstream(answers(PLAIN), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(keep_alive=1.0)) as server,
    ):
        reader, writer = await server.open()
        loop = asyncio.get_running_loop()
        for _ in range(2):
            writer.write(post(CHAT, BODY))
            await read_answer(reader)
            await asyncio.sleep(0.3)
        began = loop.time()
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        assert 0.5 <= loop.time() - began <= 1.2
        writer.close()


async def test_connection_close_is_honoured(form: str, tmp_path: Path) -> None:
    """A client that wants the connection closed after its answer gets that."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        reader, writer = await server.open()
        writer.write(post(CHAT, BODY, {"connection": "close"}))
        async with asyncio.timeout(30):
            answer = await read_answer(reader)
            assert await reader.read() == b""
        assert answer.header("connection") == "close"
        writer.close()


REFUSALS = {
    "no key": (post(CHAT, BODY, {"authorization": ""}), 401, "invalid_api_key", Outcome.REFUSED),
    "bad key": (post(CHAT, BODY, {"authorization": "Bearer mm-nobody"}), 401, "invalid_api_key", Outcome.REFUSED),
    "bad scheme": (post(CHAT, BODY, {"authorization": "Basic abc"}), 401, "invalid_api_key", Outcome.REFUSED),
    "revoked key": (post(CHAT, BODY, {"authorization": "Bearer mm-gone"}), 401, "invalid_api_key", Outcome.REFUSED),
    "key of another model": (
        post(CHAT, BODY, {"authorization": "Bearer mm-narrow"}),
        403,
        "permission_denied",
        Outcome.REFUSED,
    ),
    "key that may only look": (
        post(CHAT, BODY, {"authorization": "Bearer mm-reader"}),
        403,
        "permission_denied",
        Outcome.REFUSED,
    ),
    "unknown model": (post(CHAT, b'{"model":"org/model-2"}'), 404, "model_not_found", Outcome.REFUSED),
    "no model": (post(CHAT, b'{"stream":true}'), 400, "invalid_request", Outcome.BAD_REQUEST),
    "model of a wrong type": (post(CHAT, b'{"model":7}'), 400, "invalid_request", Outcome.BAD_REQUEST),
    "bad json": (post(CHAT, b'{"model":"org/model-1",}'), 400, "invalid_request", Outcome.BAD_REQUEST),
    "not utf-8": (post(CHAT, b'{"model":"org/model-1","x":"\xff"}'), 400, "invalid_request", Outcome.BAD_REQUEST),
    "empty": (post(CHAT, b""), 400, "invalid_request", Outcome.BAD_REQUEST),
    "compressed": (post(CHAT, BODY, {"content-encoding": "gzip"}), 400, "invalid_request", Outcome.BAD_REQUEST),
    "bad wait": (post(CHAT, BODY, {"x-vllm-mm-wait": "601"}), 400, "invalid_request", Outcome.BAD_REQUEST),
    "bad priority": (post(CHAT, BODY, {"x-vllm-mm-priority": "high"}), 400, "invalid_request", Outcome.BAD_REQUEST),
    "too large": (post(CHAT, b'{"model":"' + b"x" * 200_000 + b'"}'), 413, "payload_too_large", Outcome.BAD_REQUEST),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_refusals(form: str, tmp_path: Path, case: str) -> None:
    """Each has its status and code, says what to do, leaves one row, and reaches no engine."""
    request, status, code, outcome = REFUSALS[case]
    answer, server, engine = await one(form, answers(PLAIN), request, tmp_path, Rules(body=100_000))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (status, code)
    assert len(error["message"]) > 20
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.header("x-request-id")
    assert answer.header("x-request-id") == server.rows[0].request_id
    assert (server.rows[0].outcome, server.rows[0].status) == (outcome, status)
    assert engine.heard == []
    assert (answer.header("www-authenticate") == "Bearer") == (status == 401)


async def test_refusals_speak_anthropic_where_asked(form: str, tmp_path: Path) -> None:
    """On /v1/messages an error has Anthropic's shape, and x-api-key works as a key."""
    request = post("/v1/messages", b'{"model":"nope"}', {"authorization": "", "x-api-key": "mm-test-secret"})
    answer, _, _ = await one(form, answers(PLAIN), request, tmp_path)
    body = json.loads(answer.body)
    assert (answer.status, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")


LEASE_ERRORS = [
    (QueueFull("full", retry_after=7.2), 503, "queue_full", Outcome.QUEUE_FULL, "8"),
    (StillLoading("loading", retry_after=300), 503, "model_loading", Outcome.WAIT_EXPIRED, "60"),
    (TornDown("going"), 503, "engine_teardown", Outcome.TORN_DOWN, "5"),
    (StartFailed("no memory", phase="weights", retry_after=0), 503, "model_start_failed", Outcome.START_FAILED, "1"),
]


@pytest.mark.parametrize("number", range(len(LEASE_ERRORS)))
async def test_no_lease(form: str, tmp_path: Path, number: int) -> None:
    """What the manager refuses becomes 503 with whole seconds in Retry-After, at most 60."""
    error, status, code, outcome, after = LEASE_ERRORS[number]
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.fail = [error]
        answer = await ask(server, post(CHAT, STREAM))
        assert (answer.status, json.loads(answer.body)["error"]["code"], answer.header("retry-after")) == (
            status,
            code,
            after,
        )
        await server.settled(1)
        assert (server.rows[0].outcome, server.rows[0].queued_s) == (outcome, None)
        assert (await ask(server, post(CHAT, BODY))).status == 200


async def test_wait_and_priority_reach_the_ticket(form: str, tmp_path: Path) -> None:
    """The caller's own wait and priority, or the defaults."""
    async with (
        upstream(answers(PLAIN), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(max_wait=30)) as server,
    ):
        for headers in ({"x-vllm-mm-wait": "0", "x-vllm-mm-priority": "-3"}, {"x-vllm-mm-wait": "600"}, {}):
            assert (await ask(server, post(CHAT, STREAM, headers))).status == 200
        waits = [round(t.deadline - t.arrived, 3) for t in server.leases.tickets]
        assert waits == [0, 600, 30]
        assert [t.priority for t in server.leases.tickets] == [-3, 0, 0]
        assert {(t.model, t.key, t.stream) for t in server.leases.tickets} == {("org/model-1", "k1", True)}
        assert len({t.id for t in server.leases.tickets}) == 3


async def test_a_repeated_request_id_still_has_its_own_row(form: str, tmp_path: Path) -> None:
    """Clients repeat ids when they retry; the ledger's ids are unique all the same."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        for _ in range(3):
            assert (await ask(server, post(CHAT, BODY, {"x-request-id": "same"}))).header("x-request-id") == "same"
        await server.settled(3)
        ids = [row.id for row in server.rows]
        assert len(set(ids)) == 3
        assert {row.request_id for row in server.rows} == {"same"}


async def test_a_harmful_request_id_is_replaced(form: str, tmp_path: Path) -> None:
    """Too long or with odd characters: a new one, which the engine gets too."""
    for bad in ("x" * 129, "a b", 'a"b'):
        answer, server, engine = await one(form, answers(PLAIN), post(CHAT, BODY, {"x-request-id": bad}), tmp_path)
        new = answer.header("x-request-id")
        assert new
        assert new != bad
        assert engine.heard[0].header("x-request-id") == new == server.rows[0].request_id


@pytest.mark.parametrize(
    "path", ["/sleep", "/v1/load_lora_adapter", "/v1/%63hat/completions", "/v1//chat/completions", "/collective_rpc"]
)
async def test_unlisted_paths_never_reach_an_engine(form: str, tmp_path: Path, path: str) -> None:
    """Engines have open administrative routes; only our own list is forwarded."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(path, BODY))
        if path.startswith("/v1"):
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "unknown_route")
            assert answer.header("x-request-id")
        else:
            assert answer.body.startswith(b"admin ")
        assert engine.heard == []


async def test_model_list(form: str, tmp_path: Path) -> None:
    """vLLM's fields and the state; ids with slashes, plain or encoded; only what the key may use."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, get("/v1/models", {"x-request-id": "q"}))
        items = json.loads(answer.body)["data"]
        assert [i["id"] for i in items] == ["org/model-1", "short", "tuned", "other"]
        assert (items[0]["status"], items[0]["max_model_len"], items[0]["owned_by"]) == ("ready", 4096, "vllm")
        assert items[0]["task"] == "generate"
        assert (items[2]["parent"], items[2]["root"]) == ("org/model-1", "/lora")
        assert answer.header("x-request-id") == "q"
        for path in ("/v1/models/org/model-1", "/v1/models/org%2Fmodel-1", "/v1/models/short"):
            assert json.loads((await ask(server, get(path))).body)["root"] == "org/model-1"
        narrow = {"authorization": "Bearer mm-narrow"}
        assert [i["id"] for i in json.loads((await ask(server, get("/v1/models", narrow))).body)["data"]] == ["other"]
        assert (await ask(server, get("/v1/models/org/model-1", narrow))).status == 404
        assert (await ask(server, get("/v1/models/none"))).status == 404
        assert (await ask(server, get("/v1/models", {"authorization": ""}))).status == 401
        assert (await ask(server, get("/v1/models", {"authorization": "Bearer mm-reader"}))).status == 200
        head = (await raw(server, get("/v1/models", {"connection": "close"}, method="HEAD"))).split(b"\r\n\r\n")
        assert head[0].startswith(b"HTTP/1.1 200 ")
        assert head[1] == b""
        assert (await ask(server, get(CHAT))).status == 405
        assert (await ask(server, get("/v1/models", method="DELETE"))).status == 405
        assert engine.heard == []
        assert server.leases.tickets == []


async def test_alias_is_shown(form: str, tmp_path: Path) -> None:
    """Whoever asked for an alias sees it in the answer, streamed or not; adapters and the id itself need no rewriting."""
    plain = JSON_HEAD + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
    async with upstream(answers(plain), tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, b'{"model":"short"}'))
        assert answer.body == ANSWER.replace(b"org/model-1", b"short")
        assert answer.header("content-length") == str(len(answer.body))
        assert engine.heard[0].body == b'{"model":"short"}'
        assert (await ask(server, post(CHAT, b'{"model":"tuned"}'))).body == ANSWER
        await server.settled(2)
        assert (server.rows[0].asked, server.rows[0].model, server.rows[0].usage) == (
            "short",
            "org/model-1",
            Usage(12, 32, 4),
        )
    stream = SSE_HEAD + chunk(event(1)) + chunk(event(2)[:20]) + chunk(event(2)[20:]) + chunk(DONE) + b"0\r\n\r\n"
    answer, _, _ = await one(
        form,
        answers(*[stream[i : i + 9] for i in range(0, len(stream), 9)]),
        post(CHAT, b'{"model":"short","stream":true}'),
        tmp_path,
    )
    assert (answer.body, answer.complete) == (event(1, "short") + event(2, "short") + DONE, True)


async def test_retried_once_when_nothing_was_sent(form: str, tmp_path: Path) -> None:
    """An engine that cannot be connected to costs nothing but a second lease; a second failure is a 502."""
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address) as server:

        def dead() -> InferenceChannel:
            return InferenceChannel(Address(socket=str(tmp_path / "nobody")), limit=1)

        server.leases.channels = [dead()]
        assert (await ask(server, post(CHAT, BODY))).body == ANSWER
        assert server.leases.taken == 2
        server.leases.channels = [dead(), dead()]
        answer = await ask(server, post(CHAT, BODY))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_died")
        assert server.leases.taken == 4
        await server.settled(2)
        assert [row.outcome for row in server.rows] == [Outcome.OK, Outcome.UPSTREAM_DIED]


async def test_progress_comments(form: str, tmp_path: Path) -> None:
    """Who asks for progress gets the status early and comments while it waits, then the stream itself."""
    stream = SSE_HEAD + chunk(event(1)) + chunk(DONE) + b"0\r\n\r\n"
    async with (
        upstream(answers(stream), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(progress=0.1)) as server,
    ):
        server.leases.hold = hold = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, hold.set)
        answer = await ask(server, post(CHAT, STREAM, {"x-vllm-mm-progress": "1"}))
        comment = b": queued position=1 model=org/model-1 phase=weights 45% eta=12s\n\n"
        assert answer.complete
        assert answer.status == 200
        assert answer.body.endswith(event(1) + DONE)
        assert answer.body.startswith(comment * 2)
        assert answer.body.replace(comment, b"") == event(1) + DONE
        answer = await ask(server, post(CHAT, STREAM, {"x-vllm-mm-progress": "1"}))
        assert answer.body == event(1) + DONE, "no wait, no comment"
        server.leases.hold = hold = asyncio.Event()
        server.leases.fail = [StartFailed("no memory")]
        asyncio.get_running_loop().call_later(0.2, hold.set)
        answer = await ask(server, post(CHAT, STREAM, {"x-vllm-mm-progress": "1"}))
        assert (answer.status, answer.complete) == (200, False)
        assert b'"code":"model_start_failed"' in answer.body
        await server.settled(3)
        assert [row.outcome for row in server.rows] == [Outcome.OK, Outcome.OK, Outcome.START_FAILED]


async def test_a_key_asks_for_progress_for_all_that_it_sends(form: str, tmp_path: Path) -> None:
    """Without a header; one that says no is obeyed, and what is no stream is as ever."""
    stream = SSE_HEAD + chunk(event(1)) + chunk(DONE) + b"0\r\n\r\n"
    told = {"authorization": "Bearer mm-told"}
    async with (
        upstream(answers(stream), tmp_path) as engine,
        plane(form, engine.address, rules=Rules(progress=0.05)) as server,
    ):

        async def waits(body: bytes, headers: dict[str, str]) -> Answer:
            server.leases.hold = hold = asyncio.Event()
            asyncio.get_running_loop().call_later(0.3, hold.set)
            return await ask(server, post(CHAT, body, headers))

        assert (await waits(STREAM, told)).body.startswith(b": queued position=1 model=org/model-1")
        assert (await waits(STREAM, {**told, "x-vllm-mm-progress": "0"})).body == event(1) + DONE
        assert (await waits(BODY, told)).body == event(1) + DONE
        await server.settled(3)


@pytest.mark.parametrize(
    ("path", "refusal", "told"),
    [
        (
            CHAT,
            {"error": {"message": "too long", "type": "BadRequestError", "param": "min_tokens", "code": 400}},
            {"error": {"message": "too long", "type": "BadRequestError", "param": "min_tokens", "code": 400}},
        ),
        (
            "/v1/messages",
            {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}},
            {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}, "request_id": "r-1"},
        ),
        (
            "/v1/responses",
            {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}},
            {
                "type": "error", "message": "too long", "param": None, "code": "400", "sequence_number": 0,
                "error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400},
            },
        ),
    ],
)  # fmt: skip
async def test_progress_and_a_refusing_engine(
    form: str, tmp_path: Path, path: str, refusal: dict[str, object], told: dict[str, object]
) -> None:
    """When the status is out already, the engine's own error comes as an event of the API that was asked, and the stream is cut."""
    body = json.dumps(refusal).encode()
    packet = (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    async with upstream(answers(packet), tmp_path) as engine, plane(form, engine.address) as server:
        server.leases.hold = hold = asyncio.Event()
        reader, writer = await server.open()
        writer.write(post(path, STREAM, {"x-vllm-mm-progress": "1", "x-request-id": "r-1"}))
        async with asyncio.timeout(30):
            await reader.readuntil(b": queued")
            hold.set()
            await reader.readuntil(b"data: ")
            event = await reader.readuntil(b"\n\n")
            assert json.loads(event) == told
            assert b"0\r\n\r\n" not in await reader.read(), "it is cut"
        writer.close()
        await server.settled(1)
        assert (server.rows[0].outcome, server.rows[0].error) == (Outcome.UPSTREAM_ERROR, "too long")


async def test_origins(form: str, tmp_path: Path) -> None:
    """Pages of a listed origin may read answers, errors included; others may not."""
    rules = Rules(origins=frozenset({b"https://a.example"}))
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address, rules=rules) as server:
        for body in (BODY, b"{}"):
            answer = await ask(server, post(CHAT, body, {"origin": "https://a.example"}))
            assert answer.header("access-control-allow-origin") == "https://a.example"
            answer = await ask(server, post(CHAT, body, {"origin": "https://b.example"}))
            assert answer.header("access-control-allow-origin") is None


@pytest.mark.parametrize(("path", "methods"), [(CHAT, "POST"), ("/v1/models", "GET, HEAD")])
async def test_a_browser_that_asks_first_is_answered(form: str, tmp_path: Path, path: str, methods: str) -> None:
    """A page has to send a key, so its browser asks first, without one: pages of a listed origin may, for ten minutes."""
    rules = Rules(origins=frozenset({b"https://a.example"}))
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-y"}
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address, rules=rules) as server:
        good = {"authorization": "", "origin": "https://a.example", **wanted}
        answer = await ask(server, get(path, good, method="OPTIONS"))
        assert (answer.status, answer.header("access-control-allow-origin")) == (204, "https://a.example")
        assert answer.header("access-control-allow-methods") == methods
        assert answer.header("access-control-allow-headers") == "authorization, x-y"
        assert answer.header("access-control-max-age") == "600"
        for bad in ({"origin": "https://b.example"}, {"access-control-request-method": ""}):
            answer = await ask(server, get(path, {**good, **bad}, method="OPTIONS"))
            assert answer.status == 405
            assert answer.header("access-control-allow-methods") is None
        listed = await ask(server, get("/v1/models", {"origin": "https://a.example"}))
        assert (listed.status, listed.header("access-control-allow-origin")) == (200, "https://a.example")
        assert engine.heard == []
