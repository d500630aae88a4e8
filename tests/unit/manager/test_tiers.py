"""Sleep instead of a stop: who sleeps when room is made, what is believed of it, and what becomes of a wake that fails."""

import asyncio
from typing import Any

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.domain.errors import Conflict, ShuttingDown, StartFailed, UpstreamDied
from vllm_mm.domain.estimates import Kind
from vllm_mm.domain.lifecycle import Goal, State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec, SleepMode, SleepSpec
from vllm_mm.engine.policy import Policy

REFUSAL = UpstreamDied("the engine answered 500", sent=True, started=False)


def sim(name: str, gib: float = 10, *, weights: str = "6GiB", keeps: str = "1GiB", **changes: Any) -> ModelSpec:
    """Its engine holds `gib` and keeps a tenth of it asleep (see the fakes), whatever its declaration expects."""
    profile = {"weights": weights, "sleep_residual": keeps}
    return model(name, gib, engine=EngineKind.SIM, command=(), sim=profile, **changes)


def device(gib: float) -> list[Device]:
    return [Device("sim0", int(gib * GIB), kind="sim")]


def budget(gib: float) -> Policy:
    return Policy(sleep_budget=int(gib * GIB))


async def served(w: World, name: str, **how: Any) -> None:
    """It is asked for, and answers; the others have dwelt long enough by then."""
    await w.clock.advance(10.0)
    asked = asyncio.create_task(get(w, w.ticket(name, **how)))
    await w.clock.advance(5.0)
    assert asked.result() == name


def reserved(w: World, name: str) -> float:
    return w.manager.ledger.reservations[name].device_bytes["sim0"] / GIB


def states(w: World) -> dict[str, str]:
    return {i.spec.id: i.state.value for i in w.manager.instances()}


async def test_a_victim_sleeps_and_comes_back_without_a_start() -> None:
    """Its reservation shrinks to what it was seen to keep, its weights are counted in host memory; a wake gives that back."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        assert states(w) == {"a": "sleeping", "b": "ready"}
        assert (reserved(w, "a"), reserved(w, "b")) == (1.0, 10.0)
        assert w.manager.host_memory.held == {"a": 6 * GIB}
        await served(w, "a")
        assert states(w) == {"a": "ready", "b": "sleeping"}
        assert (reserved(w, "a"), reserved(w, "b")) == (10.0, 1.0)
        assert w.manager.host_memory.held == {"b": 6 * GIB}
        assert w.starts == ["a", "b"]
        assert w.most_running == 2


async def test_a_sleeper_says_why_it_sleeps_and_why_it_does_not_wake() -> None:
    """As one that stopped does: for whom it went, and what became of the latest wish for it."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        assert w.manager.describe("a").reason.startswith("evicted: room for b")
        w.manager.pin("b", pinned=True)
        await w.manager.wake("a", "operator")
        await w.clock.advance(1.0)
        assert (w.manager.describe("a").state, "pinned" in w.manager.describe("a").reason) == ("sleeping", True)
        w.manager.pin("b", pinned=False)
        assert w.manager.describe("a").reason.startswith("evicted: room for b")


async def test_without_a_budget_victims_are_stopped() -> None:
    """`host_memory.sleep_budget: 0` turns sleep off, an operator's too."""
    async with world(sim("a"), sim("b"), devices=device(15), policy=budget(0)) as w:
        await w.ready("a")
        with pytest.raises(Conflict, match="sleep_budget` is 0"):
            await w.manager.sleep("a", "operator")
        assert w.manager.require("a").state is State.READY
        await served(w, "b")
        assert states(w)["a"] == "stopped"
        assert w.manager.host_memory.held == {}


async def test_those_that_slept_longest_are_stopped_for_the_hosts_memory() -> None:
    """Room for two sleepers of 6 GiB: the third one takes the place of the first."""
    async with world(*(sim(m) for m in "abcd"), devices=device(15), policy=budget(13)) as w:
        await w.ready("a")
        for name in "bcd":
            await served(w, name)
        assert states(w) == {"a": "stopped", "b": "sleeping", "c": "sleeping", "d": "ready"}
        assert w.manager.host_memory.held == {"b": 6 * GIB, "c": 6 * GIB}
        assert "a" not in w.manager.ledger.reservations
        told = w.manager.require("a").snapshot.reason
        assert told.startswith("sleep_room: host memory for the sleep of c")


