"""What the plan says must exist: shared loads, narrow locks, leases on every path, and nothing lost on failure."""

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from fakes_engine import World, get, model, world
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import (
    ConfigError,
    Conflict,
    NoRoom,
    QueueFull,
    RequestCut,
    StartFailed,
    StillLoading,
    TornDown,
    UpstreamDied,
    UpstreamTimeout,
)
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.lifecycle import Goal, State
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.residency import Device, NoPlacement
from vllm_mm.domain.scheduling import Rules, Ticket
from vllm_mm.domain.specs import GIB, RetryPolicy
from vllm_mm.engine.lease import Lease
from vllm_mm.engine.policy import OnTeardown, Policy
from vllm_mm.engine.swaps import DB_DEADLINE
from vllm_mm.engine.wire import UpstreamRequest
from vllm_mm.store.failures import DatabaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def hold(w: World, ticket: Ticket, until: asyncio.Event) -> Lease:
    async with w.manager.lease(ticket) as lease:
        await until.wait()
        return lease


async def test_concurrent_waiters_share_one_load() -> None:
    """Fifty requests for a stopped model cause one start, and all of them are served."""
    async with world(model("a")) as w:
        waiting = [asyncio.create_task(get(w, w.ticket("a"))) for _ in range(50)]
        await w.clock.advance(1.0)
        assert [t.result() for t in waiting] == ["a"] * 50
        assert w.starts == ["a"]
        assert w.manager.require("a").gate.count == 0


async def test_loading_slot_is_cleared_after_success() -> None:
    """After a load, `_loading_events` is empty: the next load of the same model is a load of its own."""
    async with world(model("a")) as w:
        await w.ready("a")
        assert w.manager.loading("a") is None
        await w.manager.stop("a", "test")
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPED
        await w.ready("a")
        assert w.starts == ["a", "a"]


async def test_failed_start_clears_the_slot_and_answers_every_waiter() -> None:
    """A start that fails answers all its waiters at once, with the reason, and leaves no reservation."""
    async with world(model("a")) as w:
        w.launch_errors["a"] = FileNotFoundError(2, "No such file", "vllm")
        waiting = [asyncio.create_task(get(w, w.ticket("a"))) for _ in range(50)]
        await w.clock.advance(0.5)
        assert all(isinstance(t.exception(), StartFailed) for t in waiting)
        assert "No such file" in str(waiting[0].exception())
        assert w.manager.loading("a") is None
        assert w.manager.ledger.reservations == {}
        assert w.queue.size == 0


async def test_who_waits_for_a_start_that_fails_is_told_before_what_is_left_of_it_is_gone() -> None:
    """The engine ends while it loads, and it takes a while until its processes are gone: nobody waits for that."""
    async with world(model("a")) as w:
        w.healthy_at_once, w.hold_stops = False, True
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        w.processes["a"].die(1)
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPING
        assert isinstance(waiting.exception(), StartFailed)
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)


async def test_a_reason_that_is_a_sentence_is_not_ended_twice() -> None:
    """Advice ends with a full stop of its own."""
    async with world(model("a")) as w:
        w.launch_errors["a"] = ConfigError("Correct the model's args.")
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(0.5)
        assert "Correct the model's args. " in str(waiting.exception())


async def test_crash_while_loading_answers_waiters_and_backs_off() -> None:
    """An engine that exits with code 0 while loading has failed; who comes during the backoff is told when to return."""
    async with world(model("a", retry=RetryPolicy(backoff=8.0))) as w:
        w.healthy_at_once = False
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        w.processes["a"].log("something went wrong")
        w.processes["a"].die(0)
        await w.clock.advance(0.1)
        assert isinstance(waiting.exception(), StartFailed)
        assert "something went wrong" in str(waiting.exception())
        assert w.manager.require("a").state is State.BACKOFF
        with pytest.raises(StartFailed) as error:
            await get(w, w.ticket("a"))
        assert error.value.retry_after == pytest.approx(8.0, abs=1.0)
        w.healthy_at_once = True
        await w.clock.advance(10.0)
        assert await get_later(w, "a") == "a"


async def get_later(w: World, name: str) -> str:
    task = asyncio.create_task(get(w, w.ticket(name)))
    await w.clock.advance(1.0)
    return task.result()


