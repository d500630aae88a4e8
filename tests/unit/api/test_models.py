"""`/api/models`: reading, acting, waiting."""

import asyncio
import gzip

import pytest

from admin_rig import Admin
from fakes_engine import model
from vllm_mm.store.failures import DatabaseFull

QWEN = "/api/models/Qwen/Qwen2.5-7B"


async def test_a_model_that_never_ran_has_its_spec_and_no_instance(api: Admin) -> None:
    """`instance` is null until it runs; the spec, its source and its footprint are there."""
    shown = (await api.client.get(QWEN)).json()
    assert shown["id"] == "Qwen/Qwen2.5-7B"
    assert shown["source"] == "file"
    assert shown["aliases"] == ["gpt"]
    footprint = shown["footprint"]
    assert (footprint["per_device"], footprint["source"], footprint["samples"]) == (20 * 1024**3, "declared", 0)
    assert shown["instance"] is None
    assert [m["id"] for m in (await api.client.get("/api/models")).json()] == ["a", "Qwen/Qwen2.5-7B"]


@pytest.mark.parametrize("path", [QWEN, "/api/models/Qwen%2FQwen2.5-7B", "/api/models/gpt"])
async def test_ids_with_slashes_and_aliases_are_found(api: Admin, path: str) -> None:
    """Plain, percent-encoded, or by another name."""
    assert (await api.client.get(path)).json()["id"] == "Qwen/Qwen2.5-7B"


async def test_start_answers_at_once_with_the_instance(api: Admin) -> None:
    """202 before anything was launched; the cause is the key's name; the start then comes about."""
    answer = await api.client.post(f"{QWEN}/start")
    assert answer.status_code == 202
    assert answer.json()["model"] == "Qwen/Qwen2.5-7B"
    assert answer.json()["pending"] is True
    await api.world.clock.advance(1.0)
    shown = (await api.client.get(QWEN)).json()["instance"]
    assert (shown["state"], shown["pending"], shown["devices"]) == ("ready", False, ["gpu0"])
    started = next(e for e in api.world.journal.events if e.kind == "instance.starting")
    assert started.cause == "operator ada-admin"


async def test_wait_gives_the_settled_state(api: Admin) -> None:
    """With `wait` the answer is 200 and READY, as soon as it is."""
    waiting = asyncio.ensure_future(api.client.post("/api/models/a/start?wait=60"))
    await api.world.clock.advance(1.0)
    answer = await waiting
    assert (answer.status_code, answer.json()["state"]) == (200, "ready")


async def test_wait_that_runs_out_is_202(api: Admin) -> None:
    """What is not settled by then is answered as it is."""
    api.world.healthy_at_once = False
    answer = await api.client.post("/api/models/a/start?wait=0")
    assert answer.status_code == 202
    assert answer.json()["pending"] is True


async def test_wait_ends_with_a_failed_start(api: Admin) -> None:
    """A failure is settled too; the reason is in the instance."""
    api.world.launch_errors["a"] = FileNotFoundError(2, "no such program", "vllm")
    waiting = asyncio.ensure_future(api.client.post("/api/models/a/start?wait=60"))
    await api.world.clock.advance(1.0)
    answer = await waiting
    assert (answer.status_code, answer.json()["state"]) == (200, "failed")
    assert "no such program" in answer.json()["reason"]


async def test_a_start_that_the_database_does_not_take_ends_with_the_reason(api: Admin) -> None:
    """It has no instance, and still is shown, so that whoever looks at the load learns of its end."""
    api.world.store.error = DatabaseFull("The database could not be written: database or disk is full.")
    assert (await api.client.post("/api/models/a/start")).json()["pending"] is True
    await api.world.clock.advance(1.0)
    instance = (await api.client.get("/api/models/a")).json()["instance"]
    assert (instance["state"], instance["pending"]) == ("stopped", False)
    assert instance["reason"].startswith("its start could not be written down. The database could not be written: ")
    assert "DatabaseFull" not in instance["reason"]


