"""Requests of keys that may not have a model loaded, or not have others go for it: nothing is started, nobody goes."""

import asyncio
from dataclasses import replace

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.domain.errors import Forbidden, MMError, StillLoading
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.scheduling import Ticket


def meek(w: World, name: str, *, wait: float = 30.0) -> Ticket:
    """Of a key without `load`."""
    return replace(w.ticket(name, wait=wait), loads=False)


def error_of(task: "asyncio.Task[str]") -> MMError:
    found = task.exception()
    assert isinstance(found, MMError), found
    return found


async def test_who_may_not_load_starts_nothing() -> None:
    """At once, with the reason; a model that is ready serves it like anybody."""
    async with world(model("a"), model("b")) as w:
        with pytest.raises(Forbidden, match="`a` is stopped, and this key may not load models") as told:
            await get(w, meek(w, "a"))
        assert told.value.reason is Reason.RIGHTS
        await w.clock.advance(5.0)
        assert (w.starts, w.queue.size) == ([], 0)
        await w.ready("a")
        assert await get(w, meek(w, "a")) == "a"


async def test_who_may_not_load_may_wait_for_the_load_of_others() -> None:
    """That one is on its way already, and starts nothing more."""
    async with world(model("a")) as w:
        first = asyncio.create_task(get(w, w.ticket("a")))
        await asyncio.sleep(0)
        await w.clock.settle()
        second = asyncio.create_task(get(w, meek(w, "a")))
        await w.clock.advance(1.0)
        assert (first.result(), second.result(), w.starts) == ("a", "a", ["a"])


async def test_a_sleeping_or_stopped_model_stays_so_when_others_wait_elsewhere() -> None:
    """Each look at the queue asks again: a model that goes while such a request waits for a slot of it takes the request with it."""
    async with world(model("a", concurrency=1)) as w:
        await w.ready("a")
        over = asyncio.Event()

        async def hold() -> None:
            async with w.manager.lease(w.ticket("a")):
                await over.wait()

        holding = asyncio.create_task(hold())
        await w.clock.settle()
        waiting = asyncio.create_task(get(w, meek(w, "a", wait=600.0)))
        await w.clock.settle()
        assert w.queue.size == 1
        stopping = asyncio.create_task(w.manager.stop("a", "test"))
        await w.clock.advance(1.0)
        over.set()
        await w.clock.advance(5.0)
        await asyncio.gather(holding, stopping)
        assert isinstance(error_of(waiting), Forbidden)
        assert w.manager.require("a").state is State.STOPPED
        assert w.starts == ["a"]


async def test_who_may_not_evict_waits_for_room_that_nobody_has() -> None:
    """Whoever is idle stays; when the wait is over the reason is told; when there is room it is served."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        asking = asyncio.create_task(get(w, replace(w.ticket("b", wait=60.0), evicts=False)))
        await w.clock.advance(61.0)
        told = error_of(asking)
        assert isinstance(told, StillLoading)
        assert told.reason is Reason.RIGHTS
        assert (w.starts, w.manager.require("a").state) == (["a"], State.READY)
        again = asyncio.create_task(get(w, replace(w.ticket("b", wait=60.0), evicts=False)))
        await w.clock.advance(5.0)
        await w.manager.stop("a", "test")
        await w.clock.advance(5.0)
        assert again.result() == "b"
