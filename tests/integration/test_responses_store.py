"""Stored responses in the product as it runs: the official client's calls, and engines that go, sleep, or work in the background."""

import asyncio
import re
from typing import Any

import openai
import pytest

from hard_cases import Case, running, until

PATH = "/v1/responses"
STORE = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
LONG = {"ignore_eos": True}


def model(*, speed: int = 400, **more: Any) -> dict[str, Any]:
    profile = {
        "weights": "8GiB", "kv_cache": "2GiB", "load_bandwidth": "100GiB/s", "startup": "100ms", "tokens_per_second": speed,
    }  # fmt: skip
    return {"engine": "sim", "sim": profile, "env": STORE, **more}


async def respond(case: Case, name: str, **more: Any) -> Any:
    body = {"model": name, "input": "Say something.", "max_output_tokens": 8, **more}
    return await case.client.post(f"{case.url}{PATH}", json=body)


async def look(case: Case, response: str) -> Any:
    return await case.client.get(f"{case.url}{PATH}/{response}")


async def test_the_official_client() -> None:
    """create, retrieve, cancel and the stream of what is made in the background, taken up again where it broke off."""
    async with running({"a": model(speed=50, aliases=["gpt"])}) as case:
        client = openai.AsyncOpenAI(base_url=f"{case.url}/v1", api_key="x", max_retries=0)
        async with client:
            first = await client.responses.create(model="gpt", input="My name is Ada.", max_output_tokens=8)
            assert first.model == "gpt"
            again = await client.responses.retrieve(first.id)
            assert again.output_text == first.output_text
            assert again.model == "gpt"
            second = await client.responses.create(
                model="gpt", input="And mine?", max_output_tokens=8, previous_response_id=first.id
            )
            assert second.usage is not None
            assert first.usage is not None
            assert second.usage.input_tokens > first.usage.input_tokens

            begun = await client.responses.create(
                model="a", input="Go on.", max_output_tokens=2000, background=True, extra_body=LONG
            )
            assert begun.status == "queued"
            cancelled = await client.responses.cancel(begun.id)
            assert cancelled.status == "cancelled"
            assert (await client.responses.retrieve(begun.id)).status == "cancelled"
            with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
                await client.responses.cancel(first.id)
            with pytest.raises(openai.NotFoundError, match="No response `resp_nope` of this key"):
                await client.responses.retrieve("resp_nope")

            seen: list[int] = []
            stream = await client.responses.create(
                model="a", input="Go on.", max_output_tokens=60, background=True, stream=True, extra_body=LONG
            )
            made = ""
            async for event in stream:
                seen.append(event.sequence_number)
                if event.type == "response.created":
                    made = event.response.id
                if event.sequence_number == 10:
                    await stream.close()
                    break
            rest = await client.responses.retrieve(made, stream=True, starting_after=seen[-1])
            kind = ""
            async for event in rest:
                seen.append(event.sequence_number)
                kind = event.type
            assert kind == "response.completed"
            assert seen == list(range(len(seen)))
            done = await client.responses.retrieve(made)
            assert done.output_text
            assert done.usage is not None
            assert done.usage.output_tokens == 60
        await case.quiet()


async def test_a_response_ends_with_its_engine() -> None:
    """The engine made room for another model: 404 with the time and the reason; nothing is started to look."""
    async with running({"a": model(), "b": model()}, memory="12GiB") as case:
        made = (await respond(case, "a")).json()["id"]
        assert (await look(case, made)).status_code == 200
        assert (await respond(case, "b")).status_code == 200
        gone = await look(case, made)
        assert gone.status_code == 404
        error = gone.json()["error"]
        assert (error["code"], error["param"]) == ("response_not_found", "response_id")
        told = rf"The engine that held `{made}` was stopped at \d\d:\d\d \(evicted: room for b .*\); responses live only as long as"
        assert re.match(told, error["message"]), error
        on = await respond(case, "a", previous_response_id=made)
        assert (on.status_code, on.json()["error"]["param"]) == (404, "previous_response_id")
        assert await case.starts("a") == 1
        # It comes back as another launch, which does not know it.
        assert (await respond(case, "a")).status_code == 200
        assert (await look(case, made)).status_code == 404


