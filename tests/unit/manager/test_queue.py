"""The queue: who has a place in it, and who is remembered that had to leave it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.domain.errors import QueueFull, StillLoading
from vllm_mm.domain.lifecycle import OnTimeout, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.scheduling import Rules
from vllm_mm.engine.policy import Policy

IMPATIENT = Policy(
    rules=Rules(max_wait=20.0, min_dwell=0.0, quantum=0.0), drain_timeout=1.0, on_drain_timeout=OnTimeout.CUT
)


@pytest.fixture
async def busy() -> AsyncIterator[World]:
    """`a` is asked for without pause, and its requests go on and on; there is room for one."""
    async with world(model("a", 20), model("b", 20), policy=IMPATIENT) as w:
        await w.ready("a")

        async def hold() -> None:
            async with w.manager.lease(w.ticket("a", wait=100.0)):
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await w.clock.advance(1.0)
        yield w
        task.cancel()


async def visit(w: World, wait: float) -> StillLoading | str:
    """A request that waits so long; what it is told, or the model that it got."""
    asked = asyncio.create_task(get(w, w.ticket("b", wait=wait)))
    await w.clock.advance(wait)
    await w.clock.settle()
    error = asked.exception() if asked.done() else None
    if isinstance(error, StillLoading):
        return error
    return await asked


async def test_who_has_little_patience_and_comes_again_is_served_in_the_end(busy: World) -> None:
    """Three seconds at a time, and back after ten: twenty seconds after the first time there is room, whatever that costs."""
    began, told = busy.clock.now(), 0
    while not isinstance(found := await visit(busy, 3.0), str):
        told += 1
        assert busy.clock.now() - began < 60.0, "it starves"
        await busy.clock.advance(10.0)
    assert found == "b"
    assert told == 2, "at 0 and 13 s; the third time it is overdue"


async def test_who_stays_away_too_long_begins_anew(busy: World) -> None:
    """The longest Retry-After and `max_wait` after it left."""
    assert isinstance(await visit(busy, 3.0), StillLoading)
    await busy.clock.advance(81.0)
    assert isinstance(await visit(busy, 10.0), StillLoading)


async def test_a_load_that_came_ends_what_was_waited_for_it(busy: World) -> None:
    """Whoever is sent away after that has waited since then and no longer; as is so when the load failed."""
    assert isinstance(await visit(busy, 3.0), StillLoading)
    await busy.manager.start("b", "operator")
    await busy.clock.advance(5.0)
    assert busy.manager.require("b").state is State.READY
    assert await visit(busy, 3.0) == "b"
    await busy.manager.start("a", "operator")
    await busy.clock.advance(5.0)
    held = busy.manager.fast_lease(busy.ticket("a"))
    assert held is not None
    assert isinstance(await visit(busy, 10.0), StillLoading), "it is not overdue: it was there just now"
    busy.queue.fail("b", StillLoading("its load failed"))
    assert busy.queue._returning == {}


async def test_a_model_is_there_for_those_who_were_told_to_come_again(busy: World) -> None:
    """It is loaded while its client is away, and others want the room: it stays for its quantum, or until somebody was served."""
    busy.queue._policy = busy.manager._policy = replace(IMPATIENT, rules=replace(IMPATIENT.rules, quantum=10.0))
    for _ in range(2):
        assert isinstance(await visit(busy, 3.0), StillLoading)
        await busy.clock.advance(8.0)
    busy.healthy_at_once = False
    assert isinstance(await visit(busy, 3.0), StillLoading), "it is being loaded by now"
    others = asyncio.create_task(get(busy, busy.ticket("a", wait=100.0)))
    busy.processes["b"].healthy = busy.healthy_at_once = True
    await busy.clock.advance(8.0)
    assert busy.manager.require("b").state is State.READY
    assert await visit(busy, 3.0) == "b"
    await busy.clock.advance(1.0)
    assert busy.manager.require("b").state is not State.READY, "it was served, and is idle"
    await busy.clock.advance(5.0)
    assert others.result() == "a"


async def test_one_key_or_one_model_leaves_places_for_the_others() -> None:
    """With ten places, five at most while others ask; those who ask alone have all. Nobody who waits is sent away."""
    async with world(model("a", 20), model("b", 20), policy=Policy(max_queue=10)) as w:
        w.healthy_at_once = False

        async def ask(name: str, key: str | None) -> "asyncio.Task[str]":
            task = asyncio.create_task(get(w, replace(w.ticket(name), key=key)))
            await w.clock.settle()
            return task

        def refused(task: "asyncio.Task[str]") -> Reason | None:
            if not task.done():
                return None
            error = task.exception()
            assert isinstance(error, QueueFull)
            assert error.retry_after
            return error.reason

        alone = [await ask("a", "x") for _ in range(7)]
        assert [refused(t) for t in alone] == [None] * 7
        other = await ask("a", "y")
        assert refused(other) is None
        assert refused(await ask("a", "x")) is Reason.QUEUE_SHARE, "x has seven, two are left, and y asks too"
        assert refused(await ask("b", "z")) is None, "one of the last for who has none"
        assert refused(await ask("b", "z")) is Reason.QUEUE_SHARE, "it has one, and that is all that is left"
        last = await ask("b", "w")
        assert refused(last) is None, "others wait for b, which is no reason to send away who does not yet"
        for task in (*alone, other, last):
            assert not task.done()
        for task in (*alone[:6], last):
            task.cancel()
        await w.clock.settle()
        more = [await ask("a", "x") for _ in range(4)]
        assert [refused(t) for t in more] == [None, None, None, Reason.QUEUE_SHARE], "it has four, and four are left"
        assert w.queue.size == 6


async def test_requests_that_need_not_wait_count_as_asking() -> None:
    """Whoever is served at once today may have to wait tomorrow: nobody else takes all places meanwhile."""
    async with world(model("a", 10), model("b", 10), policy=Policy(max_queue=4)) as w:
        await w.ready("a")
        w.healthy_at_once = False
        assert await get(w, replace(w.ticket("a"), key="x")) == "a"
        tasks = [asyncio.create_task(get(w, replace(w.ticket("b"), key="y"))) for _ in range(4)]
        await w.clock.settle()
        assert [t.done() for t in tasks] == [False, False, True, True]
        assert "are kept for others" in str(tasks[2].exception())


async def test_nobody_goes_for_who_may_not_have_that() -> None:
    """It waits beside an idle model that fills the device, without an ETA, and is told why when its patience is over. That it waited makes
    nobody overdue who comes after it; for one who may, the idle model goes, and it shares that load."""
    async with world(model("a", 20), model("b", 20), policy=IMPATIENT) as w:
        await w.ready("a")
        for _ in range(9):
            asked = asyncio.create_task(get(w, replace(w.ticket("b", wait=10.0), evicts=False)))
            await w.clock.advance(5.0)
            assert w.manager.expected("b") is None
            await w.clock.advance(5.0)
            error = asked.exception()
            assert isinstance(error, StillLoading)
            assert (error.reason, error.retry_after) == (Reason.RIGHTS, 30.0)
        assert w.manager.require("a").state is State.READY
        async with w.manager.lease(w.ticket("a")):
            asked = asyncio.create_task(get(w, replace(w.ticket("b", wait=100.0), evicts=False)))
            other = asyncio.create_task(get(w, w.ticket("b", wait=100.0)))
            await w.clock.advance(19.0)
            assert w.manager.require("a").state is State.READY, "what others waited is not its claim"
        await w.clock.advance(2.0)
        assert (asked.result(), other.result()) == ("b", "b")
