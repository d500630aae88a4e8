"""When a model will be READY: learned per model, with what has to happen before, and compared with what came."""

import asyncio
from collections.abc import Mapping

import pytest

from fakes_engine import World, model, world
from vllm_mm.domain.estimates import Kind, Span, Stage, Times
from vllm_mm.domain.lifecycle import OnTimeout, State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Rules
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec
from vllm_mm.engine.policy import Policy


def known(**kinds: float) -> Times:
    """Three times the same of each kind."""
    times = Times()
    for name, seconds in kinds.items():
        for _ in range(3):
            times = times.note(Kind(name), seconds)
    return times


async def learned(w: World, **models: Times) -> None:
    w.store.known_times.update(models)
    await w.manager.load_memory()


def waiting(w: World, name: str, seconds: float = 600.0) -> "asyncio.Task[str]":
    async def get() -> str:
        async with w.manager.lease(w.ticket(name, wait=seconds)) as lease:
            return lease.model

    return asyncio.create_task(get())


async def test_what_was_learned_earlier_counts_from_the_first_moment() -> None:
    """A controller that starts anew knows how long this model's starts take; one that was never seen is like the others."""
    async with world(model("a"), model("b")) as w:
        assert w.manager.eta("b") == 30.0
        await learned(w, a=known(start=12.0))
        assert w.manager.eta("a") == 12.0
        assert w.manager.eta("b") == 12.0


async def test_a_simulated_engine_takes_what_it_declares() -> None:
    """Its first ETA is that of its profile; no guess."""
    profile = {"weights": "8GiB", "load_bandwidth": "2GiB/s", "startup": "3s", "sleep_bandwidth": "4GiB/s"}
    async with world(ModelSpec("a", EngineKind.SIM, sim=profile, memory=1)) as w:
        assert w.manager.eta("a") == pytest.approx(7.4)
        assert w.manager.estimator.expected(w.manager.catalog.resolve("a"), Kind.WAKE).likely == pytest.approx(2.1)


async def test_each_load_teaches() -> None:
    """The time from the start of the process to ready, as it was; kinds apart."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(7.0)
        w.processes["a"].healthy = True
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY
        took = w.manager.estimator.times("a").expect(Kind.START)
        assert took == pytest.approx(7.1, abs=0.2)
        w.hold_stops = True
        w.processes["a"].release_stop.clear()
        await w.manager.stop("a", "test")
        await w.clock.advance(2.5)
        w.processes["a"].release_stop.set()
        await w.clock.advance(0.1)
        assert w.store.timings["a", Kind.STOP] == pytest.approx([2.5], abs=0.1)
        assert w.manager.estimator.times("a").expect(Kind.DRAIN) is None, "there was nothing to drain"


async def test_a_killed_start_teaches_nothing_about_stops() -> None:
    """A start that is called off ends at once; a swap waits for another kind of stop."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(1.0)
        await w.manager.stop("a", "test")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPED
        assert w.store.timings == {}


async def test_the_room_counts() -> None:
    """A load that waits for another's drain and stop is told with them, and what has passed of each goes down."""
    policy = Policy(rules=Rules(max_wait=5.0, min_dwell=0.0), drain_timeout=20.0)
    async with world(model("a", 20), model("b", 20), policy=policy) as w:
        await learned(w, a=known(stop=2.0, drain=8.0, start=30.0), b=known(start=10.0))
        await w.ready("a")
        async with w.manager.lease(w.ticket("a")):
            b = waiting(w, "b")
            await w.clock.settle()
            assert w.manager.eta("b") == pytest.approx(5.0 + 8.0 + 2.0 + 10.0, abs=0.3)
            await w.clock.advance(5.0)
            assert w.manager.require("a").state is State.DRAINING
            assert w.manager.eta("b") == pytest.approx(8.0 + 2.0 + 10.0, abs=0.3)
            await w.clock.advance(6.0)
            assert w.manager.eta("b") == pytest.approx(2.0 + 2.0 + 10.0, abs=0.3)
        w.healthy_at_once = True
        await w.clock.advance(1.0)
        assert b.result() == "b"


async def test_a_drain_is_never_expected_beyond_its_deadline() -> None:
    """However long its streams take, what is left is cut (or frozen) then."""
    policy = Policy(rules=Rules(max_wait=0.0, min_dwell=0.0), drain_timeout=20.0)
    async with world(model("a", 20), model("b", 20), policy=policy) as w:
        await learned(w, a=known(stop=1.0, drain=300.0, start=1.0), b=known(start=10.0))
        await w.ready("a")
        async with w.manager.lease(w.ticket("a")):
            b = waiting(w, "b")
            await w.clock.advance(8.0)
            assert w.manager.eta("b") == pytest.approx(12.0 + 1.0 + 10.0, abs=0.3)
            b.cancel()
            await w.clock.settle()


