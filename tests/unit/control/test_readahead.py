"""Reading weights ahead, on real files and the real page cache; engines, clock and free memory are fakes."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes_engine import World, model, world
from vllm_mm.control import readahead
from vllm_mm.control.readahead import EVERY, MEASURE_EVERY, ReadAhead, ReadAheadView
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import pagecache
from vllm_mm.engine.readahead import MARGIN

MIB = 2**20
SIZE = 20 * MIB
PLENTY = 100 * 2**30
HEAD = 128 * 1024
"""Of each file that may have been read already: its footprint is estimated from it, and the kernel reads a little more."""


@dataclass
class Folders:
    """Models with real weights that are not in the page cache."""

    root: Path

    def spec(self, name: str, **changes: object) -> ModelSpec:
        self.write(name)
        return model(name, engine=EngineKind.VLLM, model=str(self.root / name), **changes)

    def write(self, name: str) -> None:
        path = self.file(name)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.write(os.urandom(MIB) * (SIZE // MIB))
            file.flush()
            os.fsync(file.fileno())
        pagecache.drop(path)

    def file(self, name: str) -> Path:
        return self.root / name / "model.safetensors"

    def cached(self, name: str) -> int:
        return pagecache.cached(self.file(name)) or 0


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path)
    made.write("probe")
    if made.cached("probe"):
        pytest.skip("this file system keeps its files in memory")
    return made


def reader(w: World, budget: int = PLENTY, unused: Callable[[], int] = lambda: PLENTY) -> ReadAhead:
    return ReadAhead(w.manager, budget, {}, w.clock, unused)


async def used(w: World, name: str) -> None:
    """Load it, use it, stop it."""
    await w.ready(name)
    async with w.manager.lease(w.ticket(name)):
        pass
    await w.manager.stop(name, "test")
    await w.clock.advance(1.0)


async def test_the_weights_of_the_last_used_model_are_read(folders: Folders) -> None:
    """The cached share goes from nothing to all of it, the view tells it, and the next round has nothing to do."""
    async with world(folders.spec("a"), folders.spec("b")) as w:
        await used(w, "a")
        it = reader(w)
        assert SIZE - HEAD <= await it.look() <= SIZE
        assert folders.cached("a") == SIZE
        assert folders.cached("b") <= HEAD, "nobody ever used it"
        told = {v.model: v for v in it.view().models}
        assert (told["a"].size, told["a"].cached, told["a"].measured, told["a"].kept) == (SIZE, SIZE, True, True)
        assert (told["b"].cached <= HEAD, told["b"].kept) == (True, False)
        assert await it.look() == 0


async def test_starts_are_judged_by_what_was_in_memory_before(folders: Folders) -> None:
    """A model that was read ahead is a hit, byte by byte, and another one is none; starts before the first look do not count."""
    async with world(folders.spec("a"), folders.spec("b")) as w:
        await used(w, "a")
        it = reader(w)
        await it.look()
        await used(w, "a")
        await used(w, "b")
        await it.look()
        view = it.view()
        assert (view.budget, view.starts, view.wanted, view.hits) == (PLENTY, 2, 2 * SIZE, SIZE)
        assert 2 * (SIZE - HEAD) <= view.read <= 2 * SIZE
        await it.look()
        assert it.view().starts == 2, "once each"


async def test_off_by_default_it_does_nothing(folders: Folders) -> None:
    """With a budget of 0 no file is touched, and the task goes on running (one that ends counts as a fault)."""
    async with world(folders.spec("a", preload=True)) as w:
        it = reader(w, budget=0)
        task = asyncio.create_task(it.run())
        await w.clock.advance(10 * EVERY)
        assert not task.done()
        task.cancel()
        assert await it.look() == 0
        assert folders.cached("a") == 0
        assert it.view() == ReadAheadView()


async def test_the_budget_is_respected(folders: Folders) -> None:
    """The likelier model first, then a part of the other; later rounds do not add to it."""
    async with world(folders.spec("a", preload=True), folders.spec("b")) as w:
        await used(w, "b")
        it = reader(w, budget=SIZE + 8 * MIB)
        assert SIZE + 8 * MIB - 2 * HEAD <= await it.look() <= SIZE + 8 * MIB
        assert folders.cached("a") == SIZE
        # The kernel reads a little beyond what it is asked for.
        assert 8 * MIB <= folders.cached("b") < SIZE
        await w.clock.advance(MEASURE_EVERY)
        assert await it.look() == 0


async def test_memory_that_others_use_is_not_taken(folders: Folders) -> None:
    """Only what is unused beyond the margin, asked again while reading."""
    async with world(folders.spec("a", preload=True)) as w:
        assert await reader(w, unused=lambda: MARGIN).look() == 0
        told = iter([PLENTY, MARGIN])
        assert await reader(w, unused=lambda: next(told)).look() == 0, "it became scarce after the choice"
        assert folders.cached("a") == 0


async def test_it_waits_while_a_model_is_loaded_from_the_same_disk(folders: Folders) -> None:
    """A start has the disk for itself; when it is ready, reading goes on."""
    async with world(folders.spec("a"), folders.spec("b", preload=True)) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "starting"
        it = reader(w)
        assert await it.look() == 0
        assert folders.cached("b") == 0
        w.processes["a"].healthy = True
        await w.clock.advance(1.0)
        assert await it.look() == SIZE


async def test_a_load_that_begins_meanwhile_stops_it(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps, not only before the first."""
    monkeypatch.setattr(readahead, "STEP", MIB)
    async with world(folders.spec("a"), folders.spec("b", preload=True)) as w:
        w.healthy_at_once = False
        begun: list[asyncio.Task[None]] = []

        def unused() -> int:
            if folders.cached("b") and not begun:
                begun.append(asyncio.get_running_loop().create_task(w.manager.start("a", "test")))
            return PLENTY

        done = await reader(w, unused=unused).look()
        assert begun, "it was stopped before it had read anything"
        assert w.manager.require("a").state == "starting"
        assert 0 < done < SIZE
        await begun[0]


async def test_a_file_that_changed_is_a_new_one(folders: Folders) -> None:
    """What was known of the old contents is forgotten, and the new ones are read."""
    async with world(folders.spec("a", preload=True)) as w:
        it = reader(w)
        assert await it.look() == SIZE
        folders.file("a").unlink()
        folders.write("a")
        assert await it.look() == SIZE
        assert folders.cached("a") == SIZE


async def test_where_the_system_does_not_tell_what_was_read_counts(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a file is read once, and shown as not measured."""
    async with world(folders.spec("a", preload=True)) as w:
        with monkeypatch.context() as patch:
            patch.setattr(pagecache, "cached", lambda *_: None)
            it = reader(w)
            assert await it.look() == SIZE
            assert await it.look() == 0
            assert [(v.cached, v.measured) for v in it.view().models] == [(SIZE, False)]
        assert folders.cached("a") == SIZE


async def test_trouble_with_a_disk_does_not_end_it(folders: Folders) -> None:
    """The next round is another try."""
    async with world(folders.spec("a", preload=True)) as w:
        failures = [OSError(5, "Input/output error")]

        def unused() -> int:
            if failures:
                raise failures.pop()
            return PLENTY

        it = reader(w, unused=unused)
        task = asyncio.create_task(it.run())
        while it.view().read < SIZE and not task.done():
            await w.clock.advance(EVERY)
        assert not task.done()
        task.cancel()