async def test_fast_path_takes_no_lock_and_no_queue() -> None:
    """A READY model with a free slot gives its lease although somebody holds `_swap_inflight`, and without the queue."""
    async with world(model("a")) as w:
        await w.ready("a")
        async with w.manager._swap_inflight:
            coroutine = w.manager.lease(w.ticket("a")).__aenter__()
            with pytest.raises(StopIteration) as done:  # It never suspends.
                coroutine.send(None)
            w.manager.take_back(done.value.value)


async def test_fast_path_does_not_pass_those_who_wait() -> None:
    """A newcomer takes no slot that somebody waits for."""
    async with world(model("a", concurrency=1)) as w:
        await w.ready("a")
        first = w.manager.fast_lease(w.ticket("a"))
        assert first is not None
        second = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.settle()
        w.manager.take_back(first)
        assert w.manager.require("a").gate.free == 1
        assert w.manager.fast_lease(w.ticket("a")) is None
        await w.clock.settle()
        assert second.result() == "a"


async def test_a_load_that_waits_for_room_is_one_load() -> None:
    """However often the lanes are looked at while the victim stops: one plan, one start."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        waiting = [asyncio.create_task(get(w, w.ticket("b"))) for _ in range(3)]
        for _ in range(20):
            await w.clock.advance(0.2)
            w.queue.kick()
        w.processes["a"].release_stop.set()
        await w.clock.advance(2.0)
        assert [t.result() for t in waiting] == ["b"] * 3
        assert w.journal.kinds("b").count("swap.planned") == 1
        assert w.starts == ["a", "b"]


async def test_lock_is_not_held_while_an_engine_stops() -> None:
    """During a stop that takes long, other models load: the first story."""
    async with world(model("a", 20), model("b", 20), model("c", 4)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        b = asyncio.create_task(get(w, w.ticket("b")))
        await w.clock.advance(1.0)
        assert w.manager.require("a").state is State.STOPPING
        assert not w.manager._swap_inflight.locked()
        assert await get_later(w, "c") == "c"
        assert not b.done()
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert b.result() == "b"


async def test_lock_is_not_held_while_an_engine_starts() -> None:
    """During a load that takes long, `_swap_inflight` is free and a READY model is served."""
    async with world(model("a", 4), model("b", 4)) as w:
        await w.ready("a")
        w.healthy_at_once = False
        b = asyncio.create_task(get(w, w.ticket("b")))
        await w.clock.advance(5.0)
        assert w.manager.require("b").state is State.STARTING
        assert not w.manager._swap_inflight.locked()
        assert await get(w, w.ticket("a")) == "a"
        w.processes["b"].healthy = True
        await w.clock.advance(1.0)
        assert b.result() == "b"


async def test_different_targets_load_concurrently() -> None:
    """Two models that fit together are STARTING at the same time."""
    async with world(model("a", 10), model("b", 10)) as w:
        w.healthy_at_once = False
        tasks = [asyncio.create_task(get(w, w.ticket(name))) for name in ("a", "b")]
        await w.clock.advance(1.0)
        assert {w.manager.require(n).state for n in ("a", "b")} == {State.STARTING}
        for process in w.processes.values():
            process.healthy = True
        await w.clock.advance(1.0)
        assert [t.result() for t in tasks] == ["a", "b"]


async def test_one_memory_profile_at_a_time_on_a_device() -> None:
    """On a GPU the second load begins only after the first has sized its memory."""
    async with world(model("a", 4), model("b", 4), devices=[Device("gpu0", 24 * GIB, kind="gpu")]) as w:
        w.healthy_at_once = False
        tasks = [asyncio.create_task(get(w, w.ticket(name))) for name in ("a", "b")]
        await w.clock.advance(1.0)
        assert w.starts == ["a"]
        w.healthy_at_once = True
        w.processes["a"].healthy = True
        await w.clock.advance(1.0)
        assert w.starts == ["a", "b"]
        await w.clock.advance(1.0)
        assert all(t.done() for t in tasks)


async def test_reservation_counts_from_the_decision() -> None:
    """While A is still starting, B, which does not fit beside it, is not started."""
    async with world(model("a", 20), model("b", 20)) as w:
        w.healthy_at_once = False
        a = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        b = asyncio.create_task(get(w, w.ticket("b")))
        await w.clock.advance(3.0)
        assert w.starts == ["a"]
        w.processes["a"].healthy = True
        w.healthy_at_once = True
        await w.clock.advance(15.0)
        assert (a.result(), b.result()) == ("a", "b")
        assert w.most_running == 1


async def test_exclusive_side_waits_for_the_lease_and_comes_at_once_after_it() -> None:
    """A stop is not begun during a lease, and is begun in the same turn in which the last lease ends."""
    async with world(model("a")) as w:
        await w.ready("a")
        done = asyncio.Event()
        request = asyncio.create_task(hold(w, w.ticket("a"), done))
        await w.clock.settle()
        await w.manager.stop("a", "test")
        await w.clock.advance(20.0)
        assert w.manager.require("a").state is State.DRAINING
        assert w.processes["a"].stopped == 0
        w.processes["a"].release_stop.clear()
        done.set()
        await request
        assert w.manager.require("a").state is State.STOPPING
        w.processes["a"].release_stop.set()
        await w.clock.advance(0.1)
        assert w.manager.require("a").state is State.STOPPED


async def test_no_lease_while_draining() -> None:
    """A draining instance gives no new lease."""
    async with world(model("a")) as w:
        await w.ready("a")
        done = asyncio.Event()
        request = asyncio.create_task(hold(w, w.ticket("a"), done))
        await w.clock.settle()
        await w.manager.stop("a", "test")
        assert w.manager.fast_lease(w.ticket("a")) is None
        done.set()
        await request


async def test_lease_is_released_when_the_work_throws() -> None:
    """An exception in the work, or its cancellation, leaves no lease behind."""
    async with world(model("a")) as w:
        await w.ready("a")
        with pytest.raises(ValueError, match="work"):
            async with w.manager.lease(w.ticket("a")):
                raise ValueError("work")
        assert w.manager.require("a").gate.count == 0
        request = asyncio.create_task(hold(w, w.ticket("a"), asyncio.Event()))
        await w.clock.settle()
        assert w.manager.require("a").gate.count == 1
        request.cancel()
        await w.clock.settle()
        assert w.manager.require("a").gate.count == 0


async def test_a_lease_given_to_a_request_that_was_cancelled_meanwhile_is_taken_back() -> None:
    """The race of a grant with the client's leaving leaks nothing."""
    async with world(model("a", concurrency=1)) as w:
        await w.ready("a")
        first = w.manager.fast_lease(w.ticket("a"))
        assert first is not None
        second = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.settle()
        waiter = w.queue._lanes["a"].waiters[0]
        w.manager.take_back(first)
        lease = w.manager.grant(waiter.ticket)
        assert lease is not None
        waiter.lease.set_result(lease)
        second.cancel()
        await w.clock.settle()
        assert w.manager.require("a").gate.count == 0
        assert w.queue.size == 0


