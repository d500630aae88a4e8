"""Times of the week applied: a model is there when its time begins, is not idle, and an operator may stop it."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from fakes_engine import World, model, world
from vllm_mm.control.idle import IdleWatch
from vllm_mm.control.schedules import Schedules
from vllm_mm.domain.specs import IdlePolicy

HOUR = 3600.0
ZONE = "Europe/Berlin"


def at(w: World, text: str) -> None:
    """Set the wall clock."""
    now = w.clock.now()
    start = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE)).timestamp()
    w.clock.wall = lambda: start + w.clock.now() - now  # type: ignore[method-assign]


def scheduled(**changes: Any) -> Any:
    return model("a", idle=IdlePolicy(None, 60.0), schedule=("mon-fri 09:00-18:00",), **changes)


async def test_a_model_is_ready_in_its_time_and_idle_only_after_it() -> None:
    """Loaded at nine, kept over an hour without requests, and stopped for being idle once it is six."""
    async with world(scheduled()) as w:
        at(w, "2026-11-30T08:59:00")
        schedules = Schedules(w.manager, w.clock, ZONE)
        idle = IdleWatch(w.manager, w.clock, schedules.is_open)
        await schedules.look()
        assert w.starts == []
        standing = schedules.standing(w.manager.require("a").spec)
        assert standing is not None
        assert standing.changes_at is not None
        assert standing.changes_at.timestamp() == w.clock.wall() + 60
        assert (standing.open, standing.keeps) == (False, False)
        assert "09:00 (Europe/Berlin)" in str(standing)
        await w.clock.advance(61.0)
        await schedules.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "ready"
        await w.clock.advance(HOUR)
        await idle.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "ready"
        await w.clock.advance(8 * HOUR)
        await schedules.look()
        await idle.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "stopped"


async def test_what_an_operator_stopped_stays_so_until_the_next_time_begins() -> None:
    """Within its time it is not pinned; the next morning it is there again."""
    async with world(scheduled()) as w:
        at(w, "2026-11-30T12:00:00")
        schedules = Schedules(w.manager, w.clock, ZONE)
        await schedules.look()
        await w.clock.advance(1.0)
        await w.manager.stop("a", "operator")
        await w.clock.advance(60.0)
        await schedules.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "stopped"
        standing = schedules.standing(w.manager.require("a").spec)
        assert standing is not None
        assert (standing.open, standing.keeps) == (True, False)
        await w.clock.advance(8 * HOUR)
        await schedules.look()
        await w.clock.advance(14 * HOUR)
        begun = schedules.standing(w.manager.require("a").spec)
        assert begun is not None
        assert begun.keeps, "a stop of before does not count, also in the seconds until the times are looked at"
        await schedules.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "ready"


async def test_an_idle_sleeper_of_before_is_woken_and_one_that_fell_over_comes_back() -> None:
    """Whatever it is that it is not ready, as long as it can be started."""
    async with world(scheduled()) as w:
        at(w, "2026-11-30T12:00:00")
        schedules = Schedules(w.manager, w.clock, ZONE)
        await schedules.look()
        await w.clock.advance(1.0)
        w.processes["a"].die(1)
        await w.clock.advance(5.0)
        await schedules.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state == "ready"
        assert schedules.standing(model("b")) is None
        always = schedules.standing(model("c", schedule=("00:00-24:00",)))
        assert always is not None
        assert (always.changes_at, always.keeps) == (None, True)


async def test_in_its_time_a_model_goes_after_one_that_has_none_and_before_it_as_any_other() -> None:
    """It was used longest ago, which counts only outside of its time."""
    for time, gone in (("2026-11-30T12:00:00", "b"), ("2026-11-30T08:00:00", "a")):
        async with world(scheduled(), model("b"), model("c")) as w:
            at(w, time)
            schedules = Schedules(w.manager, w.clock, ZONE)
            await w.ready("a")
            await w.clock.advance(5.0)
            await w.ready("b")
            await schedules.look()
            await w.clock.advance(HOUR / 2)
            await w.manager.start("c", "operator")
            await w.clock.advance(3.0)
            assert {m: w.manager.require(m).state for m in "abc"} == {**dict.fromkeys("abc", "ready"), gone: "stopped"}
