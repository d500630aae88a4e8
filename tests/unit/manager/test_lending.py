"""Leases across processes: both ends of the real protocol over links that deliver when the test says, and the real manager."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fakes_engine import World, model, world
from vllm_mm.domain.credits import Mistrusted
from vllm_mm.domain.errors import (
    MMError,
    QueueFull,
    RequestCut,
    StartFailed,
    StillLoading,
    Unavailable,
    UnknownModel,
    UpstreamTimeout,
)
from vllm_mm.domain.keys import Key, Scope
from vllm_mm.domain.lifecycle import Drain, Goal, Kill, OnTimeout, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Device
from vllm_mm.domain.running import Listing, Running, Stage
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.specs import GIB, EngineKind
from vllm_mm.domain.usage import Outcome, RequestRecord, Usage
from vllm_mm.engine.lease import Lease
from vllm_mm.engine.lending import borrower as lending
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.borrower import Borrower
from vllm_mm.engine.lending.office import LOOK_EVERY, Office, Seat
from vllm_mm.engine.policy import Policy

DEVICES = [Device("sim0", 40 * GIB, kind="sim")]


def running(name: str, at: float) -> Running:
    return Running(
        id=name, request_id=name, at=at, route="chat", model="a", asked="a", key="k", stream=True, stage=Stage.PROMPT,
        queued_s=0.0, load_s=0.0, ttft_s=None, total_s=1.0, frozen_s=0.0, frozen=False, bytes_in=1, bytes_out=0,
        generation=1, retried=False, ending=False,
    )  # fmt: skip


class Wire:
    """Messages of one direction, as bytes, until they are delivered."""

    def __init__(self, kinds: Any) -> None:
        self._kinds = kinds
        self.under_way: deque[bytes] = deque()
        self.fault = ""
        self.sent: list[str] = []

    def send(self, message: Any) -> None:
        self.sent.append(type(message).__name__)
        self.under_way.append(msgspec.msgpack.encode(message))

    def fail(self, why: str) -> None:
        self.fault = why

    def take(self) -> Any:
        return msgspec.msgpack.decode(self.under_way.popleft(), type=self._kinds)


@dataclass
class Told:
    """What the controller and the worker hear beside leases."""

    rows: list[RequestRecord] = field(default_factory=list)
    lost_rows: int = 0
    routes: list[tuple[str, str, int]] = field(default_factory=list)
    all_keys: Sequence[Key] = ()
    runs: str = ""
    under_way: Listing = field(default_factory=lambda: Listing([], 0))

    def row(self, record: RequestRecord) -> None:
        self.rows.append(record)

    def lost(self, rows: int) -> None:
        self.lost_rows += rows

    def learned(self, fingerprint: str, route: str, generation: int) -> None:
        self.routes.append((fingerprint, route, generation))

    def keys(self, keys: Iterable[Key]) -> None:
        self.all_keys = tuple(keys)

    def cancel(self, request: str, cause: str) -> bool:
        return request == self.runs

    def listing(self, most: int) -> Listing:
        return Listing(self.under_way.requests[:most], self.under_way.total)


class Worker:
    """One worker and its seat."""

    def __init__(self, w: World, office: Office) -> None:
        self.down, self.up = Wire(say.Down), Wire(say.Up)
        self.heard = Told()
        self.borrower = Borrower(self.up, w.clock, self.heard)
        self.seat: Seat = office.seat(self.down)

    def deliver(self) -> None:
        """Everything that is under way, in both directions."""
        while self.down.under_way or self.up.under_way:
            while self.down.under_way:
                self.borrower.obey(self.down.take())
            while self.up.under_way:
                self.seat.heard(self.up.take())


@dataclass
class Lent:
    w: World
    office: Office
    told: Told
    workers: list[Worker]

    async def settle(self) -> None:
        for _ in range(5):
            await self.w.clock.settle()
            for worker in self.workers:
                worker.deliver()
        await self.w.clock.settle()

    async def pass_time(self, seconds: float, step: float = 0.05) -> None:
        left = seconds
        while left > 0:
            await self.w.clock.advance(min(step, left))
            left -= step
            await self.settle()

    async def lease(self, worker: Worker, ticket: Ticket) -> Lease:
        leasing = worker.borrower.lease(ticket)
        entering = asyncio.create_task(leasing.__aenter__())
        await self.settle()
        assert entering.done(), "it waits"
        return entering.result()

    def gate(self, name: str = "a") -> Any:
        return self.w.manager.require(name).gate


@pytest.fixture
async def lent() -> AsyncIterator[Lent]:
    spec = model("a", 10, engine=EngineKind.SIM, command=(), concurrency=40)
    other = model("b", 10, engine=EngineKind.SIM, command=(), concurrency=1)
    policy = Policy(drain_timeout=5.0, on_drain_timeout=OnTimeout.FREEZE, max_queue=3)
    async with world(spec, other, devices=DEVICES, policy=policy) as w:
        told = Told()
        office = Office(w.manager, w.clock, 2, told)
        made = Lent(w, office, told, [])
        made.workers = [Worker(w, office) for _ in range(2)]
        await made.settle()
        await w.ready("a")
        await made.settle()
        yield made
        for worker in made.workers:
            worker.seat.leave()


async def test_the_first_request_asks_and_the_next_ones_do_not(lent: Lent) -> None:
    """Each lease that a worker has counts at the gate before the worker hears of it; what is not needed comes back by itself."""
    one = lent.workers[0]
    lease = await lent.lease(one, lent.w.ticket("a"))
    assert lease.generation == lent.gate().generation
    assert lent.gate().count == 9
    one.up.sent.clear()
    second = one.borrower.fast_lease(lent.w.ticket("a"))
    assert second is not None
    assert one.up.sent == []
    one.borrower.take_back(second)
    one.borrower.take_back(lease)
    assert lent.gate().count == 9, "kept for the next"
    await lent.pass_time(3 * lending.SWEEP)
    assert lent.gate().count == 0
    assert (lent.office.counts.asked, lent.office.counts.credit) == (1, 1)


async def test_a_drain_has_back_what_is_idle_and_waits_for_what_is_used(lent: Lent) -> None:
    """Until the worker has answered, all that it was lent counts."""
    one = lent.workers[0]
    lease = await lent.lease(one, lent.w.ticket("a"))
    lent.w.manager.require("a").tell(Drain(Goal.STOP, 600.0, "test"))
    assert lent.gate().count == 9, "it has not answered"
    await lent.settle()
    assert lent.gate().count == 1
    assert lent.w.manager.require("a").state is State.DRAINING
    one.borrower.take_back(lease)
    await lent.settle()
    assert lent.gate().count == 0
    assert lent.w.manager.require("a").state is not State.DRAINING


async def test_an_engine_is_not_put_to_sleep_before_every_worker_has_let_go(lent: Lent) -> None:
    """A freeze reaches the worker's leases, is told to who asked, and the sleep itself waits for the worker's answer."""
    one = lent.workers[0]
    lease = await lent.lease(one, lent.w.ticket("a"))
    marks: list[bool] = []
    lease.on_freeze = marks.append
    lent.w.manager.require("a").tell(Drain(Goal.SLEEP, 0.0, "test", on_timeout=OnTimeout.FREEZE))
    await lent.w.clock.advance(0.0)
    assert lent.w.manager.require("a").state is State.SUSPENDING
    assert lent.w.sleeps == []
    assert marks == []
    await lent.settle()
    assert marks[:1] == [True]
    assert lent.w.sleeps == [("a", True)]
    assert lent.gate().count == 1


async def test_what_is_taken_away_is_taken_away_in_the_worker_too(lent: Lent) -> None:
    """Its request is cut with the reason, its end does not count twice, and what it gave back meanwhile is void."""
    one = lent.workers[0]
    lease = await lent.lease(one, lent.w.ticket("a"))
    idle = one.borrower.fast_lease(lent.w.ticket("a"))
    assert idle is not None
    lent.w.manager.require("a").tell(Kill("test"))
    one.borrower.take_back(idle)  # on its way while the other was said
    assert lent.gate().count == 0
    await lent.settle()
    assert lease.revoked is not None
    assert lease.revoked.reason is Reason.CUT
    one.borrower.take_back(lease)
    await lent.settle()
    assert one.seat.out == {}
    await lent.w.clock.advance(5.0)
    await lent.w.ready("a")
    again = await lent.lease(one, lent.w.ticket("a"))
    assert again.generation > lease.generation
    assert lent.gate().count == 9


async def test_a_worker_that_is_gone_gives_everything_back(lent: Lent) -> None:
    """Leases, credits and tickets; what it says afterwards is void."""
    one = lent.workers[0]
    lent.w.healthy_at_once = False
    waiting = asyncio.create_task(one.borrower.slow_lease(lent.w.ticket("b")))
    await lent.settle()
    assert lent.w.queue.size == 1
    await lent.lease(one, lent.w.ticket("a"))
    assert one.seat.leave() == 9
    await lent.w.clock.settle()
    assert (lent.gate().count, lent.w.queue.size) == (0, 0)
    waiting.cancel()
    lent.workers.remove(one)


async def test_a_worker_that_does_not_answer_is_ended(lent: Lent) -> None:
    """A recall has its time, and so has a sign of life."""
    one, two = lent.workers
    await lent.lease(one, lent.w.ticket("a"))
    lent.w.manager.require("a").tell(Drain(Goal.STOP, 600.0, "test"))
    await lent.w.clock.advance(lent.office.patience + 0.1)
    assert "did not answer" in one.down.fault
    await lent.w.clock.advance(LOOK_EVERY + lent.office.patience)
    assert "did not answer" in two.down.fault


async def test_those_who_answer_are_not(lent: Lent) -> None:
    await lent.lease(lent.workers[0], lent.w.ticket("a"))
    await lent.pass_time(LOOK_EVERY + lent.office.patience + 1, step=2.0)
    assert [worker.down.fault for worker in lent.workers] == ["", ""]


async def test_a_slot_that_a_worker_keeps_idle_is_for_who_waits(lent: Lent) -> None:
    """`b` takes one request at a time: the second worker has it as soon as the first needs it no more."""
    one, two = lent.workers
    await lent.w.ready("b")
    lease = await lent.lease(one, lent.w.ticket("b"))
    waiting = asyncio.create_task(two.borrower.slow_lease(lent.w.ticket("b")))
    await lent.settle()
    assert not waiting.done()
    one.borrower.take_back(lease)
    await lent.settle()
    assert waiting.done()


async def test_idle_credits_are_recalled_for_who_waits(lent: Lent) -> None:
    """All slots are lent, most of them idle: who comes then waits for one message each way, not for a sweep."""
    one, two = lent.workers
    mine = [await lent.lease(one, lent.w.ticket("a")) for _ in range(20)]
    theirs = [await lent.lease(two, lent.w.ticket("a")) for _ in range(10)]
    while lent.gate().free:
        theirs.append(await lent.lease(two, lent.w.ticket("a")))
    for lease in mine:
        one.borrower.take_back(lease)
    while (more := two.borrower.fast_lease(lent.w.ticket("a"))) is not None:
        theirs.append(more)
    await lent.lease(two, lent.w.ticket("a"))
    assert lent.gate().count <= 40


async def test_idle_credits_come_back_for_who_waits_for_another_model(lent: Lent) -> None:
    """A model that nobody uses may have to go: it is not taken for busy because of what a worker keeps of it."""
    one, two = lent.workers
    one.borrower.take_back(await lent.lease(one, lent.w.ticket("a")))
    await lent.settle()
    assert lent.gate().count == 9
    lent.w.healthy_at_once = False
    waiting = asyncio.create_task(two.borrower.slow_lease(lent.w.ticket("b")))
    await lent.settle()
    assert lent.gate().count == 0
    waiting.cancel()
    await lent.settle()


async def test_who_leaves_while_it_waits_leaves_nothing(lent: Lent) -> None:
    """Its ticket is gone; and a lease that was on its way is given back."""
    one = lent.workers[0]
    lent.w.healthy_at_once = False
    waiting = asyncio.create_task(one.borrower.slow_lease(lent.w.ticket("b")))
    await lent.settle()
    assert lent.w.queue.size == 1
    waiting.cancel()
    await lent.settle()
    assert lent.w.queue.size == 0
    late = asyncio.create_task(one.borrower.slow_lease(lent.w.ticket("a")))
    await lent.w.clock.settle()
    one.seat.heard(one.up.take())  # the controller lends...
    late.cancel()
    await lent.w.clock.settle()
    await lent.settle()  # ...and hears of it later
    await lent.pass_time(3 * lending.SWEEP)
    assert lent.gate().count == 0


async def test_refusals_keep_their_kind_and_their_words(lent: Lent) -> None:
    """What the client is told does not depend on which process tells it."""
    one = lent.workers[0]
    waiting = [asyncio.create_task(one.borrower.slow_lease(lent.w.ticket("b", wait=1.0))) for _ in range(4)]
    await lent.settle()
    with pytest.raises(QueueFull, match=r"queue.max_size") as full:
        await waiting[3]
    assert full.value.retry_after is not None
    lent.w.healthy_at_once = False
    for task in waiting[:3]:
        task.cancel()
    for error in (
        StartFailed("it died", phase="weights", log_tail=("a", "b"), retry_after=3.0),
        StillLoading("not yet", retry_after=2.0, reason=Reason.LOADING),
        UnknownModel("no such"),
    ):
        again = say.error_of(msgspec.msgpack.decode(msgspec.msgpack.encode(say.refused("t", error)), type=say.Refused))
        assert type(again) is type(error)
        assert (again.message, again.retry_after, again.reason) == (error.message, error.retry_after, error.reason)
        assert str(again) == str(error)
    assert isinstance(again, MMError)


async def test_a_controller_that_says_nothing_is_not_waited_for_for_ever(lent: Lent) -> None:
    one = lent.workers[0]
    waiting = asyncio.create_task(one.borrower.slow_lease(lent.w.ticket("a", wait=1.0)))
    await lent.w.clock.advance(1.0 + lending.GRACE + 0.1)
    with pytest.raises(Unavailable, match="does not answer"):
        await waiting


def row(number: int) -> RequestRecord:
    return RequestRecord(
        f"r{number}", "r", 1.0, "/v1/completions", "a", "a", None, False, Outcome.OK, 200, None, 0.0, 0.1, 0.2,
        1, 2, Usage(1, 2, None), 1,
    )  # fmt: skip


async def test_rows_uses_reads_and_routes_go_up(lent: Lent, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches; beyond the bound the oldest rows are given up and counted."""
    monkeypatch.setattr(lending, "ROWS", 100)
    monkeypatch.setattr(lending, "BATCH", 30)
    one, two = lent.workers

    for number in range(lending.ROWS + 5):
        one.borrower.record(row(number))
    one.borrower.learn("f", "/classify", 3)
    await lent.pass_time(2 * lending.GATHER)
    assert [r.id for r in lent.told.rows] == [f"r{n}" for n in range(5, lending.ROWS + 5)]
    assert lent.told.rows[0] == row(5)
    assert (lent.told.lost_rows, lent.office.counts.lost) == (5, 5)
    assert lent.told.routes == two.heard.routes == [("f", "/classify", 3)]
    assert one.heard.routes == []
    one.seat.heard(say.Report([], [], {"a": 7}, 0))
    two.seat.heard(say.Report([], [], {"a": 5}, 0))
    one.seat.heard(say.Report([], [], {"a": 9}, 0))
    assert lent.office.reads("a") == 14


