"""What may happen between a decision and its effect, and a database in trouble: nothing gets lost, nobody waits for ever."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.control import reload
from vllm_mm.control.idle import IdleWatch
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import NoRoom, StartFailed, UnknownModel, UpstreamTimeout
from vllm_mm.domain.lifecycle import OnTimeout, State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind, IdlePolicy, RetryPolicy, StartLimits
from vllm_mm.engine.policy import Policy


def ask(w: World, name: str, **how: Any) -> "asyncio.Task[str]":
    return asyncio.create_task(get(w, w.ticket(name, **how)))


def failing(times: int) -> Callable[..., Any]:
    """A database that is locked for the first `times` calls."""
    left = times

    async def call(*_: object) -> None:
        nonlocal left
        if left:
            left -= 1
            raise RuntimeError("database is locked")

    return call


def sleeper(name: str, gib: float, **changes: Any) -> Any:
    return model(name, gib, engine=EngineKind.SIM, command=(), **changes)


async def test_victims_of_a_swap_that_was_not_written_stay_in_the_ledger() -> None:
    """A flip that the database refused leaves the victim as it was: the next load evicts it, it does not wait for it in vain."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.store.error = OSError("database is locked")
        first = ask(w, "b")
        await w.clock.advance(1.0)
        assert isinstance(first.exception(), StartFailed)
        assert w.manager.require("a").state is State.READY
        assert not w.manager.ledger.reservations["a"].leaving
        w.store.error = None
        second = ask(w, "b")
        await w.clock.advance(3.0)
        assert second.result() == "b"


async def test_victims_of_a_swap_that_was_called_off_while_written_stay_in_the_ledger() -> None:
    """As above, when an operator takes the load back before its row is written."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.store.hold = asyncio.Event()
        first = ask(w, "b")
        await w.clock.advance(0.5)
        await w.manager.stop("b", "operator")
        w.store.hold.set()
        w.store.hold = None
        await w.clock.advance(1.0)
        assert isinstance(first.exception(), StartFailed)
        assert w.manager.require("a").state is State.READY
        assert not w.manager.ledger.reservations["a"].leaving
        second = ask(w, "b")
        await w.clock.advance(3.0)
        assert second.result() == "b"


async def change(w: World, how: str, name: str) -> "asyncio.Task[None] | None":
    """Something that makes a decision to evict `name` stale."""
    if how == "pinned":
        w.manager.pin(name, pinned=True)
        return None

    async def hold() -> None:
        async with w.manager.lease(w.ticket(name)):
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await w.clock.settle()
    assert w.manager.require(name).gate.count == 1
    return task


async def served_or_told(w: World, waits: "asyncio.Task[str]", task: "asyncio.Task[None] | None") -> None:
    if task is None:
        assert isinstance(waits.exception(), NoRoom)
        return
    assert not waits.done()
    task.cancel()
    await w.clock.advance(3.0)
    assert waits.result() == "b"


@pytest.mark.parametrize("how", ["pinned", "used"])
async def test_who_is_pinned_or_used_while_the_row_of_a_load_is_written_stays(how: str) -> None:
    """It is decided again: who waits has the room when the other one is done with it, or is told that a pin is in the way."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.store.hold = asyncio.Event()
        waits = ask(w, "b", wait=100.0)
        await w.clock.advance(0.5)
        assert w.manager.loading("b") is not None
        task = await change(w, how, "a")
        w.store.hold.set()
        w.store.hold = None
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY
        assert not w.manager.ledger.reservations["a"].leaving
        assert w.manager.loading("b") is None
        await served_or_told(w, waits, task)


