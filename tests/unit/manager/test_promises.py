"""What a frozen or sleeping engine was launched with counts until it is gone; and nobody freezes for what cannot be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fakes_engine import World, model, world
from vllm_mm.control import reload
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import RequestCut
from vllm_mm.domain.lifecycle import OnTimeout, State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Rules
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec, SleepSpec
from vllm_mm.engine import survey
from vllm_mm.engine.policy import Policy
from vllm_mm.engine.wire import UpstreamRequest

PREEMPT = Policy(Rules(max_wait=10.0, min_dwell=0.0, quantum=1.0), drain_timeout=2.0, on_drain_timeout=OnTimeout.FREEZE)


def sleeper(name: str, gib: float = 10, **changes: object) -> ModelSpec:
    return model(name, gib, engine=EngineKind.SIM, command=(), **changes)


class Streams:
    """Requests that are being answered until the test says that they are complete."""

    def __init__(self, w: World, name: str) -> None:
        self._w = w
        self.task = asyncio.create_task(self._run(name))

    async def _run(self, name: str) -> None:
        async with self._w.manager.lease(self._w.ticket(name, wait=300.0)) as lease:
            before = len(self._w.exchanges)
            exchange = asyncio.create_task(lease.exchange(UpstreamRequest(b"POST", b"/"), None))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            self._exchange = self._w.exchanges[before]
            await exchange

    async def complete(self) -> None:
        if not self._exchange.done.done():
            self._exchange.done.set_result(None)
        await self.task


@contextlib.asynccontextmanager
async def frozen(a: ModelSpec, b: ModelSpec, policy: Policy = PREEMPT) -> AsyncIterator[tuple[World, Streams, Streams]]:
    """`a` and `b` on a device for one: a stream of `a` is frozen, and `b`, for which it went, serves one of its own."""
    async with world(a, b, devices=[Device("sim0", 15 * GIB, kind="sim")], policy=policy) as w:
        await w.ready("a")
        ours = Streams(w, "a")
        await w.clock.settle()
        theirs = Streams(w, "b")
        await until(w, "a", State.SLEEPING)
        await until(w, "b", State.READY)
        assert w.manager.require("a").gate.frozen == 1
        try:
            yield w, ours, theirs
        finally:
            for stream in (ours, theirs):
                stream.task.cancel()
            await asyncio.gather(ours.task, theirs.task, return_exceptions=True)


async def until(w: World, name: str, state: State, seconds: float = 60.0) -> None:
    for _ in range(int(seconds * 10)):
        if w.manager.require(name).state is state:
            return
        await w.clock.advance(0.1)
    raise AssertionError(f"{name} is {w.manager.require(name).state} after {seconds} s, not {state}")


def reserved(w: World, name: str) -> int:
    return w.manager.ledger.reservations[name].device_bytes["sim0"]


async def test_a_frozen_engine_is_woken_as_what_it_was_launched() -> None:
    """Whether the new declaration is smaller, or can never fit: the wake is reckoned with the size of the engine that sleeps, and
    the new one comes with the next launch."""
    for gib in (2, 40):
        new = sleeper("a", gib)
        async with frozen(sleeper("a"), sleeper("b")) as (w, ours, _):
            await reload.apply(w.manager, Catalog([new, sleeper("b")]), "reload")
            await until(w, "a", State.DRAINING)
            assert reserved(w, "a") == 10 * GIB
            assert w.manager.require("b").gate.frozen == 1
            await ours.complete()
            await until(w, "a", State.STOPPED)
            assert w.manager.require("a").spec == new
            if gib == 2:
                await w.ready("a")
                assert reserved(w, "a") == 2 * GIB


async def test_a_declaration_that_is_taken_back_is_forgotten() -> None:
    """The next launch has the last declaration, not one in between."""
    async with frozen(sleeper("a"), sleeper("b")) as (w, ours, _):
        for gib in (2, 10):
            await reload.apply(w.manager, Catalog([sleeper("a", gib), sleeper("b")]), "reload")
        await until(w, "a", State.DRAINING)
        await ours.complete()
        await until(w, "a", State.STOPPED)
        assert w.manager.require("a").spec == sleeper("a", 10)


async def test_what_an_engine_was_seen_to_use_counts_for_its_wake() -> None:
    """More than was reserved at its launch: the sleep does not make that forgotten."""
    async with world(sleeper("a"), sleeper("b"), devices=[Device("sim0", 15 * GIB, kind="sim")], policy=PREEMPT) as w:
        await w.ready("a")
        w.manager.exceeded("a", {"sim0": 12 * GIB})
        await w.ready("b")
        assert w.manager.require("a").state is State.SLEEPING
        await w.ready("a")
        assert reserved(w, "a") == 12 * GIB


async def test_the_terms_of_a_sleep_hold_until_it_is_over() -> None:
    """What stays of a sleeper does not change because something else is declared; the rest of a change counts at once."""
    before = sleeper("a", sleep=SleepSpec(keeps=GIB))
    after = replace(before, sleep=SleepSpec(keeps=3 * GIB), priority=5)
    async with frozen(before, sleeper("b")) as (w, _, theirs):
        await reload.apply(w.manager, Catalog([after, sleeper("b")]), "reload")
        a = w.manager.require("a")
        assert (a.spec.sleep.keeps, a.spec.priority) == (GIB, 5)
        await theirs.complete()
        await until(w, "a", State.READY)
        assert a.spec == after


async def test_a_cold_start_after_a_failed_wake_has_the_new_declaration_and_its_size() -> None:
    """The room of the old one is given back; those who wait get the new one."""
    async with frozen(sleeper("a"), sleeper("b")) as (w, ours, theirs):
        w.processes["a"].answer = "Rome"
        await reload.apply(w.manager, Catalog([sleeper("a", 2), sleeper("b")]), "reload")
        newcomer = Streams(w, "a")
        await theirs.complete()
        await until(w, "a", State.READY)
        assert isinstance(ours.task.exception(), RequestCut)
        assert reserved(w, "a") == 2 * GIB
        await newcomer.complete()


async def test_frozen_requests_that_can_never_go_on_are_told_why() -> None:
    """The one whose room they need is pinned meanwhile: nothing hangs."""
    async with frozen(sleeper("a"), sleeper("b")) as (w, ours, _):
        w.manager.pin("b", pinned=True)
        await w.clock.advance(1.0)
        error = ours.task.exception()
        assert isinstance(error, RequestCut)
        assert "pinned b" in str(error)
        await until(w, "a", State.STOPPED)


async def test_frozen_requests_whose_device_does_not_come_back_are_told() -> None:
    """After five minutes; what is asked for then can be started elsewhere."""
    async with frozen(sleeper("a"), sleeper("b")) as (w, ours, _):
        w.inventory.change("sim0", problem="it is lost")
        w.manager.observe_devices()
        await w.clock.advance(295.0)
        assert not ours.task.done()
        await w.clock.advance(20.0)
        error = ours.task.exception()
        assert isinstance(error, RequestCut)
        assert "sim0 is out of use: it is lost" in str(error)


async def test_frozen_requests_outlive_a_device_that_is_out_of_use_for_a_while() -> None:
    """Nobody is frozen or stopped for a wake that cannot be; when the device is well, they go on."""
    async with frozen(sleeper("a"), sleeper("b")) as (w, ours, theirs):
        w.inventory.change("sim0", problem="it does not answer")
        w.manager.observe_devices()
        await w.clock.advance(60.0)
        assert not ours.task.done()
        assert w.manager.require("a").state is State.SLEEPING
        assert w.manager.require("b").state is State.READY
        w.inventory.change("sim0", problem="")
        w.manager.observe_devices()
        await until(w, "a", State.READY)
        await ours.complete()
        await until(w, "b", State.READY)
        await theirs.complete()


async def test_a_sleep_that_is_called_off_is_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill while the engine goes to sleep: what waits for its sleep ends with it, and says nothing about the next launch."""
    async with world(sleeper("a"), devices=[Device("sim0", 15 * GIB, kind="sim")], policy=PREEMPT) as w:
        await w.ready("a")
        w.processes["a"].frees = False  # it is looked for its memory for some seconds
        await w.manager.sleep("a", "test")
        await w.clock.advance(0.5)
        a = w.manager.require("a")
        assert a.state is State.SUSPENDING
        w.processes["a"].release_stop.clear()
        await w.manager.stop("a", "test", force=True)
        looks = 0
        held = w.inventory.held

        async def look(token: str) -> Mapping[str, int]:
            nonlocal looks
            looks += 1
            return await held(token)

        monkeypatch.setattr(w.inventory, "held", look)
        await w.clock.advance(1.0)
        assert (a.state, looks) == (State.STOPPING, 0)
        w.processes["a"].release_stop.set()
        await until(w, "a", State.STOPPED)
        await w.ready("a")
        assert a.state is State.READY
        assert not [r for r in caplog.records if r.exc_info]


