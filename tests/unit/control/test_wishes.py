"""What is wanted by nobody's request: how long it waits, and who has the last word."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fakes_engine import World, model, world
from vllm_mm.control import reload
from vllm_mm.control.desired import Keeper
from vllm_mm.control.idle import IdleWatch
from vllm_mm.control.schedules import Schedules
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Conflict, StartFailed
from vllm_mm.domain.lifecycle import Goal, OnTimeout, State
from vllm_mm.domain.scheduling import Rules
from vllm_mm.domain.specs import EngineKind, IdlePolicy
from vllm_mm.engine.policy import Policy
from vllm_mm.engine.wishes import Wish, Wishes

ALWAYS = ("mon-sun 00:00-24:00",)
"""A time of the week that is always open."""


def test_a_wish_that_is_said_again_stays_as_old_and_as_urgent_as_it_is() -> None:
    """Whoever looks every two seconds does not make it young; an operator's is not taken back by one who looks."""
    wishes = Wishes()
    wishes.want("a", Wish(1.0, urgent=False, cause="pinned"))
    wishes.hold("a", "busy: b serves")
    wishes.want("a", Wish(3.0, urgent=False, cause="pinned"))
    assert wishes.get("a") == Wish(1.0, urgent=False, cause="pinned", why_not="busy: b serves")
    wishes.want("a", Wish(4.0, urgent=True, cause="operator"))
    wishes.want("a", Wish(5.0, urgent=False, cause="pinned"))
    assert wishes.get("a") == Wish(1.0, urgent=True, cause="operator", why_not="busy: b serves")
    wishes.drop("a")
    wishes.want("a", Wish(6.0, urgent=False, cause="pinned"))
    assert wishes.get("a") == Wish(6.0, urgent=False, cause="pinned")


async def busy(w: World, name: str) -> "asyncio.Task[None]":
    """A request that goes on and on."""

    async def hold() -> None:
        async with w.manager.lease(w.ticket(name)):
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await w.clock.advance(0.1)
    assert w.manager.require(name).gate.count
    return task


async def test_a_pinned_or_scheduled_model_gets_the_room_of_a_busy_one_after_max_wait() -> None:
    """Looked at every two seconds, it is overdue all the same."""
    policy = Policy(rules=Rules(max_wait=10.0, quantum=0.0), drain_timeout=5.0, on_drain_timeout=OnTimeout.CUT)
    for how in ("pinned", "schedule"):
        schedule = ALWAYS if how == "schedule" else ()
        async with world(model("a", 20), model("b", 20, pinned=how == "pinned", schedule=schedule), policy=policy) as w:
            await w.ready("a")
            task = await busy(w, "a")
            look = Keeper(w.manager, w.clock).look if how == "pinned" else Schedules(w.manager, w.clock, None).look
            for _ in range(4):
                await look()
                await w.clock.advance(2.0)
            assert w.manager.require("a").state is State.READY
            for _ in range(5):
                await look()
                await w.clock.advance(2.0)
            assert w.manager.require("b").state is State.READY, how
            task.cancel()


def sleeper(name: str, gib: float, **changes: Any) -> Any:
    return model(name, gib, engine=EngineKind.SIM, command=(), **changes)


async def test_what_is_waited_for_is_not_stopped_for_being_idle() -> None:
    """A sleeper whose idle time runs out while a busy model is in its way: by an operator's wish, and by a request."""
    policy = Policy(rules=Rules(max_wait=10.0, quantum=0.0), drain_timeout=30.0, on_drain_timeout=OnTimeout.WAIT)
    for how in ("wish", "request"):
        a, b = model("a", 20), sleeper("b", 20, idle=IdlePolicy(None, 30.0))
        async with world(a, b, policy=policy) as w:
            await w.ready("b")
            await w.manager.sleep("b", "operator")
            await w.clock.advance(1.0)
            await w.ready("a")
            task = await busy(w, "a")
            request = asyncio.create_task(get(w, "b")) if how == "request" else None
            if request is None:
                await w.manager.start("b", "pinned", urgent=False)
            idle = IdleWatch(w.manager, w.clock)
            await w.clock.advance(29.0)
            assert w.manager.require("a").state is State.DRAINING
            for _ in range(3):
                await idle.look()
                await w.clock.advance(1.0)
            assert w.manager.require("b").state is State.SLEEPING, how
            task.cancel()
            await w.clock.advance(2.0)
            assert w.manager.require("b").state is State.READY, how
            if request is not None:
                assert await request == "b"


async def test_somebody_who_comes_between_the_look_and_the_act_keeps_an_idle_model() -> None:
    """Asked again at the act, and what an idle model's rest says is no last word."""
    async with world(model("a", 20)) as w:
        await w.ready("a")
        task = await busy(w, "a")
        await w.manager.rest("a", Goal.STOP, "unused: it seemed so")
        assert w.manager.require("a").state is State.READY
        task.cancel()
        await w.clock.advance(1.0)
        await w.manager.rest("a", Goal.STOP, "unused: it is")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPED
        assert not w.manager.dismissed("a")


