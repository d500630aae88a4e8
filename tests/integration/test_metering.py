"""What a request used is known whatever its client asked for; and its client sees nothing of how that is known."""

import asyncio
import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from counters import tokens
from hard_cases import Case, running, sim
from plane import FORMS, ask, plane, post
from upstreams import Peer, Script, chunk, upstream
from vllm_mm.domain.request_rules import Level, rule_set
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import Outcome, Usage

CHAT = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = (
    b'data: {"id":"c","model":"org/model-1","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
)
LAST = b'data: {"id":"c","model":"org/model-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]%b}\n\n'
MARK = b',"system_fingerprint":"vllm-1"'
USAGE = b'data: {"id":"c","model":"org/model-1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}%b}\n\n'
DONE = b"data: [DONE]\n\n"
SEED = int(os.environ.get("MM_SEED", "1"))
LENGTHS = {"max_tokens", "max_output_tokens"}
"""What the APIs call the length of an answer."""
STREAM = b'{"model":"org/model-1","stream":true}'
ASKED = b'{"stream_options":{"include_usage":true},"model":"org/model-1","stream":true}'


def like_vllm(size: int) -> Script:
    """Gives usage to those who ask, in an event that has the fingerprint then; in packets of `size` bytes."""

    async def script(peer: Peer) -> None:
        while (heard := await peer.read()) is not None:
            asks = (json.loads(heard.body).get("stream_options") or {}).get("include_usage")
            ends = [LAST % b"", USAGE % MARK] if asks else [LAST % MARK]
            data = SSE_HEAD + b"".join(map(chunk, [TEXT, TEXT, *ends, DONE])) + b"0\r\n\r\n"
            for at in range(0, len(data), size):
                await peer.send(data[at : at + size])

    return script


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("size", [7, 100_000])
async def test_streams_are_counted_unseen(form: str, tmp_path: Path, size: int) -> None:
    """The engine is asked in one place of the body, and the client gets the stream that it would have got; also by an alias, over
    HTTP/1.0 and with comments in it. Who asks gets what it asks for, in the engine's own chunks."""
    plain = TEXT + TEXT + LAST % MARK + DONE
    async with upstream(like_vllm(size), tmp_path) as engine, plane(form, engine.address) as server:
        for n, (body, headers) in enumerate(
            [
                (STREAM, {}),
                (STREAM, {}),
                (b'{"stream_options":null,"model":"short","stream":true}', {}),
                (STREAM, {"x-vllm-mm-progress": "1"}),
            ]
        ):
            answer = await ask(server, post(CHAT, body, headers))
            name = b"short" if b"short" in body else b"org/model-1"
            assert (answer.status, answer.complete) == (200, True)
            assert answer.body == plain.replace(b"org/model-1", name)
            assert json.loads(engine.heard[n].body)["stream_options"] == {"include_usage": True}
        assert engine.heard[0].body == ASKED
        if form == "protocol":
            answer = await ask(server, post(CHAT, STREAM, version="1.0"))
            assert answer.body == plain
        answer = await ask(server, post(CHAT, ASKED))
        assert answer.body == TEXT + TEXT + LAST % b"" + USAGE % MARK + DONE
        if form == "protocol":
            assert answer.framed == b"".join(map(chunk, [TEXT, TEXT, LAST % b"", USAGE % MARK, DONE])) + b"0\r\n\r\n"
        await server.settled(6 if form == "protocol" else 5)
        assert {(row.usage, row.outcome) for row in server.rows} == {(Usage(5, 3), Outcome.OK)}