async def test_a_lease_cannot_be_made() -> None:
    """There is no way to an engine's channel but through the manager."""
    async with world(model("a")) as w:
        await w.ready("a")
        gate = w.manager.require("a").gate
        with pytest.raises(TypeError, match=r"ProcessManager\.lease"):
            Lease(object(), gate, gate._channel, w.ticket("a"), 0.0)  # type: ignore[arg-type]


async def test_a_lease_that_is_over_sends_nothing() -> None:
    """A lease kept beyond its `async with` is refused."""
    async with world(model("a")) as w:
        await w.ready("a")
        async with w.manager.lease(w.ticket("a")) as lease:
            pass
        with pytest.raises(TypeError, match="over"):
            await lease.exchange(UpstreamRequest(b"POST", b"/"), None)  # type: ignore[arg-type]
        assert w.exchanges == []


async def test_with_a_single_model_that_is_always_on_nothing_changes() -> None:
    """A thousand requests for one resident model: one start, no queue, no swap."""
    async with world(model("a", pinned=True)) as w:
        await w.ready("a")
        before = len(w.journal.events)
        for _ in range(1000):
            assert await get(w, w.ticket("a")) == "a"
        await w.clock.advance(5.0)
        assert w.starts == ["a"]
        assert len(w.journal.events) == before


