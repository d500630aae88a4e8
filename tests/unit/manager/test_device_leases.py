"""Leases on device memory, on a whole engine layer with fakes for processes only."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes_engine import World, model, world
from vllm_mm.control.device_leases import DeviceLeases
from vllm_mm.control.plan import Act, plan
from vllm_mm.domain.device_leases import DeviceLease, Stage
from vllm_mm.domain.errors import BadRequest, Conflict, NotFound
from vllm_mm.domain.lifecycle import OnTimeout, State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec, StartLimits
from vllm_mm.engine.policy import Policy

HOUR = 3600.0
ONE = (Device("gpu0", 24 * GIB, kind="gpu"),)


class Shelf:
    """Remembers them, as the database does."""

    def __init__(self) -> None:
        self.leases: tuple[DeviceLease, ...] = ()

    async def all(self) -> Sequence[DeviceLease]:
        return self.leases

    async def save(self, leases: Sequence[DeviceLease]) -> None:
        self.leases = tuple(leases)


@contextlib.asynccontextmanager
async def running(
    *specs: ModelSpec, shelf: Shelf | None = None, **how: Any
) -> AsyncIterator[tuple[World, DeviceLeases]]:
    """With the leases looked after in the background, as the server does."""
    async with world(*specs, devices=how.pop("devices", ONE), **how) as w:
        leases = DeviceLeases(w.manager, shelf or Shelf(), w.journal, w.clock)
        await leases.recover()
        task = asyncio.create_task(leases.run())
        try:
            yield w, leases
        finally:
            task.cancel()


def told(w: World) -> list[str]:
    return [e.kind.removeprefix("device_lease.") for e in w.journal.events if e.kind.startswith("device_lease.")]


def state(w: World, name: str) -> State:
    return w.manager.require(name).state


async def test_free_room_is_held_at_once_and_given_back_in_time() -> None:
    """Nobody has to go. While it is held no model gets it; afterwards who waited for it does."""
    async with running(model("a", 20)) as (w, leases):
        lease = await leases.ask("gpu0", 10 * GIB, HOUR, "a game", "ada")
        assert (lease.stage, lease.evicted) == (Stage.HELD, ())
        assert w.manager.ledger.free("gpu0") == 14 * GIB
        request = asyncio.create_task(w.queue.admit(w.ticket("a", wait=2 * HOUR)))
        await w.clock.advance(HOUR - 5)
        assert not request.done()
        assert f"lease:{lease.id} is kept for something else until it ends" in w.queue.why("a")
        await w.clock.advance(8)
        assert request.done()
        assert told(w) == ["asked", "held", "ended"]
        assert leases.all() == ()
        w.manager.take_back(request.result())


async def test_a_load_that_waits_for_a_lease_has_no_eta_and_says_why() -> None:
    """In the plan, before anybody asked, and for those who wait; the ETA is back when the lease has ended."""
    async with running(model("a", 20)) as (w, leases):
        lease = await leases.ask("gpu0", 10 * GIB, HOUR, "a game", "ada")
        spec = w.manager.catalog.resolve("a")
        told = plan(w.manager, spec, Policy().rules, w.clock.now())
        assert (told.act, told.eta_s, told.at_latest_s) == (Act.WAIT, None, None)
        assert f"lease:{lease.id} is kept for something else until it ends" in told.reason
        request = asyncio.create_task(w.queue.admit(w.ticket("a", wait=2 * HOUR)))
        await w.clock.advance(1)
        assert w.manager.eta("a") is None
        assert [e.eta_s for e in w.queue.entries()] == [None]
        await leases.end(lease.id, "ada")
        await w.clock.advance(0.01)  # the queue looks
        assert w.manager.eta("a") is not None
        await w.clock.advance(8)
        w.manager.take_back(request.result())


async def test_the_cheapest_goes_and_comes_back() -> None:
    """The one that was used longer ago, and no other; told to go as for a load, and started again when the lease ends."""
    async with running(model("a", 10), model("b", 10)) as (w, leases):
        await w.ready("a", "b")
        await w.clock.advance(10)
        w.manager.take_back(await w.queue.admit(w.ticket("a")))
        lease = await leases.ask("gpu0", 8 * GIB, HOUR, "", "ada")
        assert lease.stage is Stage.ASKED
        await w.clock.advance(1)
        (held,) = leases.all()
        assert (held.stage, [e.model for e in held.evicted], held.evicted[0].wanted) == (Stage.HELD, ["b"], True)
        assert (state(w, "a"), state(w, "b")) == (State.READY, State.STOPPED)
        ended = await leases.end(lease.id, "ada")
        assert (ended.stage, ended.reason) == (Stage.ENDED, "ended by ada")
        await w.clock.advance(2)
        assert state(w, "b") is State.READY
        assert told(w) == ["asked", "held", "ended", "restored"]
        assert w.journal.events[-1].data["models"] == ["b"]


async def test_busy_models_finish_what_runs() -> None:
    """However long it takes and whatever `swap.on_drain_timeout` says, for nobody could wait frozen for a whole lease. With `wait`
    it is told how it stands, and that it holds."""
    spec = model("a", 20, engine=EngineKind.SIM, command=())
    policy = Policy(drain_timeout=5.0, on_drain_timeout=OnTimeout.FREEZE)
    async with running(spec, policy=policy, devices=[replace(ONE[0], kind="sim")]) as (w, leases):
        await w.ready("a")
        running_lease = await w.queue.admit(w.ticket("a"))
        lease = await leases.ask("gpu0", 10 * GIB, HOUR, "", "ada")
        waiting = asyncio.create_task(leases.settled(lease, 30))
        await w.clock.advance(20)
        assert (state(w, "a"), waiting.done()) == (State.DRAINING, False)
        reason = (await leases.settled(lease, 0)).reason
        assert reason == "waits until what runs has finished: a (1 in flight)"
        w.manager.take_back(running_lease)
        await w.clock.advance(1)
        assert waiting.result().stage is Stage.HELD


async def test_what_can_never_be_is_refused_with_the_reason() -> None:
    """Pinned models in the way are named; more than there is, another device, nothing, and too long are told as well."""
    async with running(model("a", 20, pinned=True)) as (w, leases):
        await w.ready("a")
        with pytest.raises(Conflict, match="pinned a holds"):
            await leases.ask("gpu0", 10 * GIB, HOUR, "", "ada")
        with pytest.raises(Conflict, match="more than there can ever be"):
            await leases.ask("gpu0", 30 * GIB, HOUR, "", "ada")
        with pytest.raises(NotFound, match="there are: gpu0"):
            await leases.ask("gpu9", GIB, HOUR, "", "ada")
        for size, seconds in ((0, HOUR), (GIB, 0.0), (GIB, 8 * 24 * HOUR)):
            with pytest.raises(BadRequest):
                await leases.ask("gpu0", size, seconds, "", "ada")
        w.inventory.change("gpu0", problem="it is lost")
        w.manager.observe_devices()
        with pytest.raises(Conflict, match="it is lost"):
            await leases.ask("gpu0", GIB, HOUR, "", "ada")
        with pytest.raises(NotFound):
            await leases.end("nothing", "ada")
        assert leases.all() == ()


async def test_one_that_waits_for_a_load_says_so_and_gives_up_in_the_end() -> None:
    """A model that is loading is not torn down for it; it waits, with the reason, but not for ever."""
    slow = model("a", 20, start=StartLimits(stall=5000.0, deadline=5000.0))
    async with running(slow) as (w, leases):
        w.healthy_at_once = False
        await w.manager.start("a", "test")
        await w.clock.advance(1)
        lease = await leases.ask("gpu0", 10 * GIB, HOUR, "", "ada")
        assert (lease.stage, "a (starting)" in lease.reason) == (Stage.ASKED, True), lease.reason
        waiting = asyncio.create_task(leases.settled(lease, 1000))
        await w.clock.advance(601)
        assert waiting.result().stage is Stage.ENDED
        assert waiting.result().reason.startswith("there was no room for it in 600 s: needs")
        assert told(w) == ["asked", "ended"]


async def test_memory_that_its_holder_uses_is_not_taken_away_twice() -> None:
    """A model beside it fits as before; what is beyond the lease counts, and is told."""
    async with running(model("a", 10)) as (w, leases):
        await leases.ask("gpu0", 12 * GIB, HOUR, "", "ada")
        w.inventory.change("gpu0", foreign=12 * GIB)
        w.manager.observe_devices()
        await w.ready("a")
        assert not [e for e in w.journal.events if e.kind == "alert.foreign_memory"]
        w.inventory.change("gpu0", foreign=14 * GIB)
        w.manager.observe_devices()
        assert [e.data["bytes"] for e in w.journal.events if e.kind == "alert.foreign_memory"] == [2 * GIB]


async def test_a_stranger_that_takes_the_room_first_is_told_and_others_go() -> None:
    """Promised, then taken by somebody else before the victim had left: asked anew."""
    async with running(model("a", 10), model("b", 10)) as (w, leases):
        await w.ready("a", "b")
        await w.clock.advance(10)
        w.inventory.change("gpu0", foreign=2 * GIB)
        w.manager.observe_devices()
        w.processes["a"].release_stop.clear()
        await leases.ask("gpu0", 10 * GIB, HOUR, "", "ada")
        w.manager._room._set(
            replace(
                w.manager.ledger,
                devices={"gpu0": replace(ONE[0], foreign=12 * GIB, strangers=("miner (pid 4)",))},
                reservations={
                    m: replace(r, let={"gpu0": 12 * GIB}) if r.let is not None else r
                    for m, r in w.manager.ledger.reservations.items()
                },
            )
        )
        w.inventory.change("gpu0", foreign=12 * GIB)
        await w.clock.advance(1)
        w.processes["a"].release_stop.set()
        await w.clock.advance(2)
        (lease,) = leases.all()
        assert (lease.stage, [e.model for e in lease.evicted]) == (Stage.HELD, ["a", "b"])


async def test_leases_outlive_the_controller() -> None:
    """A held one is held by the next, with its use told apart from that of others; one whose time ran out meanwhile ends,
    and what it evicted comes back; one that waited goes on waiting."""
    shelf = Shelf()
    async with running(model("a", 20), shelf=shelf) as (w, leases):
        await w.ready("a")
        await leases.ask("gpu0", 10 * GIB, HOUR, "train", "ada")
        await w.clock.advance(1)
        (held,) = shelf.leases
        assert held.stage is Stage.HELD
    used = (replace(ONE[0], foreign=9 * GIB),)
    async with running(model("a", 20), shelf=shelf, devices=used) as (w, leases):
        assert w.manager.ledger.free("gpu0") == 14 * GIB
        assert leases.get(f"lease:{held.id}").note == "train"
        await w.clock.advance(HOUR + 1)
        w.inventory.change("gpu0", foreign=0)
        w.manager.observe_devices()
        await w.clock.advance(2)
        assert state(w, "a") is State.READY
        assert shelf.leases == ()
    shelf.leases = (
        replace(held, device="gone"),
        replace(held, id="2", stage=Stage.ASKED, held_at=None, asked_at=1_700_001_000.0, evicted=()),
        replace(held, id="3", stage=Stage.ENDED),
    )
    async with running(model("a", 4), shelf=shelf) as (w, leases):
        await w.clock.advance(3)
        assert [(i.id, i.stage) for i in leases.all()] == [("2", Stage.HELD)]
        assert "there is no such device any more" in [e.cause for e in w.journal.events]
        assert state(w, "a") is State.READY


async def test_what_cannot_come_back_is_told_with_the_reason() -> None:
    """The room went to another model, somebody stopped it, it fails, or it is not declared any more: the next one's turn."""
    names = ("a", "b", "c", "d")
    shelf = Shelf()
    async with running(*(model(n, 6) for n in names), shelf=shelf) as (w, leases):
        await w.ready(*names)
        lease = await leases.ask("gpu0", 24 * GIB, HOUR, "", "ada")
        await w.clock.advance(1)
        assert {state(w, n) for n in names} == {State.STOPPED}
        w.launch_errors["b"] = FileNotFoundError(2, "no such program", "vllm")
        await w.manager.stop("c", "ada", force=True)
        w.manager.set_catalog(w.manager.catalog.without("d"))
        w.inventory.change("gpu0", foreign=18 * GIB)
        await leases.end(lease.id, "ada")
        w.inventory.change("gpu0", foreign=23 * GIB)
        w.manager.observe_devices()
        await w.clock.advance(130)
        left = w.journal.events[-1].data["left"]
        assert set(left) == {"a", "b", "c", "d"}
        assert (left["a"], left["c"], left["d"]) == (
            "there is no room for it", "somebody stopped it", "it is not declared any more"
        )  # fmt: skip
        assert len(w.starts) == 4, "nothing was started again"
        assert shelf.leases == ()