@pytest.mark.parametrize("how", ["pinned", "used"])
async def test_who_is_pinned_or_used_while_a_load_waits_for_its_turn_stays(how: str) -> None:
    """Another load holds `_swap_inflight` for as long as the database takes; what was decided before that is looked at again."""
    devices = [Device("gpu0", 24 * GIB, kind="test"), Device("gpu1", 24 * GIB, kind="test")]
    here, there = DeviceWish(ids=("gpu0",)), DeviceWish(ids=("gpu1",))
    a, b, c = model("a", 20, devices=here), model("b", 20, devices=here), model("c", 20, devices=there)
    async with world(a, b, c, devices=devices) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.store.hold = asyncio.Event()
        first = ask(w, "c")
        await w.clock.advance(0.5)
        waits = ask(w, "b", wait=100.0)
        await w.clock.advance(0.5)
        task = await change(w, how, "a")
        w.store.hold.set()
        w.store.hold = None
        await w.clock.advance(1.0)
        assert first.result() == "c"
        assert w.manager.require("a").state is State.READY
        assert "swap.planned" not in w.journal.kinds("b")
        await served_or_told(w, waits, task)


async def test_the_overdue_take_the_room_of_who_is_used_again_meanwhile() -> None:
    """That a victim came into use while the row was written is no reason to wait for whoever waited `max_wait` already."""
    policy = Policy(drain_timeout=2.0, on_drain_timeout=OnTimeout.CUT)
    async with world(model("a", 20), model("b", 20), policy=policy) as w:
        await w.ready("a")
        await w.clock.advance(30.0)
        w.store.hold = asyncio.Event()
        await w.manager.start("b", "operator")
        await w.clock.advance(0.5)
        task = await change(w, "used", "a")
        w.store.hold.set()
        w.store.hold = None
        await w.clock.advance(6.0)
        assert w.manager.require("b").state is State.READY
        assert task is not None
        task.cancel()


