"""Two real models, memory for one: the official clients of OpenAI and Anthropic talk to both by name.

Answers are compared with those of vLLM asked directly: float32, temperature 0, one at a time.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from counters import tokens
from real_vllm import ADAPTER, EMBED, START, A, B, Installation, direct, engine_socket
from serving import Serving

QUESTIONS = ("What is the capital of France?", "Name three colours.")
TOKENS = 24


def chat(model: str, question: str, tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
    }


async def ask_directly(vllm: Installation, model: str, launcher: str) -> dict[tuple[str, str, str], str]:
    """(api, model, question) -> text, one question after the other."""
    answers: dict[tuple[str, str, str], str] = {}
    async with direct(vllm, model, launcher=launcher) as engine:
        for question in QUESTIONS:
            body = chat(model, question)
            answer = (await engine.post("/v1/chat/completions", json=body)).json()
            answers["openai", model, question] = answer["choices"][0]["message"]["content"]
            answer = (await engine.post("/v1/messages", json=body)).json()
            answers["anthropic", model, question] = answer["content"][0]["text"]
    return answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture
def server(vllm: Installation, folder: Path) -> Iterator[Serving]:
    serving = Serving(
        folder,
        {
            "auth": {"mode": "keys"},
            "devices": [{"id": "cpu", "memory": "5GiB", "headroom": 0}],
            "queue": {"max_wait": "5m"},
            "swap": {"max_wait": "5s", "min_dwell": "1s"},
            "models": {A: vllm.declare(A), B: vllm.declare(B)},
        },
    )
    yield serving
    serving.end()


class Clients:
    """Both official clients, with the admin token as their key and without retries of their own."""

    def __init__(self, url: str, key: str) -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=600, max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(base_url=url, api_key=key, timeout=600, max_retries=0)

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()

    async def ask(self, api: str, model: str, question: str, *, stream: bool, tokens: int = TOKENS) -> str:
        """The text of the answer; a stream has to end as its API says it ends."""
        body = chat(model, question, tokens)
        if api == "openai":
            if not stream:
                answer = await self.openai.chat.completions.create(**body)
                assert answer.model == model
                return answer.choices[0].message.content or ""
            text, reason = "", None
            async for chunk in await self.openai.chat.completions.create(**body, stream=True):
                assert chunk.model == model
                text += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
            assert reason in {"stop", "length"}
            return text
        extra = {"temperature": body.pop("temperature")}  # this client knows no such argument any more
        if not stream:
            message = await self.anthropic.messages.create(**body, extra_body=extra)
            assert message.model == model
            return "".join(block.text for block in message.content if block.type == "text")
        async with self.anthropic.messages.stream(**body, extra_body=extra) as events:
            text = "".join([part async for part in events.text_stream])
            assert (await events.get_final_message()).stop_reason in {"end_turn", "max_tokens"}
        return text


async def events_of(server: Serving, key: str) -> list[dict[str, Any]]:
    """Everything in the journal, read as `vllm-mm events` reads it."""
    found: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=10) as client:
        await server.written(client)
        newest = max(seq for (seq,) in server.rows("select max(seq) from events"))
        async for event in sse(client, f"{server.url}/api/events?after=0"):
            found.append(event)
            if event["seq"] >= newest:
                return found
    return found


async def sse(client: httpx.AsyncClient, url: str) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("GET", url) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield httpx.Response(200, content=line.removeprefix("data: ")).json()


def loads(events: list[dict[str, Any]]) -> list[str]:
    return [e["model"] for e in events if e["kind"] == "instance.ready"]


async def test_two_models_take_turns(vllm: Installation, server: Serving, two_models_transcript: Any) -> None:
    """Both answer by name over both APIs, streaming and not, as vLLM itself does; every swap is in the events; at most
    one is loaded at a time; nothing is left at the end."""
    say = two_models_transcript
    say.heading("vLLM asked directly")
    # One of them spawned, as a user would: the engines of the product are forked, and answer like it.
    first, second = await asyncio.gather(ask_directly(vllm, A, "local"), ask_directly(vllm, B, "warm"))
    expected = first | second
    for (api, model, question), text in expected.items():
        say.note(f"{api:9} {model:18} {question!r} -> {text!r}")
    # The two must be told apart by what they say, or equal answers would prove nothing.
    assert all(expected["openai", A, q] != expected["openai", B, q] for q in QUESTIONS)

    say.heading("Through vllm-mm, in turns (memory for one of them)")
    await server.start()
    found = re.search(r"Admin token, shown this once: (\S+)", server.log)
    assert found is not None
    key = found[1]
    clients = Clients(server.url, key)
    try:
        turns = [
            ("openai", A, QUESTIONS[0], False),
            ("openai", A, QUESTIONS[1], True),
            ("anthropic", A, QUESTIONS[0], True),
            ("anthropic", B, QUESTIONS[0], False),
            ("anthropic", B, QUESTIONS[1], True),
            ("openai", B, QUESTIONS[0], True),
            ("openai", A, QUESTIONS[0], True),
        ]
        for api, model, question, stream in turns:
            text = await clients.ask(api, model, question, stream=stream)
            say.note(f"{api:9} {model:18} {'stream' if stream else 'whole ':6} {question!r} -> {text!r}")
            assert text == expected[api, model, question], (api, model, question)
        assert loads(await events_of(server, key)) == [A, B, A]

        say.heading("At the same time: eight requests, four for each")
        many = [
            (api, model, q, stream)
            for q, stream in zip(QUESTIONS, (True, False), strict=True)
            for api in ("openai", "anthropic")
            for model in (A, B)
        ]
        async with asyncio.timeout(2 * START):
            texts = await asyncio.gather(*(clients.ask(api, m, q, stream=s) for api, m, q, s in many))
        for (api, model, question, stream), text in zip(many, texts, strict=True):
            same = "as alone" if text == expected[api, model, question] else "differs from alone (batched)"
            say.note(f"{api:9} {model:18} {'stream' if stream else 'whole ':6} {question!r} -> {text!r} ({same})")
            assert text
        # Served together, not one swap per request: what was for A ran on the A that was there, then B came once.
        assert loads(await events_of(server, key)) == [A, B, A, B]
    finally:
        await clients.close()

    say.heading("The events")
    events = await events_of(server, key)
    ready: set[str] = set()
    for event in events:
        data = {k: v for k, v in event.get("data", {}).items() if k in {"reason", "victims", "took_s", "goal", "then"}}
        say.note(f"#{event['seq']:<3} {event['kind']:20} {event.get('model') or '':18} {event['cause']} {data or ''}")
        if event["kind"] == "instance.ready":
            assert not ready, f"{event['model']} was loaded while {ready} held the memory"
            ready.add(event["model"])
        elif event["kind"] in {"instance.stopped", "instance.backoff", "instance.failed"}:
            ready.discard(event["model"])
    rows = await server.rows_when(
        "select model, outcome, count(*) from requests group by model, outcome order by model",
        lambda found: sum(count for *_, count in found) >= 15,
    )
    assert sorted(rows) == [(A, "ok", 8), (B, "ok", 7)], rows
    say.heading("The ledger")
    for row in rows:
        say.note(str(row))
    assert await server.stop() == 0
    assert not server.left()
    say.note("SIGTERM: exit code 0, no process left")


SPEAKER = "tuned"
"""The name of the adapter."""


@pytest.fixture(scope="module")
def beside(vllm: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A chat model that calls tools and has an adapter, and an embedding model: both loaded, for the memory is enough."""
    calls = {**vllm.declare(A)["args"], "enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
    chats = vllm.declare(A, args=calls, lora={SPEAKER: str(vllm.models / ADAPTER)}, preload=True)
    serving = Serving(
        tmp_path_factory.mktemp("beside"),
        {
            "devices": [{"id": "cpu", "memory": "6GiB", "headroom": 0}],
            "queue": {"max_wait": "5m"},
            "models": {A: chats, EMBED: vllm.declare(EMBED, task="embed", preload=True)},
        },
    )

    async def ready() -> None:
        await serving.start()
        async with httpx.AsyncClient(timeout=30) as client:
            for model in (A, EMBED):
                await serving.until(client, model, "ready", START)

    try:
        asyncio.run(ready())
        yield serving
        assert asyncio.run(serving.stop()) == 0
        assert not serving.left()
    finally:
        serving.end()


async def test_an_embedding_model_beside_a_chat_model(beside: Serving) -> None:
    """A real embedding model is ready after a pooling probe, and what is alike is near."""
    async with openai.AsyncOpenAI(base_url=f"{beside.url}/v1", api_key="none", timeout=600, max_retries=0) as client:
        answer, vectors = await asyncio.gather(
            client.chat.completions.create(**chat(A, QUESTIONS[0])),
            client.embeddings.create(model=EMBED, input=["a cat", "a kitten", "an aeroplane"]),
        )
    assert "Paris" in (answer.choices[0].message.content or "")
    cat, kitten, plane = (v.embedding for v in vectors.data)
    assert len(cat) == 384
    assert dot(cat, kitten) > dot(cat, plane) + 0.2


async def test_an_adapter_is_a_model_by_name(beside: Serving) -> None:
    """Listed with its parent, served by the parent's engine, over both APIs, whole and streamed; it says what vLLM says for it directly, and
    nothing of what its parent says. One that nobody declared is refused with a similar name."""
    few = 8
    async with httpx.AsyncClient(base_url=beside.url, timeout=240) as http:
        listed = {item["id"]: item for item in (await http.get("/v1/models")).json()["data"]}
        assert (listed[SPEAKER]["parent"], listed[A]["parent"]) == (A, None)
        assert listed[SPEAKER]["root"].endswith(ADAPTER)
        states = {m: i["state"] for m, i in (await beside.instances(http)).items()}
        assert states == {A: "ready", EMBED: "ready"}, "an adapter is no engine of its own"
        refused = await http.post("/v1/chat/completions", json=chat("tunes", QUESTIONS[0]))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert SPEAKER in refused.json()["error"]["message"]
    transport = httpx.AsyncHTTPTransport(uds=await engine_socket(beside, A))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=240) as engine:
        said = await engine.post("/v1/chat/completions", json=chat(SPEAKER, QUESTIONS[0], few))
    expected = said.json()["choices"][0]["message"]["content"]
    assert expected
    clients = Clients(beside.url, "none")
    try:
        turns = (("openai", False), ("openai", True), ("anthropic", True))
        answers = [await clients.ask(api, SPEAKER, QUESTIONS[0], stream=stream, tokens=few) for api, stream in turns]
        parent = await clients.ask("openai", A, QUESTIONS[0], stream=False, tokens=few)
    finally:
        await clients.close()
    assert answers == [expected] * 3
    assert parent != expected
    assert "Paris" in parent
    rows = await beside.rows_when(
        f"select model, outcome, count(*) from requests where asked = '{SPEAKER}' group by model, outcome",  # noqa: S608  # ours
        lambda found: sum(row[2] for row in found) >= 3,
    )
    assert rows == [(A, "ok", 3)]


