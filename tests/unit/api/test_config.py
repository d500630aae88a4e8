"""`/api/config/reload`, `/api/settings`: the difference is applied, and nothing of a configuration that is wrong."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin_rig import Admin, admin
from vllm_mm.control.configuration import EVERY, Configuration
from vllm_mm.domain.errors import ConfigError

MODELS = """\
models:
  a: {engine: sim, sim: {weights: 1GiB}}
  b: {engine: sim, sim: {weights: 1GiB}}
  c: {engine: sim, sim: {weights: 1GiB}}
"""
OTHER = """\
server: {port: 9000}
config: {watch: true}
models:
  a: {engine: sim, sim: {weights: 1GiB}}
  b: {engine: sim, sim: {weights: 2GiB}}
  c: {engine: sim, sim: {weights: 1GiB}, pinned: true, env: {HF_TOKEN: hf_x}}
  d: {engine: sim}
"""


class Files:
    """The API with a configuration file."""

    def __init__(self, api: Admin, file: Path) -> None:
        self.api = api
        self.file = file

    def write(self, text: str) -> None:
        self.file.write_text(text)
        # Two writes in one tick of the file system's clock would look the same.
        at = getattr(self, "at", 1_000_000_000) + 1
        self.at = at
        os.utime(self.file, (at, at))

    @property
    def configuration(self) -> Configuration:
        return self.api.services.configuration

    def models(self) -> list[str]:
        return [s.id for s in self.api.world.manager.catalog]

    def events(self) -> list[str]:
        return [e.kind for e in self.api.world.journal.events if e.kind.startswith("config.")]


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Files]:
    """Three models of a file, loaded."""
    file = tmp_path / "vllm-mm.yaml"
    file.write_text(MODELS)
    async with admin(tmp_path) as api:
        found = Files(api, file)
        found.write(MODELS)
        await found.configuration.reload("test")
        api.world.journal.events.clear()
        yield found


async def test_a_reload_says_what_it_changed_and_touches_nothing_else(it: Files) -> None:
    """Each model that changes with its effect; what waits for a restart of the server by name."""
    await it.api.world.ready("a", "b")
    untouched = it.api.world.manager.require("a")
    it.write(OTHER)
    answer = await it.api.client.post("/api/config/reload")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["applied"] is True
    assert found["file"] == str(it.file)
    assert {c["model"]: c["text"] for c in found["changes"]} == {
        "b": "restarts b after drain, when it is next wanted", "d": "new",
        "c": "it does not run: its next start is the new one",
    }  # fmt: skip
    by_key = {f["key"]: (f["before"], f["after"]) for c in found["changes"] for f in c["fields"]}
    assert by_key == {"sim.weights": ("1GiB", "2GiB"), "pinned": (False, True), "env.HF_TOKEN": (None, "********")}
    assert found["at_restart"] == ["server.port"]
    assert it.models() == ["a", "b", "c", "d"]
    assert it.api.world.manager.require("a") is untouched
    assert untouched.state == "ready"
    assert it.api.world.manager.require("b").state in {"draining", "stopping", "stopped"}
    (event,) = [e for e in it.api.world.journal.events if e.kind == "config.reloaded"]
    assert event.cause == "operator ada-admin"
    assert event.data["restarted"] == ["b", "c"]
    assert event.data["at_restart"] == ["server.port"]
    it.write(MODELS)
    gone = {c["model"]: c["text"] for c in (await it.api.client.post("/api/config/reload")).json()["changes"]}
    assert gone["d"] == "removed"


async def test_a_dry_run_says_it_and_changes_nothing(it: Files) -> None:
    """Nor does it leave an event, or an alert when the file is wrong."""
    it.write(OTHER)
    found = (await it.api.client.post("/api/config/reload?dry_run=1")).json()
    assert found["applied"] is False
    assert [c["model"] for c in found["changes"]] == ["b", "c", "d"]
    assert it.models() == ["a", "b", "c"]
    it.write("models: {a: {engin: sim}}")
    answer = await it.api.client.post("/api/config/reload?dry_run=1")
    assert answer.status_code == 422
    assert it.events() == []
    assert (await it.api.client.get("/api/status")).json()["alerts"] == []


async def test_a_wrong_file_changes_nothing_and_says_why(it: Files) -> None:
    """422 with every line and the nearest key; an event, and an alert that stands until a good one."""
    it.write("models:\n  a:\n    engin: sim\n    devices: {count: 0}\n")
    answer = await it.api.client.post("/api/config/reload")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "invalid_config")
    assert "vllm-mm.yaml:3: models.a.engin: unknown key; did you mean `engine`?" in error["message"]
    assert "vllm-mm.yaml:4: models.a.devices.count" in error["message"]
    assert it.models() == ["a", "b", "c"]
    assert it.events() == ["config.refused"]
    (alert,) = (await it.api.client.get("/api/status")).json()["alerts"]
    assert "the configuration was not reloaded: vllm-mm.yaml:3" in alert
    assert (await it.api.client.get("/ready")).status_code == 200
    assert (await it.api.client.get("/api/settings")).json()["problem"] == alert
    it.write(MODELS)
    assert (await it.api.client.post("/api/config/reload")).json()["changes"] == []
    assert (await it.api.client.get("/api/status")).json()["alerts"] == []


@pytest.mark.parametrize("text", [None, "", "# later\n"])
async def test_a_file_that_is_gone_or_empty_takes_nothing_away(it: Files, text: str | None) -> None:
    """Who means it says so."""
    if text is None:
        it.file.unlink()
    else:
        it.write(text)
    for dry_run in ("", "?dry_run=1"):
        answer = await it.api.client.post(f"/api/config/reload{dry_run}")
        assert answer.status_code == 422
        assert "write `models: {}`" in answer.json()["error"]["message"]
    assert it.models() == ["a", "b", "c"]
    assert it.configuration.problem() is not None
    it.write("models: {}\n")
    assert (await it.api.client.post("/api/config/reload")).status_code == 200
    assert it.models() == []
    it.write("")
    assert (await it.api.client.post("/api/config/reload")).status_code == 422


async def test_an_empty_file_does_not_end_the_watch(tmp_path: Path) -> None:
    """What was there before is read again when it is back."""
    file = tmp_path / "vllm-mm.yaml"
    file.write_text("config: {watch: true}\n" + MODELS)
    async with admin(tmp_path) as api:
        it = Files(api, file)
        await it.configuration.reload("test")
        for text in ("", "config: {watch: true}\n" + MODELS.replace("  c: ", "  d: ")):
            it.write(text)
            for _ in range(3):
                await it.configuration.look()
        assert it.models() == ["a", "b", "d"]


async def test_two_reloads_at_once_come_one_after_the_other(it: Files) -> None:
    """Each reads the file when it is its turn, so that the last one applies what stands there then."""
    it.write(OTHER)
    async with it.api.services.in_force.changing:
        several = [asyncio.ensure_future(it.configuration.reload(f"r{i}")) for i in range(3)]
        await asyncio.sleep(0)
        assert len(it.api.services.in_force.changing._waiters or ()) == 3  # none of them has begun
        assert it.models() == ["a", "b", "c"]
    first, *rest = await asyncio.gather(*several)
    assert [c.model for c in first.changes] == ["b", "c", "d"]
    assert [r.changes for r in rest] == [(), ()]


async def test_models_of_the_api_stay_over_a_reload(it: Files) -> None:
    """But for one that the new configuration does not go with: it is left out, with a warning."""
    await it.api.client.post("/api/models", json={"id": "mine", "engine": "sim"})
    await it.api.client.post("/api/models", json={"id": "e", "engine": "sim"})
    it.write(MODELS + "  e: {engine: sim, priority: 3}\n")
    found = (await it.api.client.post("/api/config/reload")).json()
    assert [c["model"] for c in found["changes"]] == ["e"]
    assert {f["key"] for f in found["changes"][0]["fields"]} == {"source", "priority"}
    assert (
        "'e', made over the API, is left out: the configuration file has a model with this id" in found["warnings"][0]
    )
    assert sorted(it.models()) == ["a", "b", "c", "e", "mine"]


async def test_declarations_are_checked_against_what_was_read_last(it: Files) -> None:
    """A new default holds for the next model that is made over the API."""
    it.write("defaults: {engine: sim, concurrency: 7}\n" + MODELS)
    await it.configuration.reload("test")
    made = (await it.api.client.post("/api/models", json={"id": "x"})).json()
    assert (made["engine"], made["concurrency"]) == ("sim", 7)


async def test_the_file_is_watched_where_that_is_set(it: Files) -> None:
    """A file that changed is read when it stands still; a wrong one is tried once; without the setting nothing is looked at."""
    await it.configuration.look()
    it.write(OTHER)
    for _ in range(3):
        await it.configuration.look()
    assert it.models() == ["a", "b", "c"]
    await it.configuration.reload("test")  # it says `config.watch: true`
    it.write(OTHER.replace("  d: {engine: sim}\n", ""))
    await it.configuration.look()
    assert it.models() == ["a", "b", "c", "d"]
    await it.configuration.look()
    assert it.models() == ["a", "b", "c"]
    it.api.world.journal.events.clear()
    it.write("models: [")
    for _ in range(5):
        await it.configuration.look()
    assert it.events() == ["config.refused"]
    it.write(OTHER)
    it.write(OTHER + "  e: {engine: sim}\n")
    watching = asyncio.ensure_future(it.configuration.watch())
    async with asyncio.timeout(30):
        while "e" not in it.models():
            await it.api.world.clock.advance(EVERY)
            await asyncio.sleep(0)
    watching.cancel()


async def test_a_file_that_was_not_there_at_the_start_is_seen(tmp_path: Path) -> None:
    """When it comes, as one that changes. While it is away nothing is taken for said: an editor may be about to write it anew."""
    async with admin(tmp_path, **{"config.watch": True}) as api:
        it = Files(api, tmp_path / "vllm-mm.yaml")
        for _ in range(3):
            await it.configuration.look()
        assert (it.models(), it.events()) == ([], [])
        it.write(MODELS)
        for _ in range(2):
            await it.configuration.look()
        assert it.models() == ["a", "b", "c"]
        assert it.configuration.loaded.file == it.file
        it.file.rename(aside := tmp_path / "aside")
        for _ in range(3):
            await it.configuration.look()
        assert it.models() == ["a", "b", "c"]
        aside.rename(it.file)
        for _ in range(3):
            await it.configuration.look()
        assert it.events() == ["config.reloaded"]


async def test_settings_are_shown_with_where_they_were_said(it: Files) -> None:
    """Value, source, place, and whether a reload can change it; without secrets; what waits for a restart by name."""
    it.write(OTHER + "database: {url: 'postgresql+asyncpg://me:pw@host/db'}\n")
    await it.configuration.reload("test")
    found = (await it.api.client.get("/api/settings")).json()
    shown = {s["key"]: (s["value"], s["source"], s["where"], s["live"]) for s in found["settings"]}
    assert shown["server.port"] == (9000, "file", "vllm-mm.yaml:1", False)
    assert shown["server.host"] == ("127.0.0.1", "default", "", False)
    assert shown["paths.data_dir"][1:] == ("flag", "command line", False)
    assert shown["config.watch"] == (True, "file", "vllm-mm.yaml:2", True)
    assert shown["database.url"][0] == "postgresql+asyncpg://me:***@host/db"
    assert shown["models.c.env"] == ({"HF_TOKEN": "***"}, "file", "vllm-mm.yaml:6", True)
    assert "models.d.priority" not in shown
    assert found["at_restart"] == ["server.port", "database.url"]
    assert found["problem"] is None


async def test_reloads_without_a_request_are_audited(it: Files) -> None:
    """By whom they came, and with their end; those of the API are audited as requests, once, and a dry run not at all here."""
    it.write(OTHER)
    await it.configuration.reload("SIGHUP", actor="signal", dry_run=True)
    await it.configuration.reload("SIGHUP", actor="signal")
    it.write("models: [")
    with pytest.raises(ConfigError):
        await it.configuration.reload("SIGHUP", actor="signal")
    it.write(MODELS)
    await it.api.client.post("/api/config/reload")
    found = (await it.api.client.get("/api/audit?act=reload_config")).json()["entries"]
    assert [(e["actor"], e["status"], e["kind"]) for e in reversed(found)] == [
        ("signal", 200, "config"), ("signal", 422, "config"), ("key_admin", 200, "config"),
    ]  # fmt: skip
    assert found[2]["after"]["new"] == ["d"]
