"""Every act of an administrator is in the audit, and nothing can be added that is not."""

import asyncio
import csv
import io
import json
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from admin_rig import ADMIN, INFER, OPERATE, Admin
from vllm_mm.api import auditing
from vllm_mm.api.auditing import REFUSALS_A_MINUTE, UNSAFE, AuditedRoute, about, check
from vllm_mm.store import audit as store


@pytest.fixture
def kept(api: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the tests stay when others are made."""
    monkeypatch.setattr(api.services.keyring, "replace", lambda _keys: None)


async def audit(api: Admin, **params: Any) -> list[dict[str, Any]]:
    answer = await api.client.get("/api/audit", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["entries"]


async def test_an_act_says_who_what_where_before_and_after(api: Admin) -> None:
    """A pin: of the model only what changed; the request's id leads to the logs."""
    async with api.as_(OPERATE) as client:
        answer = await client.post("/api/models/gpt/pin", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 202
    (entry,) = await audit(api)
    assert entry["id"].startswith("aud_")
    assert entry["at"] > 1.6e9
    assert {k: entry[k] for k in ("actor", "name", "source", "act", "kind", "object", "status", "request")} == {
        "actor": "key_operate", "name": "ada-operate", "source": "127.0.0.1", "act": "pin_model", "kind": "models",
        "object": "Qwen/Qwen2.5-7B", "status": 202, "request": "mine",
    }  # fmt: skip
    assert (entry["before"]["pinned"], entry["after"]["pinned"]) == (False, True)
    assert "id" not in entry["before"]


async def test_a_models_life(api: Admin) -> None:
    """Made, changed, removed: nothing before the first, nothing after the last, and a secret that changed only as changed."""
    body = {"id": "new", "engine": "sim", "env": {"HF_TOKEN": "hf_planted"}}
    assert (await api.client.post("/api/models", json=body)).status_code == 201
    changed = {"env": {"HF_TOKEN": "hf_other"}, "priority": 3}
    assert (await api.client.patch("/api/models/new", json=changed)).status_code == 200
    assert (await api.client.delete("/api/models/new")).status_code == 200
    removed, patched, created = await audit(api, object="new")
    assert (created["act"], created["before"], created["after"]["id"]) == ("create_model", None, "new")
    assert patched["before"]["env"] == patched["after"]["env"] == {"HF_TOKEN": "***"}
    assert (patched["before"]["priority"], patched["after"]["priority"]) == (0, 3)
    assert (removed["act"], removed["before"]["id"], removed["after"]) == ("delete_model", "new", None)
    assert "hf_" not in json.dumps([removed, patched, created])


async def test_keys_are_made_and_revoked_without_their_secret(api: Admin, kept: None) -> None:
    """The object is the new key; neither its secret nor its digest is told."""
    made = (await api.client.post("/api/keys", json={"name": "ci"})).json()
    assert (await api.client.delete(f"/api/keys/{made['id']}")).status_code == 200
    revoked, created = await audit(api, kind="keys", object=made["id"])
    assert (created["act"], created["status"], created["after"]["name"]) == ("create_key", 201, "ci")
    assert revoked["before"]["revoked_at"] is None
    assert revoked["after"]["revoked_at"] is not None
    text = json.dumps([created, revoked])
    assert made["secret"] not in text
    assert made["secret"].removeprefix("mm-") not in text


async def test_what_was_refused_is_there_too(api: Admin) -> None:
    """With its status; but not what nobody known asked for."""
    async with api.as_(INFER) as client:
        assert (await client.post("/api/models/a/start")).status_code == 403
    async with api.as_(None) as client:
        assert (await client.post("/api/models/a/start")).status_code == 401
    assert (await api.client.post("/api/models/a/fly")).status_code == 404
    assert (await api.client.post("/api/keys", json={"nome": 1})).status_code == 422
    assert [(e["name"], e["act"], e["status"]) for e in await audit(api)] == [
        ("ada-admin", "create_key", 422), ("ada-admin", "unknown_act", 404), ("ada-infer", "start_model", 403),
    ]  # fmt: skip


async def test_refusals_cannot_fill_it(api: Admin) -> None:
    """A key that may do nothing writes so much in a minute, and no more; what is done is always written."""
    async with api.as_(INFER) as client:
        for _ in range(REFUSALS_A_MINUTE + 5):
            await client.post("/api/models/a/pin")
    assert (await api.client.post("/api/models/a/pin")).status_code == 202
    entries = await audit(api, limit=1000)
    assert [e["status"] for e in entries].count(403) == REFUSALS_A_MINUTE
    assert entries[0]["status"] == 202
    await api.world.clock.advance(61.0)
    async with api.as_(INFER) as client:
        await client.post("/api/models/a/pin")
    assert (await audit(api))[0]["status"] == 403


async def test_it_is_exported_whole(api: Admin, kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV and JSON lines have all that fit the filter, over pages; a name that a spreadsheet would run does not run."""
    monkeypatch.setattr("vllm_mm.api.audit._PAGE", 2)
    for name in ("one", "two", "=HYPERLINK(1)"):
        await api.client.post("/api/keys", json={"name": name})
    await api.client.post("/api/models/a/pin")
    answer = await api.client.get("/api/audit", params={"format": "csv", "kind": "keys"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="audit.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [json.loads(row["after"])["name"] for row in rows] == ["=HYPERLINK(1)", "two", "one"]
    lines = (await api.client.get("/api/audit", params={"format": "jsonl"})).text.splitlines()
    assert [json.loads(line)["act"] for line in lines] == ["pin_model", *["create_key"] * 3]


async def test_a_route_may_say_what_it_acts_on(api: Admin) -> None:
    """`about` goes before what is found by itself."""
    router = APIRouter(route_class=AuditedRoute)

    @router.post("/api/things/{thing}")
    async def change_thing(thing: str) -> dict[str, str]:
        about("the thing", before={"size": 1, "same": 0}, after={"size": 2, "same": 0})
        return {"id": thing}

    @router.post("/api/things")
    async def make_thing() -> dict[str, Any]:
        return {"id": "t9", "token": "x"}

    api.app.router.routes[:0] = router.routes
    await api.client.post("/api/things/x")
    await api.client.post("/api/things")
    made, changed = await audit(api, kind="things")
    assert (changed["object"], changed["before"], changed["after"]) == ("the thing", {"size": 1}, {"size": 2})
    assert (made["object"], made["before"], made["after"]) == ("t9", None, {"id": "t9", "token": "***"})
    about("outside of a route")  # says nothing to anybody


async def test_an_act_that_fails_is_written_and_fails(api: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 in the audit, and the error goes its way."""

    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(api.services.keys, "create", broken)
    with pytest.raises(RuntimeError, match="broken"):
        await api.client.post("/api/keys", json={"name": "x"})
    assert [(e["act"], e["status"]) for e in await audit(api)] == [("create_key", 500)]


def test_a_route_behind_the_audits_back_is_refused() -> None:
    """The application cannot be made with one; its message says what to do."""

    async def act() -> None: ...

    for method in sorted(UNSAFE):
        with pytest.raises(TypeError, match=rf"{method} /api/secretly is not audited: .*route_class=AuditedRoute"):
            check([APIRoute("/api/secretly", act, methods=[method])])
    check([APIRoute("/api/openly", act, methods=["GET"]), AuditedRoute("/api/openly", act, methods=["POST"])])


async def test_every_unsafe_route_of_the_application_is_audited(api: Admin) -> None:
    """What `check` says holds for the application as it is; what is left out has a reason."""
    unsafe = [r for r in api.app.routes if UNSAFE & set(getattr(r, "methods", None) or ())]
    assert len(unsafe) > 15
    assert {r.path for r in unsafe if not isinstance(r, AuditedRoute)} == set(auditing.NO_ACTS)
    assert all(len(reason) > 20 for reason in auditing.NO_ACTS.values())


async def test_whoever_reads_a_capture_is_in_it(api: Admin) -> None:
    """Although that is a GET: it shows what somebody said."""
    assert (await api.client.get("/api/requests/req_1/capture")).status_code == 404
    assert [(e["act"], e["kind"], e["object"], e["status"]) for e in await audit(api)] == [
        ("get_capture", "requests", "req_1", 404)
    ]


async def test_an_entry_that_cannot_be_written_yet_holds_nobody_up_for_long(api: Admin) -> None:
    """The act is done and answered; the entry waits."""

    async def away(_entries: Any) -> None:
        raise OSError("away")

    api.services.audit.writer._write = away
    answer = await api.client.post("/api/models/a/pin")
    assert answer.status_code == 202
    assert api.services.audit.writer.backlog == 1
    api.services.audit.writer._write = api.services.audit.add
    async with api.as_(ADMIN) as client:
        assert (await client.post("/api/models/a/unpin")).status_code == 202


async def test_an_act_is_answered_when_its_entry_is_written(api: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not sooner: whoever has the answer finds the entry, whatever becomes of the server."""
    monkeypatch.setattr(store, "PROMPT", 60.0)
    came, go = asyncio.Event(), asyncio.Event()
    write = api.services.audit.add

    async def slow(entries: Any) -> None:
        came.set()
        await go.wait()
        await write(entries)

    api.services.audit.writer._write = slow
    asking = asyncio.create_task(api.client.post("/api/models/a/pin"))
    await came.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asking.done()
    go.set()
    assert (await asking).status_code == 202
    assert api.services.audit.writer.backlog == 0
