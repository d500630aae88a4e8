"""Boot, shutdown, reload, idle times and what is kept ready, over the real manager."""

import asyncio

import pytest

from fakes_engine import model, world
from vllm_mm.control import boot, reload
from vllm_mm.control.desired import Keeper
from vllm_mm.control.idle import IdleWatch, idle_act
from vllm_mm.control.shutdown import hand_over, shutdown
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ShuttingDown, UnknownModel
from vllm_mm.domain.lifecycle import Goal, State
from vllm_mm.domain.reasons import Reason, of_event
from vllm_mm.domain.specs import IdlePolicy
from vllm_mm.settings import Settings, at_restart


@pytest.mark.parametrize(
    ("state", "idle", "can_sleep", "act"),
    [
        (State.READY, 99.0, True, None),
        (State.READY, 100.0, True, Goal.SLEEP),
        (State.READY, 100.0, False, None),
        (State.READY, 200.0, True, Goal.STOP),
        (State.SLEEPING, 100.0, True, None),
        (State.SLEEPING, 200.0, True, Goal.STOP),
        (State.STARTING, 999.0, True, None),
        (State.DRAINING, 999.0, True, None),
    ],
)
def test_idle_act(state: State, idle: float, can_sleep: bool, act: Goal | None) -> None:
    """Sleep first where it is possible, then stop; only in READY and SLEEPING."""
    assert idle_act(IdlePolicy(100.0, 200.0), state, idle, can_sleep=can_sleep) is act


def test_idle_times_of_none_mean_never() -> None:
    """null in the configuration."""
    assert idle_act(IdlePolicy(None, None), State.READY, 1e9, can_sleep=True) is None


async def test_the_idle_clock_starts_when_the_last_lease_ends() -> None:
    """A generation longer than `stop_after` is not punished for its length; a slow load neither."""
    async with world(model("a", idle=IdlePolicy(None, 100.0))) as w:
        await w.ready("a")
        watch = IdleWatch(w.manager, w.clock)
        async with w.manager.lease(w.ticket("a")):
            await w.clock.advance(500.0)
            await watch.look()
            assert w.manager.require("a").state is State.READY
        await w.clock.advance(99.0)
        await watch.look()
        assert w.manager.require("a").state is State.READY
        await w.clock.advance(2.0)
        await watch.look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPED


async def test_pinned_models_are_never_idle() -> None:
    """A pin overrules the idle times."""
    async with world(model("a", pinned=True, idle=IdlePolicy(1.0, 2.0))) as w:
        await w.ready("a")
        await w.clock.advance(500.0)
        await IdleWatch(w.manager, w.clock).look()
        assert w.manager.require("a").state is State.READY


async def test_preload_and_pins_are_started_and_pins_come_back() -> None:
    """`preload` at boot; a pinned model that crashed comes back; one that an operator stopped does not."""
    async with world(model("a", 4, preload=True), model("b", 4, pinned=True), model("c", 4)) as w:
        keeper = asyncio.create_task(Keeper(w.manager, w.clock).run())
        await w.clock.advance(1.0)
        assert sorted(w.starts) == ["a", "b"]
        for name in ("a", "b"):
            w.processes[name].die(1)
        await w.clock.advance(10.0)
        assert w.manager.require("a").state is State.STOPPED
        assert w.manager.require("b").state is State.READY
        await w.manager.stop("b", "operator")
        await w.clock.advance(10.0)
        assert w.manager.require("b").state is State.STOPPED
        keeper.cancel()


async def test_shutdown_lets_requests_finish_and_leaves_nothing() -> None:
    """Within the grace what runs is finished, what waits is told, and then every engine is gone."""
    async with world(model("a", 4), model("b", 4)) as w:
        await w.ready("a")
        release = asyncio.Event()

        async def request() -> str:
            async with w.manager.lease(w.ticket("a")) as lease:
                await release.wait()
                return lease.model

        running = asyncio.create_task(request())
        await w.clock.settle()
        w.healthy_at_once = False
        waiting = asyncio.create_task(w.manager.slow_lease(w.ticket("b")))
        await w.clock.advance(1.0)
        ending = asyncio.create_task(shutdown(w.manager, w.clock, 30.0))
        await w.clock.advance(5.0)
        assert isinstance(waiting.exception(), ShuttingDown)
        assert w.manager.require("a").state is State.DRAINING
        with pytest.raises(ShuttingDown):
            await w.manager.slow_lease(w.ticket("b"))
        release.set()
        await w.clock.advance(1.0)
        assert running.result() == "a"
        assert await ending is True
        assert w.running == set()
        assert w.manager.ledger.reservations == {}


async def test_shutdown_ends_what_outlasts_the_grace() -> None:
    """A request that goes on for ever does not keep the server alive."""
    async with world(model("a")) as w:
        await w.ready("a")

        async def request() -> None:
            async with w.manager.lease(w.ticket("a")):
                await asyncio.Event().wait()

        running = asyncio.create_task(request())
        await w.clock.settle()
        ending = asyncio.create_task(shutdown(w.manager, w.clock, 10.0))
        await w.clock.advance(12.0)
        assert await ending is True
        assert w.running == set()
        running.cancel()


