"""Memory of programs that are not ours, and devices that fail: seen before each start, told once, planned around."""

import asyncio
from typing import Any

from fakes_engine import World, model, world
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind
from vllm_mm.engine.ports import ForeignProcess

TWO = (Device("gpu0", 24 * GIB, kind="gpu"), Device("gpu1", 40 * GIB, kind="gpu"))


async def get(w: World, name: str) -> str:
    async with w.manager.lease(w.ticket(name)) as lease:
        return lease.model


def ask(w: World, name: str) -> "asyncio.Task[str]":
    return asyncio.create_task(get(w, name))


def stranger(w: World, device: str, gib: int, pid: int = 77) -> None:
    """A game takes memory; nobody has looked yet."""
    w.inventory.change(device, foreign=gib * GIB, strangers=(f"game (pid {pid}, {gib}.0 GiB)",))
    w.inventory.strangers = [ForeignProcess(device, pid, "game", gib * GIB)] if gib else []


async def test_a_stranger_that_came_after_the_last_reading_is_seen_before_a_start() -> None:
    """The decision was for the device that it took: the next one is for another, and nothing fails."""
    async with world(model("a", 20), devices=TWO) as w:
        stranger(w, "gpu0", 20)
        request = ask(w, "a")
        await w.clock.advance(1.0)
        assert request.result() == "a"
        assert w.manager.ledger.reservations["a"].device_bytes == {"gpu1": 20 * GIB}
        assert w.starts == ["a"]
        assert "backoff" not in str(w.journal.kinds("a"))


async def test_where_there_is_no_other_device_it_waits_and_the_stranger_is_named() -> None:
    """And is served when the room is there again."""
    async with world(model("a", 20), devices=TWO[:1]) as w:
        stranger(w, "gpu0", 20)
        request = ask(w, "a")
        await w.clock.advance(1.0)
        assert w.starts == []
        why = w.queue.why("a")
        assert "others use 20.0 GiB (game (pid 77, 20.0 GiB))" in why, why
        stranger(w, "gpu0", 0)
        w.manager.observe_devices()
        await w.clock.advance(1.0)
        assert request.result() == "a"


async def test_a_stranger_that_takes_the_room_while_a_victim_leaves_is_planned_around() -> None:
    """Decided for the first device, whose resident drains; a stranger takes what it leaves: the second device it is, and
    the resident of that goes."""
    wish = DeviceWish(ids=("gpu1",))
    async with world(model("a", 20), model("b", 30, devices=wish), model("c", 20), devices=TWO) as w:
        await w.ready("a", "b")
        await w.clock.advance(10.0)
        w.hold_stops = True
        w.processes["a"].release_stop.clear()
        request = ask(w, "c")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPING
        stranger(w, "gpu0", 20)
        w.manager.observe_devices()
        await w.clock.advance(1.0)
        assert w.manager.require("b").state is State.STOPPED
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert request.result() == "c"
        assert w.manager.ledger.reservations["c"].device_bytes == {"gpu1": 20 * GIB}
        given_up = [e.cause for e in w.journal.events if e.kind == "swap.given_up"]
        assert len(given_up) == 1
        assert "missing: others use 20.0 GiB there now (game (pid 77, 20.0 GiB))" in given_up[0]


async def test_a_stranger_that_comes_with_the_last_of_the_room_is_seen_before_the_process_is_started() -> None:
    """Nobody looked between the decision and the end of the victim: the load looks itself, just before it starts."""
    async with world(model("a", 20), model("b", 20), devices=TWO[:1]) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        request = ask(w, "b")
        await w.clock.advance(1.0)
        stranger(w, "gpu0", 10)
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert w.starts == ["a"], "there is no room for b"
        assert "b" not in w.manager.ledger.reservations
        assert not request.done()
        stranger(w, "gpu0", 0)
        w.manager.observe_devices()
        await w.clock.advance(1.0)
        assert request.result() == "b"


async def test_a_device_that_fails_while_a_load_waits_for_it_is_left() -> None:
    """The load is decided anew, for the device that is well."""
    async with world(model("a", 20), model("c", 20), devices=TWO) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        stranger(w, "gpu1", 30)
        w.processes["a"].release_stop.clear()
        request = ask(w, "c")
        await w.clock.advance(1.0)
        assert w.manager.ledger.reservations["c"].device_bytes == {"gpu0": 20 * GIB}
        stranger(w, "gpu1", 0)
        w.inventory.change("gpu0", problem="it is lost")
        w.manager.observe_devices()
        await w.clock.advance(1.0)
        assert request.result() == "c"
        assert w.manager.ledger.reservations["c"].device_bytes == {"gpu1": 20 * GIB}