async def test_swap_evicts_the_idle_one_and_never_holds_both() -> None:
    """B takes A's place: A is drained, stopped and reaped before B starts."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        assert await get_later(w, "b") == "b"
        assert w.most_running == 1
        assert "instance.stopped" in w.journal.kinds("a")
        assert "swap.planned" in w.journal.kinds("b")


async def test_busy_victim_goes_at_the_aging_bound() -> None:
    """Overlapping requests keep A busy; B is served at the latest `max_wait` and a drain later."""
    policy = Policy(rules=Rules(max_wait=20.0, min_dwell=5.0))
    async with world(model("a", 20), model("b", 20), policy=policy) as w:
        await w.ready("a")
        await w.clock.advance(6.0)
        stop = asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                async with w.manager.lease(w.ticket("a", wait=60)):
                    await w.clock.sleep(1.0)

        clients = [asyncio.create_task(client()) for _ in range(3)]
        await w.clock.advance(0.5)
        b = asyncio.create_task(get(w, w.ticket("b", wait=60)))
        await w.clock.advance(19.0)
        assert not b.done()
        assert w.manager.require("a").state is State.READY
        await w.clock.advance(4.0)
        assert b.done()
        stop.set()
        await w.clock.advance(60.0)
        assert all(c.done() for c in clients)


async def test_a_drain_that_takes_too_long_is_cut_and_told() -> None:
    """At the drain's deadline the exchange ends with RequestCut, and the lease is gone."""
    async with world(model("a"), policy=Policy(drain_timeout=5.0)) as w:
        await w.ready("a")

        async def request() -> None:
            async with w.manager.lease(w.ticket("a")) as lease:
                await lease.exchange(UpstreamRequest(b"POST", b"/"), None)  # type: ignore[arg-type]

        running = asyncio.create_task(request())
        await w.clock.settle()
        await w.manager.stop("a", "test")
        await w.clock.advance(6.0)
        assert isinstance(running.exception(), RequestCut)
        assert w.manager.require("a").state is State.STOPPED


async def test_death_of_an_engine_ends_its_exchanges_at_once() -> None:
    """Exit code 0 unasked is a crash: running exchanges get UpstreamDied, and no lease is left."""
    async with world(model("a")) as w:
        await w.ready("a")

        async def request() -> None:
            async with w.manager.lease(w.ticket("a")) as lease:
                await lease.exchange(UpstreamRequest(b"POST", b"/"), None)  # type: ignore[arg-type]

        running = asyncio.create_task(request())
        await w.clock.settle()
        w.processes["a"].die(0)
        await w.clock.settle()
        assert isinstance(running.exception(), UpstreamDied)
        await w.clock.advance(0.5)
        assert w.manager.require("a").state is State.BACKOFF
        assert w.manager.ledger.reservations == {}


async def test_memory_is_held_until_the_tree_is_reaped() -> None:
    """A dead leader's memory is not given to the next model before its tree is swept."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        w.processes["a"].release_stop.clear()
        w.processes["a"].die(0)
        b = asyncio.create_task(get(w, w.ticket("b")))
        await w.clock.advance(3.0)
        assert w.starts == ["a"]
        w.processes["a"].release_stop.set()
        await w.clock.advance(2.0)
        assert b.result() == "b"


async def test_stream_that_meets_a_teardown_is_told_to_retry_and_others_wait() -> None:
    """`on_teardown: retry`: 503 for streams before their first byte; requests without a stream are held."""
    async with world(model("a")) as w:
        await w.ready("a")
        done = asyncio.Event()
        running = asyncio.create_task(hold(w, w.ticket("a"), done))
        await w.clock.settle()
        await w.manager.stop("a", "test")
        with pytest.raises(TornDown) as error:
            await get(w, w.ticket("a", stream=True))
        assert 1 <= (error.value.retry_after or 0) <= 60
        held = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.settle()
        assert not held.done()
        done.set()
        await running
        await w.clock.advance(2.0)
        assert held.result() == "a"


async def test_stream_waits_for_the_teardown_where_that_is_wanted() -> None:
    """`on_teardown: wait`: streams are held too."""
    async with world(model("a"), policy=Policy(on_teardown=OnTeardown.WAIT)) as w:
        await w.ready("a")
        await w.manager.stop("a", "test")
        stream = asyncio.create_task(get(w, w.ticket("a", stream=True)))
        await w.clock.advance(2.0)
        assert stream.result() == "a"


async def test_the_callers_wait_ends_with_the_expected_time() -> None:
    """A load longer than the caller's wait: 503 with Retry-After, and the load goes on."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        waiting = asyncio.create_task(get(w, w.ticket("a", wait=3.0)))
        await w.clock.advance(3.5)
        error = waiting.exception()
        assert isinstance(error, StillLoading)
        assert 1 <= (error.retry_after or 0) <= 60
        assert w.manager.require("a").state is State.STARTING
        assert w.queue.size == 0