async def test_hand_over_touches_no_engine_and_the_next_controller_adopts() -> None:
    """The engine of before goes on, with its generation, and is not started again."""
    async with world(model("a")) as w:
        await w.ready("a")
        process = w.processes["a"]
        await hand_over(w.manager)
        assert process.stopped == 0
        rows = w.store
        async with world(model("a")) as successor:
            successor.processes = w.processes
            successor.by_address = w.by_address
            successor.running = w.running
            adopted, swept = await boot.adopt_or_sweep(
                successor.manager, successor.manager._tools.launcher, rows, successor.journal
            )
            assert (adopted, swept) == (["a"], [])
            instance = successor.manager.require("a")
            assert instance.state is State.READY
            assert instance.snapshot.generation == 1
            assert set(successor.manager.ledger.reservations) == {"a"}
            async with successor.manager.lease(successor.ticket("a")) as lease:
                assert lease.generation == 1
            assert successor.starts == []
            await successor.clock.settle()
            assert successor.store.starts == [("a", "adopted")]


@pytest.mark.parametrize("why", ["changed", "removed", "unhealthy", "not wanted"])
async def test_what_cannot_be_adopted_is_swept(why: str) -> None:
    """Another spec, no spec, no answer, or a setting that says so: killed, its row forgotten, no memory held."""
    async with world(model("a")) as w:
        await w.ready("a")
        await hand_over(w.manager)
        w.processes["a"].healthy = why != "unhealthy"
        specs = {"changed": [model("a", 11)], "removed": []}.get(why, [model("a")])
        async with world(*specs) as successor:
            successor.processes = w.processes
            successor.by_address = w.by_address
            adopted, swept = await boot.adopt_or_sweep(
                successor.manager,
                successor.manager._tools.launcher,
                w.store,
                successor.journal,
                adopt=why != "not wanted",
            )
            assert (adopted, swept) == ([], ["a"])
            assert successor.manager.ledger.reservations == {}
            assert w.store.rows == {}


def test_what_a_reload_cannot_apply_is_named() -> None:
    """By its key; models and their defaults are applied."""
    before = Settings.model_validate({"models": {"a": None}})
    after = Settings.model_validate(
        {"models": {"b": None}, "defaults": {"concurrency": 3}, "server": {"port": 1}, "devices": "cpu",
         "queue": {"max_size": 5, "max_wait": 1}},
    )  # fmt: skip
    assert at_restart(before, after) == ("server.port", "devices", "queue.max_size", "queue.max_wait")
    assert at_restart(before, before) == ()


async def test_reload_applies_the_difference_only() -> None:
    """Unchanged models do not notice; a changed one finishes its requests first and is new when next wanted; a removed
    one goes; an added one can be asked for."""
    async with world(model("same", 4), model("changed", 4), model("gone", 4), model("pin", 4)) as w:
        await w.ready("same", "changed", "gone", "pin")
        release = asyncio.Event()

        async def request() -> int:
            async with w.manager.lease(w.ticket("changed")) as lease:
                await release.wait()
                return lease.generation

        running = asyncio.create_task(request())
        await w.clock.settle()
        after = Catalog([model("same", 4), model("changed", 5), model("new", 4), model("pin", 4, pinned=True)])
        diff = await reload.apply(w.manager, after, "test")
        assert {c.model: (c.effect, c.running) for c in diff} == {
            "new": ("new", False), "gone": ("removed", True), "changed": ("restarted", True), "pin": ("updated", False),
        }  # fmt: skip
        await w.clock.advance(1.0)
        assert w.processes["same"].stopped == 0
        assert w.processes["pin"].stopped == 0
        assert w.processes["changed"].stopped == 0
        assert w.manager.require("pin").spec.pinned
        release.set()
        assert await running == 1
        await w.clock.advance(1.0)
        assert w.running == {"same", "pin"}
        with pytest.raises(UnknownModel):
            w.manager.catalog.resolve("gone")
        await w.ready("changed", "new")
        assert w.manager.ledger.reservations["changed"].device_bytes == {"gpu0": 5 * 1024**3}


@pytest.mark.parametrize(
    ("cause", "code"), [("SIGHUP", Reason.RELOAD), ("operator ada", Reason.OPERATOR), ("reload: SIGHUP", Reason.RELOAD)]
)
async def test_who_goes_because_of_a_reload_has_a_reason(cause: str, code: Reason) -> None:
    """Whatever brought it about: each event of the engine that goes has a code."""
    async with world(model("a")) as w:
        await w.ready("a")
        since = len(w.journal.events)
        await reload.apply(w.manager, Catalog([]), cause)
        await w.clock.advance(1.0)
        told = [e for e in w.journal.events[since:] if e.kind.startswith("instance.")]
        assert [of_event(e.kind, e.cause, str(e.data.get("reason", ""))) for e in told] == [code] * len(told)
        assert len(told) >= 2