async def test_a_pinned_sleeper_is_not_stopped_for_another_sleeper() -> None:
    """An operator put it to sleep and wants it to stay: the victim is stopped instead."""
    async with world(*(sim(m) for m in "abc"), devices=device(15), policy=budget(7)) as w:
        await w.ready("a")
        await w.manager.sleep("a", "operator")
        await w.clock.advance(1.0)
        w.manager.pin("a", pinned=True)
        await served(w, "b")
        await served(w, "c")
        assert states(w) == {"a": "sleeping", "b": "stopped", "c": "ready"}


async def test_an_operators_sleep_needs_room_in_host_memory() -> None:
    """More than there is at all: 409 with the figures."""
    async with world(sim("a", weights="8GiB"), devices=device(15), policy=budget(7)) as w:
        await w.ready("a")
        with pytest.raises(Conflict, match=r"8\.0 GiB: 1\.0 GiB too little"):
            await w.manager.sleep("a", "operator")


async def test_what_would_stay_has_to_fit_beside_the_load() -> None:
    """14.5 GiB of 15 are promised to the load: there is no room for the GiB that a sleeper keeps."""
    async with world(sim("a"), sim("b", 14.5), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        assert states(w) == {"a": "stopped", "b": "ready"}
        assert "sleep.failed" not in w.journal.kinds("a")
        assert "instance.suspending" not in w.journal.kinds("a"), "it was put to sleep before it was stopped"


async def test_a_sleeper_that_keeps_more_than_was_thought_is_stopped_for_the_load() -> None:
    """It was to keep nothing and keeps a GiB, which was promised away: the load gets its room all the same."""
    async with world(sim("a", keeps="0"), sim("b", 14.5), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        assert states(w) == {"a": "stopped", "b": "ready"}
        assert "instance.sleeping" in w.journal.kinds("a")
        await served(w, "a")
        await served(w, "b")
        assert w.journal.kinds("a").count("instance.sleeping") == 1, "what it keeps was not remembered"


async def test_a_sleep_that_gives_nothing_back_is_a_stop() -> None:
    """The engine says that it sleeps and keeps its memory: it is stopped, the load goes on, and that is not tried again."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        w.processes["a"].frees = False
        await served(w, "b")
        assert states(w) == {"a": "stopped", "b": "ready"}
        [failed] = [e for e in w.journal.events if e.kind == "sleep.failed"]
        assert failed.data["outcome"] == "lied"
        assert "10.0 GiB of 10.0 GiB on sim0" in failed.data["reason"]
        assert failed.data["again"] is False
        assert "10.0 GiB of 10.0 GiB" in w.manager.why_no_sleep(w.manager.require("a").spec)
        await served(w, "a")
        await served(w, "b")
        assert len([e for e in w.journal.events if e.kind == "sleep.failed"]) == 1
        await w.manager.reset("a", "operator")
        assert w.manager.can_sleep(w.manager.require("a").spec)


async def test_an_engine_that_will_not_sleep_is_stopped_and_is_no_failure() -> None:
    """It can be started again at once, without a backoff."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        w.processes["a"].sleep_error = REFUSAL
        await served(w, "b")
        assert states(w)["a"] == "stopped"
        assert w.manager.require("a").snapshot.failures == 0
        await served(w, "a")


@pytest.mark.parametrize("how", ["refused", "lied", "died"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wake_that_fails_becomes_a_start_in_the_same_load(how: str, stream: bool) -> None:
    """Those who wait for it are served by that start, and nobody is told to come again or that it failed."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        process = w.processes["a"]
        if how == "refused":
            process.wake_error = REFUSAL
        elif how == "lied":
            process.answer = "Gibberish"
        else:
            process.wake_hold.clear()
            w.clock.call_at(w.clock.now() + 11.0, lambda: process.die(137))
        await served(w, "a", stream=stream)
        assert states(w)["a"] == "ready"
        assert w.starts == ["a", "b", "a"]
        assert reserved(w, "a") == 10.0
        assert w.manager.loading("a") is None
        assert w.store.rows["a"].generation == 2
        [failed] = [e for e in w.journal.events if e.kind == "wake.failed"]
        assert (failed.data["outcome"], failed.data["again"]) == (how, True)
        assert w.manager.require("a").snapshot.failures == 0
        assert w.journal.kinds("a").count("swap.planned") == 2


async def test_after_two_failed_wakes_a_model_does_not_sleep_any_more() -> None:
    """Until its declaration changes; the reason is told."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        for _ in range(2):
            await served(w, "b")
            assert states(w)["a"] == "sleeping"
            w.processes["a"].answer = "Gibberish"
            await served(w, "a")
        assert "'Gibberish', before 'Paris'" in w.manager.why_no_sleep(w.manager.require("a").spec)
        await served(w, "b")
        assert states(w)["a"] == "stopped"
        assert w.manager.can_sleep(sim("a", sleep=SleepSpec(level=2)))


async def test_a_wake_that_answers_as_before_only_at_the_second_try_is_good() -> None:
    """Where two tokens are as likely, rounding decides."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        answers = iter(["Lyon", "Paris"])
        control = type(w.manager.require("a")._run._checks.control)  # type: ignore[union-attr]

        async def probe(self: Any, name: str, task: object) -> str:
            return next(answers, "Paris")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(control, "probe", probe)
            await served(w, "a")
        assert w.starts == ["a", "b"]


async def test_a_sleeper_that_died_is_started() -> None:
    """Its memory, the host's too, is free from then on."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        w.processes["a"].die(137)
        await w.clock.advance(1.0)
        assert states(w)["a"] == "stopped"
        assert w.manager.host_memory.held == {}
        assert "a" not in w.manager.ledger.reservations
        await served(w, "a")
        assert w.starts == ["a", "b", "a"]


async def test_a_cold_start_that_is_called_off_answers_those_who_wait() -> None:
    """An operator's stop while the engine that would not wake is being ended: nothing is started, nothing is held."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        await w.clock.advance(10.0)
        w.processes["a"].answer = "Gibberish"
        w.processes["a"].release_stop.clear()
        asked = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        assert states(w)["a"] == "stopping"
        assert not asked.done()
        await w.manager.stop("a", "operator")
        await w.clock.advance(0.1)
        assert isinstance(asked.exception(), StartFailed)
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert states(w)["a"] == "stopped"
        assert "a" not in w.manager.ledger.reservations
        assert w.starts == ["a", "b"]
        await served(w, "a")


async def test_the_end_of_the_server_during_a_cold_start() -> None:
    """The engine that would not wake is ended, and no other one is started."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        await w.clock.advance(10.0)
        w.processes["a"].answer = "Gibberish"
        w.processes["a"].release_stop.clear()
        asked = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        w.manager.close_admission(ShuttingDown("bye"))
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert asked.exception() is not None
        assert states(w)["a"] == "stopped"
        assert w.starts == ["a", "b"]
        assert w.manager.loading("a") is None


async def test_a_cold_start_that_cannot_be_written_down_gives_its_room_back() -> None:
    """As any other load."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        await w.clock.advance(10.0)
        w.processes["a"].answer = "Gibberish"
        w.store.error = OSError("database is locked")
        asked = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(3.0)
        assert isinstance(asked.exception(), StartFailed)
        assert "a" not in w.manager.ledger.reservations
        w.store.error = None


async def test_level_two_reads_the_weights_again_before_the_cache() -> None:
    """In that order: without it the engine answers gibberish. It takes nothing of the host."""
    async with world(sim("a", sleep=SleepSpec(level=2)), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await served(w, "b")
        assert w.manager.host_memory.held == {"a": 0}
        await served(w, "a")
        assert w.processes["a"].wakes == [("level 2",), ("weights",), ("reload",), ("kv_cache",), ("reset",)]


async def test_an_adopted_sleeper_is_held_to_what_it_answered_before() -> None:
    """Its answer is written down before it sleeps, for the next controller; its memory is counted as that of a sleeper."""
    async with world(sim("a"), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        await w.manager.sleep("a", "operator")
        await w.clock.advance(1.0)
        record = w.store.rows["a"]
        assert record.answer == "Paris"
        await w.manager.require("a").hand_over()
        record = w.store.rows["a"]
        assert record.answer == "Paris", "handing over wrote the row again, without it"
        w.manager._instances.clear()
        w.manager._room.release("a")
        w.manager._tiers.release("a")
        w.processes["a"].record = record
        assert await w.manager.adopt(record)
        assert states(w)["a"] == "sleeping"
        assert reserved(w, "a") == 1.0
        assert w.manager.host_memory.held == {"a": 6 * GIB}
        w.processes["a"].answer = "Gibberish"
        await served(w, "a")
        assert w.starts == ["a", "a"]


async def test_an_undrained_victim_keeps_all_of_its_memory() -> None:
    """An operator's sleep is taken back during the drain: the room is its own again, and the host's memory free."""
    async with world(sim("a"), devices=device(15)) as w:
        await w.ready("a")
        held = w.manager.fast_lease(w.ticket("a"))
        assert held is not None
        await w.manager.sleep("a", "operator")
        assert w.manager.host_memory.held == {"a": 6 * GIB}
        assert w.manager.ledger.free_after_leaving("sim0") == 14 * GIB
        await w.manager.undrain("a", "operator")
        assert w.manager.host_memory.held == {}
        assert w.manager.ledger.free_after_leaving("sim0") == 5 * GIB
        w.manager.take_back(held)


async def test_a_drain_to_sleep_that_becomes_a_stop() -> None:
    """Its whole memory can be planned with from then on."""
    async with world(sim("a"), devices=device(15)) as w:
        await w.ready("a")
        held = w.manager.fast_lease(w.ticket("a"))
        assert held is not None
        await w.manager.sleep("a", "operator")
        await w.manager.stop("a", "operator")
        assert w.manager.host_memory.held == {}
        assert w.manager.ledger.free_after_leaving("sim0") == 15 * GIB
        w.manager.take_back(held)
        await w.clock.advance(1.0)
        assert states(w)["a"] == "stopped"


async def test_a_wake_that_is_called_off_leaves_the_sleeper_what_it_holds() -> None:
    """It waited for another load's room: its reservation is that of a sleeper again."""
    async with world(sim("a"), sim("b"), devices=device(30), policy=Policy(cancel_unwanted_loads=True)) as w:
        await w.ready("a")
        await w.manager.sleep("a", "operator")
        await w.clock.advance(1.0)
        w.healthy_at_once = False
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        asked = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        assert reserved(w, "a") == 10.0
        asked.cancel()
        await w.clock.advance(0.1)
        assert w.manager.loading("a") is None
        assert states(w)["a"] == "sleeping"
        assert reserved(w, "a") == 1.0


async def test_what_a_departure_would_mean() -> None:
    """For whoever weighs victims: sleep or stop, and how long the way out and back was."""
    async with world(sim("a"), sim("b"), sim("c", sleep=SleepSpec(SleepMode.NEVER)), devices=device(26)) as w:
        await w.ready("a", "c")
        assert w.manager.departure("a").goal is Goal.SLEEP
        assert w.manager.departure("c").goal is Goal.STOP
        assert w.manager.departure("c").back == w.manager.estimator.start(w.manager.require("c").spec)
        await served(w, "b")
        assert w.manager.departure("a").goal is Goal.STOP, "a sleeper that has to go is stopped"
        await served(w, "a")
        seen = w.manager.departure("a")
        assert seen.goal is Goal.SLEEP
        assert seen.back == w.manager.estimator.times("a").span(Kind.WAKE)
        assert seen.leaves == w.manager.estimator.times("a").span(Kind.SLEEP)


async def test_what_sleep_taught_outlives_the_server() -> None:
    """The next one knows what a sleeper keeps and which engine lies about sleep, until somebody says that it may try again."""
    liar, honest = sim("a"), sim("b", keeps="0")
    async with world(liar, honest, sim("c"), devices=device(15)) as w:
        await w.ready("a")
        w.processes["a"].frees = False
        await served(w, "b")
        await served(w, "c")
        assert states(w) == {"a": "stopped", "b": "sleeping", "c": "ready"}
        learned = dict(w.store.slept_before)
    async with world(liar, honest, sim("c"), devices=device(15)) as w:
        w.store.slept_before = learned
        await w.manager.load_memory()
        assert "it says that it sleeps and keeps 10.0 GiB" in w.manager.why_no_sleep(liar)
        assert w.manager.can_sleep(honest)
        await w.ready("b")
        assert w.manager._tiers.residue(honest, w.manager.ledger) == {"sim0": GIB}
        await w.manager.reset("a", "operator")
        await w.clock.advance(0.1)
        assert w.manager.can_sleep(liar)
        learned = dict(w.store.slept_before)
    async with world(liar, devices=device(15)) as w:
        w.store.slept_before = learned
        await w.manager.load_memory()
        assert w.manager.can_sleep(liar)


async def test_what_an_operator_vouches_for_is_not_measured() -> None:
    """`mode: always` with `keeps`: for engines of which it cannot be seen."""
    spec = SleepSpec(SleepMode.ALWAYS, keeps=2 * GIB)
    async with world(model("a", 10, sleep=spec), sim("b"), devices=device(15)) as w:
        await w.ready("a")
        w.processes["a"].frees = False
        await served(w, "b")
        assert states(w)["a"] == "sleeping"
        assert reserved(w, "a") == 2.0
