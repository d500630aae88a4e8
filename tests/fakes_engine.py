"""A whole engine layer without processes: real manager, queue, actors and gates; fake launcher, channels and clock.

For the logic only. Everything about processes and sockets is tested with real ones (tests/process, tests/integration).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from fakes import FakeClock
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import MMError, UpstreamDied
from vllm_mm.domain.estimates import Kind, Times
from vllm_mm.domain.events import Event
from vllm_mm.domain.footprint import Learned
from vllm_mm.domain.launches import Address, LaunchRecord
from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.sleep import Experience
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec, Task
from vllm_mm.engine.instance import Tools
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.policy import Places, Policy
from vllm_mm.engine.ports import ExitStatus, ForeignProcess, LaunchPlan, Loss, SweepReport
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.engine.wire import ResponseSink, UpstreamRequest


class FakeProcess:
    """An engine that becomes healthy when the test says so."""

    def __init__(self, record: LaunchRecord, world: "World") -> None:
        self.record = record
        self.launcher = "local"
        self.world = world
        self.healthy = world.healthy_at_once
        if takes := world.pace.get((record.model, Kind.START)):
            self.healthy = False
            world.clock.call_at(world.clock.now() + takes, lambda: setattr(self, "healthy", True))
        self.probe_error: MMError | None = None
        self.metrics: list[str] = []
        """What /metrics says, one text each time, and the last one from then on."""
        self.asleep = False
        self.keeps_requests = True
        self.answer = "Paris"
        self.wakes: list[tuple[str, ...]] = []
        """The tags of each wake-up call."""
        self.sleep_error: MMError | None = None
        self.wake_error: MMError | None = None
        self.wake_hold = asyncio.Event()
        self.wake_hold.set()
        self.frees = True
        """Whether sleep gives memory back."""
        self.gone: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self.part_gone: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self.stopped = 0
        self.memory = 0
        self.release_stop = asyncio.Event()
        self.lines: list[str] = []
        self.unread: list[str] = []
        """Lines that nobody has looked at yet."""
        self._followers: list[Callable[[str], None]] = []
        if not world.hold_stops:
            self.release_stop.set()

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        self._followers.append(on_line)
        return lambda: self._followers.remove(on_line) if on_line in self._followers else None

    def log(self, line: str) -> None:
        self.lines.append(line)
        for follower in tuple(self._followers):
            follower(line)

    @property
    def written(self) -> int:
        return len(self.lines)

    def read_log(self) -> None:
        while self.unread:
            self.log(self.unread.pop(0))

    def tail(self, lines: int) -> tuple[str, ...]:
        return tuple(self.lines[-lines:])

    def rss(self) -> int:
        return self.memory

    @property
    def pids(self) -> Collection[int]:
        return (self.record.pid,)

    async def exited(self) -> ExitStatus:
        return await asyncio.shield(self.gone)

    def die(self, code: int = 0) -> None:
        if not self.gone.done():
            self.gone.set_result(ExitStatus(code))

    async def lost(self) -> Loss:
        return await asyncio.shield(self.part_gone)

    async def take_stock(self) -> None:
        pass

    def lose_part(self, status: ExitStatus, name: str = "VLLM::EngineCore") -> None:
        """A process below the leader dies; the leader does not notice."""
        self.part_gone.set_result(Loss(4321, name, status))

    async def stop(self, *, graceful: bool, grace: float, deadline: float) -> SweepReport:
        self.stopped += 1
        await self.release_stop.wait()
        await self.world.takes(self.record.model, Kind.STOP)
        self.die(143)
        self.world.running.discard(self.record.model)
        return SweepReport()

    async def close(self) -> None:
        pass


class FakeLauncher:
    def __init__(self, world: "World") -> None:
        self.world = world

    async def start(self, plan: LaunchPlan) -> FakeProcess:
        await asyncio.sleep(0)
        if (error := self.world.launch_errors.get(plan.model)) is not None:
            raise error
        assert plan.model not in self.world.running, f"{plan.model} was started twice"
        self.world.starts.append(plan.model)
        self.world.running.add(plan.model)
        self.world.most_running = max(self.world.most_running, len(self.world.running))
        record = LaunchRecord(
            plan.model, plan.generation, plan.token, 1000 + len(self.world.starts), 1, "boot", plan.address,
            plan.workdir, plan.log, plan.fingerprint, plan.device_bytes, 0.0,
        )  # fmt: skip
        process = FakeProcess(record, self.world)
        self.world.processes[plan.model] = process
        self.world.by_address[str(plan.address)] = process
        return process

    def distrust(self, plan: LaunchPlan, reason: str) -> bool:
        return False

    def vindicate(self, plan: LaunchPlan) -> None:
        pass

    async def adopt(self, record: LaunchRecord) -> FakeProcess | None:
        process = self.world.processes.get(record.model)
        return process if process is not None and not process.gone.done() else None

    async def sweep(self, record: LaunchRecord, deadline: float) -> SweepReport:
        return SweepReport()

    async def sweep_unknown(self, keep: frozenset[str], deadline: float) -> SweepReport:
        return SweepReport()


class FakeControl:
    def __init__(self, world: "World", address: Address) -> None:
        self.world = world
        self.process = world.by_address[str(address)]

    def listens(self) -> bool:
        return not self.process.gone.done()

    async def healthy(self) -> bool:
        return self.process.healthy and not self.process.gone.done()

    async def probe(self, model: str, task: Task) -> str:
        if self.process.probe_error is not None:
            raise self.process.probe_error
        self.world.probes.append(model)
        return self.process.answer

    async def sleep(self, level: int, *, keep: bool = False) -> None:
        if self.process.sleep_error is not None:
            raise self.process.sleep_error
        self.world.sleeps.append((self.process.record.model, keep))
        await self.world.takes(self.process.record.model, Kind.SLEEP)
        self.process.asleep = True
        self.process.wakes.append((f"level {level}",))

    async def keeps_requests(self) -> bool:
        return self.process.keeps_requests

    async def wake(self, tags: Sequence[str] = ()) -> None:
        await self.process.wake_hold.wait()
        await self.world.takes(self.process.record.model, Kind.WAKE)
        if self.process.wake_error is not None:
            raise self.process.wake_error
        self.process.asleep = False
        self.process.wakes.append(tuple(tags))

    async def reload_weights(self) -> None:
        self.process.wakes.append(("reload",))

    async def reset_prefix_cache(self) -> None:
        self.process.wakes.append(("reset",))

    async def is_sleeping(self) -> bool:
        return self.process.asleep

    async def metrics(self) -> str:
        texts = self.process.metrics
        return texts.pop(0) if len(texts) > 1 else "".join(texts)

    async def models(self) -> Sequence[dict[str, Any]]:
        raise UpstreamDied("no such route", sent=True, started=False)

    async def version(self) -> str:
        return "fake"

    async def close(self) -> None:
        pass


class FakeExchange:
    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.aborted_with: BaseException | None = None
        self.at_boundary, self.sent_again, self.paused = True, False, False

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def abort(self, error: BaseException) -> None:
        if not self.done.done():
            self.aborted_with = error
            self.done.set_exception(error)
            self.done.exception()


class FakeChannel:
    def __init__(self, world: "World", address: Address) -> None:
        self.world = world
        self.process = world.by_address[str(address)]
        self.address = address
        self.reads = 0

    def send(self, request: UpstreamRequest, sink: ResponseSink) -> FakeExchange:
        assert self.process.record.model in self.world.running, "a request reached an engine that does not run"
        exchange = FakeExchange()
        self.world.exchanges.append(exchange)
        return exchange

    def close(self) -> None: ...


class FakeInventory:
    def __init__(self, world: "World", devices: Sequence[Device]) -> None:
        self._world = world
        self._devices = tuple(devices)
        self.strangers: list[ForeignProcess] = []
        self.used: dict[str, int] = {}
        """What every engine is said to use."""

    def devices(self) -> Sequence[Device]:
        return self._devices

    def change(self, device: str, **changes: Any) -> None:
        """The next look shows it so."""
        self._devices = tuple(replace(d, **changes) if d.id == device else d for d in self._devices)

    def foreign_processes(self) -> Sequence[ForeignProcess]:
        return self.strangers

    def age(self) -> float:
        return inf

    async def refresh(self, deadline: float = 5.0) -> Sequence[Device]:
        return self._devices

    def use(self, pids: Collection[int]) -> Mapping[str, int]:
        return self.used

    async def wait_free(self, device_bytes: Mapping[str, int], before: Mapping[str, int], deadline: float) -> bool:
        return True

    async def held(self, token: str) -> Mapping[str, int]:
        """What was reserved; asleep a tenth of it."""
        [process] = [p for p in self._world.processes.values() if p.record.token == token]
        share = 10 if process.asleep and process.frees else 1
        return {device: size // share for device, size in process.record.device_bytes.items()}


class FakeStore:
    def __init__(self) -> None:
        self.rows: dict[str, LaunchRecord] = {}
        self.starts: list[tuple[str, str]] = []
        self.timings: dict[tuple[str, Kind], tuple[float, ...]] = {}
        self.known_times: dict[str, Times] = {}
        self.learned: dict[tuple[str, str], Learned] = {}
        self.slept_before: dict[tuple[str, int], Experience] = {}
        self.hold: asyncio.Event | None = None
        self.error: Exception | None = None

    async def save(self, record: LaunchRecord) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.rows[record.model] = record

    async def forget(self, model: str, generation: int) -> None:
        row = self.rows.get(model)
        if row is not None and row.generation == generation:
            del self.rows[model]

    async def all(self) -> Sequence[LaunchRecord]:
        return tuple(self.rows.values())

    async def footprints(self) -> Mapping[tuple[str, str], Learned]:
        return dict(self.learned)

    async def learn(self, fingerprint: str, devices: str, known: Learned) -> None:
        self.learned[fingerprint, devices] = known

    async def sleeps(self) -> Mapping[tuple[str, int], Experience]:
        return dict(self.slept_before)

    async def slept(self, fingerprint: str, known: Experience) -> None:
        self.slept_before[fingerprint, known.terms.level] = known

    async def record_start(
        self, model: str, generation: int, started_at: float, ready_at: float | None,
        phases: Mapping[str, float], outcome: str, reason: str, launcher: str = "",
    ) -> None:  # fmt: skip
        self.starts.append((model, outcome))

    async def took(self, model: str, kind: Kind, seconds: Sequence[float]) -> None:
        self.timings[model, kind] = tuple(seconds)

    async def times(self) -> Mapping[str, Times]:
        return self.known_times


class ListJournal:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(
        self, kind: str, *, model: str | None = None, cause: str = "", data: Mapping[str, Any] | None = None
    ) -> Event:
        event = Event(len(self.events) + 1, 0.0, kind, model, cause, data or {})
        self.events.append(event)
        return event

    def kinds(self, model: str) -> list[str]:
        return [e.kind for e in self.events if e.model == model]


@dataclass
class World:
    """The engine layer under test and what happened in it."""

    clock: FakeClock
    manager: ProcessManager = field(init=False)
    inventory: FakeInventory = field(init=False)
    queue: InferenceQueue = field(init=False)
    store: FakeStore = field(default_factory=FakeStore)
    journal: ListJournal = field(default_factory=ListJournal)
    starts: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    most_running: int = 0
    processes: dict[str, FakeProcess] = field(default_factory=dict)
    by_address: dict[str, FakeProcess] = field(default_factory=dict)
    probes: list[str] = field(default_factory=list)
    sleeps: list[tuple[str, bool]] = field(default_factory=list)
    """Of each engine that was put to sleep: its model, and whether it kept its requests."""
    exchanges: list[FakeExchange] = field(default_factory=list)
    launch_errors: dict[str, Exception] = field(default_factory=dict)
    healthy_at_once: bool = True
    hold_stops: bool = False
    pace: dict[tuple[str, Kind], float] = field(default_factory=dict)
    """Seconds that something takes of a model; no time at all where nothing is said."""
    _ids: int = 0

    async def takes(self, model: str, kind: Kind) -> None:
        if seconds := self.pace.get((model, kind)):
            await self.clock.sleep(seconds)

    def ticket(self, model: str, *, wait: float = 30.0, stream: bool = False, priority: int = 0) -> Ticket:
        self._ids += 1
        now = self.clock.now()
        return Ticket(f"t{self._ids}", model, now, now + wait, stream=stream, priority=priority)

    async def ready(self, *models: str) -> None:
        """Load these and wait until they are READY."""
        for model in models:
            await self.manager.start(model, "test")
        await self.clock.advance(1.0)
        for model in models:
            assert self.manager.require(model).state == "ready", self.manager.describe(model)


async def get(w: World, ticket: Ticket) -> str:
    """A request that needs a lease and is done at once."""
    async with w.manager.lease(ticket) as lease:
        return lease.model


def model(name: str, gib: float = 10, **changes: Any) -> ModelSpec:
    spec = ModelSpec(name, engine=EngineKind.COMMAND, command=("engine", "{socket}"), memory=int(gib * GIB))
    return replace(spec, **changes)


@contextlib.asynccontextmanager
async def world(
    *specs: ModelSpec, capacity: float = 24, devices: Sequence[Device] | None = None, policy: Policy | None = None
) -> AsyncIterator[World]:
    """One device of `capacity` GiB unless `devices` are given."""
    it = World(FakeClock())
    it.inventory = FakeInventory(it, devices or [Device("gpu0", int(capacity * GIB), kind="test")])
    tools = Tools(
        launcher=FakeLauncher(it),
        inventory=it.inventory,
        store=it.store,
        journal=it.journal,
        clock=it.clock,
        inference=lambda address, _limit: FakeChannel(it, address),  # type: ignore[arg-type,return-value]
        control=lambda address, _timeout: FakeControl(it, address),  # type: ignore[arg-type,return-value]
    )
    here = Path("/nonexistent")
    places = Places("owner", here / "run", here / "logs", here / "cache", here / "sim", "python", {})
    policy = policy or Policy()
    it.manager = ProcessManager(Catalog(specs), tools, policy, places)
    it.queue = InferenceQueue(it.manager, it.clock, policy)
    it.manager.attach(it.queue)
    it.queue.start()
    try:
        yield it
    finally:
        await it.queue.close()
        for instance in it.manager.instances():
            await instance.close()
