"""`/api/profiles`: one call switches pins, preloads and aliases."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from admin_rig import Admin, admin
from vllm_mm.control.profiles import EVERY, Profiles
from vllm_mm.store.profiles import ActiveProfileStore

FILE = """\
profiles:
  day: {pins: [a], preloads: [b], aliases: {fast: b}, schedule: [mon-fri 09:00-18:00]}
  night: {pins: [], aliases: {fast: a, gone: nobody}}
models:
  a: {engine: sim, sim: {weights: 1GiB}}
  b: {engine: sim, sim: {weights: 1GiB}, pinned: true}
"""
MONDAY = datetime(2026, 11, 30, 10, tzinfo=UTC).timestamp()


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Admin]:
    (tmp_path / "vllm-mm.yaml").write_text(FILE)
    async with admin(tmp_path) as api:
        await api.services.configuration.reload("test")
        yield api


def again(it: Admin) -> Profiles:
    """As the next controller has them."""
    world, services = it.world, it.services
    store = ActiveProfileStore(it.database)
    return Profiles(services.in_force, world.manager, store, world.journal, world.clock, "UTC", services.audit)


async def test_a_switch_is_one_call_and_disturbs_nothing(it: Admin) -> None:
    """Pins are those, preloads are loaded, aliases are names; the answer says what changed, an event says who did it."""
    await it.world.ready("a")
    answer = await it.client.post("/api/profiles/day/activate")
    assert answer.status_code == 200, answer.text
    assert {c["model"]: c["text"] for c in answer.json()["changes"]} == {"a": "no restart", "b": "no restart"}
    assert (answer.json()["applied"], answer.json()["before"]) == (True, None)
    await it.world.clock.advance(1.0)
    assert (await it.client.get("/api/models/fast")).json()["id"] == "b"
    shown = {m["id"]: (m["pinned"], m["instance"]["state"]) for m in (await it.client.get("/api/models")).json()}
    assert shown == {"a": (True, "ready"), "b": (False, "ready")}
    (event,) = [e for e in it.world.journal.events if e.kind == "profile.activated"]
    assert (event.cause, event.data["profile"], event.data["before"]) == ("operator ada-admin", "day", None)

    found = (await it.client.post("/api/profiles/night/activate")).json()
    assert (found["before"], found["missing"]) == ("day", ["nobody"])
    assert (await it.client.get("/api/models/fast")).json()["id"] == "a"
    listed = (await it.client.get("/api/profiles")).json()
    assert (listed["active"], listed["by"]) == ("night", "operator ada-admin")
    assert [(p["name"], p["active"], p["pins"], p["missing"]) for p in listed["profiles"]] == [
        ("day", False, ["a"], []), ("night", True, [], ["nobody"]),
    ]  # fmt: skip
    assert listed["profiles"][0]["schedule"] == ["mon-fri 09:00-18:00"]

    assert (await it.client.post("/api/profiles/deactivate")).json()["profile"] is None
    assert (await it.client.get("/api/models/fast")).status_code == 404
    shown = {m["id"]: m["pinned"] for m in (await it.client.get("/api/models")).json()}
    assert shown == {"a": False, "b": True}


async def test_a_dry_run_switches_nothing(it: Admin) -> None:
    """It says what a switch would change."""
    found = (await it.client.post("/api/profiles/day/activate?dry_run=1")).json()
    assert found["applied"] is False
    assert [c["model"] for c in found["changes"]] == ["a", "b"]
    assert (await it.client.get("/api/profiles")).json()["active"] is None


async def test_an_unknown_profile_is_404_with_the_nearest_one(it: Admin) -> None:
    """And who may only read may not switch."""
    answer = await it.client.post("/api/profiles/days/activate")
    assert answer.status_code == 404
    assert "Did you mean `day`?" in answer.json()["error"]["message"]


async def test_a_profile_outlives_the_controller(it: Admin) -> None:
    """Unless it is not declared any more."""
    await it.client.post("/api/profiles/night/activate")
    await it.services.in_force.use(None, "test")
    following = again(it)
    await following.restore()
    assert it.services.in_force.profile is not None
    assert (following.active.active, following.active.by) == ("night", "operator ada-admin")
    assert it.world.manager.catalog.resolve("fast").id == "a"


async def test_a_reload_that_takes_the_profile_away_ends_it(it: Admin, tmp_path: Path) -> None:
    """And one that changes it applies what it says now."""
    await it.client.post("/api/profiles/day/activate")
    (tmp_path / "vllm-mm.yaml").write_text(FILE.replace("pins: [a]", "pins: [a, b]"))
    changes = (await it.client.post("/api/config/reload")).json()["changes"]
    assert [(c["model"], [f["key"] for f in c["fields"]]) for c in changes] == [("b", ["pinned"])]
    (tmp_path / "vllm-mm.yaml").write_text(FILE[FILE.index("models:") :])
    await it.client.post("/api/config/reload")
    assert (await it.client.get("/api/profiles")).json()["active"] is None
    assert (await it.client.get("/api/models/fast")).status_code == 404
    following = again(it)
    await following.restore()
    assert following.active.active is None


async def test_models_of_the_api_are_declared_without_what_a_profile_says(it: Admin) -> None:
    """A change under a profile keeps it; a model may not take the name of one of its aliases."""
    await it.client.post("/api/models", json={"id": "c", "engine": "sim"})
    await it.client.post("/api/profiles/day/activate")
    tag = (await it.client.get("/api/models/c")).headers["etag"]
    answer = await it.client.patch("/api/models/c", json={"priority": 1}, headers={"if-match": tag})
    assert answer.status_code == 200, answer.text
    assert it.world.manager.catalog.resolve("fast").id == "b"
    assert (await it.client.post("/api/models", json={"id": "fast", "engine": "sim"})).status_code == 409
    await it.client.post("/api/profiles/deactivate")
    assert (await it.client.get("/api/models/b")).json()["pinned"] is True


async def test_an_alias_that_became_an_id_refuses_the_profile(it: Admin) -> None:
    """409 with the name; what was active stays."""
    await it.client.post("/api/models", json={"id": "fast", "engine": "sim"})
    answer = await it.client.post("/api/profiles/day/activate")
    assert answer.status_code == 409
    assert "'fast'" in answer.json()["error"]["message"]
    assert (await it.client.get("/api/profiles")).json()["active"] is None


async def test_the_schedule_switches_when_it_says_something_new(it: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice by hand holds until then, over a restart too; after the last window none is active."""
    at = MONDAY
    monkeypatch.setattr(it.world.clock, "wall", lambda: at)
    profiles = again(it)
    await profiles.look()
    assert profiles.active.active == "day"
    (entry,) = (await it.client.get("/api/audit")).json()["entries"]
    assert (entry["actor"], entry["act"], entry["object"]) == ("schedule", "activate_profile", "day")
    await profiles.activate("night", "ada")
    await profiles.look()
    following = again(it)
    await following.restore()
    await following.look()
    assert following.active.active == "night"
    at = MONDAY + 9 * 3600
    await following.look()
    assert (following.active.active, following.active.by) == (None, "schedule")
    at = MONDAY + 24 * 3600
    running = asyncio.ensure_future(following.run())
    async with asyncio.timeout(30):
        while following.active.active != "day":
            await it.world.clock.advance(EVERY)
            await asyncio.sleep(0)
    running.cancel()


async def test_a_schedule_that_cannot_be_kept_is_tried_once(it: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and not tried again every two seconds."""
    monkeypatch.setattr(it.world.clock, "wall", lambda: MONDAY)
    await it.client.post("/api/models", json={"id": "fast", "engine": "sim"})
    profiles = again(it)
    await profiles.look()
    assert profiles.active.active is None
    await it.client.delete("/api/models/fast")
    await profiles.look()
    assert profiles.active.active is None
