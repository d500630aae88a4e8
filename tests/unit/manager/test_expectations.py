"""What scheduling decisions are told of the past, and how the slots of a model are shared between keys."""

import asyncio
from dataclasses import replace

import pytest

from fakes_engine import World, model, world
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.scheduling import Expected


def expected(w: World, name: str) -> Expected:
    return w.manager.view(()).of(name)


async def serve(w: World, name: str, seconds: float) -> None:
    async with w.manager.lease(w.ticket(name)):
        await w.clock.sleep(seconds)


async def test_requests_teach_how_often_how_long_and_how_late() -> None:
    """One that waits 28 s for the start, then thirty in a minute that do not wait, each 1 s of work."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        first = asyncio.create_task(serve(w, "a", 1.0))
        await w.clock.advance(8.0)
        w.processes["a"].healthy = True
        await w.clock.advance(20.0)
        await first
        waited = expected(w, "a").wait
        assert waited > 0.8
        for _ in range(30):
            request = asyncio.create_task(serve(w, "a", 1.0))
            await w.clock.advance(2.0)
            await request
        known = expected(w, "a")
        assert known.rate == pytest.approx(0.3, rel=0.2)
        assert known.wait < waited / 10
        assert known.work == pytest.approx(1.0, rel=0.2)
        assert 8.0 <= known.times.start <= 28.0


async def test_a_model_that_was_never_asked_for_is_a_guess() -> None:
    """And one that is not declared any more is forgotten."""
    async with world(model("a"), model("b")) as w:
        await w.ready("a")
        assert (expected(w, "a").rate, expected(w, "a").wait) == (0.0, 0.0)
        async with w.manager.lease(w.ticket("a")):
            pass
        assert expected(w, "a").rate > 0
        w.manager.set_catalog(Catalog([model("b")]))
        w.manager.set_catalog(Catalog([model("a"), model("b")]))
        assert expected(w, "a").rate == 0.0


async def test_a_lease_that_is_given_back_twice_counts_once() -> None:
    """A revoked one that its request still gives back teaches nothing."""
    async with world(model("a")) as w:
        await w.ready("a")
        lease = w.manager.fast_lease(w.ticket("a"))
        assert lease is not None
        await w.clock.advance(10.0)
        w.manager.take_back(lease)
        known = expected(w, "a").work
        await w.clock.advance(100.0)
        w.manager.take_back(lease)
        assert expected(w, "a").work == known > 5.0


async def test_one_key_does_not_bury_another() -> None:
    """One slot; A has twenty requests waiting when B's only one comes: it is the second to be served, and is told so."""
    async with world(model("a", concurrency=1)) as w:
        await w.ready("a")
        served: list[str] = []

        async def ask(key: str) -> None:
            async with w.manager.lease(replace(w.ticket("a", wait=600.0), key=key)):
                served.append(key)
                await w.clock.sleep(1.0)

        tasks = [asyncio.create_task(ask("a")) for _ in range(21)]
        await w.clock.advance(0.5)
        tasks.append(asyncio.create_task(ask("b")))
        await w.clock.advance(0.1)
        assert [e.key for e in w.queue.entries()][:3] == ["a", "b", "a"]
        assert [e.position for e in w.queue.entries()] == list(range(1, 22))
        last = next(e for e in w.queue.entries() if e.key == "b")
        assert w.queue.position(last.ticket, "a") == 2
        await w.clock.advance(30.0)
        await asyncio.gather(*tasks)
        assert served[:4] == ["a", "a", "b", "a"]
        assert w.queue.position(last.ticket, "a") == 0


async def test_slots_that_become_free_one_by_one_are_shared() -> None:
    """Both keep queueing: every other slot is B's, although A asked for all of its twenty first."""
    async with world(model("a", concurrency=1)) as w:
        await w.ready("a")
        served: list[str] = []

        async def ask(key: str) -> None:
            async with w.manager.lease(replace(w.ticket("a", wait=600.0), key=key)):
                served.append(key)
                await w.clock.sleep(1.0)

        tasks = [asyncio.create_task(ask("a")) for _ in range(20)]
        await w.clock.advance(0.1)
        tasks += [asyncio.create_task(ask("b")) for _ in range(10)]
        await w.clock.advance(60.0)
        await asyncio.gather(*tasks)
        assert served[:9].count("b") == 4


async def test_who_waits_for_a_slot_is_told_when_one_may_be_free() -> None:
    """By the place in the lane, and by how long such requests took; not `now` for everybody because the model is ready."""
    async with world(model("a", concurrency=2)) as w:
        await w.ready("a")
        for _ in range(60):
            async with w.manager.lease(w.ticket("a")):
                await w.clock.advance(2.0)
        async with w.manager.lease(w.ticket("a")), w.manager.lease(w.ticket("a")):
            tickets = [w.ticket("a") for _ in range(3)]
            waiting = [asyncio.create_task(w.queue.admit(t)) for t in tickets]
            await w.clock.advance(0.1)
            assert [e.eta_s for e in w.queue.entries()] == pytest.approx([1.0, 2.0, 3.0], rel=0.1)
            assert w.manager.wait_info(tickets[2]).eta_s == pytest.approx(3.0, rel=0.1)
        await w.clock.advance(0.1)
        assert [t.done() for t in waiting] == [True, True, False]  # two slots are free again
        for task in waiting:
            w.manager.take_back(await task)