async def test_predictions_are_compared_with_what_came() -> None:
    """What was told when the request began to wait and when its load was decided, against the moment of READY."""
    policy = Policy(rules=Rules(max_wait=5.0, min_dwell=0.0))
    async with world(model("a", 20), model("b", 20), policy=policy) as w:
        await learned(w, a=known(stop=0.0, drain=1.0, start=1.0), b=known(start=10.0))
        await w.ready("a")
        w.manager.forecast.accuracy[Stage.DECIDED] = w.manager.forecast.accuracy[Stage.QUEUED] = type(
            w.manager.forecast.accuracy[Stage.QUEUED]
        )()
        w.healthy_at_once = False
        async with w.manager.lease(w.ticket("a")):
            b = waiting(w, "b")
            await w.clock.advance(6.0)
        await w.clock.advance(1.0)
        w.processes["b"].healthy = True
        await w.clock.advance(1.0)
        assert b.result() == "b"
        [done] = [e for e in w.journal.events if e.kind == "swap.done" and e.model == "b"]
        told = {f["at"]: f for f in done.data["forecasts"]}
        assert told["queued"]["expected_s"] == pytest.approx(5.0 + 1.0 + 10.0, abs=0.2)
        assert told["queued"]["took_s"] == pytest.approx(7.0, abs=0.3)
        assert told["decided"]["expected_s"] == pytest.approx(11.0, abs=0.2)
        assert told["decided"]["took_s"] == pytest.approx(2.0, abs=0.3)
        assert w.manager.forecast.accuracy[Stage.QUEUED].error == pytest.approx(9.0, abs=0.3)
        assert w.manager.forecast.accuracy[Stage.QUEUED].kept == 1.0


async def test_who_leaves_takes_its_prediction_along() -> None:
    """A request that gave up is no measure of a load that somebody else caused later."""
    policy = Policy(rules=Rules(max_wait=50.0, min_dwell=0.0))
    async with world(model("a", 20), model("b", 20), policy=policy) as w:
        await w.ready("a")
        async with w.manager.lease(w.ticket("a")):
            first = waiting(w, "b")
            await w.clock.advance(10.0)
            first.cancel()
            await w.clock.settle()
            second = waiting(w, "b")
            await w.clock.advance(1.0)
        await w.clock.advance(1.0)
        assert second.result() == "b"
        [done] = [e for e in w.journal.events if e.kind == "swap.done" and e.model == "b"]
        assert {f["at"]: f["took_s"] for f in done.data["forecasts"]}["queued"] == pytest.approx(1.0, abs=0.3)


async def test_a_failed_start_is_compared_with_nothing() -> None:
    """It did not become ready, so there is no error of its ETA; the next load is a forecast of its own."""
    async with world(model("a")) as w:
        w.launch_errors["a"] = FileNotFoundError(2, "No such file", "vllm")
        with pytest.raises(Exception, match="could not be served"):
            await asyncio.gather(waiting(w, "a"), w.clock.advance(1.0))
        assert w.manager.forecast.accuracy[Stage.DECIDED].pairs == ()
        assert w.manager.forecast.came("a") == ()


async def test_what_cannot_come_has_no_eta() -> None:
    """FAILED stays down until somebody says otherwise."""
    async with world(model("a")) as w:
        w.launch_errors["a"] = FileNotFoundError(2, "No such file", "vllm")
        with pytest.raises(Exception, match="could not be served"):
            await asyncio.gather(waiting(w, "a"), w.clock.advance(1.0))
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.FAILED
        assert w.manager.eta("a") is None
        assert w.manager.expected("unknown") is None


async def test_a_second_load_on_the_device_waits_for_the_first_ones_profile() -> None:
    """Both fit, but only one at a time sizes its memory: the second is told the first one's rest as well."""
    async with world(model("a", 8), model("b", 8), devices=[Device("sim0", 24 * GIB, kind="sim")]) as w:
        await learned(w, a=known(start=20.0), b=known(start=10.0))
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.manager.start("b", "test")
        await w.clock.advance(5.0)
        assert w.starts == ["a"]
        assert w.manager.expected("a") == Span(pytest.approx(15.0, abs=0.2), pytest.approx(15.0, abs=0.2))
        assert w.manager.eta("b") == pytest.approx(15.0 + 10.0, abs=0.2)


def paced(w: World) -> Mapping[str, Times]:
    """What everything takes in `w`, as it was learned."""
    return {name: known(**{k.value: s for (m, k), s in w.pace.items() if m == name}) for name, _ in w.pace}


