"""The official clients of OpenAI and Anthropic do with this server what they do with their own: on simulated engines.

The simulated engine calls tools that have to be called, and answers in forms that are asked for. What a real model does with them is in
tests/real/test_differential.py.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import anthropic
import httpx
import openai
import pydantic
import pytest

from hard_cases import Case, running, sim

CHAT, VECTORS, CALLS = "chat", "vectors", "calls"
HELLO: Any = [{"role": "user", "content": "Say something."}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
}


class Clients:
    """Both, with as many retries of their own as they have by default, or none."""

    def __init__(self, case: Case, retries: int = 0, timeout: float = 30.0) -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{case.url}/v1", api_key="x", max_retries=retries, timeout=timeout)
        self.anthropic = anthropic.AsyncAnthropic(base_url=case.url, api_key="x", max_retries=retries, timeout=timeout)

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.openai.close()
        await self.anthropic.close()


@contextlib.asynccontextmanager
async def served(**config: Any) -> AsyncIterator[Case]:
    models = {
        CHAT: sim(model={"aliases": ["gpt-4o-mini", "claude-haiku"]}, tokens_per_second=200, length=7),
        VECTORS: sim(task="embed", dimensions=8),
        CALLS: sim(tools="called", tokens_per_second=2000),
    }
    async with running(models, own_devices=True, **config) as case:
        yield case


async def test_openai_features() -> None:
    """Chat and completions, whole and streamed, `n`, logprobs, usage, forms, tools, embeddings, models, and errors as its classes."""
    async with served() as case, Clients(case) as clients:
        await case.ready(CHAT, VECTORS)
        client = clients.openai
        chat = client.chat.completions
        whole = await chat.create(model=CHAT, messages=HELLO, max_tokens=5, temperature=0)
        text = whole.choices[0].message.content
        assert text
        assert (whole.model, whole.choices[0].finish_reason) == (CHAT, "length")
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 5

        pieces: list[str] = []
        usage = None
        async for chunk in await chat.create(
            model="gpt-4o-mini", messages=HELLO, max_tokens=5, temperature=0, stream=True,
            stream_options={"include_usage": True},
        ):  # fmt: skip
            assert chunk.model == "gpt-4o-mini"
            pieces += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage
        assert "".join(pieces) == text
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 5)

        async with chat.stream(model=CHAT, messages=HELLO) as events:
            kinds = [event.type async for event in events]
            said = (await events.get_final_completion()).choices[0]
            assert said.finish_reason == "stop"
            assert (said.message.content or "").startswith(text)
        assert {"chunk", "content.delta", "content.done"} <= set(kinds)

        several = await chat.create(model=CHAT, messages=HELLO, max_tokens=3, n=3, logprobs=True, top_logprobs=1)
        assert [choice.index for choice in several.choices] == [0, 1, 2]
        logprobs = several.choices[0].logprobs
        assert logprobs is not None
        assert len(logprobs.content or ()) == 3
        formed = await chat.create(
            model=CHAT, messages=HELLO, max_tokens=3,
            response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        )  # fmt: skip
        assert formed.choices[0].message.content
        told = await chat.create(model=CHAT, messages=HELLO, max_tokens=3, tools=[TOOL], tool_choice="none")
        assert told.choices[0].message.tool_calls is None
        with pytest.raises(openai.BadRequestError, match="--enable-auto-tool-choice"):
            await chat.create(model=CHAT, messages=HELLO, tools=[TOOL])
        with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
            await chat.create(model=CHAT, messages=HELLO, tools=[TOOL], tool_choice="required")

        completion = await client.completions.create(model=CHAT, prompt=["a", "b"], max_tokens=2, logprobs=1, echo=True)
        assert [choice.text[0] for choice in completion.choices] == ["a", "b"]
        vectors = await client.embeddings.create(model=VECTORS, input=["a cat", "a dog"])  # asks for base64
        assert [len(item.embedding) for item in vectors.data] == [8, 8]
        names = [model.id async for model in client.models.list()]
        assert {CHAT, "gpt-4o-mini", VECTORS} <= set(names)
        assert (await client.models.retrieve("gpt-4o-mini")).id == "gpt-4o-mini"

        with pytest.raises(openai.NotFoundError) as unknown:
            await chat.create(model="gpt-5", messages=HELLO)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as unable:
            await chat.create(model=VECTORS, messages=HELLO)
        assert unable.value.param == "model"
        assert unable.value.request_id


class Weather(pydantic.BaseModel):
    """What the clients make of an answer by themselves."""

    city: str
    degrees: int = pydantic.Field(ge=-30, le=50)
    sky: Literal["clear", "grey"]
    hours: list[float]


FORECAST: Any = {"name": "forecast", "description": "d", "input_schema": Weather.model_json_schema()}


async def test_answers_of_a_form_and_tools_that_have_to_be_called() -> None:
    """Both clients parse them by themselves, whole and streamed, on every API that has them."""
    async with served() as case, Clients(case) as clients:
        await case.ready(CALLS)
        chat, responses, messages = (
            clients.openai.chat.completions,
            clients.openai.responses,
            clients.anthropic.messages,
        )

        parsed = (await chat.parse(model=CALLS, messages=HELLO, response_format=Weather)).choices[0]
        assert isinstance(parsed.message.parsed, Weather)
        assert parsed.finish_reason == "stop"
        async with chat.stream(model=CALLS, messages=HELLO, response_format=Weather) as events:
            assert (await events.get_final_completion()).choices[0].message.parsed == parsed.message.parsed
        with pytest.raises(openai.LengthFinishReasonError):
            await chat.parse(model=CALLS, messages=HELLO, response_format=Weather, max_tokens=3)
        one_of = {"structured_outputs": {"choice": ["yes", "no"]}}
        chosen = await chat.create(model=CALLS, messages=HELLO, extra_body=one_of)
        assert chosen.choices[0].message.content in {"yes", "no"}

        tool = openai.pydantic_function_tool(Weather, name="forecast")
        named: Any = {"type": "function", "function": {"name": "forecast"}}
        for choice, reason in ((named, "stop"), ("required", "tool_calls")):
            called = (await chat.parse(model=CALLS, messages=HELLO, tools=[tool], tool_choice=choice)).choices[0]
            assert (called.finish_reason, called.message.content) == (reason, None)
            assert called.message.tool_calls is not None
            [call] = called.message.tool_calls
            assert isinstance(call.function.parsed_arguments, Weather)
            async with chat.stream(model=CALLS, messages=HELLO, tools=[tool], tool_choice=choice) as events:
                streamed = (await events.get_final_completion()).choices[0]
            assert streamed.finish_reason == reason
            assert streamed.message.tool_calls is not None
            assert streamed.message.tool_calls[0].function.name == "forecast"
            assert streamed.message.tool_calls[0].function.arguments == call.function.arguments

        formed = await responses.parse(model=CALLS, input="Say something.", text_format=Weather)
        assert isinstance(formed.output_parsed, Weather)
        function: Any = {
            "type": "function",
            "name": "forecast",
            "parameters": Weather.model_json_schema(),
            "strict": True,
        }
        asked: Any = {"model": CALLS, "input": "Say something.", "tools": [function], "tool_choice": "required"}
        [item] = (await responses.create(**asked)).output
        assert item.type == "function_call"
        assert Weather.model_validate_json(item.arguments)
        async with responses.stream(**asked) as events:
            kinds = [event.type async for event in events]
            [same] = (await events.get_final_response()).output
        assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(kinds)
        assert same.type == "function_call"
        assert (same.name, same.arguments) == ("forecast", item.arguments)

        for choice in ({"type": "tool", "name": "forecast"}, {"type": "any"}):
            use: Any = {
                "model": CALLS,
                "max_tokens": 500,
                "messages": HELLO,
                "tools": [FORECAST],
                "tool_choice": choice,
            }
            message = await messages.create(**use)
            [block] = message.content
            assert (message.stop_reason, block.type) == ("tool_use", "tool_use")
            assert Weather.model_validate(block.input)
            async with messages.stream(**use) as told:
                [again] = (await told.get_final_message()).content
            assert again.type == "tool_use"
            assert (again.name, again.input) == ("forecast", block.input)
        rows = await case.serving.rows_when("select outcome, ttft_s from requests", lambda found: len(found) == 15)
        assert all(outcome == "ok" and ttft is not None for outcome, ttft in rows)


async def test_openai_responses() -> None:
    """Whole, as typed events to the end, and with instructions; the alias is shown in each event."""
    async with served() as case, Clients(case) as clients:
        await case.ready(CHAT)
        responses = clients.openai.responses
        whole = await responses.create(model=CHAT, input="Say something.", max_output_tokens=4, instructions="Briefly.")
        assert whole.output_text
        assert whole.status == "incomplete"
        kinds: list[str] = []
        text = ""
        async for event in await responses.create(
            model="gpt-4o-mini", input="Say something.", max_output_tokens=4, instructions="Briefly.", stream=True
        ):
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type in {"response.created", "response.completed"}:
                assert event.response.model == "gpt-4o-mini"
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert text == whole.output_text
        async with responses.stream(model=CHAT, input="Say something.", max_output_tokens=4) as events:
            async for _ in events:
                pass
            assert (await events.get_final_response()).output_text


async def test_anthropic_features() -> None:
    """Messages, whole and streamed, system texts, stop texts, counting, and errors as its classes."""
    async with served() as case, Clients(case) as clients:
        await case.ready(CHAT)
        messages = clients.anthropic.messages
        whole = await messages.create(model="claude-haiku", max_tokens=5, messages=HELLO, system="Briefly.")
        assert (whole.model, whole.stop_reason) == ("claude-haiku", "max_tokens")
        assert whole.usage.output_tokens == 5
        block = whole.content[0]
        assert block.type == "text"
        async with messages.stream(model="claude-haiku", max_tokens=5, messages=HELLO, system="Briefly.") as events:
            text = "".join([piece async for piece in events.text_stream])
            final = await events.get_final_message()
        assert text == block.text
        assert (final.model, final.stop_reason) == ("claude-haiku", "max_tokens")
        stop = text[3:6]
        stopped = await messages.create(
            model=CHAT, max_tokens=5, messages=HELLO, system="Briefly.", stop_sequences=[stop]
        )
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
        assert (await messages.count_tokens(model=CHAT, messages=HELLO)).input_tokens > 0
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await messages.create(model="claude-9", max_tokens=5, messages=HELLO)
        assert "claude-9" in unknown.value.message
        with pytest.raises(anthropic.BadRequestError):
            await messages.create(model=CHAT, max_tokens=-1, messages=HELLO)


async def test_a_task_that_is_cancelled_ends_its_request() -> None:
    """Whole and streamed: the engine is free again, and the row says that the client left."""
    async with served() as case, Clients(case) as clients:
        await case.ready(CHAT)
        long: Any = {"model": CHAT, "max_tokens": 5000, "extra_body": {"ignore_eos": True}}
        whole = asyncio.ensure_future(clients.openai.chat.completions.create(messages=HELLO, **long))
        other = asyncio.ensure_future(clients.anthropic.messages.create(messages=HELLO, **long))
        await case.in_flight(CHAT, 2)
        for task in (whole, other):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await case.in_flight(CHAT, 0)
        stream = await clients.openai.chat.completions.create(messages=HELLO, stream=True, **long)
        async for _ in stream:
            break
        await stream.close()
        await case.in_flight(CHAT, 0)
        assert (await case.outcomes(3))["client_gone"] == 3


async def test_a_timeout_of_theirs_ends_the_request() -> None:
    """It is their error, and nothing goes on here."""
    async with served() as case, Clients(case, timeout=0.3) as clients:
        await case.ready(CHAT)
        with pytest.raises(openai.APITimeoutError):
            await clients.openai.completions.create(
                model=CHAT, prompt="x", max_tokens=5000, extra_body={"ignore_eos": True}
            )
        with pytest.raises(anthropic.APITimeoutError):
            await clients.anthropic.messages.create(
                model=CHAT, messages=HELLO, max_tokens=5000, extra_body={"ignore_eos": True}
            )
        await case.in_flight(CHAT, 0)


async def test_a_503_is_tried_again_and_served() -> None:
    """A model that is still loading, for a request that does not wait: 503 with Retry-After, which both clients obey by themselves."""
    models = {CHAT: sim(startup="1500ms")}
    async with running(models) as case, Clients(case, retries=8) as clients:
        asked: list[int] = []

        async def note(response: httpx.Response) -> None:
            asked.append(response.status_code)
            if response.status_code == 503:
                assert 1 <= int(response.headers["retry-after"]) <= 60

        for client in (clients.openai, clients.anthropic):
            client._client.event_hooks["response"].append(note)
        now = {"extra_headers": {"x-vllm-mm-wait": "0"}}
        began = time.monotonic()
        answer, message = await asyncio.gather(
            clients.openai.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=3, **now),
            clients.anthropic.messages.create(model=CHAT, messages=HELLO, max_tokens=3, **now),
        )
        assert answer.choices[0].message.content
        assert message.content
        assert asked.count(200) == 2
        assert time.monotonic() - began >= 1.0  # they waited as they were told
        assert set(asked) == {200, 503}
