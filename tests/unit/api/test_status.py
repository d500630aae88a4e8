"""What can be looked at: instances, devices, queue, plan, status, requests, health, keys."""

import asyncio
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from admin_rig import READ, ROW, Admin, admin
from fakes_engine import model
from vllm_mm.api.present import device
from vllm_mm.api.rows import RequestOut
from vllm_mm.domain.keys import Scope
from vllm_mm.domain.residency import Device, Ledger
from vllm_mm.domain.specs import GIB
from vllm_mm.domain.tiers import HostMemory
from vllm_mm.domain.usage import Gaps, RequestRecord, Usage


async def test_instances_are_those_that_ran_or_are_about_to(api: Admin) -> None:
    """A look at a model does not put it into the list; a wish does."""
    await api.client.get("/api/models/a")
    await api.client.get("/api/plan?model=a")
    assert (await api.client.get("/api/instances")).json() == []
    api.world.healthy_at_once = False
    await api.client.post("/api/models/a/start")
    (shown,) = (await api.client.get("/api/instances")).json()
    assert (shown["model"], shown["pending"]) == ("a", True)
    assert set(shown) >= {
        "id",
        "model",
        "state",
        "progress",
        "reason",
        "devices",
        "pid",
        "in_flight",
        "queued",
        "since",
        "failures",
        "memory",
    }
    assert set(shown["progress"]) == {"phase", "percent", "elapsed_s", "eta_s"}


async def test_devices_show_who_holds_what(api: Admin) -> None:
    """Capacity, what is free, and a reservation per model."""
    await api.world.ready("a")
    (device,) = (await api.client.get("/api/devices")).json()
    assert (device["id"], device["capacity"], device["free"]) == ("gpu0", 24 * GIB, 4 * GIB)
    assert device["reservations"] == [{"model": "a", "bytes": 20 * GIB, "in_use": True, "leaving": False}]


