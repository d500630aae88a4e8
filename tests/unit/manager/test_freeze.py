"""Requests that are frozen in a sleeping engine: their leases stay, and whatever ends them ends them with the truth."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from fakes_engine import FakeControl, World, model, world
from vllm_mm.control import reload
from vllm_mm.control.idle import IdleWatch
from vllm_mm.control.plan import plan
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import MMError, RequestCut, UpstreamDied, UpstreamTimeout
from vllm_mm.domain.lifecycle import Goal, OnTimeout, State
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Load, Rules, Ticket
from vllm_mm.domain.specs import GIB, EngineKind, IdlePolicy, ModelSpec, StartLimits
from vllm_mm.engine.policy import Policy
from vllm_mm.engine.wire import UpstreamRequest

if TYPE_CHECKING:
    from vllm_mm.engine.lease import Lease

PREEMPT = Policy(drain_timeout=5.0, on_drain_timeout=OnTimeout.FREEZE)
SIM = [Device("sim0", 40 * GIB, kind="sim")]
BUSY = model("busy", 10, engine=EngineKind.SIM, command=(), start=StartLimits(stall=1e9, deadline=1e9))
"""Its start lasts as long as a test wants, and nobody wakes on a device whose memory is being sized."""


def sleeper(name: str, **changes: Any) -> ModelSpec:
    return model(name, 10, engine=EngineKind.SIM, command=(), **changes)


class Streaming:
    """A request that is being answered by its engine until the test says that the answer is complete."""

    def __init__(self, w: World, name: str, *, live: bool = False) -> None:
        self.w = w
        self.lease: Lease | None = None
        self.marks: list[bool] = []
        self.task = asyncio.create_task(self._run(replace(w.ticket(name), live=live)))

    async def _run(self, ticket: Ticket) -> None:
        async with self.w.manager.lease(ticket) as lease:
            self.lease = lease
            lease.on_freeze = self.marks.append
            await lease.exchange(UpstreamRequest(b"POST", b"/"), None)  # type: ignore[arg-type] - the fake wants no sink

    async def begun(self) -> "Streaming":
        await self.w.clock.settle()
        self.exchange = self.w.exchanges[-1]
        return self

    def complete(self) -> None:
        self.exchange.done.set_result(None)


async def streaming(w: World, name: str = "a") -> Streaming:
    return await Streaming(w, name).begun()


async def frozen(w: World) -> Streaming:
    """A request of model `a`, which then had to go, and whose drain took too long. It cannot wake until `room`."""
    await w.ready("a")
    stream = await streaming(w)
    w.healthy_at_once = False
    await w.manager.start("busy", "test")
    w.manager._evict(Load("busy", {}, ("a",), "test"))
    await w.clock.advance(5.1)
    return stream


async def room(w: World) -> None:
    """Nothing is in the way of a wake any more."""
    w.processes["busy"].healthy = True
    await w.clock.advance(1.0)


async def test_a_drain_that_takes_too_long_freezes_and_the_wake_goes_on() -> None:
    """The lease stays out and is marked, the exchange stays open; after the wake it is answered to its end."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        a = w.manager.require("a")
        assert (a.state, a.gate.count, a.gate.frozen, a.gate.free) == (State.SLEEPING, 1, 1, 0)
        assert w.sleeps == [("a", True)]
        assert not stream.task.done()
        await w.clock.advance(9.9)
        await room(w)
        assert (a.state, a.gate.count, a.gate.frozen, a.gate.frozen_since) == (State.READY, 1, 0, None)
        assert stream.lease is not None
        assert stream.lease.frozen_s(w.clock.now()) == pytest.approx(10.0, abs=1.2)
        assert stream.marks == [True, False]
        stream.complete()
        await stream.task
        assert a.gate.count == 0
        told = {e.kind: e.data for e in w.journal.events if e.kind.startswith("lease.")}
        assert told["lease.frozen"] == {"count": 1, "generation": 1}
        assert told["lease.thawed"]["count"] == 1
        assert told["lease.thawed"]["frozen_s"] == pytest.approx(10.0, abs=1.2)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_live_session_is_cut_where_others_are_frozen(others: int) -> None:
    """What is spoken now is worth nothing later. With nobody else the sleeper is like any other."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        await w.ready("a")
        session = await Streaming(w, "a", live=True).begun()
        streams = [await streaming(w) for _ in range(others)]
        drains: list[bool] = []
        assert session.lease is not None
        session.lease.on_drain = drains.append
        w.healthy_at_once = False
        await w.manager.start("busy", "test")
        w.manager._evict(Load("busy", {}, ("a",), "test"))
        await w.clock.advance(5.1)
        error = session.task.exception()
        assert isinstance(error, RequestCut)
        assert error.reason is Reason.CUT
        assert (drains, session.marks) == ([True], [])
        a = w.manager.require("a")
        assert (a.state, a.gate.count, a.gate.frozen) == (State.SLEEPING, others, others)
        told = [e.data["count"] for e in w.journal.events if e.kind == "lease.revoked"]
        assert told == [1]
        await room(w)
        for stream in streams:
            stream.complete()
            await stream.task


async def test_nobody_looks_for_signs_of_life_in_a_frozen_engine() -> None:
    """Ten minutes asleep with open exchanges and no byte: no probe, no verdict; and the clock of the stuck detector begins anew."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        w.processes["a"].healthy = False
        w.processes["a"].probe_error = UpstreamTimeout("asleep")
        probes = len(w.probes)
        await w.clock.advance(600.0)
        assert (w.manager.require("a").state, len(w.probes)) == (State.SLEEPING, probes)
        w.processes["a"].healthy, w.processes["a"].probe_error = True, None
        await room(w)
        await w.clock.advance(PREEMPT.timeouts.stuck / 2)
        w.processes["a"].probe_error = UpstreamTimeout("busy")
        await w.clock.advance(PREEMPT.timeouts.stuck / 4)
        assert w.manager.require("a").state is State.READY
        stream.complete()
        await stream.task


