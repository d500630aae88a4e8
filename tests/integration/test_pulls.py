"""Weights from a hub: looked at first, gone on with where they broke off, and taken away again. Real processes, a small local hub."""

import asyncio
import json
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from admin_rig import Admin, admin
from fake_hub import SHA, WEIGHTS, Hub, Repo, hub
from rig import until
from vllm_mm.domain.specs import ModelSpec

CACHED = Path("hf/hub/models--org--tiny")


class Rig:
    """The API, a hub, and a cache."""

    def __init__(self, api: Admin, made: Hub, tmp: Path) -> None:
        self.api = api
        self.client = api.client
        self.hub = made
        self.folder = tmp / CACHED

    async def pull(self, model: str = "org/tiny", **more: Any) -> Any:
        return await self.client.post("/api/pulls", json={"model": model, **more}, timeout=60)

    async def over(self, pull: str) -> dict[str, Any]:
        return (await self.client.get(f"/api/pulls/{pull}?wait=60", timeout=90)).json()

    async def whole(self, **more: Any) -> dict[str, Any]:
        answer = await self.pull(**more)
        assert answer.status_code == 202, answer.text
        found = await self.over(answer.json()["id"])
        assert found["state"] == "done", found
        return found

    def events(self) -> list[str]:
        return [e.kind for e in self.api.world.journal.events if e.kind.startswith(("pull.", "weights."))]


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Rig]:
    specs = [
        ModelSpec("declared", model="org/tiny"),
        ModelSpec("folder", model=str(tmp_path)),
        ModelSpec("offline", model="org/tiny", env={"HF_HUB_OFFLINE": "1"}),
        ModelSpec("token", model="org/gated", env={"HF_TOKEN": "hf_good"}),
    ]
    with hub() as made:
        async with admin(tmp_path, *specs, hub=made.url) as api:
            yield Rig(api, made, tmp_path)


async def test_a_model_is_downloaded_into_the_cache_of_the_hub(it: Rig) -> None:
    """What an engine loads of it and nothing else, by id or by the name of a declared model; the second time nothing is fetched."""
    found = await it.whole()
    snapshot = it.folder / "snapshots" / SHA
    assert found["path"] == str(snapshot)
    assert sorted(p.name for p in snapshot.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (snapshot / "model.safetensors").read_bytes() == WEIGHTS
    assert (it.folder / "refs" / "main").read_text() == SHA
    size = len(WEIGHTS) + 24 + 2
    assert (found["total"], found["done"], found["files"]) == (size, size, 3)
    assert not list(it.folder.rglob("*.incomplete"))
    assert it.events() == ["pull.started", "pull.done"]
    it.hub.asked.clear()
    again = await it.whole(model="declared")
    assert again["path"] == found["path"]
    assert it.hub.asked.total() == 0
    listed = (await it.client.get("/api/pulls")).json()
    assert [p["id"] for p in listed] == [again["id"], found["id"]]
    assert listed[0]["by"] == "operator ada-admin"


async def test_what_cannot_be_had_is_said_before_anything_starts(it: Rig) -> None:
    """Not there, no such revision, gated, too large for the disk, offline, no hub, no weights: each with what to do."""
    for model, more, status, told in (
        ("org/nobody", {}, 404, "There is no model org/nobody on"),
        ("org/tiny", {"revision": "v9"}, 404, "has no revision 'v9'"),
        ("org/gated", {}, 409, "is gated: ask for access on"),
        ("org/huge", {}, 507, "needs 1,152,921,504,606,846,97"),
        ("offline", {}, 409, "HF_HUB_OFFLINE is set"),
        ("folder", {}, 409, "is a folder or a file of this machine"),
        (
            "no id/at/all",
            {},
            409,
            "is no id of a model on the hub, and no folder or file of this machine. An id is OWNER/NAME",
        ),
    ):
        answer = await it.pull(model, **more)
        assert answer.status_code == status, answer.text
        assert told in answer.json()["error"]["message"]
    assert not it.folder.exists()
    assert it.hub.asked.total() == 0
    assert {p["state"] for p in (await it.client.get("/api/pulls")).json()} == {"failed"}
    it.hub.status = 500
    answer = await it.pull()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "hub_unreachable")
    assert (await it.client.get("/api/pulls/pull_x")).status_code == 404


async def test_a_token_of_the_models_own_opens_a_gate(it: Rig) -> None:
    """Sent to the hub, and never shown."""
    answer = await it.pull("token")
    assert answer.status_code == 202, answer.text
    found = await it.over(answer.json()["id"])
    assert found["state"] == "done"
    assert it.hub.tokens == {"Bearer hf_good"}
    assert "hf_good" not in str(found)
    assert "hf_good" not in str(it.api.world.journal.events)


async def test_a_connection_that_breaks_is_gone_on_with(it: Rig) -> None:
    """From the byte at which it broke, within one download."""
    it.hub.break_after = [1_000_000]
    await it.whole()
    first, second = it.hub.ranges
    assert first == 0 < second <= 1_000_000
    assert (it.folder / "snapshots" / SHA / "model.safetensors").read_bytes() == WEIGHTS


