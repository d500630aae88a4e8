"""How refusals look; who is refused is in test_security.py."""

import httpx
import pytest
import structlog

from admin_rig import ADMIN, READ, Admin


def assert_problem(answer: httpx.Response, code: str) -> None:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert len(error["message"]) > 20


REFUSED = [
    ("GET", "/api/nothing", 404, "unknown_route"),
    ("POST", "/api/status", 405, "method_not_allowed"),
    ("GET", "/api/models/nope", 404, "model_not_found"),
    ("GET", "/api/models//start", 404, "model_not_found"),
    ("POST", "/api/models/a/start?wait=soon", 422, "invalid_request"),
    ("POST", "/api/models/a/start?wait=601", 422, "invalid_request"),
    ("GET", "/api/plan", 422, "invalid_request"),
    ("POST", "/api/models/a/sleep", 409, "conflict"),
]


async def test_refusals_have_our_shape(api: Admin) -> None:
    """Whoever refuses, framework or domain: one form, a code for programs, a message for people."""
    for method, path, status, code in REFUSED:
        answer = await api.client.request(method, path)
        assert answer.status_code == status, answer.text
        assert_problem(answer, code)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "Did you mean /v1/chat/completions?"),
        ("/tokenise", "Did you mean /tokenize?"),
        ("/api/nothing", "/docs lists what there is."),
    ],
)
async def test_a_path_that_is_not_there_is_told_with_the_one_that_was_meant(api: Admin, path: str, hint: str) -> None:
    """Also beside the data plane's paths: a client without `/v1` in its base URL, a typo."""
    answer = await api.client.post(path)
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, f"There is no {path}. {hint}")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/", "/docs", "/openapi.json"])
async def test_head_is_answered_where_get_is(api: Admin, path: str) -> None:
    """Load balancers and monitors ask with HEAD: the status of GET, and no second operation in the document."""
    assert (await api.client.head(path)).status_code == (await api.client.get(path)).status_code == 200
    assert "head" not in str((await api.client.get("/openapi.json")).json()["paths"].get(path, {}))


NEW_KEY = b'{"name": "ci", "scopes": ["read"]}'


@pytest.mark.parametrize(
    "kind", [None, "application/x-www-form-urlencoded", "text/plain;charset=UTF-8", "application/json; charset=utf-8"]
)
async def test_json_is_taken_whatever_it_is_called(api: Admin, kind: str | None) -> None:
    """No content type (most small clients), or a form's (curl -d): it is JSON, so it is read as JSON."""
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await api.client.post("/api/models", content=b'{"id": "x", "engine": "sim"}', headers=headers)
    assert answer.status_code == 201, answer.text
    answer = await api.client.post("/api/keys", content=NEW_KEY, headers=headers)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (b"name=ci&scopes=read", "application/x-www-form-urlencoded", "sent as application/x-www-form-urlencoded"),
        (b"", None, "sent as no content type"),
        (b"[1]", "text/plain", "Content-Type: application/json"),
        (b'{"name": }', "application/json", "not valid JSON"),
    ],
)
async def test_a_body_that_is_not_json_is_told_what_to_send(
    api: Admin, body: bytes, kind: str | None, told: str
) -> None:
    """How it was called, and what is taken; where it was called JSON, where it stops being that."""
    answer = await api.client.post("/api/keys", content=body, headers={} if kind is None else {"Content-Type": kind})
    assert answer.status_code == 422
    assert_problem(answer, "invalid_request")
    assert told in answer.json()["error"]["message"]
    assert ("Content-Type: application/json" in answer.text) == (kind != "application/json")


async def test_every_answer_has_a_request_id(api: Admin) -> None:
    """The caller's own comes back; one that could forge a log line does not."""
    assert (await api.client.get("/health", headers={"X-Request-Id": "abc"})).headers["x-request-id"] == "abc"
    made = (await api.client.get("/api/nothing", headers={"X-Request-Id": "a b"})).headers["x-request-id"]
    assert made.startswith("req_")


async def test_an_error_of_ours_is_500_and_tells_nothing(api: Admin) -> None:
    """Details are for the log."""

    def broken() -> int:
        raise RuntimeError("secret detail")

    api.world.queue.oldest_age = broken  # type: ignore[method-assign]
    transport = httpx.ASGITransport(api.app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://mm", headers=headers) as client:
        answer = await client.get("/api/status")
    assert answer.status_code == 500
    assert_problem(answer, "internal_error")
    assert "secret" not in answer.text


async def test_x_api_key_is_as_good_as_a_bearer(api: Admin) -> None:
    """Both headers name a key."""
    async with api.as_(None) as client:
        assert (await client.get("/api/status", headers={"x-api-key": READ})).status_code == 200


async def test_the_documentation_lists_every_route_with_types(api: Admin) -> None:
    """`/docs` works; operation ids are the routes' names, so that generated clients have good ones."""
    assert (await api.client.get("/docs")).status_code == 200
    document = (await api.client.get("/openapi.json")).json()
    assert document["paths"]["/api/models/{id}/start"]["post"]["operationId"] == "start_model"
    assert "InstanceOut" in document["components"]["schemas"]
    body = document["paths"]["/api/models"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "engine" in str(body)
    assert "$defs" not in str(document)


async def test_what_is_logged_while_a_request_is_answered_has_its_id(
    api: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one finds in the log what an act of an operator led to."""
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(
        api.services.queue, "entries", lambda: seen.append(structlog.contextvars.get_contextvars()) or []
    )
    answer = await api.client.get("/api/queue", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 200
    assert seen == [{"request_id": "mine"}]
    assert structlog.contextvars.get_contextvars() == {}