async def get(w: World, name: str) -> str:
    async with w.manager.lease(w.ticket(name, wait=100.0)) as lease:
        return lease.model


async def test_a_stop_is_past_once_the_model_is_ready_again_for_whomever_or_is_pinned() -> None:
    """A request loads what an operator stopped: it comes back after a fall as if it had never been stopped."""
    async with world(model("a", 20, schedule=ALWAYS)) as w:
        await w.ready("a")
        await w.manager.stop("a", "operator")
        await w.clock.advance(1.0)
        assert w.manager.dismissed("a")
        assert await get(w, "a") == "a"
        assert not w.manager.dismissed("a")
        await w.manager.stop("a", "operator")
        w.manager.pin("a", pinned=False)
        assert w.manager.dismissed("a")
        w.manager.pin("a", pinned=True)
        assert not w.manager.dismissed("a")
        await w.clock.advance(1.0)
        await Keeper(w.manager, w.clock).look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY


async def test_what_an_operator_drains_or_puts_to_sleep_stays_so() -> None:
    """Whether it is pinned or in one of its times; until an undrain, a start, a pin or a request."""
    for act, state in (("drain", State.STOPPED), ("sleep", State.SLEEPING)):
        async with world(sleeper("p", 8, pinned=True), sleeper("s", 8, schedule=ALWAYS)) as w:
            keeper, schedules = Keeper(w.manager, w.clock), Schedules(w.manager, w.clock, None)
            await w.ready("p", "s")
            await schedules.look()
            for name in ("p", "s"):
                await getattr(w.manager, act)(name, "operator")
            for _ in range(3):
                await w.clock.advance(2.0)
                await keeper.look()
                await schedules.look()
            await w.clock.advance(1.0)
            assert {w.manager.require(name).state for name in ("p", "s")} == {state}, act
            await w.manager.start("p", "operator")
            assert await get(w, "s") == "s"
            await w.clock.advance(1.0)
            assert not any(w.manager.dismissed(name) for name in ("p", "s"))
            task = await busy(w, "p")
            await w.manager.drain("p", "operator")
            assert w.manager.dismissed("p")
            await w.manager.undrain("p", "operator")
            assert not w.manager.dismissed("p")
            task.cancel()


async def test_an_operators_sleep_of_a_busy_model_lets_its_requests_finish() -> None:
    """However long that takes: frozen in it they would have it awake again at once."""
    policy = Policy(drain_timeout=5.0, on_drain_timeout=OnTimeout.FREEZE)
    async with world(sleeper("a", 20), policy=policy) as w:
        await w.ready("a")
        task = await busy(w, "a")
        await w.manager.sleep("a", "operator")
        await w.clock.advance(60.0)
        assert w.manager.require("a").state is State.DRAINING
        task.cancel()
        await w.clock.advance(20.0)
        assert w.manager.require("a").state is State.SLEEPING
        assert w.sleeps == [("a", False)]


async def test_a_drain_calls_off_a_load_that_waits_for_room() -> None:
    """As a stop does: it would be ready some time, and nobody would know why."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        assert w.manager.loading("b") is not None
        await w.manager.drain("b", "operator")
        assert w.manager.loading("b") is None
        w.processes["a"].release_stop.set()
        await w.clock.advance(5.0)
        assert w.manager.require("b").state is State.STOPPED


async def test_a_pinned_model_that_sleeps_is_woken() -> None:
    """However it came to sleep: it is loaded whenever it is not there."""
    async with world(sleeper("a", 10)) as w:
        await w.ready("a")
        await w.manager.sleep("a", "operator")
        await w.clock.advance(1.0)
        w.manager.pin("a", pinned=True)
        await Keeper(w.manager, w.clock).look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY


async def test_a_declaration_that_changes_a_pin_is_the_last_word_on_it() -> None:
    """One that only changes something else is not; and a model that comes again begins anew."""
    a, b = model("a", 10), model("b", 10)
    async with world(a, b) as w:
        await w.ready("a")
        w.manager.pin("a", pinned=True)
        w.manager.pin("a", pinned=False)
        await reload.apply(w.manager, Catalog([replace(a, priority=1), b]), "reload")
        assert not w.manager.pinned(w.manager.require("a").spec)
        await reload.apply(w.manager, Catalog([replace(a, pinned=True), b]), "reload")
        assert w.manager.pinned(w.manager.require("a").spec)
        w.manager.pin("a", pinned=False)
        await reload.apply(w.manager, Catalog([replace(a, pinned=True, priority=2), b]), "reload")
        assert not w.manager.pinned(w.manager.require("a").spec), "an operator's word on the same declaration"

        w.manager.pin("b", pinned=True)
        await w.manager.stop("b", "operator")
        await reload.apply(w.manager, Catalog([a]), "reload")
        await reload.apply(w.manager, Catalog([a, b]), "reload")
        assert not w.manager.pinned(w.manager.require("b").spec)
        assert not w.manager.dismissed("b")


async def test_a_model_that_goes_for_another_cannot_be_pinned_before_it_has_gone() -> None:
    """Its memory is promised away: the pin could not be kept, and says so."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPING
        with pytest.raises(Conflict, match=r"a cannot be pinned while it is stopping: .* promised to b"):
            w.manager.pin("a", pinned=True)
        assert not w.manager.pinned(w.manager.require("a").spec)
        w.processes["a"].release_stop.set()
        await w.clock.advance(2.0)
        assert w.manager.require("b").state is State.READY
        w.manager.pin("a", pinned=True)