async def test_a_comeback_evicts_nobody() -> None:
    """While it was away another model took the room: that stays."""
    async with running(model("a", 20), model("b", 10)) as (w, leases):
        await w.ready("a")
        lease = await leases.ask("gpu0", 10 * GIB, HOUR, "", "ada")
        await w.clock.advance(1)
        await w.manager.start("b", "ada")
        await w.clock.advance(1)
        await leases.end(lease.id, "ada")
        await w.clock.advance(70)
        assert (state(w, "a"), state(w, "b")) == (State.STOPPED, State.READY)
        assert told(w)[-1] == "restored"


async def test_a_sleeper_that_nobody_used_stays_away() -> None:
    """It held some of the memory for nothing; its model is loaded when somebody asks."""
    spec = model("s", 20, engine=EngineKind.SIM, command=())
    async with running(spec) as (w, leases):
        await w.ready("s")
        await w.manager.sleep("s", "test")
        await w.clock.advance(1)
        assert state(w, "s") is State.SLEEPING
        lease = await leases.ask("gpu0", 23 * GIB, HOUR, "", "ada")
        await w.clock.advance(1)
        await leases.end(lease.id, "ada")
        await w.clock.advance(5)
        assert state(w, "s") is State.STOPPED
        assert told(w) == ["asked", "held", "ended"]


async def test_who_can_sleep_sleeps_and_is_woken_when_the_lease_ends() -> None:
    """The way of a load: its weights stay in host memory, and nothing is started anew."""
    spec = model("a", 20, engine=EngineKind.SIM, command=(), sim={"weights": "16GiB", "sleep_residual": "1GiB"})
    async with running(spec, policy=Policy(sleep_budget=100 * GIB)) as (w, leases):
        await w.ready("a")
        await w.clock.advance(10)
        lease = await leases.ask("gpu0", 20 * GIB, HOUR, "", "ada")
        await w.clock.advance(2)
        assert (state(w, "a"), leases.get(lease.id).stage) == (State.SLEEPING, Stage.HELD), leases.get(lease.id)
        await leases.end(lease.id, "ada")
        await w.clock.advance(3)
        assert (state(w, "a"), w.starts) == (State.READY, ["a"])
        assert told(w)[-1] == "restored"