async def test_a_failing_task_of_an_earlier_launch_does_not_end_the_present_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged, and is about the launch in which it began."""
    async with world(model("a")) as w:
        await w.ready("a")
        a, fail = w.manager.require("a"), asyncio.Event()

        async def late() -> None:
            await fail.wait()
            raise RuntimeError("too late")

        a.tasks.run(late())
        await w.manager.stop("a", "test")
        await until(w, "a", State.STOPPED)
        await w.ready("a")
        fail.set()
        await w.clock.advance(1.0)
        assert a.state is State.READY
        assert "too late" in caplog.text


async def test_a_load_whose_reservation_is_gone_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a load that ended without a word."""
    async with world(model("a")) as w:
        written, lost = w.manager._written, []

        async def loses(*args: Any) -> bool:
            answer = await written(*args)
            if not lost:
                lost.append(True)
                w.manager._room.release("a")
            return answer

        monkeypatch.setattr(w.manager, "_written", loses)
        await w.ready("a")
        assert w.journal.kinds("a").count("swap.given_up") == 1


async def test_the_highest_priority_among_those_who_wait_is_their_models() -> None:
    """Beside its own, which it never falls below."""
    async with world(model("a", priority=3), capacity=5) as w:
        a = w.manager.require("a")
        for priorities, found in (((), 3), ((0, -5), 3), ((0, 7), 7)):
            tickets = tuple(w.ticket("a", priority=p) for p in priorities)
            lane = survey.lane(a, survey.Waiting("a", tickets), None, loading=False, per_device=1)
            assert lane.priority == found