async def test_tools_and_tokens(beside: Serving) -> None:
    """The chat model calls tools that have to be called, for both official clients; and for both models the ledger's tokens are those that
    vLLM counted."""
    clients = Clients(beside.url, "none")
    try:
        await tools_are_called(clients)
        await tokens_are_counted_alike(beside)
    finally:
        await clients.close()


PAINT: Any = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "dry": {"type": "boolean"}},
    "required": ["colour", "dry"],
    "additionalProperties": False,
}


def painted(arguments: Any) -> bool:
    """They fit the schema."""
    return (
        set(arguments) == {"colour", "dry"}
        and arguments["colour"] in {"red", "blue"}
        and arguments["dry"] in {True, False}
    )


async def tools_are_called(clients: Clients) -> None:
    """By name, and because one has to be, whole and streamed: any weights do that, for vLLM holds them to the form of a `strict` tool."""
    function: Any = {"type": "function", "function": {"name": "paint", "parameters": PAINT, "strict": True}}
    named: Any = {"type": "function", "function": {"name": "paint"}}
    ask: Any = {**chat(A, "Paint the wall."), "max_tokens": 80, "tools": [function]}
    create = clients.openai.chat.completions.create
    for choice, reason in ((named, "stop"), ("required", "tool_calls")):
        whole = (await create(**ask, tool_choice=choice)).choices[0]
        assert whole.finish_reason == reason
        assert whole.message.tool_calls is not None
        call = whole.message.tool_calls[0]
        assert call.type == "function"
        assert call.function.name == "paint"
        assert painted(json.loads(call.function.arguments))
        text = ""
        async for chunk in await create(**ask, tool_choice=choice, stream=True):
            for choices in chunk.choices:
                text += "".join(
                    (c.function.arguments or "") if c.function else "" for c in choices.delta.tool_calls or ()
                )
        assert painted(json.loads(text))
    tool: Any = {"name": "paint", "input_schema": PAINT, "strict": True}
    messages: Any = {"model": A, "max_tokens": 80, "messages": ask["messages"], "tools": [tool]}
    messages |= {"tool_choice": {"type": "tool", "name": "paint"}, "extra_body": {"temperature": 0}}
    block = (await clients.anthropic.messages.create(**messages)).content[0]
    assert block.type == "tool_use"
    assert painted(block.input)
    async with clients.anthropic.messages.stream(**messages) as events:
        last = (await events.get_final_message()).content[0]
    assert last.type == "tool_use"
    assert painted(last.input)