async def test_the_death_of_a_frozen_engine_is_told() -> None:
    """Its requests end as those of any engine that died, and no lease is left."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        w.processes["a"].die(137)
        await w.clock.settle()
        assert isinstance(stream.task.exception(), UpstreamDied)
        assert w.manager.require("a").gate.count == 0
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPED
        assert "a" not in w.manager.ledger.reservations


@pytest.mark.parametrize("step", ["sleep", "wake", "probe"])
async def test_an_engine_that_would_not_sleep_or_wake_is_told(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says no when it is to sleep or to wake, or is of no use afterwards: the requests end with an error."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:

        async def refuse(*_: object, **__: object) -> None:
            raise UpstreamDied("500", sent=True, started=False)

        if step != "probe":
            monkeypatch.setattr(FakeControl, step, refuse)
        stream = await frozen(w)
        if step != "sleep":
            w.processes["a"].probe_error = UpstreamDied("nothing", sent=True, started=False)
            await room(w)
        error = stream.task.exception()
        assert isinstance(error, RequestCut)
        assert ("would not sleep" if step == "sleep" else "would not wake") in str(error)
        assert w.manager.require("a").gate.count == 0


async def test_an_engine_that_would_abort_what_it_has_is_not_put_to_sleep_with_it() -> None:
    """An older vLLM ignores `mode=keep`, and its streams would end as if they were whole: they are cut with an error instead."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        await w.ready("a")
        w.processes["a"].keeps_requests = False
        stream = await frozen(w)
        error = stream.task.exception()
        assert isinstance(error, RequestCut)
        assert "cannot keep requests" in str(error)
        assert w.sleeps == []