async def test_the_queue_is_bounded() -> None:
    """Over the bound a request is refused at once; those who wait are not hurt; leaving makes room."""
    async with world(model("a"), policy=Policy(max_queue=3)) as w:
        w.healthy_at_once = False
        waiting = [asyncio.create_task(get(w, w.ticket("a"))) for _ in range(3)]
        await w.clock.settle()
        with pytest.raises(QueueFull) as error:
            await get(w, w.ticket("a"))
        assert error.value.retry_after is not None
        waiting.pop().cancel()
        await w.clock.settle()
        assert w.queue.size == 2
        waiting.append(asyncio.create_task(get(w, w.ticket("a"))))
        await w.clock.advance(0.5)
        w.processes["a"].healthy = True
        await w.clock.advance(1.0)
        assert [t.result() for t in waiting] == ["a"] * 3


async def test_unload_during_load_and_a_new_request() -> None:
    """Those who waited are told; a request that comes afterwards gets a start of its own."""
    async with world(model("a")) as w:
        w.healthy_at_once = False
        old = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        w.processes["a"].release_stop.clear()
        first = w.processes["a"]
        await w.manager.stop("a", "operator")
        await w.clock.settle()
        assert isinstance(old.exception(), StartFailed)
        w.healthy_at_once = True
        new = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        assert not new.done()
        first.release_stop.set()
        await w.clock.advance(2.0)
        assert new.result() == "a"
        assert w.starts == ["a", "a"]


async def test_stop_of_a_load_that_waits_for_room() -> None:
    """A load without a process yet is called off: its promise is given back and its waiters are answered."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        b = asyncio.create_task(get(w, w.ticket("b")))
        await w.clock.advance(1.0)
        assert w.manager.loading("b") is not None
        await w.manager.stop("b", "operator")
        await w.clock.settle()
        assert isinstance(b.exception(), StartFailed)
        assert w.manager.loading("b") is None
        assert set(w.manager.ledger.reservations) == {"a"}
        w.processes["a"].release_stop.set()
        await w.clock.advance(1.0)
        assert w.manager.ledger.reservations == {}


async def test_restart_of_a_load_that_waits_for_room_is_a_new_load() -> None:
    """A restart is not a stop, also before there is a process."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        w.processes["a"].release_stop.clear()
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        await w.manager.restart("b", "operator")
        w.processes["a"].release_stop.set()
        await w.clock.advance(2.0)
        assert w.manager.require("b").state is State.READY
        assert w.starts == ["a", "b"]


async def test_a_load_that_is_called_off_while_its_row_is_written() -> None:
    """Nothing starts, and the room is free again."""
    async with world(model("a")) as w:
        w.store.hold = asyncio.Event()
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(0.5)
        await w.manager.stop("a", "operator")
        w.store.hold.set()
        w.store.hold = None
        await w.clock.advance(1.0)
        assert isinstance(waiting.exception(), StartFailed)
        assert w.starts == []
        assert w.manager.ledger.reservations == {}


async def test_a_changed_concurrency_takes_effect_at_once() -> None:
    """A reload with another `concurrency` needs no restart."""
    async with world(model("a", concurrency=1)) as w:
        await w.ready("a")
        w.manager.require("a").replace_spec(model("a", concurrency=2))
        assert w.manager.require("a").gate.free == 2


async def test_a_row_that_cannot_be_written_undoes_the_promise() -> None:
    """A database error during the flip answers the waiters and leaves the lock and the ledger free."""
    async with world(model("a")) as w:
        w.store.error = OSError("disk full")
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(1.0)
        assert isinstance(waiting.exception(), StartFailed)
        assert not w.manager._swap_inflight.locked()
        assert w.manager.ledger.reservations == {}
        w.store.error = None
        assert await get_later(w, "a") == "a"