async def test_a_stream_that_a_worker_gives_up_makes_its_engine_prove_itself(lent: Lent) -> None:
    """As one of the controller's own would: the watch probes it, and it is replaced if it makes no token. A suspicion of an earlier launch
    says nothing of this one."""
    process = lent.w.processes["a"]
    lease = await lent.lease(lent.workers[0], lent.w.ticket("a", stream=True))
    probes = len(lent.w.probes)
    lease.suspect()
    lent.workers[0].borrower.take_back(lease)
    await lent.pass_time(10.0)
    assert lent.gate().suspicions == 1
    assert len(lent.w.probes) == probes + 1
    lent.workers[0].up.send(say.Suspect("a", 7, 1))
    lent.workers[0].up.send(say.Suspect("nobody", 1, 1))
    await lent.settle()
    assert lent.gate().suspicions == 1
    process.probe_error = UpstreamTimeout("no token")
    lease = await lent.lease(lent.workers[1], lent.w.ticket("a", stream=True))
    lease.suspect()
    await lent.pass_time(10.0)
    assert process.stopped == 1
    assert isinstance(lease.revoked, RequestCut)


async def test_models_states_and_keys_go_down(lent: Lent) -> None:
    """At the beginning and whenever they change."""
    one = lent.workers[0].borrower
    assert {spec.id for spec in one.catalog} == {"a", "b"}
    assert one.describe("a").state is State.READY
    assert one.describe("b").state is State.STOPPED
    key = Key("k", "name", "digest", frozenset({Scope.INFER}), frozenset({"a"}), revoked_at=3.0)
    lent.office.use_keys((key,))
    lent.w.manager.set_catalog(lent.w.manager.catalog.without("b"))
    await lent.settle()
    assert {spec.id for spec in one.catalog} == {"a"}
    with pytest.raises(UnknownModel):
        one.describe("b")
    assert [worker.heard.all_keys for worker in lent.workers] == [(key,), (key,)]
    late = Worker(lent.w, lent.office)
    late.deliver()
    assert late.heard.all_keys == (key,)
    assert late.borrower.describe("a").state is State.READY
    late.seat.leave()