def test_a_device_shows_of_a_leaver_what_it_holds() -> None:
    """A sleeper that was to wake and goes for another one is not shown with what is promised to that one."""
    small, all_of_it = {"d0": GIB // 2}, {"d0": 10 * GIB}
    ledger = Ledger({"d0": Device("d0", 11 * GIB)}).adopt("a", all_of_it).leave("a", small).asleep("a", small)
    ledger = ledger.grow("a", all_of_it).leave("a").reserve("b", all_of_it).reserve("c", small).leave("c")
    shown = device(ledger.devices["d0"], ledger, []).reservations
    assert [(r.model, r.bytes, r.in_use, r.leaving) for r in shown] == [
        ("a", GIB // 2, True, True),
        ("b", 10 * GIB, False, False),
        ("c", 0, False, True),
    ]


async def test_a_device_that_is_out_of_use_says_so(api: Admin) -> None:
    """In the list, as an alert, and to whoever waits; nothing is placed on it."""
    api.world.inventory.change("gpu0", problem="the GPU is lost")
    api.world.manager.observe_devices()
    (device,) = (await api.client.get("/api/devices")).json()
    assert device["problem"] == "the GPU is lost"
    assert (await api.client.get("/api/status")).json()["alerts"] == ["device gpu0 is out of use: the GPU is lost"]
    plan = (await api.client.get("/api/plan?model=a")).json()
    assert (plan["act"], "gpu0 is out of use: the GPU is lost" in plan["reason"]) == ("wait", True)
    await api.client.post("/api/models/a/start")
    await api.world.clock.advance(5.0)
    assert api.world.starts == []
    api.world.inventory.change("gpu0", problem="")
    api.world.manager.observe_devices()
    await api.world.clock.advance(1.0)
    assert api.world.starts == ["a"], "it waited, and the device is well again"


async def test_queue_shows_who_waits_and_why(api: Admin) -> None:
    """One entry per waiting request, with its position and the reason of the scheduler."""
    api.world.healthy_at_once = False
    waiting = asyncio.ensure_future(api.world.queue.admit(api.world.ticket("a")))
    await api.world.clock.advance(2.0)
    shown = (await api.client.get("/api/queue")).json()
    assert (shown["length"], shown["oldest_s"], shown["max_size"]) == (1, 2.0, 1000)
    (entry,) = shown["entries"]
    assert (entry["ticket"], entry["position"], entry["reason"]) == ("t1", 1, "loading")
    assert entry["why"]
    assert entry["at_latest_s"] > entry["eta_s"] > 0
    waiting.cancel()


async def test_plan_of_a_free_device_starts(api: Admin) -> None:
    """No victims; the place, the size and where the figure comes from."""
    plan = (await api.client.get("/api/plan?model=gpt")).json()
    assert (plan["model"], plan["act"], plan["code"]) == ("Qwen/Qwen2.5-7B", "start", "fits")
    assert (plan["devices"], plan["bytes"], plan["victims"]) == ({"gpu0": 20 * GIB}, 20 * GIB, [])
    assert plan["footprint"]["source"] == "declared"
    assert plan["eta_s"] == 30.0


async def test_plan_names_the_victims_and_changes_nothing(api: Admin) -> None:
    """Who would go, with what it holds and does; nobody is touched."""
    await api.world.ready("a")
    await api.world.clock.advance(10.0)
    before = len(api.world.journal.events)
    async with api.world.manager.lease(api.world.ticket("a")):
        plan = (await api.client.get("/api/plan?model=gpt")).json()
    assert plan["act"] == "start"
    assert plan["reason"] == "operator: evicts a"
    [victim] = plan["victims"]
    assert victim == {
        "model": "a", "state": "ready", "in_flight": 1, "device_bytes": {"gpu0": 20 * GIB}, "bytes": 20 * GIB,
        "goal": "stop", "why": victim["why"], "on_timeout": "cut", "drain_s": 5.0, "go_s": 1.0, "return_s": victim["return_s"], "cache_s": 0.0,
    }  # fmt: skip
    assert (plan["room_s"], plan["eta_s"]) == (6.0, 6.0 + plan["load_s"])
    assert plan["at_latest_s"] > plan["eta_s"]
    await api.world.clock.advance(10.0)
    assert len(api.world.journal.events) == before
    assert api.world.running == {"a"}


async def test_plan_says_what_is_in_the_way(api: Admin) -> None:
    """Ready: nothing to do. Loading: shared. A pinned model: wait, or never."""
    api.world.healthy_at_once = False
    await api.client.post("/api/models/a/start")
    await api.world.clock.advance(1.0)
    assert (await api.client.get("/api/plan?model=a")).json()["act"] == "loading"
    waits = (await api.client.get("/api/plan?model=gpt")).json()
    assert (waits["act"], "room" in waits["reason"]) == ("wait", True)
    api.world.processes["a"].healthy = True
    await api.world.clock.advance(1.0)
    assert (await api.client.get("/api/plan?model=a")).json()["act"] == "none"
    await api.client.post("/api/models/a/pin")
    refused = (await api.client.get("/api/plan?model=gpt")).json()
    assert (refused["act"], refused["eta_s"]) == ("refuse", None)
    assert "pinned" in refused["reason"]


async def test_plan_that_waits_for_time_alone_names_its_victims(tmp_path: Path) -> None:
    """A model that was just loaded dwells where a dwell is asked for: the plan says until when, and who goes then."""
    dwelling = {"swap.min_dwell": "5s"}
    async with admin(tmp_path, model("a", 20), model("Qwen/Qwen2.5-7B", 20, aliases=("gpt",)), **dwelling) as api:
        await api.world.ready("a")
        plan = (await api.client.get("/api/plan?model=gpt")).json()
    assert (plan["act"], plan["again_in_s"]) == ("wait", 4.0)
    assert plan["eta_s"] == 4.0 + plan["room_s"] + plan["load_s"]
    assert plan["code"] == "dwell"
    assert ([v["model"] for v in plan["victims"]], plan["devices"]) == (["a"], {"gpu0": 20 * GIB})


async def test_plan_of_a_failed_model_is_that_of_an_operators_start(api: Admin) -> None:
    """Which forgets the failure first."""
    api.world.launch_errors["a"] = FileNotFoundError(2, "no such program", "vllm")
    await api.client.post("/api/models/a/start")
    await api.world.clock.advance(1.0)
    plan = (await api.client.get("/api/plan?model=a")).json()
    assert (plan["state"], plan["act"]) == ("failed", "start")


async def test_status_counts_and_alerts(api: Admin) -> None:
    """Version, states, queue, and what needs a look."""
    calm = (await api.client.get("/api/status")).json()
    assert (calm["version"], calm["models"], calm["states"], calm["alerts"]) == ("1.2.3", 2, {"stopped": 2}, [])
    assert calm["queue"] == {"length": 0, "oldest_s": 0.0}
    host = calm["host_memory"]
    assert (host["budget"], host["used"], host["held"], host["leaving"]) == (None, 0, {}, {})
    assert host["free"] > 0
    api.world.manager._tiers.host = HostMemory(9 * GIB, {"a": 4 * GIB}, {"Qwen/Qwen2.5-7B": GIB})
    host = (await api.client.get("/api/status")).json()["host_memory"]
    assert (host["budget"], host["used"]) == (9 * GIB, 5 * GIB)
    assert (host["held"], host["leaving"]) == ({"a": 4 * GIB}, {"Qwen/Qwen2.5-7B": GIB})
    api.world.launch_errors["a"] = FileNotFoundError(2, "no such program", "vllm")
    await api.client.post("/api/models/a/start")
    await api.world.clock.advance(1.0)
    shown = (await api.client.get("/api/status")).json()
    assert shown["states"] == {"stopped": 1, "failed": 1}
    assert "vllm-mm load a" in shown["alerts"][0]


async def test_requests_come_in_pages_newest_first(api: Admin) -> None:
    """With filters; `next` leads to the page before."""
    await api.services.ledger.add([replace(ROW, id=f"r{i}", model="b" if i == 2 else "a") for i in range(4)])
    first = (await api.client.get("/api/requests?limit=2")).json()
    assert [r["id"] for r in first["requests"]] == ["r3", "r2"]
    second = (await api.client.get(f"/api/requests?limit=2&before={first['next']}")).json()
    assert ([r["id"] for r in second["requests"]], second["next"]) == (["r1", "r0"], None)
    only = (await api.client.get("/api/requests?model=b")).json()["requests"]
    assert [(r["id"], r["prompt_tokens"], r["outcome"]) for r in only] == [("r2", 3, "ok")]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"/api/events?follow=false&after={2**63}", {}, 422),
        (f"/api/events?follow=false&after={2**63 - 1}", {}, 200),
        (f"/api/requests?before={2**63}", {}, 422),
        ("/api/requests?before=-1", {}, 422),
        ("/api/events?follow=false", {"last-event-id": "9" * 19}, 200),
        ("/api/events?follow=false", {"last-event-id": "9" * 5000}, 422),
        ("/api/events?follow=false", {"last-event-id": "\u00b2".encode()}, 422),
    ],
)
async def test_numbers_that_no_row_has(api: Admin, path: str, headers: dict[str, str], status: int) -> None:
    """Too large for the database, or no number at all: a 400 that says so, and no fault."""
    answer = await api.client.get(path, headers=headers)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.json()["error"]["message"]