async def test_a_victim_that_somebody_else_counts_on_goes_although_the_first_load_was_called_off() -> None:
    """Two small loads count on one large victim; the first is called off before it told the victim: the second still comes."""
    async with world(model("a", 20), model("b", 12), model("c", 8)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.store.hold = asyncio.Event()
        first, second = ask(w, "b"), ask(w, "c")
        await w.clock.advance(0.5)
        await w.manager.stop("b", "operator")
        w.store.hold.set()
        w.store.hold = None
        await w.clock.advance(5.0)
        assert isinstance(first.exception(), StartFailed)
        assert second.result() == "c"


async def test_a_sleeper_that_dies_before_it_can_wake_is_started() -> None:
    """Its wake waited for another load's memory profile when it was killed: those who wait for it get a start instead."""
    device = Device("sim0", 40 * GIB, kind="sim")
    async with world(sleeper("a", 10), model("b", 10), devices=[device]) as w:
        await w.ready("a")
        await w.manager.sleep("a", "test")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.SLEEPING
        w.healthy_at_once = False
        await w.manager.start("b", "test")
        await w.clock.advance(1.0)
        waiting = ask(w, "a")
        await w.clock.advance(0.5)
        assert w.manager.loading("a") is not None
        w.processes["a"].die(137)
        await w.clock.advance(1.0)
        w.processes["b"].healthy = True
        w.healthy_at_once = True
        await w.clock.advance(3.0)
        assert waiting.result() == "a"
        assert w.manager.loading("a") is None
        assert w.starts == ["a", "b", "a"]


async def test_an_operators_start_during_the_end_of_a_crash_is_kept() -> None:
    """Between a crash and the end of its reaping a start is not lost, and does not wait for the backoff."""
    async with world(model("a", retry=RetryPolicy(backoff=60.0))) as w:
        await w.ready("a")
        w.processes["a"].release_stop.clear()
        w.processes["a"].die(1)
        await w.clock.advance(0.1)
        assert w.manager.require("a").state is State.STOPPING
        await w.manager.start("a", "operator")
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.READY
        assert w.starts == ["a", "a"]


async def test_history_that_cannot_be_written_does_not_harm_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is locked when a start is remembered: the engine stays READY, and the history comes later."""
    async with world(model("a")) as w:
        remember, failures = w.store.record_start, failing(1)

        async def record_start(*values: Any) -> None:
            await failures()
            await remember(*values)

        monkeypatch.setattr(w.store, "record_start", record_start)
        await w.ready("a")
        await w.clock.advance(30.0)
        assert w.manager.require("a").state is State.READY
        assert w.journal.kinds("a").count("instance.ready") == 1
        assert w.store.starts == [("a", "ready")]


async def test_a_process_whose_row_cannot_be_written_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is locked when the pid is written: the load goes on, and the row is written when it can be."""
    async with world(model("a")) as w:
        save, failures = w.store.save, failing(3)

        async def save_pid(record: Any) -> None:
            if record.pid:
                await failures()
            await save(record)

        monkeypatch.setattr(w.store, "save", save_pid)
        await w.ready("a")
        assert w.store.rows["a"].pid == 0
        await w.clock.advance(60.0)
        assert w.manager.require("a").state is State.READY
        assert w.journal.kinds("a").count("instance.starting") == 1
        assert w.store.rows["a"].pid > 0


async def test_a_row_that_cannot_be_forgotten_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is locked when an engine was stopped: its memory is free soon, and the row goes when it can."""
    async with world(model("a")) as w:
        forget, failures = w.store.forget, failing(2)

        async def forgetting(name: str, generation: int) -> None:
            await failures()
            await forget(name, generation)

        monkeypatch.setattr(w.store, "forget", forgetting)
        await w.ready("a")
        await w.manager.stop("a", "test")
        await w.clock.advance(2.5)
        assert w.manager.require("a").state is State.STOPPED
        assert w.manager.ledger.reservations == {}
        await w.clock.advance(60.0)
        assert w.store.rows == {}


async def test_a_removed_model_is_not_started_for_those_who_waited() -> None:
    """A reload takes a model away while a request waits for a slot: it is told, and the model does not come back."""
    async with world(model("a", concurrency=1), model("b")) as w:
        await w.ready("a")
        held = w.manager.fast_lease(w.ticket("a"))
        assert held is not None
        waiting = ask(w, "a")
        await w.clock.advance(0.5)
        await reload.apply(w.manager, Catalog([model("b")]), "reload")
        await w.clock.advance(0.5)
        assert isinstance(waiting.exception(), UnknownModel)
        w.manager.take_back(held)
        await w.clock.advance(5.0)
        assert w.starts == ["a"]
        assert w.manager.require("b").state is State.STOPPED


async def test_a_start_that_is_healthy_but_answers_nothing_is_a_stalled_start() -> None:
    """Health 200 and no token: ended after `stall`, not only at the overall deadline."""
    async with world(model("a", start=StartLimits(stall=60.0, deadline=1800.0, probe=5.0))) as w:
        w.healthy_at_once = False
        waiting = ask(w, "a", wait=600.0)
        await w.clock.advance(1.0)
        w.processes["a"].probe_error = UpstreamTimeout("the engine did not answer")
        w.processes["a"].healthy = True
        await w.clock.advance(50.0)
        assert w.manager.require("a").state is State.STARTING
        await w.clock.advance(20.0)
        assert isinstance(waiting.exception(), StartFailed)
        assert "no progress for 60 s in phase probe" in str(waiting.exception())


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (FileNotFoundError(2, "No such file", "vllm"), State.FAILED),
        (PermissionError(13, "Permission denied", "vllm"), State.FAILED),
        (BlockingIOError(11, "Resource temporarily unavailable"), State.BACKOFF),
        (OSError(12, "Cannot allocate memory"), State.BACKOFF),
        (OSError(28, "No space left on device"), State.BACKOFF),
    ],
)
async def test_a_launch_that_the_system_refuses(error: OSError, state: State) -> None:
    """What only a change can mend is not tried again; a system that is short of something is."""
    async with world(model("a", retry=RetryPolicy(backoff=60.0))) as w:
        w.launch_errors["a"] = error
        waiting = ask(w, "a")
        await w.clock.advance(1.0)
        assert isinstance(waiting.exception(), StartFailed)
        assert w.manager.require("a").state is state


async def test_an_adopted_sleeper_is_not_idle_since_the_beginning_of_time() -> None:
    """Its idle clock begins when it is adopted, for nobody knows better."""
    spec = sleeper("a", 10, idle=IdlePolicy(None, 100.0))
    async with world(spec, devices=[Device("sim0", 40 * GIB, kind="sim")]) as w:
        await w.ready("a")
        await w.manager.sleep("a", "test")
        await w.clock.advance(1.0)
        record = w.store.rows["a"]
        await w.manager.require("a").hand_over()
        w.manager._instances.clear()
        w.manager._room.release("a")
        assert await w.manager.adopt(record)
        assert w.manager.require("a").state is State.SLEEPING
        await IdleWatch(w.manager, w.clock).look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.SLEEPING
        await w.clock.advance(100.0)
        await IdleWatch(w.manager, w.clock).look()
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPED


async def test_the_last_words_of_an_engine_that_ended_at_once_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wrote why and ended before anybody followed its log: the known failure is recognised all the same."""
    async with world(model("a")) as w:
        start = w.manager._tools.launcher.start

        async def starting(plan: Any) -> Any:
            process: Any = await start(plan)
            process.lines.append("OSError: [Errno 98] Address already in use")
            process.die(1)
            return process

        monkeypatch.setattr(w.manager._tools.launcher, "start", starting)
        waiting = ask(w, "a")
        await w.clock.advance(1.0)
        assert "The engine's address is taken by another process" in str(waiting.exception())


async def test_a_victim_that_becomes_idle_goes_at_once() -> None:
    """The last lease of the one ends while another waits for its room: the swap begins then, not at the next look."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        held = w.manager.fast_lease(w.ticket("a"))
        assert held is not None
        waiting = ask(w, "b")
        await w.clock.advance(1.0)
        assert w.manager.loading("b") is None
        w.manager.take_back(held)
        await w.clock.advance(0.1)
        assert waiting.result() == "b"


async def test_a_timer_that_fires_early_loses_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop counts a delay from the beginning of the loop's turn, so that a timer may fire some milliseconds early."""
    async with world(model("a", retry=RetryPolicy(backoff=5.0))) as w:
        call_at = w.clock.call_at

        def early(when: float, callback: Callable[[], object]) -> Any:
            return call_at(max(when - 0.004, w.clock.now() + 0.001), callback)

        monkeypatch.setattr(w.clock, "call_at", early)
        await w.ready("a")
        w.processes["a"].die(1)
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.BACKOFF
        await w.clock.advance(5.0)
        assert w.manager.require("a").state is State.STOPPED


async def test_what_an_engine_wrote_just_before_it_was_ready_is_read() -> None:
    """A forked engine may be ready before its log is looked at for the first time; footprints are learned from it."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        waiting = ask(w, "a")
        await w.clock.advance(1.0)
        w.processes["a"].unread.append("Model loading took 2.5 GiB memory and 1.0 seconds")
        w.processes["a"].healthy = True
        await w.clock.advance(1.0)
        assert waiting.result() == "a"
        assert w.manager.require("a").facts["weights_gib"] == 2.5


async def test_a_database_that_is_locked_keeps_no_slot_from_those_who_wait_for_it() -> None:
    """As many loads as there are workers wait for their rows: grants for models that are there go on."""
    names = [f"m{i}" for i in range(6)]
    async with world(model("r", 2, concurrency=1), *(model(n, 2) for n in names)) as w:
        await w.ready("r")
        w.store.hold = asyncio.Event()
        loads: list[asyncio.Task[str]] = []
        for name in names:
            loads.append(ask(w, name))
            await w.clock.advance(0.1)
        async with w.manager.lease(w.ticket("r")):
            second = ask(w, "r")
            await w.clock.advance(0.1)
            assert not second.done()
        await w.clock.advance(0.1)
        assert second.result() == "r"
        w.store.hold.set()
        await w.clock.advance(5.0)
        assert [load.result() for load in loads] == names