async def test_a_database_that_is_busy_for_a_moment_costs_no_start() -> None:
    """Its row has to be there before its process is. While it is not, the promise is undone, who was to go for it serves on, those who wait
    are told why when their time is over, and the others have their start when the database has come to itself."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        await w.clock.advance(10.0)
        saved, busy = w.store.save, True

        async def save(record: LaunchRecord) -> None:
            if busy:  # in the world of this clock: `asyncio.timeout` knows another
                await w.clock.sleep(DB_DEADLINE)
                raise TimeoutError
            await saved(record)

        w.store.save = save  # type: ignore[method-assign]
        short = asyncio.create_task(get(w, w.ticket("b", wait=15.0)))
        long = asyncio.create_task(get(w, w.ticket("b", wait=60.0)))
        await w.clock.advance(10.5)
        assert not w.manager._swap_inflight.locked()
        assert w.manager.loading("b") is None
        assert not w.manager.ledger.reservations["a"].leaving
        assert await get(w, w.ticket("a")) == "a"
        await w.clock.advance(10.0)
        assert w.starts == ["a"]
        with pytest.raises(StillLoading, match="did not take the row of its start within 10 s") as told:
            await short
        assert told.value.reason is Reason.DATABASE
        busy = False
        await w.clock.advance(5.0)
        assert (long.result(), w.starts) == ("b", ["a", "b"])


async def test_a_database_that_is_locked_is_asked_again_after_a_pause() -> None:
    """Not at once: it says so without a wait. One that is full is not asked again."""
    async with world(model("a")) as w:
        saved, tries = w.store.save, 0

        async def save(record: LaunchRecord) -> None:
            nonlocal tries
            tries += 1
            await saved(record)

        w.store.save = save  # type: ignore[method-assign]
        w.store.error = DatabaseUnavailable("The database could not be used: database is locked.")
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(5.5)
        assert tries == 6
        assert w.queue.entries()[0].why.endswith("database is locked.")
        w.store.error = None
        await w.clock.advance(2.0)
        assert waiting.result() == "a"


async def test_an_operator_is_told_that_a_start_waits_for_the_database() -> None:
    """Between two tries and during one, in the model's own state; and no more of it when the database is back."""
    async with world(model("a")) as w:
        free = asyncio.Event()
        saved, hangs = w.store.save, False

        async def save(record: LaunchRecord) -> None:
            if hangs:
                await free.wait()
            await saved(record)

        w.store.save = save  # type: ignore[method-assign]
        w.store.error = DatabaseUnavailable("The database could not be used: it is away.")
        await w.manager.start("a", "operator")
        seen: set[str] = set()
        for _ in range(30):
            await w.clock.advance(0.1)
            seen.add(w.manager.describe("a").reason)
        hangs = True
        await w.clock.advance(2.0)
        seen.add(w.manager.describe("a").reason)
        assert {split(reason)[0] for reason in seen} == {Reason.DATABASE}, seen
        w.store.error = None
        free.set()
        hangs = False
        await w.clock.advance(2.0)
        assert split(w.manager.describe("a").reason)[0] is not Reason.DATABASE
        assert w.manager.require("a").state is State.READY


async def test_who_waits_too_long_for_a_database_is_told_of_it_and_not_of_the_try_under_way() -> None:
    """Also while another try waits for its turn; once the start is written down, that it is under way is the truth."""
    async with world(model("a")) as w:
        saved, free, tries = w.store.save, asyncio.Event(), 0

        async def save(record: LaunchRecord) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise DatabaseUnavailable("The database could not be used: database is locked.")
            await free.wait()
            await saved(record)

        w.store.save = save  # type: ignore[method-assign]
        waiting = asyncio.create_task(get(w, w.ticket("a", wait=15.0)))
        await w.clock.advance(12.0)
        assert tries == 2  # and this one is under way
        w.queue.kick()
        await w.clock.advance(3.5)
        assert "database" in str(waiting.exception())
        other = asyncio.create_task(get(w, w.ticket("a", wait=60.0)))
        await w.clock.advance(0.1)
        free.set()
        await w.clock.advance(0.1)
        w.queue.kick()
        await w.clock.advance(0.1)
        assert all("database" not in entry.why for entry in w.queue.entries())
        await w.clock.advance(5.0)
        assert other.result() == "a"