async def test_an_engine_that_is_full_of_what_it_kept_is_awake_when_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probe of the wake has to queue behind the kept requests: their answers prove as much, and silence proves nothing."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)

        async def queued(*_: object) -> str:
            return await asyncio.get_running_loop().create_future()

        with monkeypatch.context() as patched:
            patched.setattr(FakeControl, "probe", queued)
            w.processes["busy"].die()
            await w.clock.advance(30.0)
            a = w.manager.require("a")
            assert a.state is State.WAKING
            channel: Any = a._run.channel()  # type: ignore[union-attr]
            channel.reads += 1
            await w.clock.advance(1.0)
            assert a.state is State.READY
        stream.complete()
        await stream.task
        await w.clock.advance(1.0)
        assert a.state is State.READY


async def test_a_client_that_leaves_while_frozen_frees_its_lease() -> None:
    """Its exchange is closed at once; with the last one gone the sleeper is like any other."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        stream.task.cancel()
        await w.clock.settle()
        assert stream.exchange.done.cancelled()
        a = w.manager.require("a")
        assert (a.gate.count, a.gate.frozen_since, a.snapshot.frozen) == (0, None, False)
        await room(w)
        assert "lease.thawed" not in w.journal.kinds("a")


async def test_a_newcomer_waits_for_the_wake_and_is_not_turned_away() -> None:
    """A stream for a model that is frozen waits in its lane: the engine will come back."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        ticket = w.ticket("a", stream=True)

        async def get() -> str:
            async with w.manager.lease(ticket) as lease:
                return lease.model

        newcomer = asyncio.create_task(get())
        await w.clock.advance(1.0)
        assert not newcomer.done()
        await room(w)
        assert newcomer.result() == "a"
        assert w.manager.require("a").state is State.READY
        stream.complete()
        await stream.task


async def test_a_wake_for_frozen_requests_is_not_called_off() -> None:
    """With cancel_unwanted_loads a load ends when nobody waits for it in the queue; the frozen ones wait for it too."""
    policy = Policy(drain_timeout=5.0, on_drain_timeout=OnTimeout.FREEZE, cancel_unwanted_loads=True)
    async with world(sleeper("a"), BUSY, devices=SIM, policy=policy) as w:
        stream = await frozen(w)
        hold = asyncio.Event()
        control: Any = w.manager.require("a")._run._checks.control  # type: ignore[union-attr]
        wake = control.wake

        async def slow(*_: object, **__: object) -> None:
            await hold.wait()
            await wake()

        control.wake = slow
        newcomer = asyncio.create_task(w.manager.lease(w.ticket("a")).__aenter__())
        await room(w)
        assert w.manager.require("a").state is State.WAKING
        newcomer.cancel()
        await w.clock.advance(0.1)
        assert w.manager.require("a").state is State.WAKING
        hold.set()
        await w.clock.advance(0.1)
        assert w.manager.require("a").state is State.READY
        stream.complete()
        await stream.task


