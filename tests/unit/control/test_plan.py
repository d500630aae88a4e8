"""What a plan says of a load is what the load then does, down to who sleeps and which sleepers are stopped for that."""

import random

import pytest

from fakes_engine import World, model, world
from vllm_mm.control.plan import Plan, plan
from vllm_mm.domain.lifecycle import OnTimeout
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec, SleepMode, SleepSpec
from vllm_mm.engine.policy import Policy


def sim(name: str, gib: float, weights: float, **changes: object) -> ModelSpec:
    profile = {"weights": f"{weights}GiB", "sleep_residual": "1GiB"}
    return model(name, gib, engine=EngineKind.SIM, command=(), sim=profile, **changes)


def told(w: World, since: int, load: str) -> tuple[dict[str, str], dict[str, str]]:
    """By the events after the first `since` until `load` was there: who went for it and what became of it, and who was stopped for
    whose sleep. Frozen requests may bring others back after that."""
    went: dict[str, str] = {}
    stopped: dict[str, str] = {}
    for event in w.journal.events[since:]:
        name, cause = str(event.model), str(event.data.get("reason") or event.cause)
        if event.kind == "swap.done" and name == load:
            break
        if event.kind == "instance.stopping" and Reason.SLEEP_ROOM in cause:
            stopped[name] = cause.split("sleep of ")[1].split(",", maxsplit=1)[0]
        elif event.kind == "instance.suspending":
            went[name] = "sleep"
        elif event.kind == "instance.stopping":
            went[name] = "stop"
    return went, stopped


def foretold(found: Plan) -> tuple[dict[str, str], dict[str, str]]:
    return {v.model: v.goal.value for v in found.victims}, {s.model: s.sleeps_for for s in found.stopped}


async def load(w: World, name: str) -> tuple[Plan, tuple[dict[str, str], dict[str, str]]]:
    """The plan of its load, and what came of it."""
    found = plan(w.manager, w.manager.require(name).spec, Policy().rules, w.clock.now())
    since = len(w.journal.events)
    await w.manager.start(name, "operator")
    await w.clock.advance(15.0)
    return found, told(w, since, name)


@pytest.mark.parametrize("seed", range(12))
async def test_what_the_plan_says_is_what_happens(seed: int) -> None:
    """Random fleets and budgets: an operator loads one model after the other, and each plan is compared with the events."""
    rng = random.Random(seed)
    specs = [
        sim(
            f"m{i}", rng.choice([5, 8, 10, 16]), rng.choice([2, 4, 6]),
            sleep=SleepSpec(SleepMode.NEVER if rng.random() < 0.15 else SleepMode.AUTO, level=rng.choice([1, 1, 2])),
        )
        for i in range(6)
    ]  # fmt: skip
    budget = rng.choice([0, 4, 6, 9, 12, 100])
    policy = Policy(
        sleep_budget=budget * GIB, on_drain_timeout=rng.choice([OnTimeout.CUT, OnTimeout.FREEZE]), drain_timeout=1.0
    )
    async with world(*specs, devices=[Device("sim0", 24 * GIB, kind="sim")], policy=policy) as w:
        for _ in range(8):
            name = f"m{rng.randrange(6)}"
            if rng.random() < 0.2:
                w.manager.pin(name, pinned=False)
            before = w.manager.require(name).state
            busy = [m for i in w.manager.instances() if i.state == "ready" and rng.random() < 0.3 and (m := i.spec.id)]
            leases = [lease for m in busy if m != name and (lease := w.manager.fast_lease(w.ticket(m))) is not None]
            found, came = await load(w, name)
            assert foretold(found) == came, f"{name} was {before}, budget {budget}: {found}"
            for lease in leases:
                w.manager.take_back(lease)
            await w.clock.advance(15.0)


@pytest.mark.parametrize(
    ("budget", "goals", "stopped"),
    [
        (100, {"a": "sleep", "b": "sleep"}, {}),
        (18, {"a": "sleep", "b": "sleep"}, {}),
        (17, {"a": "sleep", "b": "sleep"}, {"old": "b"}),
        (11, {"a": "sleep", "b": "stop"}, {"old": "a"}),
        (5, {"a": "stop", "b": "stop"}, {}),
    ],
)
async def test_two_victims_share_the_hosts_memory(budget: int, goals: dict[str, str], stopped: dict[str, str]) -> None:
    """Two of 6 GiB go while one of 6 sleeps: with a smaller budget the sleeper goes for the second, then for the first, whose
    sleep leaves nothing for the second."""
    specs = [sim("old", 10, 6), sim("a", 10, 6), sim("b", 10, 6), sim("big", 20, 6)]
    async with world(
        *specs, devices=[Device("sim0", 24 * GIB, kind="sim")], policy=Policy(sleep_budget=budget * GIB)
    ) as w:
        await w.ready("old")
        if budget >= 6:
            await w.manager.sleep("old", "operator")
            await w.clock.advance(10.0)
        else:
            await w.manager.stop("old", "operator")
            await w.clock.advance(10.0)
        await w.ready("a")
        await w.clock.advance(5.0)
        await w.ready("b")
        found, came = await load(w, "big")
        assert foretold(found) == came == (goals, stopped)
        assert found.room_s > 0 or "sleep" not in goals.values()
        for sleeper in found.stopped:
            assert (sleeper.host_bytes, sleeper.asleep_s > 5.0) == (6 * GIB, True)


async def test_a_model_that_wakes_is_not_stopped_for_those_who_go() -> None:
    """It holds host memory until it is awake: who goes for it cannot have that."""
    specs = [sim("a", 14, 6), sim("b", 14, 6)]
    async with world(*specs, devices=[Device("sim0", 24 * GIB, kind="sim")], policy=Policy(sleep_budget=6 * GIB)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        await load(w, "b")
        found, came = await load(w, "a")
        assert (found.act, foretold(found)) == ("wake", ({"b": "stop"}, {}))
        assert came == foretold(found)