async def test_a_model_that_fits_nowhere_is_refused_with_the_sums() -> None:
    """Bigger than the device: answered at once, not after the wait."""
    async with world(model("a", 99)) as w:
        waiting = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(0.5)
        assert isinstance(waiting.exception(), NoRoom)
        assert "99" in str(waiting.exception())


async def test_a_pinned_model_is_not_evicted() -> None:
    """B waits, with the reason, while A is pinned, and comes when it is unpinned."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        w.manager.pin("a", pinned=True)
        b = asyncio.create_task(get(w, w.ticket("b", wait=100)))
        await w.clock.advance(40.0)
        assert not b.done() or isinstance(b.exception(), NoRoom)
        assert w.manager.require("a").state is State.READY


async def test_crash_loop_ends_in_failed_and_an_operator_revives_it() -> None:
    """After `max_failures` nobody respawns it; a load by an operator does."""
    async with world(model("a", retry=RetryPolicy(backoff=1.0, backoff_max=1.0, max_failures=3))) as w:
        for _ in range(3):
            task = asyncio.create_task(get(w, w.ticket("a")))
            await w.clock.advance(1.0)
            assert task.done()
            w.processes["a"].die(1)
            await w.clock.advance(3.0)
        assert w.manager.require("a").state is State.FAILED
        with pytest.raises(StartFailed, match="stays down"):
            await get(w, w.ticket("a"))
        assert len(w.starts) == 3
        await w.ready("a")


async def test_operator_start_does_not_wait_for_the_load() -> None:
    """`start` returns while nothing is started yet, and traffic on A is not touched."""
    async with world(model("a", 4), model("b", 4)) as w:
        await w.ready("a")
        w.healthy_at_once = False
        started = w.manager.start("b", "operator")
        with pytest.raises(StopIteration):
            started.send(None)
        assert await get(w, w.ticket("a")) == "a"


async def test_sleep_is_refused_where_the_engine_cannot() -> None:
    """An engine without a sleep mode says so, with what to do."""
    async with world(model("a")) as w:
        await w.ready("a")
        with pytest.raises(Conflict, match="Stop it instead"):
            await w.manager.sleep("a", "operator")


async def test_swap_inflight_covers_no_process_wait() -> None:
    """Structure: the only await under `_swap_inflight` is the flip, and the flip awaits nothing but the row."""
    manager = type((await anext_world()).manager)
    source = inspect.getsource(manager._flip) + inspect.getsource(manager._written)
    awaits = [line.strip() for line in source.splitlines() if "await" in line or "async with" in line]
    assert awaits == [
        "if instance.state is State.STOPPED and not await self._written(instance, loading):",
        "async with asyncio.timeout(DB_DEADLINE):",
        "await self._tools.store.save(self._intent(instance.spec, loading))",
    ]


async def anext_world() -> World:
    async with world() as w:
        return w


async def test_an_engine_that_hangs_with_requests_out_is_restarted() -> None:
    """/health stays 200, nothing comes, the probe fails: the requests are told, the engine is ended."""
    async with world(model("a")) as w:
        await w.ready("a")
        process = w.processes["a"]

        async def request() -> None:
            async with w.manager.lease(w.ticket("a")) as lease:
                await lease.exchange(UpstreamRequest(b"POST", b"/"), None)  # type: ignore[arg-type]

        running = asyncio.create_task(request())
        await w.clock.advance(59.0)
        process.probe_error = UpstreamTimeout("no token")
        assert not running.done()
        await w.clock.advance(15.0)
        assert isinstance(running.exception(), RequestCut)
        assert w.manager.require("a").state in {State.BACKOFF, State.STOPPED}
        assert process.stopped == 1


async def test_a_long_silence_of_an_engine_that_works_is_no_fault() -> None:
    """A generation without streaming sends nothing for minutes; the probe answers, and nobody is disturbed."""
    async with world(model("a")) as w:
        await w.ready("a")
        async with w.manager.lease(w.ticket("a")):
            await w.clock.advance(500.0)
            assert w.manager.require("a").state is State.READY
            assert len(w.probes) > 3


async def test_an_engine_whose_health_is_gone_is_restarted() -> None:
    """Three health requests without an answer."""
    async with world(model("a")) as w:
        await w.ready("a")
        w.processes["a"].healthy = False
        await w.clock.advance(11.0)
        assert w.manager.require("a").state is State.READY
        await w.clock.advance(6.0)
        assert w.manager.require("a").state is not State.READY
        assert w.processes["a"].stopped == 1


async def test_an_operator_is_told_why_a_load_was_refused() -> None:
    """A start that can never be fulfilled shows its reason, not the one of an earlier stop; the next start forgets it."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        w.manager.pin("a", pinned=True)
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        assert "pinned" in w.manager.refused_because("b")
        assert "pinned" in w.manager.describe("b").reason
        w.manager.pin("a", pinned=False)
        await w.clock.advance(10.0)
        await w.ready("b")
        assert w.manager.refused_because("b") == ""