def forecasts(w: World, name: str) -> dict[str, tuple[float, float]]:
    """Of its load: what was told at each stage, and what it was; seconds."""
    [done] = [e for e in w.journal.events if e.kind == "swap.done" and e.model == name][-1:]
    return {f["at"]: (f["expected_s"], f["took_s"]) for f in done.data["forecasts"]}


def light(name: str, gib: float) -> ModelSpec:
    """It takes 6 GiB of the host's memory asleep."""
    return ModelSpec(name, EngineKind.SIM, sim={"weights": "6GiB", "sleep_residual": "1GiB"}, memory=int(gib * GIB))


@pytest.mark.parametrize("busy", [False, True])
async def test_victims_that_share_the_hosts_memory_are_reckoned_together(busy: bool) -> None:
    """Two of 6 GiB go for one load, and the host has room for one of them once a sleeper was stopped: the first waits for that
    stop, the second stops. Each for itself would sleep at once: 13 s instead of the 17 s that it takes. What is told when the
    request comes, and when the load is decided, is within a tenth of what it was."""
    policy = Policy(Rules(max_wait=5.0, min_dwell=0.0, quantum=0.0), drain_timeout=60.0, sleep_budget=11 * GIB)
    specs = [light("old", 10), light("a", 10), light("b", 10), light("big", 20)]
    async with world(*specs, devices=[Device("sim0", 24 * GIB, kind="sim")], policy=policy) as w:
        await w.ready("old")
        await w.manager.sleep("old", "test")
        await w.clock.advance(5.0)
        await w.ready("a")
        await w.ready("b")
        w.pace.update(
            {
                ("old", Kind.STOP): 4.0, ("a", Kind.SLEEP): 3.0, ("b", Kind.SLEEP): 3.0, ("a", Kind.STOP): 2.0,
                ("b", Kind.STOP): 2.0, ("big", Kind.START): 10.0, ("a", Kind.DRAIN): 2.0, ("b", Kind.DRAIN): 2.0,
            }
        )  # fmt: skip
        await learned(w, **paced(w))
        await w.clock.advance(5.0)
        leases = [lease for m in "ab" if busy and (lease := w.manager.fast_lease(w.ticket(m))) is not None]
        big = waiting(w, "big")
        await w.clock.advance(5.0 + 2.0 if busy else 0.0)
        for lease in leases:
            w.manager.take_back(lease)
        await w.clock.advance(30.0)
        assert big.result() == "big"
        assert w.sleeps[-1] == ("a", False)
        told = forecasts(w, "big")
        for expected, took in told.values():
            assert expected == pytest.approx(took, rel=0.1)
        assert told["decided"][0] == pytest.approx(4.0 + 3.0 + 10.0, abs=0.1)


async def test_a_sleep_that_is_given_up_counts_as_a_start() -> None:
    """`b` is woken where the requests of `a` end in time. They are not expected to: then `a` sleeps with them when its drain is over and
    `b` has given up its own sleep, and `b` starts from nothing."""
    rules = Rules(max_wait=5.0, min_dwell=0.0, quantum=0.0)
    policy = Policy(rules, drain_timeout=6.0, on_drain_timeout=OnTimeout.FREEZE, sleep_budget=10 * GIB)
    async with world(
        light("b", 13), light("a", 13), devices=[Device("sim0", 15 * GIB, kind="sim")], policy=policy
    ) as w:
        await w.ready("b")
        await w.manager.sleep("b", "test")
        await w.clock.advance(5.0)
        await w.ready("a")
        w.pace.update(
            {
                ("a", Kind.SLEEP): 3.0, ("a", Kind.STOP): 1.0, ("b", Kind.STOP): 4.0, ("b", Kind.START): 10.0,
                ("b", Kind.WAKE): 2.0,
            }
        )  # fmt: skip
        times = dict(paced(w))
        for drain, eta in ((1.0, 5.0 + 1.0 + 1.0 + 2.0), (30.0, 5.0 + 6.0 + 4.0 + 3.0 + 10.0)):
            times["a"] = known(sleep=3.0, stop=1.0, drain=drain)
            await learned(w, **times)
            async with w.manager.lease(w.ticket("a")):
                b = waiting(w, "b")
                await w.clock.settle()
                assert w.manager.eta("b") == pytest.approx(eta, abs=0.2)
                b.cancel()
                await w.clock.settle()
        running = asyncio.create_task(hold(w, "a"))
        await w.clock.settle()
        b = waiting(w, "b")
        await w.clock.advance(40.0)
        assert b.result() == "b"
        for expected, took in forecasts(w, "b").values():
            assert expected == pytest.approx(took, rel=0.1)
        running.cancel()


async def hold(w: World, name: str) -> None:
    """A request that does not end."""
    async with w.manager.lease(w.ticket(name)):
        await asyncio.Event().wait()