async def test_an_operators_stop_of_a_frozen_model_cuts_with_the_reason() -> None:
    """Their drain has taken its time already."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        await w.manager.stop("a", "operator ann")
        await w.clock.settle()
        error = stream.task.exception()
        assert isinstance(error, RequestCut)
        assert "operator ann" in str(error)


async def test_a_model_that_is_taken_away_lets_its_frozen_requests_finish() -> None:
    """A reload without the model: it is woken once more for them, drains, and stops."""
    async with world(sleeper("a"), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        await reload.apply(w.manager, Catalog([BUSY]), "reload")
        a = w.manager.require("a")
        await w.clock.advance(0.1)
        assert a.state is State.SLEEPING
        await room(w)
        assert a.state is State.DRAINING
        assert not stream.task.done()
        stream.complete()
        await stream.task
        await w.clock.advance(0.1)
        assert a.state is State.STOPPED


async def test_two_models_with_endless_answers_take_turns() -> None:
    """Memory for one: each is frozen for the other and comes back, has its quantum each time, and nobody waits longer than the
    bound; and what is frozen is never stopped for the room of the other."""
    rules = Rules(max_wait=20.0, min_dwell=5.0, quantum=10.0)
    policy = Policy(rules, drain_timeout=2.0, on_drain_timeout=OnTimeout.FREEZE)
    profile = {"weights": "6GiB", "sleep_residual": "1GiB"}
    async with world(
        *(sleeper(m, sim=profile) for m in "ab"), devices=[Device("sim0", 15 * GIB, kind="sim")], policy=policy
    ) as w:
        await w.ready("a")
        streams = {"a": await streaming(w)}
        streams["b"] = Streaming(w, "b")
        turns: list[tuple[str, float]] = []
        for _ in range(3000):
            ready = [m for m in "ab" if w.manager.require(m).state is State.READY]
            assert len(ready) <= 1
            if ready and (not turns or turns[-1][0] != ready[0]):
                turns.append((ready[0], w.clock.now()))
            await w.clock.advance(0.1)
        assert [m for m, _ in turns[:4]] == ["a", "b", "a", "b"]
        assert len(turns) >= 300 / (rules.max_wait + rules.quantum + policy.drain_timeout + 2)
        gaps = [later - earlier for (_, earlier), (_, later) in pairwise(turns)]
        assert min(gaps) >= rules.quantum
        assert max(gaps) <= rules.max_wait + rules.quantum + policy.drain_timeout + 2
        assert w.starts == ["a", "b"]
        assert w.journal.kinds("a").count("lease.thawed") >= 3
        assert not any(s.task.done() for s in streams.values())
        for stream in streams.values():
            stream.task.cancel()


TIGHT = {"weights": "6GiB", "sleep_residual": "1GiB"}
TAKES_TURNS = Rules(max_wait=5.0, min_dwell=0.0, quantum=2.0)


@contextlib.asynccontextmanager
async def one_asleep_one_busy(
    budget: int, *more: ModelSpec, drain: float = 2.0
) -> AsyncIterator[tuple[World, Streaming]]:
    """Room for one awake: `b` sleeps with 6 GiB of a `budget` (GiB) of host memory, and `a` is busy and takes as much asleep."""
    policy = Policy(TAKES_TURNS, drain_timeout=drain, on_drain_timeout=OnTimeout.FREEZE, sleep_budget=budget * GIB)
    fleet = (*more, *(sleeper(m, sim=TIGHT) for m in "ba"))
    async with world(*fleet, devices=[Device("sim0", 15 * GIB, kind="sim")], policy=policy) as w:
        for spec in fleet:
            await w.ready(spec.id)
            await w.clock.advance(5.0)
            if spec.id != "a":
                await w.manager.sleep(spec.id, "test")
                await w.clock.advance(5.0)
        yield w, await streaming(w)


async def wants(w: World, name: str) -> "asyncio.Task[str]":
    async def get() -> str:
        async with w.manager.lease(w.ticket(name)) as lease:
            return lease.model

    task = asyncio.create_task(get())
    await w.clock.settle()
    return task


async def test_who_is_woken_gives_up_its_sleep_before_anybody_is_cut() -> None:
    """The host's memory holds one of them asleep: `b`, which is to wake, is stopped when the drain of `a` has taken too long, and
    started anew in the room of `a`, whose stream goes on afterwards. The plan says so beforehand."""
    async with one_asleep_one_busy(10) as (w, stream):
        found = plan(w.manager, w.manager.require("b").spec, TAKES_TURNS, w.clock.now())
        assert [(v.goal, v.then) for v in found.victims] == [(Goal.STOP, OnTimeout.KEEP)]
        assert [(s.model, s.sleeps_for, s.late) for s in found.stopped] == [("b", "a", True)]
        served = await wants(w, "b")
        await w.clock.advance(6.0)
        assert [w.manager.require(m).state for m in "ab"] == [State.DRAINING, State.SLEEPING]
        await w.clock.advance(2.0)
        assert (w.sleeps[-1], served.result()) == (("a", True), "b")
        assert w.starts == ["b", "a", "b"]
        assert not stream.task.done()
        gave_up = next(e for e in w.journal.events if e.model == "b" and "started anew" in str(e.cause))
        assert (gave_up.kind, split(str(gave_up.cause))[0]) == ("instance.stopping", Reason.SLEEP_ROOM)
        await w.clock.advance(20.0)
        a = w.manager.require("a")
        assert (a.state, a.gate.count, a.gate.frozen) == (State.READY, 1, 0)
        stream.complete()
        await stream.task


async def test_a_sleep_is_not_given_up_where_requests_end_in_time() -> None:
    """`a` has drained before its time is over: it stops, for there is no room for its sleep, and `b` wakes as ever."""
    async with one_asleep_one_busy(10) as (w, stream):
        served = await wants(w, "b")
        await w.clock.advance(6.0)
        stream.complete()
        await stream.task
        await w.clock.advance(2.0)
        assert served.result() == "b"
        assert w.starts == ["b", "a"]
        assert w.manager.require("a").state is State.STOPPED
        assert w.manager.host_memory.used == 0


async def test_others_give_up_their_sleep_first() -> None:
    """Where a sleeper that nobody waits for is enough, it goes, and `b` is woken."""
    async with one_asleep_one_busy(12, sleeper("old", sim=TIGHT)) as (w, stream):
        served = await wants(w, "b")
        await w.clock.advance(8.0)
        assert served.result() == "b"
        assert w.starts == ["old", "b", "a"]
        assert w.manager.require("old").state is State.STOPPED
        assert not stream.task.done()
        stream.task.cancel()


async def test_who_left_is_not_started_anew() -> None:
    """`b` gives up its sleep, and meanwhile nobody waits for it any more: its load is over, and `a` goes on."""
    async with one_asleep_one_busy(10) as (w, stream):
        w.hold_stops = True
        w.processes["b"].release_stop.clear()
        served = await wants(w, "b")
        await w.clock.advance(7.1)
        assert w.manager.require("b").state is State.STOPPING
        served.cancel()
        await w.clock.settle()
        w.processes["b"].release_stop.set()
        await w.clock.advance(30.0)
        assert w.starts == ["b", "a"]
        assert w.manager.require("b").state is State.STOPPED
        assert w.manager.require("a").state is State.READY
        stream.complete()
        await stream.task


async def test_room_that_somebody_else_took_meanwhile_is_told_by_a_cut() -> None:
    """What was reckoned with is not there when the drain of `a` is over, whoever gives up its sleep: its requests end with an error."""
    async with one_asleep_one_busy(10) as (w, stream):
        served = await wants(w, "b")
        await w.clock.advance(6.0)
        w.manager._tiers.host = w.manager._tiers.host.take("else", 8 * GIB)
        await w.clock.advance(4.0)
        error = stream.task.exception()
        assert isinstance(error, RequestCut)
        assert "no room" in str(error)
        assert served.result() == "b"


async def test_a_frozen_model_is_never_idle() -> None:
    """Neither its sleep nor the silence counts; the idle clock starts when the last lease ends."""
    async with world(sleeper("a", idle=IdlePolicy(10.0, 20.0)), BUSY, devices=SIM, policy=PREEMPT) as w:
        stream = await frozen(w)
        await w.clock.advance(100.0)
        await IdleWatch(w.manager, w.clock).look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.SLEEPING
        assert not stream.task.done()


async def test_a_model_that_cannot_sleep_is_cut_when_it_has_to_go() -> None:
    """A command engine cannot keep requests: an operator's stop under `preempt` drains, then cuts."""
    async with world(model("a"), policy=PREEMPT) as w:
        await w.ready("a")
        stream = await streaming(w)
        await w.manager.stop("a", "test")
        await w.clock.advance(5.1)
        assert isinstance(stream.task.exception(), MMError)
        assert w.sleeps == []
