"""Changes of models over the API: looked at before they are made, only of what was seen, and copies of what cannot be changed."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from admin_rig import Admin, admin
from vllm_mm.domain.flags import Checked
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.store.models import Models

NEW: dict[str, Any] = {"id": "n", "engine": "sim", "sim": {"weights": "1GiB", "kv_cache": "1GiB", "overhead": 0}}
FILE = """\
models:
  org/a: {engine: sim, sim: {weights: 1GiB}, aliases: [z], priority: 4, idle: {sleep_after: null}}
  v: {engine: vllm, executable: /nowhere/vllm, lora: {l: /l}}
"""


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Admin]:
    (tmp_path / "vllm-mm.yaml").write_text(FILE)
    async with admin(tmp_path) as api:
        await api.services.configuration.reload("test")
        yield api


async def test_a_dry_run_shows_difference_effect_and_memory(it: Admin) -> None:
    """Of each way to change a model; nothing is stored, and no engine notices."""
    made = await it.client.post("/api/models?dry_run=1", json=NEW)
    assert made.status_code == 200, made.text
    assert (made.json()["change"]["effect"], made.json()["dry_run"]) == ("new", True)
    assert made.json()["footprint"]["per_device"] == 2 * 1024**3
    assert [(f["fits"], f["victims"]) for f in made.json()["fits"]] == [("now", [])]
    assert not await Models(it.database).all()
    await it.client.post("/api/models", json=NEW)
    await it.world.ready("n")
    patched = (await it.client.patch("/api/models/n?dry_run=1", json={"sim": {"weights": "3GiB"}})).json()
    assert patched["change"]["text"] == "restarts n after drain, when it is next wanted"
    assert patched["change"]["fields"] == [{"key": "sim.weights", "before": "1GiB", "after": "3GiB"}]
    assert patched["footprint"]["per_device"] == 4 * 1024**3
    put = (await it.client.put("/api/models/n?dry_run=1", json={**NEW, "priority": 3})).json()
    assert (put["change"]["text"], put["change"]["fields"]) == (
        "no restart", [{"key": "priority", "before": 0, "after": 3}],
    )  # fmt: skip
    big = {**NEW, "id": "big", "memory": "23GiB"}
    (fit,) = (await it.client.post("/api/models?dry_run=1", json=big)).json()["fits"]
    assert (fit["device"], fit["fits"], fit["victims"]) == ("gpu0", "room", ["n"])
    it.world.manager.pin("n", pinned=True)
    (fit,) = (await it.client.post("/api/models?dry_run=1", json=big)).json()["fits"]
    assert (fit["fits"], fit["victims"]) == ("held", [])
    assert fit["reason"]
    same = (await it.client.put("/api/models/n?dry_run=1", json=NEW)).json()
    assert (same["change"]["text"], same["change"]["fields"]) == ("no restart", [])
    gone = (await it.client.delete("/api/models/n?dry_run=1")).json()
    assert (gone["change"]["text"], gone["footprint"]) == ("removed: drains and stops", None)
    copied = await it.client.post("/api/models/org/a/copy?dry_run=1", json={"id": "c"})
    assert (copied.status_code, copied.json()["change"]["effect"]) == (200, "new")
    (stored,) = await Models(it.database).all()
    assert stored.declaration["sim"]["weights"] == "1GiB"
    assert (await it.client.get("/api/models/n")).json()["instance"]["state"] == "ready"
    assert "c" not in it.world.manager.catalog


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/models", {**NEW, "engin": "sim"}, 422),
        ("POST", "/api/models", {**NEW, "aliases": ["z"]}, 409),
        ("PUT", "/api/models/org/a", {}, 409),
        ("DELETE", "/api/models/org/a", None, 409),
        ("POST", "/api/models/org/a/copy", {"id": "v"}, 409),
        ("POST", "/api/models/org/a/copy", {"id": "x/start"}, 422),
        ("POST", "/api/models/nobody/copy", {"id": "x"}, 404),
        ("POST", "/api/models/z/copy", {"id": "x"}, 404),
    ],
)
async def test_a_dry_run_refuses_what_the_change_would_be_refused(
    it: Admin, method: str, path: str, body: Any, status: int
) -> None:
    """The same checks, and the same answers."""
    dry = await it.client.request(method, f"{path}?dry_run=1", json=body)
    real = await it.client.request(method, path, json=body)
    assert (dry.status_code, dry.json()) == (status, real.json())


async def test_a_change_of_what_somebody_else_changed_is_412(it: Admin) -> None:
    """With the ETag of what was seen; without one, and with `*`, the last one wins as ever."""
    etag = (await it.client.post("/api/models", json=NEW)).headers["etag"]
    assert (await it.client.get("/api/models/n")).headers["etag"] == etag
    first = await it.client.patch("/api/models/n", json={"priority": 1}, headers={"If-Match": etag})
    assert first.status_code == 200
    for method in ("PATCH", "PUT", "DELETE"):
        late = await it.client.request(method, "/api/models/n", json={"engine": "sim"}, headers={"If-Match": etag})
        assert late.status_code == 412
        assert late.json()["error"]["code"] == "precondition_failed"
        assert "GET it again" in late.json()["error"]["message"]
    assert (await it.client.get("/api/models/n")).json()["priority"] == 1
    assert (await it.client.put("/api/models/n", json=NEW, headers={"If-Match": "*"})).headers["etag"] == etag
    gone = await it.client.delete("/api/models/n", headers={"If-Match": etag})
    assert gone.status_code == 200


async def test_a_model_of_the_file_is_copied_to_be_changed(it: Admin) -> None:
    """With what the file says of it, but for the names that it keeps; the refusal of a change says how."""
    refused = await it.client.patch("/api/models/org/a", json={"priority": 1})
    assert refused.status_code == 409
    assert "POST /api/models/org/a/copy" in refused.json()["error"]["message"]
    copied = await it.client.post("/api/models/org/a/copy", json={"id": "c"})
    assert copied.status_code == 201, copied.text
    found = copied.json()
    assert (found["source"], found["sim"], found["aliases"], found["priority"]) == ("api", {"weights": "1GiB"}, [], 4)
    assert found["idle"]["sleep_after"] is None
    assert (await it.client.patch("/api/models/c", json={"priority": 9})).json()["priority"] == 9
    again = await it.client.post("/api/models/c/copy", json={"id": "d"})
    assert again.json()["priority"] == 9
    real = (await it.client.post("/api/models/v/copy", json={"id": "w"})).json()
    assert (real["model"], real["executable"], real["lora"]) == ("v", "/nowhere/vllm", {})


async def strict(specs: Iterable[ModelSpec]) -> Checked:
    """Engines that know one argument; `x` cannot be asked."""
    wrong = [(s.id, name, "unknown argument; did you mean `good`?") for s in specs for name in s.args if name != "good"]
    return Checked(
        tuple(w for w in wrong if w[0] != "x"), tuple(f"{m} was not checked" for m, _, _ in wrong if m == "x")
    )


async def test_arguments_are_checked_by_the_engine_itself(tmp_path: Path) -> None:
    """When a model is made, changed or read from the file: 422 with the nearest; what cannot be asked is taken, and said."""
    file = tmp_path / "vllm-mm.yaml"
    async with admin(tmp_path, check=strict) as it:
        answer = await it.client.post("/api/models", json={"id": "n", "args": {"god": 1}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "args.god")
        assert "args.god: unknown argument; did you mean `good`?" in answer.json()["error"]["message"]
        assert (await it.client.post("/api/models", json={"id": "n", "args": {"good": 1}})).status_code == 201
        assert (await it.client.patch("/api/models/n", json={"args": {"god": 1}})).status_code == 422
        dry = await it.client.post("/api/models?dry_run=1", json={"id": "x", "args": {"god": 1}})
        assert (dry.status_code, dry.json()["notes"]) == (200, ["x was not checked"])
        file.write_text("models:\n  m:\n    args: {good: 1}\n  o:\n    args:\n      god: 1\n")
        refused = await it.client.post("/api/config/reload")
        assert refused.status_code == 422
        assert refused.json()["error"]["message"] == (
            "vllm-mm.yaml:6: models.o.args.god: unknown argument; did you mean `good`?"
        )
        file.write_text("defaults:\n  args: {god: 1}\nmodels:\n  m:\n  o:\n    args: {god: null}\n  x:\n")
        refused = await it.client.post("/api/config/reload")
        assert refused.json()["error"]["message"].splitlines() == [
            "vllm-mm.yaml:2: defaults.args.god: unknown argument; did you mean `good`?"
        ]
        file.write_text("models:\n  x:\n    args: {god: 1}\n")
        assert (await it.client.post("/api/config/reload")).json()["warnings"] == ["x was not checked"]