async def test_a_wait_that_somebody_follows_is_told(lent: Lent) -> None:
    one = lent.workers[0]
    ticket = lent.w.ticket("b", wait=60.0)
    lent.w.healthy_at_once = False
    waiting = asyncio.create_task(one.borrower.slow_lease(ticket))
    await lent.settle()
    one.borrower.follow(ticket, on=True)
    await lent.settle()
    assert one.borrower.wait_info(ticket).position == 1
    one.borrower.follow(ticket, on=False)
    await lent.settle()
    one.down.sent.clear()
    await lent.pass_time(2.0)
    assert "Wait" not in one.down.sent
    waiting.cancel()
    await lent.settle()


async def test_a_worker_that_says_what_cannot_be_is_not_believed(lent: Lent) -> None:
    seat = lent.workers[0].seat
    with pytest.raises(Mistrusted):
        seat.heard(say.Back("a", 0, 1))
    with pytest.raises(Mistrusted):
        seat.heard(say.Ack(5))
    with pytest.raises(Mistrusted):
        seat.heard(say.Hello(say.VERSION + 1, 0))


async def test_a_request_is_cancelled_in_whichever_worker_has_it(lent: Lent) -> None:
    """Each is asked; rows that ended before its answer are there before it; one that dies or says nothing has not had it."""
    lent.workers[1].heard.runs = "mine"
    asking = asyncio.create_task(lent.office.cancel("mine", "ada"))
    await lent.settle()
    assert asking.result()
    lent.workers[0].borrower.record(row(1))
    asking = asyncio.create_task(lent.office.cancel("other", "ada"))
    await lent.settle()
    assert not asking.result()
    assert lent.told.rows == [row(1)]
    asking = asyncio.create_task(lent.office.cancel("mine", "ada"))
    await lent.w.clock.settle()
    lent.workers[1].seat.leave()
    await lent.w.clock.settle()
    assert not asking.done(), "the other may have it"
    await lent.w.clock.advance(lent.office.patience + 1)
    assert not asking.result()
    lent.workers[0].deliver()  # too late, and no fault