async def test_whose_streams_are_left_alone(form: str, tmp_path: Path) -> None:
    """A model that says so, one whose engine tells everybody, rules that say something of it, and what is no stream of these two."""
    rules = {"org/model-1": rule_set(Level.MODEL, overrides={"stream_options": None})}
    for spec in (
        ModelSpec("org/model-1", stream_usage=False),
        ModelSpec("org/model-1", args={"enable-force-include-usage": True}),
        ModelSpec("org/model-1", request_rules=rules),
    ):
        async with upstream(like_vllm(999), tmp_path) as engine, plane(form, engine.address, specs=[spec]) as server:
            assert (await ask(server, post(CHAT, STREAM))).body == TEXT + TEXT + LAST % MARK + DONE
            assert engine.heard[0].body == STREAM
            assert server.rows[0].usage == Usage()
    async with upstream(like_vllm(999), tmp_path) as engine, plane(form, engine.address) as server:
        for path, body in (
            (CHAT, STREAM.replace(b"true", b"false")),
            ("/v1/messages", STREAM),
            ("/v1/responses", STREAM),
        ):
            await ask(server, post(path, body))
            assert engine.heard[-1].body == body


async def test_rules_and_usage_together(form: str, tmp_path: Path) -> None:
    """Edits of both kinds in one body."""
    rules = {"org/model-1": rule_set(Level.MODEL, defaults={"top_p": 0.5}, overrides={"seed": None})}
    spec = ModelSpec("org/model-1", request_rules=rules)
    async with upstream(like_vllm(999), tmp_path) as engine, plane(form, engine.address, specs=[spec]) as server:
        await ask(server, post(CHAT, b'{"seed":1,"model":"org/model-1","stream":true}'))
        assert (
            engine.heard[0].body
            == b'{"stream_options":{"include_usage":true},"model":"org/model-1","stream":true,"top_p":0.5}'
        )


@pytest.mark.parametrize("cut", [1, 40, len(chunk(TEXT)) - 2, len(chunk(TEXT)), len(chunk(TEXT)) + 2])
async def test_a_stream_that_is_cut(form: str, tmp_path: Path, cut: int) -> None:
    """In any place of the engine's chunks: whole events, then the error as an event of its own, and no end."""
    sent = (chunk(TEXT) * 2)[: len(chunk(TEXT)) + cut]

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + sent)
        peer.close()

    async with upstream(script, tmp_path) as engine, plane(form, engine.address) as server:
        answer = await ask(server, post(CHAT, STREAM))
        assert not answer.complete
        whole, error = answer.body.rstrip(b"\n").rsplit(b"data: ", 1)
        assert whole.rstrip(b"\n") == (TEXT * (1 + (cut >= len(chunk(TEXT)) - 2))).rstrip(b"\n")
        assert json.loads(error)["error"]["code"] == "upstream_died"
        await server.settled(1)
        assert server.rows[0].outcome is Outcome.UPSTREAM_DIED


async def test_times_are_those_of_tokens(tmp_path: Path) -> None:
    """The first token of a stream is not its first event, and what ends a stream is none."""

    async def script(peer: Peer) -> None:
        await peer.read()
        await peer.send(SSE_HEAD + chunk(b'event: response.created\ndata: {"type":"response.created"}\n\n'))
        await asyncio.sleep(0.1)
        for n in range(3):
            await peer.send(
                chunk(b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n')
            )
            await asyncio.sleep(0.05 if n < 2 else 0)
        await asyncio.sleep(0.3)
        await peer.send(chunk(b'event: response.completed\ndata: {"type":"response.completed"}\n\n') + b"0\r\n\r\n")

    async with upstream(script, tmp_path) as engine, plane("protocol", engine.address) as server:
        await ask(server, post("/v1/responses", STREAM))
        await server.settled(1)
        row = server.rows[0]
        assert row.ttft_s is not None
        assert row.gaps is not None
        assert row.ttft_s >= 0.1
        assert sum(row.gaps.counts) == 2
        assert row.ttft_s + row.gaps.total <= row.total_s - 0.29


# The engine's own counters


async def used(case: Case, model: str) -> tuple[float, float]:
    return tokens((await case.client.get(f"{case.url}/metrics")).text, model)


def mixed() -> Sequence[tuple[str, str, dict[str, Any]]]:
    """Path, model and body of every form of API, streaming and not, with and without a wish for usage."""
    prompts = ["hi", "tell me of the sea", "x " * 40]
    found: list[tuple[str, str, dict[str, Any]]] = []
    for n, (prompt, stream) in enumerate(itertools.product(prompts, [False, True])):
        chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1 + 3 * n, "stream": stream}
        found += [
            ("/v1/chat/completions", "chat", chat),
            ("/v1/completions", "chat", {"prompt": prompt, "max_tokens": 2 + n, "stream": stream}),
            ("/v1/completions", "chat", {"prompt": [prompt, "and"], "max_tokens": 2 + n, "stream": stream}),
            ("/v1/messages", "chat", chat),
            ("/v1/responses", "chat", {"input": prompt, "max_output_tokens": 3 + n, "stream": stream}),
            ("/v1/embeddings", "embed", {"input": [prompt, "b"]}),
            ("/v1/rerank", "score", {"query": prompt, "documents": ["a", "b c"]}),
            ("/v1/score", "score", {"queries": prompt, "documents": ["a"]}),
        ]
        if stream:
            options = {"include_usage": True, "continuous_usage_stats": n % 2 == 0}
            found.append(("/v1/chat/completions", "chat", {**chat, "stream_options": options}))
    return found


