"""What runs in the background goes on whatever one round meets; a task that ended is told by `/ready`."""

import asyncio
from typing import Any

import pytest

from fakes_engine import model, world
from vllm_mm.control.background import Background
from vllm_mm.control.desired import Keeper
from vllm_mm.control.idle import IdleWatch
from vllm_mm.control.readings import Readings
from vllm_mm.domain.errors import Conflict, UnknownModel
from vllm_mm.domain.lifecycle import Goal, State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, IdlePolicy


async def test_readings_go_on_when_the_database_does_not_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A footprint that cannot be written down is no reason to stop looking at the devices."""
    async with world(model("a")) as w:
        await w.ready("a")
        rounds = 0

        async def measure() -> int:
            nonlocal rounds
            rounds += 1
            raise RuntimeError("database is locked")

        monkeypatch.setattr(w.manager.require("a"), "measure", measure)
        readings = Readings(w.manager, w.manager._tools.inventory, w.store, w.clock)
        task = asyncio.create_task(readings.run())
        await w.clock.advance(21.0)
        assert rounds >= 4
        task.cancel()


async def test_memory_that_another_program_gives_back_is_seen_within_a_second_by_who_waits_for_it() -> None:
    """Nobody waits: a reading every five seconds. A request waits for room: one a second, and it is served by the next."""
    busy, free = (Device("gpu0", 24 * GIB, foreign=gib * GIB, kind="test") for gib in (20, 0))
    async with world(model("a"), devices=[busy]) as w:
        inventory, reads = w.manager._tools.inventory, 0
        refresh = inventory.refresh

        async def counting(deadline: float = 5.0) -> Any:
            nonlocal reads
            reads += 1
            return await refresh(deadline)

        inventory.refresh = counting  # type: ignore[method-assign] - counts what the real one would read
        task = asyncio.create_task(Readings(w.manager, inventory, w.store, w.clock).run())
        await w.clock.advance(9.9)
        assert reads == 2
        lease = asyncio.ensure_future(w.manager.lease(w.ticket("a")).__aenter__())
        await w.clock.advance(2.2)
        assert not lease.done()
        assert reads >= 4
        inventory._devices = (free,)  # type: ignore[attr-defined] - the fake's
        await w.clock.advance(1.5)
        w.manager.take_back(await lease)
        before = reads
        await w.clock.advance(4.5)
        assert reads <= before + 1
        task.cancel()


async def test_one_model_in_trouble_does_not_keep_the_others_from_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned model that was removed in this moment: the others are started all the same, and the looking goes on."""
    async with world(model("a", 4, pinned=True), model("b", 4, pinned=True)) as w:
        start = w.manager.start

        async def starting(name: str, cause: str, *, urgent: bool = True) -> None:
            if name == "a":
                raise UnknownModel("The model `a` does not exist.")
            await start(name, cause, urgent=urgent)

        monkeypatch.setattr(w.manager, "start", starting)
        keeper = asyncio.create_task(Keeper(w.manager, w.clock).run())
        await w.clock.advance(1.0)
        assert w.starts == ["b"]
        w.processes["b"].die(1)
        await w.clock.advance(10.0)
        assert w.starts == ["b", "b"]
        assert not keeper.done()
        keeper.cancel()


async def test_a_pinned_model_that_can_never_fit_is_refused_once_and_to_everybody_who_asks() -> None:
    """It is wanted at each look, for there may be room one day; that it cannot be is told once, again when somebody says that
    it is to be there, and again after it was there."""
    async with world(model("a", 30, pinned=True), model("b", 20)) as w:

        def refusals() -> int:
            return sum(e.kind == "swap.refused" for e in w.journal.events)

        keeper = asyncio.create_task(Keeper(w.manager, w.clock).run())
        await w.clock.advance(60.0)
        assert refusals() == 1
        assert "more than there can ever be" in w.manager.refused_because("a")
        await w.manager.start("a", "operator")
        await w.clock.advance(60.0)
        assert refusals() == 2
        w.manager.pin("a", pinned=True)
        await w.clock.advance(60.0)
        assert refusals() == 3
        w.inventory.change("gpu0", capacity=40 * GIB)
        w.manager.observe_devices()
        await w.clock.advance(60.0)
        assert w.manager.require("a").state is State.READY
        w.inventory.change("gpu0", capacity=24 * GIB)
        w.manager.observe_devices()
        w.processes["a"].die(1)
        await w.clock.advance(60.0)
        assert refusals() == 4
        await w.manager.stop("a", "operator")
        await w.clock.advance(60.0)
        assert refusals() == 4
        keeper.cancel()


async def test_the_idle_watch_goes_on_when_one_model_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that changed its state in this moment is looked at again in the next round."""
    spec: dict[str, Any] = {"idle": IdlePolicy(None, 5.0)}
    async with world(model("a", 4, **spec), model("b", 4, **spec)) as w:
        await w.ready("a", "b")
        rest, refused = w.manager.rest, 0

        async def resting(name: str, goal: Goal, cause: str) -> None:
            nonlocal refused
            if name == "a" and not refused:
                refused += 1
                raise Conflict("a is suspending")
            await rest(name, goal, cause)

        monkeypatch.setattr(w.manager, "rest", resting)
        watch = asyncio.create_task(IdleWatch(w.manager, w.clock).run())
        await w.clock.advance(10.0)
        assert refused
        assert {w.manager.require(m).state for m in ("a", "b")} == {State.STOPPED}
        watch.cancel()


async def test_a_background_task_that_ended_is_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody would notice otherwise; while all run there is none."""

    async def work() -> None:
        await asyncio.Event().wait()

    async def broken() -> None:
        raise RuntimeError("boom")

    background = Background()
    background.start("idle times", work())
    await asyncio.sleep(0)
    assert background.problem() is None
    background.start("readings", broken())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert background.problem() == "readings: ended, RuntimeError('boom')"
    assert "boom" in caplog.text
    await background.close()