async def test_wait_for_a_start_that_came_to_nothing_is_409(api: Admin) -> None:
    """Called off before there was a process, taken back without a word, or ended by somebody: never 200 with an empty reason."""
    api.world.healthy_at_once = False
    waiting = asyncio.ensure_future(api.client.post("/api/models/a/start?wait=60"))
    await api.world.clock.advance(1.0)
    await api.client.post("/api/models/a/stop")
    await api.world.clock.advance(1.0)
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "a was not loaded: it is stopped again (stopped by operator ada-admin)" in answer.json()["error"]["message"]

    held = api.world.manager.lease(api.world.ticket("Qwen/Qwen2.5-7B"))
    api.world.healthy_at_once = True
    async with held:  # nothing fits beside it: the wish for a waits
        waiting = asyncio.ensure_future(api.client.post("/api/models/a/start?wait=60"))
        await api.world.clock.advance(1.0)
        assert not waiting.done()
        await api.world.manager.retire("a", "reload")
        await api.world.clock.advance(2.0)
        answer = await waiting
    assert answer.status_code == 409, answer.text
    assert "a was not loaded: it is stopped again" in answer.json()["error"]["message"]


async def test_waiting_for_another_act_does_not_tell_of_an_old_start(api: Admin) -> None:
    """What came of the last wish is said to who wished, not to who pins or stops."""
    api.world.manager._wishes.refuse("a", "no room")
    for act in ("pin", "unpin", "reset", "drain"):
        assert (await api.client.post(f"/api/models/a/{act}?wait=5")).status_code == 200, act


@pytest.mark.parametrize(
    ("acts", "state"),
    [
        (["start", "start"], "ready"),
        (["start", "stop"], "stopped"),
        (["start", "stop", "stop"], "stopped"),
        (["stop"], "stopped"),
        (["start", "drain"], "stopped"),
        (["start", "drain", "drain"], "stopped"),
        (["start", "restart"], "ready"),
        (["start", "undrain"], "ready"),
        (["start", "wake"], "ready"),
        (["start", "pin", "pin"], "ready"),
        (["unpin"], "stopped"),
        (["reset"], "stopped"),
    ],
)
async def test_acts_are_idempotent(api: Admin, acts: list[str], state: str) -> None:
    """Each can be repeated; each is accepted and ends where it should."""
    for act in acts:
        answer = await api.client.post(f"/api/models/a/{act}")
        assert answer.status_code == 202, answer.text
        await api.world.clock.advance(2.0)
    assert (await api.client.post("/api/models/a/unpin")).json()["state"] == state


async def test_a_stop_with_force_cuts_what_runs(api: Admin) -> None:
    """`force` does not wait for leases, a plain stop does."""
    await api.world.ready("a")
    async with api.world.manager.lease(api.world.ticket("a")):
        assert (await api.client.post("/api/models/a/stop")).json()["state"] == "draining"
        await api.world.clock.advance(1.0)
        assert (await api.client.get("/api/models/a")).json()["instance"]["state"] == "draining"
        await api.client.post("/api/models/a/stop?force=1")
        await api.world.clock.advance(1.0)
        assert (await api.client.get("/api/models/a")).json()["instance"]["state"] == "stopped"


@pytest.mark.parametrize(("act", "told"), [("sleep", "cannot sleep"), ("wake", "not asleep"), ("undrain", "undrained")])
async def test_a_conflicting_act_is_409_with_the_reason(api: Admin, act: str, told: str) -> None:
    """The body is an error of ours that says what is going on."""
    answer = await api.client.post(f"/api/models/a/{act}")
    assert answer.status_code == 409
    assert told in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "conflict"


async def test_why_a_model_does_not_sleep_is_shown(api: Admin) -> None:
    """With the model, before anybody asks for it."""
    shown = (await api.client.get("/api/models/a")).json()["sleep"]
    assert (shown["mode"], shown["level"], shown["keeps"]) == ("auto", 1, None)
    assert "sleep.mode: always" in shown["why_not"]


async def test_pins_are_shown_and_keep_the_model(api: Admin) -> None:
    """A pinned model is no victim: the other one waits, and the reason says for what."""
    await api.world.ready("a")
    assert (await api.client.post("/api/models/a/pin")).json()["pinned"] is True
    assert (await api.client.get("/api/models/a")).json()["pinned"] is True
    await api.client.post("/api/models/a/unpin")
    assert (await api.client.get("/api/models/a")).json()["pinned"] is False