def level_2(name: str) -> ModelSpec:
    return sleeper(name, sleep=SleepSpec(level=2), sim={"weights": "8GiB"})


async def test_what_is_frozen_takes_host_memory_also_where_sleep_takes_none() -> None:
    """With requests it sleeps at level 1: its weights are counted while it does, and not once it is awake."""
    policy = replace(PREEMPT, sleep_budget=10 * GIB)
    async with frozen(level_2("a"), sleeper("b"), policy) as (w, ours, theirs):
        assert w.manager.host_memory.held == {"a": 8 * GIB}
        assert w.processes["a"].wakes == [("level 1",)]
        await theirs.complete()
        await until(w, "a", State.READY)
        assert "a" not in w.manager.host_memory.held
        await ours.complete()
        await w.ready("b")
        assert w.manager.require("a").state is State.SLEEPING
        assert w.manager.host_memory.held["a"] == 0
        assert w.processes["a"].wakes[-1] == ("level 2",)


async def test_nothing_is_frozen_where_the_host_has_no_memory_for_it() -> None:
    """Its requests are cut when the drain has taken its time, and it sleeps without them, at its own level."""
    policy = replace(PREEMPT, sleep_budget=GIB)
    async with world(level_2("a"), sleeper("b"), devices=[Device("sim0", 15 * GIB, kind="sim")], policy=policy) as w:
        await w.ready("a")
        stream = Streams(w, "a")
        await w.clock.settle()
        other = Streams(w, "b")
        await until(w, "a", State.SLEEPING)
        assert isinstance(stream.task.exception(), RequestCut)
        assert w.processes["a"].wakes == [("level 2",)]
        assert w.manager.host_memory.used == 0
        await until(w, "b", State.READY)
        await other.complete()


async def test_a_sleep_waits_for_the_host_memory_of_the_one_that_is_stopped_for_it() -> None:
    """Until that one is gone, not until it was told: the budget is never exceeded. After a deadline it is stopped instead."""
    policy = Policy(Rules(min_dwell=0.0), sleep_budget=10 * GIB)
    for comes in (True, False):
        specs = [sleeper(name, sim={"weights": "8GiB"}) for name in "abc"]
        async with world(*specs, devices=[Device("sim0", 15 * GIB, kind="sim")], policy=policy) as w:
            await w.ready("a")
            await w.ready("b")
            a, b = w.manager.require("a"), w.manager.require("b")
            assert a.state is State.SLEEPING
            w.processes["a"].release_stop.clear()
            await w.manager.start("c", "test")
            await w.clock.advance(5.0)
            assert (a.state, b.state) == (State.STOPPING, State.SUSPENDING)
            assert w.sleeps == [("a", False)]
            if comes:
                w.processes["a"].release_stop.set()
            else:
                await w.clock.advance(60.0)
            await until(w, "c", State.READY)
            assert b.state is (State.SLEEPING if comes else State.STOPPED)
            assert a.state is (State.STOPPED if comes else State.STOPPING)
            assert w.manager.host_memory.used == 8 * GIB
            w.processes["a"].release_stop.set()
            await until(w, "a", State.STOPPED)
            assert w.manager.host_memory.leaving == {}
