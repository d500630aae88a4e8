"""Models made over the API: stored, checked, changed, removed; those of the file stay as they are."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

import vllm_mm.store.database
from admin_rig import Admin, admin
from vllm_mm.store.models import Models

NEW: dict[str, Any] = {
    "id": "org/new",
    "engine": "sim",
    "sim": {"weights": "1GiB", "kv_cache": "1GiB"},
    "aliases": ["n"],
}


async def test_a_model_can_be_made_and_used_at_once(api: Admin) -> None:
    """201 with the model; its source is the API; the start finds it."""
    answer = await api.client.post("/api/models", json=NEW)
    assert answer.status_code == 201, answer.text
    shown = answer.json()
    assert (shown["id"], shown["source"], shown["engine"], shown["instance"]) == ("org/new", "api", "sim", None)
    assert (await api.client.post("/api/models/org/new/start")).status_code == 202
    await api.world.clock.advance(1.0)
    assert api.world.starts == ["org/new"]


async def test_what_was_declared_is_stored_in_its_own_words(api: Admin) -> None:
    """The database has the declaration as it came, and who made it."""
    await api.client.post("/api/models", json=NEW)
    (stored,) = await Models(api.database).all()
    assert stored.id == "org/new"
    assert dict(stored.declaration) == {k: v for k, v in NEW.items() if k != "id"}
    assert stored.updated_by == "operator ada-admin"


@pytest.mark.parametrize(
    ("body", "status", "param", "told"),
    [
        ({"engine": "sim"}, 422, "id", '"id" is missing'),
        ({"id": "x", "engin": "sim"}, 422, "engin", "did you mean `engine`"),
        ({"id": "x", "engine": "sim", "devices": {"count": 0}}, 422, "devices.count", "too small"),
        ({"id": "x/start", "engine": "sim"}, 422, "id", "route of that name"),
        ({"id": "x", "engine": "command"}, 422, "command", "needs its argument list"),
        ({"id": "a", "engine": "sim"}, 409, None, "exists already"),
        ({"id": "x", "engine": "sim", "aliases": ["gpt"]}, 409, None, "names both"),
        ([], 422, None, "dictionary"),
    ],
)
async def test_a_wrong_declaration_is_refused_and_changes_nothing(
    api: Admin, body: Any, status: int, param: str | None, told: str
) -> None:
    """The error names the place and what to do; nothing is stored."""
    answer = await api.client.post("/api/models", json=body)
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert error["param"] == param
    assert told in error["message"]
    assert not await Models(api.database).all()
    assert len(api.world.manager.catalog) == 2


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_models_of_the_file_cannot_be_changed(api: Admin, method: str) -> None:
    """409, and the reason says where to change them."""
    answer = await api.client.request(method, "/api/models/Qwen/Qwen2.5-7B", json={"priority": 1})
    assert answer.status_code == 409
    assert "configuration file" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_changes_need_the_id_itself(api: Admin, method: str) -> None:
    """An alias is refused with the id that it stands for: nobody deletes a model by another name."""
    await api.client.post("/api/models", json=NEW)
    answer = await api.client.request(method, "/api/models/n", json={"priority": 1})
    assert answer.status_code == 404
    assert "`org/new`" in answer.json()["error"]["message"]


async def test_patch_merges_and_put_replaces(api: Admin) -> None:
    """PATCH keeps what it does not name and null takes a key away; PUT begins anew."""
    await api.client.post("/api/models", json=NEW)
    patched = (await api.client.patch("/api/models/org/new", json={"priority": 7, "sim": {"weights": "2GiB"}})).json()
    assert (patched["priority"], patched["sim"], patched["aliases"]) == (
        7,
        {"weights": "2GiB", "kv_cache": "1GiB"},
        ["n"],
    )
    patched = (await api.client.patch("/api/models/org/new", json={"aliases": None})).json()
    assert (patched["priority"], patched["aliases"]) == (7, [])
    put = (await api.client.put("/api/models/org/new", json={"engine": "sim"})).json()
    assert (put["priority"], put["sim"]) == (0, {})


async def test_the_id_in_a_body_has_to_be_that_of_the_path(api: Admin) -> None:
    """GET's answer can be sent back, a rename cannot."""
    await api.client.post("/api/models", json=NEW)
    assert (await api.client.put("/api/models/org/new", json=NEW)).status_code == 200
    answer = await api.client.put("/api/models/org/new", json={**NEW, "id": "other"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "id")


async def test_a_changed_process_is_drained_and_stopped(api: Admin) -> None:
    """What runs is let finish on the old engine; the next start is made from the new declaration."""
    await api.client.post("/api/models", json=NEW)
    await api.world.ready("org/new")
    async with api.world.manager.lease(api.world.ticket("org/new")):
        changed = (await api.client.patch("/api/models/org/new", json={"env": {"A": "1"}})).json()
        assert changed["instance"]["state"] == "draining"
    await api.world.clock.advance(1.0)
    assert (await api.client.get("/api/models/org/new")).json()["instance"]["state"] == "stopped"


async def test_a_changed_priority_does_not_disturb_the_engine(api: Admin) -> None:
    """Only what the process depends on stops it."""
    await api.client.post("/api/models", json=NEW)
    await api.world.ready("org/new")
    changed = (await api.client.patch("/api/models/org/new", json={"priority": 3})).json()
    assert (changed["priority"], changed["instance"]["state"]) == (3, "ready")


async def test_a_removed_model_is_gone_at_once_and_its_engine_drains(api: Admin) -> None:
    """404 from now on; those who wait are answered; what runs is finished; then the process is gone."""
    await api.client.post("/api/models", json=NEW)
    await api.world.ready("org/new")
    async with api.world.manager.lease(api.world.ticket("org/new")):
        gone = await api.client.delete("/api/models/org/new")
        assert (gone.status_code, gone.json()["instance"]["state"]) == (200, "draining")
        assert (await api.client.get("/api/models/org/new")).status_code == 404
        assert [i["model"] for i in (await api.client.get("/api/instances")).json()] == ["org/new"]
    await api.world.clock.advance(1.0)
    assert not api.world.running
    assert not await Models(api.database).all()
    assert (await api.client.get("/api/instances")).json() == []


async def test_a_model_that_never_ran_is_removed_without_an_instance(api: Admin) -> None:
    """Nothing has to be stopped."""
    await api.client.post("/api/models", json=NEW)
    assert (await api.client.delete("/api/models/org/new?wait=5")).json() == {"id": "org/new", "instance": None}
    assert (await api.client.delete("/api/models/org/new")).status_code == 404


async def test_delete_can_wait_for_the_end(api: Admin) -> None:
    """With `wait` the answer comes when the engine is gone."""
    await api.client.post("/api/models", json=NEW)
    await api.world.ready("org/new")
    waiting = asyncio.ensure_future(api.client.delete("/api/models/org/new?wait=30"))
    await api.world.clock.advance(1.0)
    assert (await waiting).json()["instance"]["state"] == "stopped"


async def test_a_model_that_is_made_again_is_the_new_one(api: Admin) -> None:
    """Nothing of the removed one is left in its next start."""
    await api.client.post("/api/models", json=NEW)
    await api.world.ready("org/new")
    await api.client.delete("/api/models/org/new")
    await api.world.clock.advance(1.0)
    again = {"id": "org/new", "engine": "command", "command": ["serve", "{port}"], "memory": "3GiB"}
    await api.client.post("/api/models", json=again)
    instance = api.world.manager.require("org/new")
    assert instance.spec.command == ("serve", "{port}")
    assert instance.spec.memory == 3 * 1024**3


async def test_a_full_disk_is_507_with_advice_and_changes_nothing(tmp_path: Path) -> None:
    """SQLite's own error for a full disk, brought about by its page limit: told, not hidden behind a 500."""
    async with admin(tmp_path) as api:
        async with api.database.read() as connection:
            pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar_one()
        event.listen(
            api.database.engine.sync_engine, "checkout", lambda c, *_: c.execute(f"PRAGMA max_page_count={pages}")
        )
        answer = await api.client.post("/api/models", json={**NEW, "env": {"LONG": "x" * 200_000}})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (507, "database_full"), answer.text
        assert "full" in error["message"]
        assert "Free some space" in error["message"]
        assert "retry-after" not in answer.headers
        assert (await api.client.get("/api/models")).json() == []


async def test_a_locked_database_is_503_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program holds it for longer than we wait: 503 with Retry-After, and once it is free the same request works."""
    monkeypatch.setattr(vllm_mm.store.database, "BUSY_TIMEOUT_MS", 20)
    async with admin(tmp_path) as api:
        with contextlib.closing(sqlite3.connect(tmp_path / "data/state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answer = await api.client.post("/api/models", json=NEW)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "database_unavailable"), answer.text
            assert "database is locked" in error["message"]
            assert "Another program holds it" in error["message"]
            assert answer.headers["retry-after"] == "5"
            assert (await api.client.post("/api/keys", json={"name": "x"})).status_code == 503
            other.execute("ROLLBACK")
        assert (await api.client.post("/api/models", json=NEW)).status_code == 201