def test_a_row_of_the_ledger_is_shown_with_every_field_of_its_record() -> None:
    """The API's row is derived from the record: what is added there is shown here, with its type, and the usage flat."""
    names = {*RequestRecord.__struct_fields__} - {"usage", "gaps"} | {*Usage.__struct_fields__}
    names |= {"itl_p50_s", "itl_p95_s", "itl_p99_s"}
    assert set(RequestOut.model_fields) == names
    shown = RequestOut.of(ROW).model_dump()
    assert {n: shown[n] for n in ("id", "total_s", "prompt_tokens", "cached_tokens", "generation")} == {
        "id": "req_1",
        "total_s": 1.5,
        "prompt_tokens": 3,
        "cached_tokens": None,
        "generation": 1,
    }
    timed = RequestOut.of(replace(ROW, gaps=Gaps(0.1, 0.2, 0.3, 9.0, (1, 2)))).model_dump()
    assert [timed[name] for name in ("itl_p50_s", "itl_p95_s", "itl_p99_s")] == [0.1, 0.2, 0.3]
    assert shown["itl_p50_s"] is None


async def test_ready_is_503_with_reasons(api: Admin) -> None:
    """A scheduler that does not look, a check that fails, a shutdown: each is told."""
    assert (await api.client.get("/ready")).json() == {"ready": True, "reasons": []}
    api.world.queue.last_beat -= 100
    api.services.closing.set()
    answer = await api.client.get("/ready")
    assert answer.status_code == 503
    reasons = answer.json()["reasons"]
    assert "has not looked" in reasons[0]
    assert "shutting down" in reasons[1]
    assert (await api.client.get("/health")).json() == {"status": "ok"}


async def test_keys_are_made_shown_once_and_revoked(api: Admin) -> None:
    """The secret works at once and is never shown again; a revoked key stops working at once."""
    keys, ring = api.services.keys, api.services.keyring
    _, root = await keys.create("root", [Scope.ADMIN])
    ring.replace(await keys.all())
    async with api.as_(root) as client:
        made = await client.post(
            "/api/keys", json={"name": "ci", "scopes": ["read"], "models": ["a"], "expires_in": 60}
        )
        assert made.status_code == 201, made.text
        key = made.json()
        assert key["secret"].startswith("mm-")
        assert key["expires_at"] > key["created_at"]
        listed = (await client.get("/api/keys")).json()
        assert {k["name"] for k in listed} == {"root", "ci"}
        assert all("secret" not in k for k in listed)
        async with api.as_(key["secret"]) as reader:
            assert (await reader.get("/api/status")).status_code == 200
            gone = (await client.delete(f"/api/keys/{key['id']}")).json()
            assert gone["revoked_at"] is not None
            assert (await reader.get("/api/status")).status_code == 401
        assert (await client.delete("/api/keys/key_nope")).json()["error"]["code"] == "not_found"
        wrong = await client.post("/api/keys", json={"name": "x", "models": ["nope"]})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        wrong = await client.post("/api/keys", json={"name": "x", "scopes": ["root"]})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (422, "scopes.0")


async def test_a_key_that_may_not_read_cannot_scrape_from_elsewhere(api: Admin) -> None:
    """Loopback needs no key for /metrics; other machines need the scope `read`, unless metrics are public."""
    far = httpx.ASGITransport(api.app, client=("192.0.2.7", 1234))
    async with httpx.AsyncClient(transport=far, base_url="http://mm") as client:
        assert (await client.get("/metrics")).status_code == 401
        allowed = await client.get("/metrics", headers={"Authorization": f"Bearer {READ}"})
        assert allowed.status_code == 200