async def test_a_cancelled_download_is_gone_on_with_by_the_next(it: Rig) -> None:
    """What has come stays; its process and its files are let go; a second request for it while it runs is the same download."""
    it.hub.hold = threading.Event()
    first = (await it.pull()).json()
    assert (await it.pull()).json()["id"] == first["id"]

    def half() -> bool:
        return sum(p.stat().st_size for p in it.folder.rglob("*.incomplete")) > 1_000_000

    await until(half, "half of the weights")
    waiting = (await it.pull("token")).json()
    assert waiting["state"] == "waiting"
    gone = (await it.client.delete(f"/api/pulls/{waiting['id']}")).json()
    assert (gone["state"], gone["reason"]) == ("cancelled", "cancelled by operator ada-admin")
    cancelled = (await it.client.delete(f"/api/pulls/{first['id']}")).json()
    assert cancelled["state"] == "cancelled"
    assert half()
    it.hub.hold.set()
    it.hub.hold = None
    done = await it.whole()
    first_byte, second_byte = it.hub.ranges
    assert first_byte == 0
    assert 1_000_000 < second_byte <= len(WEIGHTS) // 2
    assert (it.folder / "snapshots" / SHA / "model.safetensors").read_bytes() == WEIGHTS
    assert (await it.client.delete(f"/api/pulls/{done['id']}")).json()["state"] == "done"


async def test_parts_that_do_not_fit_are_not_put_together(it: Rig) -> None:
    """A part that is of something else is found out by the hash, and fetched anew by the next try."""
    import hashlib

    blobs = it.folder / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete"
    part.write_bytes(b"x" * 1000)
    found = await it.over((await it.pull()).json()["id"])
    assert found["state"] == "failed"
    assert "came together wrongly" in found["reason"]
    assert not part.exists()
    await it.whole()


async def test_the_disk_is_shown_and_pruned_of_what_nobody_uses(it: Rig) -> None:
    """Never of what a declared model names in any place, nor of what is downloaded; parts that were left behind go too."""
    await it.whole()
    cache = it.folder.parent
    for name in ("org--unused", "org--adapter", "org--draft"):
        shutil.copytree(it.folder, cache / f"models--{name}", symlinks=True)
    uses = {
        "id": "uses", "model": "/models/x", "lora": {"l": "org/adapter"},
        "args": {"speculative-config": {"model": "org/draft"}},
    }  # fmt: skip
    assert (await it.client.post("/api/models", json=uses)).status_code == 201
    old, new = it.folder / "blobs" / "old.incomplete", it.folder / "blobs" / "new.incomplete"
    for part in (old, new):
        part.write_bytes(b"x" * 10_000)
    os.utime(old, (1, 1))

    found = (await it.client.get("/api/weights")).json()
    assert [c["path"] for c in found["caches"]] == [str(cache)]
    assert {r["repo"]: r["used_by"] for r in found["repositories"]} == {
        "org/tiny": ["declared", "offline"], "org/unused": [], "org/adapter": ["uses"], "org/draft": ["uses"],
    }  # fmt: skip
    tiny = next(r for r in found["repositories"] if r["repo"] == "org/tiny")
    assert tiny["partial"] >= 20_000
    assert tiny["size"] > len(WEIGHTS)

    refused = (await it.client.post("/api/weights/prune", json={"repos": ["org/tiny", "org/nothing"]})).json()
    assert refused["removed"] == []
    assert refused["kept"] == [
        {"repo": "org/tiny", "why": "used by declared, offline"}, {"repo": "org/nothing", "why": "it is not there"},
    ]  # fmt: skip
    dry = (await it.client.post("/api/weights/prune?dry_run=1", json={})).json()
    assert dry["applied"] is False
    assert {r["repo"] for r in dry["removed"]} == {"org/unused", "org/tiny"}
    assert old.exists()
    done = (await it.client.post("/api/weights/prune", json={})).json()
    assert done["removed"] == dry["removed"]
    assert done["freed"] == sum(r["freed"] for r in done["removed"])
    assert (old.exists(), new.exists(), it.folder.exists()) == (False, True, True)
    assert sorted(p.name for p in cache.iterdir() if p.name.startswith("models--")) == [
        "models--org--adapter", "models--org--draft", "models--org--tiny",
    ]  # fmt: skip
    assert it.events()[-1] == "weights.pruned"


async def test_what_is_downloaded_is_not_pruned(it: Rig) -> None:
    """Although no declared model uses it."""
    it.hub.repos["org/new"] = Repo(dict(it.hub.repos["org/tiny"].files))
    it.hub.hold = threading.Event()
    pull = (await it.pull("org/new")).json()
    await until(lambda: list(it.folder.parent.glob("models--org--new/blobs/*.incomplete")), "the download")
    done = (await it.client.post("/api/weights/prune", json={"repos": ["org/new"]})).json()
    assert done["kept"] == [{"repo": "org/new", "why": "it is being downloaded"}]
    await it.client.delete(f"/api/pulls/{pull['id']}")
    done = (await it.client.post("/api/weights/prune", json={"repos": ["org/new"]})).json()
    assert [r["repo"] for r in done["removed"]] == ["org/new"]


async def test_a_download_ends_with_who_started_it(it: Rig, tmp_path: Path) -> None:
    """Its process reads that its server is gone, however that went."""
    it.hub.hold = threading.Event()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vllm_mm.engine.hub.fetch", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={"HF_HOME": str(tmp_path), "HF_ENDPOINT": it.hub.url, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert child.stdin is not None
    wanted = {"repo": "org/tiny", "revision": "main", "cache": str(tmp_path / "cache")}
    child.stdin.write(json.dumps(wanted).encode() + b"\n")
    await until(lambda: it.hub.ranges, "the weights are asked for")
    child.stdin.close()
    async with asyncio.timeout(60):
        assert await child.wait() == 2
