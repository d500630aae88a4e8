"""Hundreds of requests to real vLLM directly and through the product: the same answers, but for what docs/differences.md lists."""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from differential import DIFFERENCES, Pair, compare, streamed, unexplained
from generated import CHAT, GENERATING, STREAMING, Ask, Maker, asks, every
from real_vllm import EAGER, EMBED, START, A, Installation, engine_socket
from recorded import STATUSES, record
from serving import Serving

ALIAS = "another-name"
"""As long as the model's own, so that lengths are the same too."""
SHARE = 8
"""One of so many requests that take work is sent, when not all are."""


@pytest.fixture(scope="module")
def product(vllm: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Both models, ready."""
    env = {**vllm.declare(A)["env"], **EAGER}
    serving = Serving(
        tmp_path_factory.mktemp("differential"),
        {
            "devices": [{"id": "cpu", "memory": "6GiB", "headroom": 0}],
            "models": {
                A: vllm.declare(A, preload=True, aliases=[ALIAS], env=env),
                EMBED: vllm.declare(EMBED, task="embed", preload=True, env=env),
            },
        },
    )
    try:
        asyncio.run(both_ready(serving))
        yield serving
        assert asyncio.run(serving.stop()) == 0
        assert not serving.left()
    finally:
        serving.end()


async def both_ready(serving: Serving) -> None:
    await serving.start()
    async with httpx.AsyncClient(timeout=30) as client:
        for model in (A, EMBED):
            await serving.until(client, model, "ready", START)


async def addresses(serving: Serving, model: str) -> tuple[str, str]:
    """The engine's unix socket, and the product's HOST:PORT."""
    return await engine_socket(serving, model), f"127.0.0.1:{serving.port}"


async def both(serving: Serving, model: str, sent: list[Ask]) -> list[Pair]:
    engine, ours = await addresses(serving, model)
    return await asyncio.to_thread(compare, sent, engine, ours)


async def test_answers_are_the_engines_own(product: Serving, full: bool) -> None:
    """Status, headers and body of hundreds of requests, valid and broken, streamed and not; each difference is one of the table,
    and nothing in the table is without a case. What the simulated engine is held to is what vLLM says here."""
    recording = os.environ.get("MM_RECORD_TRANSCRIPTS") == "1"
    sent = {model: asks(model, embeds=model == EMBED) for model in (A, EMBED)}
    if not full and not recording:
        sent = {model: every(SHARE, found, STATUSES[model]) for model, found in sent.items()}
    pairs = dict(zip(sent, await asyncio.gather(*(both(product, m, found) for m, found in sent.items())), strict=True))
    if recording:
        record({model: {pair.ask.name: pair.engine.status for pair in found} for model, found in pairs.items()})
    wrong = [str(pair) for found in pairs.values() for pair in unexplained(found)]
    assert not wrong, f"{len(wrong)} answers differ:\n" + "\n".join(wrong[:20])
    used = {pair.difference for found in pairs.values() for pair in found if not pair.same}
    assert used == {difference.name for difference in DIFFERENCES}
    for model, found in pairs.items() if not recording else ():
        said = {pair.ask.name: pair.engine.status for pair in found}
        assert said == {name: STATUSES[model].get(name) for name in said}, "vLLM answers otherwise than it was recorded"
    assert sum(map(len, pairs.values())) > 700
    assert streamed(pairs[A]) >= STREAMING


async def test_an_alias_changes_the_name_and_nothing_else(product: Serving) -> None:
    """Asked for by its alias, a model answers as if asked by its name; only `model` shows the alias."""
    engine, ours = await addresses(product, A)
    own, other = Maker(A, 1), Maker(ALIAS, 1)
    sent = [(own.ask(s, w, {}, stream=w != ""), other.ask(s, w, {}, stream=w != "")) for s in GENERATING for w in ("", "s")
            if s.streams or not w]  # fmt: skip
    usage = {"stream_options": {"include_usage": True}}
    sent.append((own.ask(CHAT, "usage", usage, stream=True), other.ask(CHAT, "usage", usage, stream=True)))
    directly = await asyncio.to_thread(compare, [ask for ask, _ in sent], engine, engine)
    through = await asyncio.to_thread(compare, [ask for _, ask in sent], ours, ours)
    for plain, named in zip(directly, through, strict=True):
        assert plain.same, "vLLM is not the same twice"
        answer = named.ours
        renamed = replace(answer, body=answer.body.replace(ALIAS.encode(), A.encode()))
        assert renamed == plain.engine, f"{named}\n{plain}"
        told = answer.told or {}
        assert told.get("model", ALIAS) == ALIAS
        assert A.encode() not in answer.body


SCHEMA: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


async def test_forms_through_the_official_client(product: Serving) -> None:
    """An answer in the form of a schema, whole and streamed: what is asked for, and the same twice."""
    ask: Any = {
        "model": ALIAS,
        "messages": [{"role": "user", "content": "Is the sky blue?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    async with openai.AsyncOpenAI(base_url=f"{product.url}/v1", api_key="x", timeout=240, max_retries=0) as client:
        create = client.chat.completions.create
        whole = await create(**ask, response_format=form)
        assert isinstance(json.loads(whole.choices[0].message.content)["ok"], bool)
        text = ""
        async for chunk in await create(**ask, response_format=form, stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == whole.choices[0].message.content
