"""`vllm-mm pull` and `vllm-mm models`, against a live server and a small local hub."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli_rig import Cli, cli
from fake_hub import Hub, hub
from vllm_mm.domain.specs import ModelSpec


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[tuple[Cli, Hub]]:
    with hub() as made:
        async with cli(tmp_path, ModelSpec("declared", model="org/tiny"), hub=made.url) as it:
            yield it, made


async def test_weights_come_are_shown_and_go(run: tuple[Cli, Hub], tmp_path: Path) -> None:
    """Progress on stderr, the folder on stdout; what is refused is 1 or 5 with the reason; what is used stays."""
    it, made = run
    assert (await it("pull")).output == "No downloads. `vllm-mm pull MODEL` begins one.\n"
    result = await it("pull", "declared")
    assert result.exit_code == 0, result.stderr
    assert "org/tiny" in result.stdout
    assert "snapshots" in result.stdout
    assert "in 3 files" in result.stderr
    shown = json.loads((await it("pull", "org/tiny", "--json")).stdout)
    assert shown["state"] == "done"
    assert "done" in (await it("pull")).output
    waits = json.loads((await it("pull", "org/tiny", "--no-wait", "--json")).stdout)
    assert waits["id"] != shown["id"]
    assert "org/tiny" in (await it("pull", "--cancel", shown["id"])).output
    assert it.api is not None
    while it.api.services.pulls.running():  # else the next one waits for its turn, and is refused later
        await asyncio.sleep(0.01)
    gone = await it("pull", "org/nobody")
    assert gone.exit_code == 5
    assert "There is no model org/nobody" in gone.stderr
    huge = await it("pull", "org/huge")
    assert huge.exit_code == 1
    assert "vllm-mm models prune" in huge.stderr
    listed = (await it("models", "disk")).output
    assert "declared" in listed
    assert "free" in listed
    kept = await it("models", "prune", "org/tiny", "--yes")
    assert kept.exit_code == 1
    assert "org/tiny: stays, used by declared" in kept.stderr
    assert (await it("models", "prune")).output == "nothing to delete\n"
    manager = it.api.world.manager
    manager.set_catalog(manager.catalog.without("declared"))
    asked = await it("models", "prune")
    assert asked.exit_code == 2
    assert "say --yes" in asked.stderr
    assert "would be deleted" in (await it("models", "prune", "--dry-run")).output
    done = await it("models", "prune", "--yes")
    assert "org/tiny: deleted" in done.stdout
    assert json.loads((await it("models", "disk", "--json")).stdout)["repositories"] == []
    _ = made, tmp_path


async def test_a_download_that_breaks_off_is_1(run: tuple[Cli, Hub]) -> None:
    """With the reason, and that it can be gone on with."""
    it, made = run
    made.status = 503
    broken = await it("pull", "org/tiny")
    assert broken.exit_code == 1
    assert "what has come stays" in broken.stderr or "try it again later" in broken.stderr
