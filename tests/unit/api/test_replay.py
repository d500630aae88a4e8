"""A captured request is sent again: as whoever asks for it, and as it was."""

import json
from typing import Any

import msgspec
import pytest

from admin_rig import OPERATE, ROW, Admin
from vllm_mm.domain.errors import NotFound
from vllm_mm.gateway.capture_text import document
from vllm_mm.gateway.captures import Captured

BODY = b'{"model":"a","stream":true,"messages":[]}'
CAPTURED = Captured(
    ROW, "POST", "/v1/chat/completions?x=1", [(b"authorization", b"Bearer mm-theirs"), (b"x-odd", b"1"), (b"host", b"h")],
    BODY, len(BODY), form=False, answer_headers=[], answer=b"", answer_size=0,
)  # fmt: skip


@pytest.fixture
def asked(api: Admin, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reached the routes of models; `cut` is a capture of a part."""
    found: list[dict[str, Any]] = []

    async def plane(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        found.append({**scope, "body": message["body"]})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"new")]})
        for piece in (b"data: 1\n\n", b"data: [DONE]\n\n"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def get(request: str) -> dict[str, Any]:
        if request == "nobody":
            raise NotFound("There is no capture of the request `nobody`.")
        made = document(CAPTURED, ["model"] if request == "redacted" else [])
        if request == "cut":
            made["request"]["body"]["cut"] = True
        return json.loads(msgspec.json.encode(made))

    monkeypatch.setattr(api.services.captures, "get", get)
    object.__setattr__(api.services, "data_plane", plane)
    return found


async def test_it_is_sent_with_the_key_of_whoever_asks(api: Admin, asked: list[dict[str, Any]]) -> None:
    """Method, path, query, body and the client's own headers are those of the capture; the answer is passed as it comes, and says of what
    it is one; the audit and an event say who did it."""
    async with api.as_(OPERATE) as client:
        answer = await client.post("/api/requests/mine/1/replay")
    assert (answer.status_code, answer.text) == (200, "data: 1\n\ndata: [DONE]\n\n")
    assert (answer.headers["x-request-id"], answer.headers["x-vllm-mm-replays"]) == ("new", ROW.id)
    (scope,) = asked
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/v1/chat/completions", b"x=1")
    assert scope["body"] == BODY
    headers = dict(scope["headers"])
    assert headers[b"authorization"] == f"Bearer {OPERATE}".encode()
    assert (headers[b"x-odd"], headers[b"content-length"]) == (b"1", b"%d" % len(BODY))
    assert headers[b"host"] != b"h"
    (entry,) = (await api.client.get("/api/audit?act=replay_request")).json()["entries"]
    assert (entry["name"], entry["object"], entry["status"]) == ("ada-operate", ROW.id, 200)
    assert [e.kind for e in await api.services.journal.recent()].count("capture.replayed") == 1


async def test_what_cannot_be_sent_again(api: Admin, asked: list[dict[str, Any]]) -> None:
    """Part of a request is none; one that was not captured is not there."""
    cut = await api.client.post("/api/requests/cut/replay")
    assert (cut.status_code, "captures.body" in cut.json()["error"]["message"]) == (409, True)
    assert (await api.client.post("/api/requests/nobody/replay")).status_code == 404
    assert not asked