async def tokens_are_counted_alike(server: Serving) -> None:
    """Each form of API, whole and streamed, with and without a wish for usage."""
    forms: list[tuple[str, str, dict[str, Any]]] = [("/v1/embeddings", EMBED, {"input": ["a cat", "an aeroplane"]})]
    for stream in (False, True):
        rest = {"max_tokens": 5, "stream": stream}
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        said = chat(A, "Hello")["messages"]
        forms += [
            ("/v1/chat/completions", A, {"messages": said, **rest}),
            ("/v1/chat/completions", A, {"messages": said, **rest, **usage}),
            ("/v1/completions", A, {"prompt": ["one", "one two"], **rest}),
            ("/v1/messages", A, {"messages": said, **rest}),
            ("/v1/responses", A, {"input": "Hello", "max_output_tokens": 5, "stream": stream}),
        ]
    async with httpx.AsyncClient(base_url=server.url, timeout=240) as http:

        async def counted() -> dict[str, tuple[float, float]]:
            text = (await http.get("/metrics")).text
            return {model: tokens(text, model) for model in (A, EMBED)}

        for number, (path, model, body) in enumerate(forms):
            before, name = (await counted())[model], {"x-request-id": f"tokens-{number}"}
            assert (await http.post(path, json={"model": model, **body}, headers=name)).status_code == 200
            query = f"select prompt_tokens, completion_tokens from requests where request_id = 'tokens-{number}'"  # noqa: S608  # ours
            ((prompt, completion),) = await server.rows_when(query, bool)
            ledger, vllm = (prompt, completion or 0), (0.0, 0.0)
            deadline = asyncio.get_running_loop().time() + 30
            while vllm != ledger and asyncio.get_running_loop().time() < deadline:  # it counts behind its answers
                await asyncio.sleep(0.1)
                vllm = tuple(b - a for a, b in zip(before, (await counted())[model], strict=True))
            assert vllm == ledger, (path, body)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
