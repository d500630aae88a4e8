"""`/upstream/{model}/...` and the calls of Open WebUI and of OpenAI's own tools, on one running server."""

import asyncio
import gzip
import json
from typing import Any

import httpx
import pytest

from compat import shapes
from hard_cases import Case, running, sim
from vllm_mm.api.compat.upstream import named, upstream_of
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import UnknownModel, UnknownRoute
from vllm_mm.domain.keys import ANONYMOUS, Key, Scope
from vllm_mm.domain.specs import ModelSpec

CATALOG = Catalog([ModelSpec("a", aliases=("gpt",)), ModelSpec("org/b"), ModelSpec("org/b/v1")])


@pytest.mark.parametrize(
    ("path", "method", "found"),
    [
        (b"/upstream/a/v1/chat/completions", "POST", ("a", "/v1/chat/completions", "")),
        (b"/upstream/gpt/v1/completions/", "POST", ("gpt", "/v1/completions", "")),
        (b"/upstream/org/b/tokenize", "POST", ("org/b", "/tokenize", "")),
        (b"/upstream/org%2Fb/tokenize", "POST", ("org/b", "/tokenize", "")),
        (b"/upstream/org/b/v1/v1/embeddings", "POST", ("org/b/v1", "/v1/embeddings", "")),
        (b"/upstream/a/health", "GET", ("a", "/health", "a")),
        (b"/upstream/a/v1/models", "GET", ("a", "/v1/models", "a")),
        (b"/upstream/a/v1/responses/resp_1", "GET", ("a", "/v1/responses/{id}", "resp_1")),
    ],
)
def test_the_model_is_in_the_path(path: bytes, method: str, found: tuple[str, str, str]) -> None:
    """Ids with slashes too: the longest name that there is."""
    told = upstream_of(path, method, CATALOG, ANONYMOUS)
    assert (told.model, told.route.name, told.subject) == found


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (b"/upstream/a/sleep", "POST"),
        (b"/upstream/a/collective_rpc", "POST"),
        (b"/upstream/a/v1/load_lora_adapter", "POST"),
        (b"/upstream/a/metrics", "GET"),
        (b"/upstream/a/slots", "GET"),
        (b"/upstream/a/server_info", "GET"),
        (b"/upstream/a/health", "POST"),
        (b"/upstream/a/v1/completions", "GET"),
        (b"/upstream/a/v1/%63ompletions", "POST"),
        (b"/upstream/a/../sleep", "POST"),
        (b"/upstream/a//health", "GET"),
        (b"/upstream/a/", "GET"),
        (b"/upstream/a", "GET"),
    ],
)
def test_unknown_paths_are_never_passed_on(path: bytes, method: str) -> None:
    """Engines have open administrative routes. The refusal says what is passed on."""
    with pytest.raises(UnknownRoute, match="not passed on to a") as told:
        upstream_of(path, method, CATALOG, ANONYMOUS)
    assert "/v1/chat/completions" in told.value.message
    assert "/health" in told.value.message


def test_a_key_sees_only_its_models() -> None:
    """One that it may not use is told like one that is not there."""
    key = Key("key_1", "ada", "", frozenset({Scope.INFER}), models=frozenset({"org/b"}))
    assert upstream_of(b"/upstream/org/b/health", "GET", CATALOG, key).model == "org/b"
    for path in (b"/upstream/a/health", b"/upstream/nope/health"):
        with pytest.raises(UnknownModel):
            upstream_of(path, "GET", CATALOG, key)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b'{"prompt": "hi"}', {"prompt": "hi", "model": "a"}),
        (b'\xef\xbb\xbf {"model": "x", "prompt": "hi"} ', {"prompt": "hi", "model": "a"}),
        (b'{"model": null}', {"model": "a"}),
        (b'{"a": {"model": "x"}}', {"a": {"model": "x"}, "model": "a"}),
        (b"{ }", {"model": "a"}),
    ],
)
def test_the_body_names_the_model_of_the_path(body: bytes, after: dict[str, Any]) -> None:
    """Whatever it named before; nothing else changes."""
    assert json.loads(named(body, "a")) == after


@pytest.mark.parametrize("body", [b"", b"[1]", b"model=x", b"{"])
def test_what_is_no_object_stays_as_it_is(body: bytes) -> None:
    """It is refused where bodies are read, with the place of the fault."""
    assert named(body, "a") == body