async def test_the_ledger_says_what_the_engines_say() -> None:
    """A few hundred requests of all forms, in any order, and streams that their clients leave between them: for each model the tokens of the
    ledger are those that its engine counted. Of a stream that was left, the ledger has what was told until then, which is never more."""
    print(f"MM_SEED={SEED}")
    chance = random.Random(SEED)
    quick = {"tokens_per_second": 50_000, "prefill_tokens_per_second": 1_000_000}
    models = {
        "chat": sim(**quick),
        "embed": sim(task="embed", model={"task": "embed"}, **quick),
        "score": sim(task="score", model={"task": "score"}, **quick),
        "left": sim(prefill_tokens_per_second=1_000_000, tokens_per_second=300),
    }
    async with running(models, own_devices=True) as case:
        await case.ready(*models)
        before = {model: await used(case, model) for model in models}
        left = [(path, "left", body) for path, model, body in mixed() if model == "chat" and body["stream"]]
        requests = [*mixed()] * 4 + left * 2
        chance.shuffle(requests)

        async def leave(path: str, body: dict[str, Any]) -> None:
            """After some of its answer; there is more to come for a second."""
            endless = {**body, **dict.fromkeys(LENGTHS & body.keys(), 300), "ignore_eos": True}
            async with case.client.stream("POST", f"{case.url}{path}", json={"model": "left", **endless}) as answer:
                assert answer.status_code == 200
                pieces = answer.aiter_bytes()
                for _ in range(chance.randrange(1, 20)):
                    await anext(pieces)

        async def send(path: str, model: str, body: dict[str, Any]) -> None:
            if model == "left":
                await leave(path, body)
                return
            answer = await case.client.post(f"{case.url}{path}", json={"model": model, **body})
            assert answer.status_code == 200, answer.text

        pending = iter(requests)

        async def client() -> None:
            for request in pending:
                await send(*request)

        await asyncio.gather(*(client() for _ in range(16)))
        ends = await case.outcomes(len(requests))
        assert ends == {"ok": len(requests) - 2 * len(left), "client_gone": 2 * len(left)}
        for model in models:
            after = await used(case, model)
            ledger = {
                name: (prompt, completion)
                for name, prompt, completion in case.serving.rows(
                    "select model, sum(prompt_tokens), sum(completion_tokens) from requests group by model"
                )
            }
            counted = tuple(b - a for a, b in zip(before[model], after, strict=True))
            if model == "left":
                assert all((told or 0) <= more for told, more in zip(ledger[model], counted, strict=True))
                assert ledger[model][1] > 0, "who leaves has had tokens"
            else:
                assert ledger[model] == counted, model