async def test_a_sleeper_whose_room_was_taken_keeps_what_it_held() -> None:
    """It was promised the room to wake, and the promise is taken back, not left standing."""
    async with world(model("a", 20), devices=TWO[:1]) as w:
        await w.ready("a")
        room = w.manager._room
        room._set(room.ledger.resize("a", {"gpu0": 2 * GIB}))
        room._set(room.ledger.grow("a", {"gpu0": 20 * GIB}))
        room.forgo("a", {"gpu0": 2 * GIB})
        assert room.ledger.reservations["a"].device_bytes == {"gpu0": 2 * GIB}


def told(w: World, *kinds: str) -> list[tuple[str, Any]]:
    return [(e.kind, e.data.get("bytes", e.data.get("problem"))) for e in w.journal.events if e.kind in kinds]


async def test_a_stranger_is_told_once_and_once_more_when_it_goes() -> None:
    """Another one that joins is told as well; growing is not. Half of what is notable has to be left before it is over."""
    async with world(model("a", 4), devices=TWO[:1]) as w:
        kinds = ("alert.foreign_memory", "foreign_memory.gone")
        alerts = w.manager.device_alerts
        for mib, expected in ((100, 0), (500, 1), (600, 1), (300, 1), (200, 2), (200, 2)):
            w.inventory.change("gpu0", foreign=mib << 20)
            w.inventory.strangers = [ForeignProcess("gpu0", 5, "game", mib << 20)]
            w.manager.observe_devices()
            assert len(told(w, *kinds)) == expected, mib
            assert bool(alerts.standing(w.manager.ledger)) == (expected == 1)
        assert [k for k, _ in told(w, *kinds)] == list(kinds)
        w.inventory.change("gpu0", foreign=2 * GIB)
        w.inventory.strangers = [ForeignProcess("gpu0", 5, "game", GIB), ForeignProcess("gpu0", 6, "trainer", None)]
        w.manager.observe_devices()
        w.inventory.strangers.append(ForeignProcess("gpu0", 7, "miner", 5))
        w.manager.observe_devices()
        w.inventory.strangers.pop()
        w.manager.observe_devices()
        assert len(told(w, "alert.foreign_memory")) == 3
        last = [e for e in w.journal.events if e.kind == "alert.foreign_memory"][-1]
        assert last.data["processes"][2] == {"pid": 7, "name": "miner", "bytes": 5}


async def test_the_hosts_memory_is_everybodys_until_it_is_taken_from_what_was_promised() -> None:
    """Other programs on the machine are no news; those that take what an engine holds are."""
    async with world(model("a", 20), devices=[Device("cpu", 24 * GIB, kind="cpu")]) as w:
        await w.ready("a")
        for gib, expected in ((3, 0), (6, 1), (7, 1), (3, 2)):
            w.inventory.change("cpu", foreign=gib * GIB)
            w.inventory.strangers = [ForeignProcess("cpu", gib, "make", GIB)]  # the largest are others each time
            w.manager.observe_devices()
            assert len(told(w, "alert.foreign_memory", "foreign_memory.gone")) == expected


async def test_a_device_that_fails_is_told_once_and_once_more_when_it_is_well() -> None:
    """Whatever becomes of the reason meanwhile."""
    async with world(model("a", 4), devices=TWO[:1]) as w:
        for problem in ("it is lost", "it needs a reset", ""):
            w.inventory.change("gpu0", problem=problem)
            w.manager.observe_devices()
        assert told(w, "alert.device", "device.well") == [("alert.device", "it is lost"), ("device.well", None)]


async def test_a_sleeper_on_a_device_that_failed_goes_when_it_is_wanted_and_is_started_elsewhere() -> None:
    """Nobody wants it: it is left alone, the device may be well again."""
    a = model("a", 20, engine=EngineKind.SIM, command=())
    async with world(a, devices=TWO) as w:
        await w.ready("a")
        await w.manager.sleep("a", "test")
        await w.clock.advance(1.0)
        w.inventory.change("gpu0", problem="it is lost")
        w.manager.observe_devices()
        await w.clock.advance(5.0)
        assert w.manager.require("a").state is State.SLEEPING
        request = ask(w, "a")
        await w.clock.advance(3.0)
        assert request.result() == "a"
        assert w.starts == ["a", "a"]
        assert w.manager.ledger.reservations["a"].device_bytes == {"gpu1": 20 * GIB}