async def a_request_goes_the_way_of_every_other(case: Case) -> None:
    """It loads the model, streams, is in the ledger under its own route, and the body's model does not count."""
    body = {
        "model": "something else",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "max_tokens": 3,
    }
    answer = await case.client.post(f"{case.url}/upstream/chat/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith("data: [DONE]")
    assert answer.headers["x-vllm-mm-model"] == "chat"
    packed = gzip.compress(json.dumps({"prompt": "hi", "max_tokens": 2}).encode())
    answer = await case.client.post(
        f"{case.url}/upstream/gpt-4o-mini/v1/completions",
        content=packed,
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "gpt-4o-mini"
    query = "select route, model, outcome from requests"
    rows = await case.serving.rows_when(query, lambda found: len(found) >= 2)
    assert {("/v1/chat/completions", "chat", "ok"), ("/v1/completions", "chat", "ok")} <= set(rows)


async def harmless_questions_reach_the_engine(case: Case) -> None:
    """Through a lease, so that the model is there for them; one that the engine has not is told so."""
    answer = await case.client.get(f"{case.url}/upstream/vectors/health")
    assert answer.status_code == 200, answer.text
    assert (await case.serving.instances(case.client))["vectors"]["state"] == "ready"
    listed = (await case.client.get(f"{case.url}/upstream/vectors/v1/models")).json()
    assert [m["id"] for m in listed["data"]] == ["vectors"]
    answer = await case.client.get(f"{case.url}/upstream/vectors/props")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")
    assert "no /props" in answer.json()["error"]["message"]


async def what_is_not_passed_on_is_refused(case: Case) -> None:
    """And the model is not loaded for it."""
    answer = await case.client.post(f"{case.url}/upstream/chat/sleep?level=1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")
    answer = await case.client.post(f"{case.url}/upstream/caht/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    answer = await case.client.post(f"{case.url}/upstream/chat/v1/completions", content=b"{")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


async def open_webui(case: Case) -> None:
    """What it asks of a connection of the kind OpenAI, and of one of the kind Ollama beside it."""
    get = case.client.get
    models = (await get(f"{case.url}/v1/models", headers={"Authorization": "Bearer any"})).json()
    assert shapes.differs(models, shapes.OPENAI_MODELS) == ""
    assert "chat" in [m["id"] for m in models["data"]]
    body = {
        "stream": True,
        "model": "chat",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
        "max_tokens": 4,
    }
    answer = await case.client.post(
        f"{case.url}/v1/chat/completions", json=body, headers={"X-OpenWebUI-User-Name": "Ada"}
    )
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [w for e in events if (w := shapes.differs(e, shapes.OPENAI_CHUNK))] == []
    assert events[-1]["usage"]["completion_tokens"] == 4
    tags, loaded, version = await asyncio.gather(
        *(get(f"{case.url}/ollama/api/{word}") for word in ("tags", "ps", "version"))
    )
    assert shapes.differs(tags.json(), shapes.OLLAMA_TAGS) == ""
    assert shapes.differs(loaded.json(), shapes.OLLAMA_PS) == ""
    assert "chat" in [m["model"] for m in loaded.json()["models"]]
    assert version.json()["version"]


async def openai_command_line(case: Case) -> None:
    """The requests of OpenAI's command line tool: models list and retrieve, chat:completions, completions, responses and
    embeddings create, with its headers."""
    headers = {"Authorization": "Bearer x", "OpenAI-Organization": "org-x", "User-Agent": "OpenAI/CLI 1"}
    base = f"{case.url}/v1"
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        assert shapes.differs((await client.get(f"{base}/models")).json(), shapes.OPENAI_MODELS) == ""
        assert (await client.get(f"{base}/models/chat")).json()["id"] == "chat"
        said: Any = [{"role": "user", "content": "Say this is a test"}]
        for path, body in {
            "chat/completions": {"model": "chat", "messages": said, "max_tokens": 3},
            "completions": {"model": "chat", "prompt": "Say", "max_tokens": 3},
            "responses": {"model": "chat", "input": "Say", "max_output_tokens": 3},
            "embeddings": {"model": "vectors", "input": "The food"},
        }.items():
            answer = await client.post(f"{base}/{path}", json=body)
            assert answer.status_code == 200, (path, answer.text)


async def test_on_one_server() -> None:
    """All of the above, one after the other: each leaves the server as the next can use it."""
    models = {
        "chat": sim(model={"aliases": ["gpt-4o-mini"]}, tokens_per_second=400, length=5),
        "vectors": sim(task="embed", dimensions=8),
    }
    async with running(models, own_devices=True) as case:
        for step in (
            a_request_goes_the_way_of_every_other,
            harmless_questions_reach_the_engine,
            what_is_not_passed_on_is_refused,
            open_webui,
            openai_command_line,
        ):
            await step(case)