async def test_a_refusal_for_want_of_room_is_forgotten_when_the_room_may_differ() -> None:
    """Pins, declarations, times of the week, what a device has, leases on it, and the end of who was in the way: what was said
    of another one before that is not shown any more. The use of others, which comes and goes, changes nothing of it."""
    old = [model("a", 20), model("b", 20)]
    async with world(*old) as w:
        [gpu] = w.manager.devices()

        def device(**changes: Any) -> None:
            w.inventory.change(gpu.id, **changes)
            w.manager.observe_devices()

        async def lend() -> None:
            assert not isinstance(await w.manager.let("lease:1", gpu.id, GIB), NoPlacement)

        changes: list[Callable[[], Awaitable[None] | None]] = [
            lambda: w.manager.pin("a", pinned=False),
            lambda: w.manager.set_catalog(Catalog([*old, model("c", 1)])),
            lambda: w.manager.in_time({"a"}),
            lambda: device(headroom=GIB),
            lambda: device(problem="it is lost"),
            lend,
            lambda: w.manager.give_back("lease:1"),
            lambda: w.manager.stop("a", "operator", force=True),
        ]
        await w.ready("a")
        for change in changes:
            device(problem="", headroom=0)
            w.manager.pin("a", pinned=True)
            await w.manager.start("b", "operator")
            await w.clock.advance(1.0)
            device(foreign=GIB)
            device(foreign=0)
            assert "pinned" in w.manager.describe("b").reason
            done = change()
            if done is not None:
                await done
            await w.clock.advance(2.0)
            assert w.manager.refused_because("b") == "", inspect.getsource(change)


async def test_a_refusal_is_no_reason_of_a_later_state() -> None:
    """A request loads what was refused before; its next stop has a reason of its own. So has a changed declaration."""
    async with world(model("a", 20), model("b", 20)) as w:
        await w.ready("a")
        w.manager.pin("a", pinned=True)
        await w.manager.start("b", "operator")
        assert w.manager.describe("b").eta_s is None, "nobody has looked at it yet"
        await w.clock.advance(1.0)
        assert w.manager.describe("b").eta_s is None, "it will not come"
        w.manager.pin("a", pinned=False)
        w.manager._wishes.refuse("b", "not for want of room")
        assert w.manager.describe("b").reason == "not for want of room"
        await w.clock.advance(10.0)
        assert await get(w, w.ticket("b")) == "b"
        await w.manager.rest("b", Goal.STOP, "unused: idle for 10 s")
        await w.clock.advance(1.0)
        assert (w.manager.describe("b").reason, w.manager.describe("b").state) == ("unused: idle for 10 s", "stopped")

        await w.manager.start("a", "operator")
        await w.clock.advance(10.0)
        w.manager.pin("a", pinned=True)
        await w.manager.start("b", "operator")
        await w.clock.advance(1.0)
        assert "pinned" in w.manager.describe("b").reason
        w.manager.set_catalog(Catalog([model("a", 20), model("b", 2)]))
        assert w.manager.describe("b").reason == "unused: idle for 10 s"


async def test_a_failing_round_makes_the_server_unready() -> None:
    """The scheduler that raises at every look is not well, though its workers live; and it goes on trying."""
    async with world(model("a")) as w:
        view = w.manager.view
        w.manager.view = None  # type: ignore[assignment,method-assign]
        task = asyncio.create_task(get(w, w.ticket("a")))
        await w.clock.advance(20.0)
        assert w.queue.overdue()
        w.manager.view = view  # type: ignore[method-assign]
        await w.clock.advance(6.0)
        assert task.result() == "a"
        assert not w.queue.overdue()