async def test_what_is_under_way_is_known_of_all_workers(lent: Lent) -> None:
    """Each tells its own; of one that dies or says nothing there is nothing, and the others' is told all the same."""
    for number, worker in enumerate(lent.workers):
        worker.heard.under_way = Listing([running(f"r{number}", float(number)), running("later", 9.0)], 5)
    asking = asyncio.create_task(lent.office.running(1))
    await lent.settle()
    assert [([r.id for r in found.requests], found.total) for found in asking.result()] == [(["r0"], 5), (["r1"], 5)]
    asking = asyncio.create_task(lent.office.running(1))
    await lent.w.clock.settle()
    lent.workers[1].seat.leave()
    await lent.w.clock.settle()
    assert not asking.done(), "the other will tell"
    lent.workers[0].deliver()
    await lent.w.clock.settle()
    assert [found.total for found in asking.result()] == [5, 0]
    asking = asyncio.create_task(lent.office.running(1))
    await lent.w.clock.settle()
    await lent.w.clock.advance(lent.office.patience + 1)
    assert [found.total for found in asking.result()] == [0]
    lent.workers[0].deliver()  # too late, and no fault


async def test_who_serves_is_known(lent: Lent) -> None:
    assert lent.office.problem() == "2 of 2 workers do not serve"
    for worker in lent.workers:
        worker.seat.heard(say.Serves())
    assert lent.office.problem() is None