async def test_background_is_work() -> None:
    """An engine with a response in the background is busy: it makes no room before it is done, and tells so meanwhile."""
    async with running(
        {"a": model(speed=100), "b": model()}, memory="12GiB", swap={"min_dwell": "0s", "max_wait": "30s"}
    ) as case:
        begun = (await respond(case, "a", background=True, max_output_tokens=200, **LONG)).json()
        assert begun["status"] == "queued"
        assert (await case.instance("a"))["in_flight"] == 1
        asking = asyncio.create_task(respond(case, "b"))
        await case.until_queued(1)
        await asyncio.sleep(0.5)
        assert await case.state("a") == "ready"
        assert not asking.done()
        assert (await look(case, begun["id"])).json()["status"] == "queued"
        assert (await asking).status_code == 200
        await case.written()
        assert "lease.revoked" not in case.events("a")
        await case.quiet()


async def test_a_look_needs_no_slot() -> None:
    """The only slot of the model is taken by a response in the background: it can be looked at and cancelled."""
    async with running({"a": model(speed=50, concurrency=1)}) as case:
        begun = (await respond(case, "a", background=True, max_output_tokens=4000, **LONG)).json()["id"]
        waits = asyncio.create_task(respond(case, "a"))
        await case.until_queued(1)
        assert (await look(case, begun)).json()["status"] == "queued"
        cancelled = await case.client.post(f"{case.url}{PATH}/{begun}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert (await waits).status_code == 200
        await case.quiet()


async def test_a_sleeping_engine_keeps_its_responses() -> None:
    """To look wakes nothing; to go on from one does, and finds it there."""
    async with running({"a": model()}, host_memory={"sleep_budget": "64GiB"}) as case:
        made = (await respond(case, "a")).json()["id"]
        await case.act("a", "sleep", wait=20)
        await case.until("a", "sleeping")
        answer = await look(case, made)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "response_out_of_reach")
        assert await case.state("a") == "sleeping"
        on = await respond(case, "a", previous_response_id=made)
        assert on.status_code == 200, on.text
        assert (await look(case, made)).status_code == 200
        assert await case.starts("a") == 1


async def test_looks_and_cancels_while_it_drains() -> None:
    """A drain waits for the response in the background, which can be looked at and ended meanwhile."""
    async with running({"a": model(speed=50)}) as case:
        begun = (await respond(case, "a", background=True, max_output_tokens=4000, **LONG)).json()["id"]
        await case.act("a", "stop")
        await case.until("a", "draining")
        assert (await look(case, begun)).json()["status"] == "queued"
        await case.client.post(f"{case.url}{PATH}/{begun}/cancel")
        await case.until("a", "stopped")
        gone = await look(case, begun)
        assert gone.status_code == 404
        assert "operator" in gone.json()["error"]["message"]


async def test_the_deadline_of_work_in_the_background() -> None:
    """`queue.request_timeout` holds for it too: then the engine is told to stop."""
    async with running({"a": model(speed=50)}, queue={"request_timeout": "1s"}) as case:
        begun = (await respond(case, "a", background=True, max_output_tokens=4000, **LONG)).json()["id"]

        async def cancelled() -> bool:
            return (await look(case, begun)).json()["status"] == "cancelled"

        await until(cancelled, "it to be cancelled")
        await case.quiet()


async def test_responses_outlive_the_controller_with_their_engine() -> None:
    """After a crash of the controller its successor, which adopts the engine, gives back what that holds, streams included; after an end in order it
    says that the engine is gone, also when a new one is there."""
    async with running({"a": model(aliases=["gpt"])}) as case:
        first = (await respond(case, "gpt")).json()
        begun = (await respond(case, "a", background=True, stream=True, max_output_tokens=4)).text
        streamed = re.search(r'"id":\s*"(resp_[^"]+)"', begun)
        assert streamed is not None
        await case.serving.rows_when("select id from responses", lambda rows: len(rows) == 2)
        case.serving.kill()
        await case.serving.start()
        again = await look(case, first["id"])
        assert (again.status_code, again.json()["model"], again.json()["output"]) == (200, "gpt", first["output"])
        assert "response.completed" in (await look(case, f"{streamed[1]}?stream=true&starting_after=2")).text
        assert (await respond(case, "a", previous_response_id=first["id"])).status_code == 200
        assert await case.serving.stop() == 0
        await case.serving.start()
        await case.ready("a")
        gone = await look(case, first["id"])
        assert gone.status_code == 404
        assert "responses live only as long as their engine" in gone.json()["error"]["message"]