async def test_unknown_models_are_404_with_the_nearest_name(api: Admin) -> None:
    """On every route under an id."""
    for method, path in (
        ("GET", "/api/models/gptt"),
        ("POST", "/api/models/gptt/start"),
        ("GET", "/api/models/gptt/logs"),
    ):
        answer = await api.client.request(method, path)
        assert answer.status_code == 404, path
        assert "`gpt`" in answer.json()["error"]["message"]


async def test_secrets_in_the_environment_are_for_administrators(api: Admin) -> None:
    """A key that may only read sees that there is one, not which."""
    env = {"HF_TOKEN": "hf_x", "OPENAI_API_KEY": "sk-x", "OMP_NUM_THREADS": "2"}
    api.world.manager.set_catalog(api.world.manager.catalog.with_spec(model("e", 1, env=env)))
    assert (await api.client.get("/api/models/e")).json()["env"] == env
    async with api.as_("mm-read") as reader:
        seen = (await reader.get("/api/models/e")).json()["env"]
    assert seen == {"HF_TOKEN": "********", "OPENAI_API_KEY": "********", "OMP_NUM_THREADS": "2"}


async def test_history_lists_starts_latest_first(api: Admin) -> None:
    """As the database has them."""
    launches = api.services.launches
    await launches.record_start("a", 1, 10.0, 12.5, {"spawn": 1.0, "weights": 1.5}, "ready", "", "local")
    await launches.record_start("a", 2, 20.0, None, {"spawn": 1.0}, "failed", "out of memory")
    starts = (await api.client.get("/api/models/a/history")).json()["starts"]
    assert [s["outcome"] for s in starts] == ["failed", "ready"]
    assert starts[1] == {
        "generation": 1, "started_at": 10.0, "ready_at": 12.5, "phases": {"spawn": 1.0, "weights": 1.5},
        "outcome": "ready", "reason": "", "launcher": "local",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", f"{QWEN}/strat", "Did you mean `start`? The acts are drain, pin, reset, restart, sleep, start, stop, undrain, unpin, wake."),
        ("POST", "/api/models/gpt/stopp", "There is no act `stopp` for Qwen/Qwen2.5-7B. Did you mean `stop`?"),
        ("POST", f"{QWEN}/xyzzy", "There is no act `xyzzy` for Qwen/Qwen2.5-7B. The acts are"),
        ("POST", QWEN, "POST needs an act behind the model: /api/models/Qwen/Qwen2.5-7B/ACT with one of drain,"),
        ("POST", "/api/models/nobody/start2", "The model `nobody` does not exist."),
        ("GET", f"{QWEN}/start", "`start` is an act: POST /api/models/Qwen/Qwen2.5-7B/start."),
        ("GET", f"{QWEN}/histroy", "There is nothing called `histroy` below"),
        ("GET", "/api/models/nobody/x", "The model `nobody/x` does not exist."),
    ],
)  # fmt: skip
async def test_what_is_no_act_is_told(api: Admin, method: str, path: str, said: str) -> None:
    """404 with the acts that there are and the one that was probably meant; nothing is done."""
    answer = await api.client.request(method, path)
    assert answer.status_code == 404
    assert said in answer.json()["error"]["message"]
    assert (await api.client.get(QWEN)).json()["instance"] is None
    assert (await api.client.request(method, path, headers={"authorization": "Bearer mm-nobody"})).status_code == 401


async def test_a_slash_at_the_end_is_no_other_path(api: Admin) -> None:
    """As clients' libraries put paths together."""
    for path in ("/api/models", QWEN, "/api/models/Qwen%2FQwen2.5-7B", "/api/status"):
        assert (await api.client.get(path + "/")).status_code == 200
    assert (await api.client.post(f"{QWEN}/pin/")).status_code == 202


async def test_bodies_of_the_admin_api_are_plain(api: Admin) -> None:
    """415, and not a complaint about the bytes."""
    answer = await api.client.post("/api/models", content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