async def test_a_model_that_was_told_to_stop_can_be_pinned_before_it_has_gone() -> None:
    """Nobody counts on its memory: it stops, and is there again."""
    async with world(model("a", 20)) as w:
        await w.ready("a")
        w.processes["a"].release_stop.clear()
        await w.manager.stop("a", "operator")
        w.manager.pin("a", pinned=True)
        w.processes["a"].release_stop.set()
        await w.clock.advance(2.0)
        await Keeper(w.manager, w.clock).look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY


async def test_who_wants_a_load_no_more_takes_only_that_back() -> None:
    """A time of the week that is over, and a pin that is taken off: what waits for room is not loaded, unless somebody else wants
    it too; the age of what goes on is kept."""
    policy = Policy(rules=Rules(max_wait=100.0, quantum=0.0))
    for how in ("pinned", "schedule"):
        for other in ("", "operator", "pinned" if how == "schedule" else "schedule", "request"):
            schedule = ALWAYS if "schedule" in {how, other} else ()
            b = model("b", 20, pinned="pinned" in {how, other}, schedule=schedule)
            async with world(model("a", 20), b, policy=policy) as w:
                await w.ready("a")
                task = await busy(w, "a")
                keeper, times = Keeper(w.manager, w.clock), Schedules(w.manager, w.clock, None)
                first, second = (keeper.look, times.look) if how == "pinned" else (times.look, keeper.look)
                await first()
                await w.clock.advance(2.0)
                await second()
                asked = None
                if other == "request":
                    asked = asyncio.create_task(get(w, "b"))
                elif other == "operator":
                    w.manager._wishes.want("b", Wish(w.clock.now(), urgent=False, cause="operator ada"))
                await w.clock.advance(1.0)
                if how == "pinned":
                    w.manager.pin("b", pinned=False)
                else:
                    w.manager.set_catalog(Catalog([model("a", 20), replace(b, schedule=())]))
                    await times.look()
                wish = w.manager._wishes.get("b")
                withdrawn = [e.cause for e in w.journal.events if e.kind == "swap.withdrawn"]
                if other in {"", "request"}:
                    assert wish is None
                    (why,) = withdrawn
                    assert why.startswith("unwanted: it")
                else:
                    assert wish is not None
                    assert wish.since < w.clock.now() - 2.5, "it is not as old as it was"
                    assert wish.cause == ("operator ada" if other == "operator" else other)
                    assert withdrawn == []
                task.cancel()
                await w.clock.advance(10.0)
                if other == "":
                    assert w.manager.require("b").state is State.STOPPED
                if asked is not None:
                    assert asked.result() == "b"


async def test_a_load_that_was_decided_goes_on_when_its_wish_is_taken_back() -> None:
    """Its victims were told to go; with `queue.cancel_unwanted_loads` it is called off all the same."""
    for cancels in (False, True):
        policy = Policy(cancel_unwanted_loads=cancels)
        async with world(model("a", 20), model("b", 20, pinned=True), policy=policy) as w:
            await w.ready("a")
            await w.clock.advance(10.0)
            w.hold_stops = True
            w.processes["a"].release_stop.clear()
            await Keeper(w.manager, w.clock).look()
            await w.clock.advance(1.0)
            assert w.manager.loading("b") is not None
            w.manager.pin("b", pinned=False)
            assert (w.manager.loading("b") is None) == cancels
            w.processes["a"].release_stop.set()
            await w.clock.advance(5.0)
            assert (w.manager.require("b").state is State.READY) != cancels
            assert "swap.withdrawn" not in w.journal.kinds("b")


async def test_a_pinned_model_that_no_launch_can_be_made_of_is_refused_once() -> None:
    """What the settings did not see: nobody is told to go for it, no load is decided, and it is not said at each look."""
    broken = model("b", 20, command=("engine", "--no-place-to-listen"), pinned=True)
    async with world(model("a", 20), broken) as w:
        await w.ready("a")
        keeper = Keeper(w.manager, w.clock)
        for _ in range(5):
            await w.clock.advance(10.0)
            await keeper.look()
        await w.clock.advance(10.0)
        assert [e.kind for e in w.journal.events if e.model == "b"] == ["swap.refused"]
        assert "put {port} (with {host}), or {socket}, into it" in w.manager.describe("b").reason
        assert w.manager.require("a").state is State.READY
        asked = asyncio.create_task(get(w, "b"))
        await w.clock.advance(5.0)
        assert isinstance(asked.exception(), StartFailed)
        assert "{socket}" in str(asked.exception())
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        assert w.journal.kinds("b") == ["swap.refused", "swap.refused"], "who asks is answered"
