"""One model's instance: an actor around `lifecycle.step`, and the only writer of that instance's state.

Inputs are handled one after another, to the end, in the turn of the event loop in which they arrive; what takes time
(launching, sleeping, stopping) runs as a task of the actor and comes back as a fact with its generation.
"""

import asyncio
import contextlib
import errno
import logging
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.errors import Conflict, MMError
from vllm_mm.domain.lifecycle import Instance, State
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import command, progress
from vllm_mm.engine.lease import LeaseGate
from vllm_mm.engine.notes import note
from vllm_mm.engine.ports import (
    Address,
    EngineProcess,
    ExitStatus,
    Inventory,
    Journal,
    Launcher,
    LaunchPlan,
    LaunchRecord,
    LaunchStore,
)
from vllm_mm.engine.wire import ControlChannel, InferenceChannel

log = logging.getLogger(__name__)

MEMORY_DEADLINE = 30.0
"""Seconds to wait for the memory of a reaped engine to be seen free, before an alert says that it is not."""
HEALTH_MISSES = 3
NOTE_PATIENCE = 2.0
"""Seconds that the end of an engine waits for its row to be deleted; later is harmless, for the row's pid is dead."""
_LASTING = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EROFS, errno.E2BIG,
})  # fmt: skip
ADOPTION_DEADLINE = 10.0
"""Seconds in which an engine of an earlier controller has to prove that it works."""


class InstanceHost(Protocol):
    """What the actor tells its manager. All calls are synchronous and quick."""

    def plan_launch(self, spec: ModelSpec, generation: int) -> LaunchPlan: ...

    def changed(self, instance: "ModelInstance", before: Instance, after: Instance) -> None: ...

    def settled(self, instance: "ModelInstance", *, ok: bool, reason: str) -> None: ...

    def slot_freed(self, model: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What every instance works with."""

    launcher: Launcher
    inventory: Inventory
    store: LaunchStore
    journal: Journal
    clock: Clock
    inference: Callable[[Address, int], InferenceChannel]
    control: Callable[[Address, float], ControlChannel]


def real_channels() -> tuple[Callable[[Address, int], InferenceChannel], Callable[[Address, float], ControlChannel]]:
    """The channels of the product; tests of the actor put others in their place."""
    return (
        lambda address, limit: InferenceChannel(address, limit=limit),
        lambda address, timeout: ControlChannel(address, timeout=timeout),
    )


class ModelInstance:
    """The actor of one model. `tell` it facts and commands; `ask` when the answer matters."""

    def __init__(self, spec: ModelSpec, host: InstanceHost, tools: Tools, timeouts: lc.Timeouts | None = None) -> None:
        self.spec = spec
        self.gate = LeaseGate(spec.id, spec.served_names[0], spec.concurrency, lambda: host.slot_freed(spec.id))
        self._host = host
        self._tools = tools
        self._state = Instance(
            spec.id, since=tools.clock.now(), limits=spec.start, retry=spec.retry, timeouts=timeouts or lc.Timeouts()
        )
        self._inbox: deque[tuple[lc.Input, asyncio.Future[None] | None]] = deque()
        self._busy = False
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        self._process: EngineProcess | None = None
        self._launching: asyncio.Task[EngineProcess] | None = None
        self._plan: LaunchPlan | None = None
        self._distrusted = False
        self._channel: InferenceChannel | None = None
        self._control: ControlChannel | None = None
        self._unfollow: Callable[[], None] | None = None
        self._failure: progress.KnownFailure | None = None
        self._phases: dict[str, float] = {}
        self._phase_began = 0.0
        self._started_wall = 0.0
        self._fingerprint_answer: str | None = None
        self.facts: dict[str, Any] = {}
        """What the log of this launch told: weights, KV cache, version (see `progress`)."""
        self.memory = 0
        """Bytes that the process tree used when it was last measured."""
        self.last_tail: tuple[str, ...] = ()
        """The last lines of the log of the launch that ended last."""

    # What others may read. Nothing that they decide may depend on it staying so.

    @property
    def state(self) -> State:
        return self._state.state

    @property
    def snapshot(self) -> Instance:
        return self._state

    @property
    def pid(self) -> int | None:
        return self._process.record.pid if self._process is not None else None

    @property
    def record(self) -> LaunchRecord | None:
        return self._process.record if self._process is not None else None

    @property
    def launcher(self) -> str:
        """How its process came into being; see `ports.EngineProcess.launcher`. Empty without a process."""
        return self._process.launcher if self._process is not None else ""

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds spent in each phase of the current or last load."""
        return self._phases

    def tail(self, lines: int) -> tuple[str, ...]:
        """The last lines of the engine's log."""
        if self._process is not None:
            return self._process.tail(lines)
        return self.last_tail[-lines:] if lines else ()

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        """Log lines from now on; raises Conflict when there is no process."""
        if self._process is None:
            raise Conflict(f"{self.spec.id} is {self.state.value}: there is no process whose log could be followed")
        return self._process.follow(on_line)

    async def measure(self) -> int:
        """Bytes that the process tree uses now; 0 without a process. Reads /proc, in a thread; `memory` has it afterwards."""
        process = self._process
        self.memory = await asyncio.to_thread(process.rss) if process is not None else 0
        return self.memory

    async def metrics(self) -> str:
        """The engine's own Prometheus text; empty unless READY or DRAINING. Never counts as use."""
        if self._control is None or self.state not in {State.READY, State.DRAINING}:
            return ""
        return await self._control.metrics()

    # Inputs.

    def tell(self, event: lc.Input) -> None:
        """Handle `event` now, or right after the one that is being handled."""
        self._inbox.append((event, None))
        self._work()

    async def ask(self, command: lc.Input) -> None:
        """Like `tell`; raises Conflict when the state refuses the command."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.append((command, answer))
        self._work()
        await answer

    def replace_spec(self, spec: ModelSpec) -> None:
        """A changed declaration; takes effect at the next launch. The caller drains first where it must."""
        self.spec = spec
        self.gate.limit = spec.concurrency
        self._state = replace(self._state, limits=spec.start, retry=spec.retry)

    async def adopt(self, process: EngineProcess) -> bool:
        """Take over a running engine of an earlier controller; False, and nothing changed, when it is of no use."""
        control = self._tools.control(self._address(process.record), ADOPTION_DEADLINE)
        try:
            async with asyncio.timeout(ADOPTION_DEADLINE):
                if not await self._answers(control):
                    return False
                asleep = await _sleeps(control)
                if not asleep:
                    self._fingerprint_answer = await control.probe(self.gate.engine_name, self.spec.task)
        except (MMError, TimeoutError):
            return False
        finally:
            await control.close()
        self._attach(process)
        self.gate.last_used = self._tools.clock.now()  # nobody knows when it was; a sleeper's gate stays closed
        self._started_wall = process.record.started_at
        await self.ask(lc.Adopt(process.record.generation, "adopted at boot", asleep=asleep))
        return True

    async def hand_over(self) -> None:
        """Let go of the process without touching it, for the next controller."""
        process, self._process = self._process, None
        await self.close()
        if process is not None:
            await self._write_at_last(process.record)
            await process.close()

    async def _write_at_last(self, record: LaunchRecord) -> None:
        """Once more, for the database may not have taken it yet: without its row an engine is not adopted."""
        try:
            async with asyncio.timeout(ADOPTION_DEADLINE):
                await self._tools.store.save(record)
        except Exception:
            log.exception("%s: its process is not written down, so it will be ended instead of adopted", self.spec.id)

    async def close(self) -> None:
        """End the actor's tasks; the process must be gone or handed over."""
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._drop_channels()

    def _work(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                event, answer = self._inbox.popleft()
                self._handle(event, answer)
        finally:
            self._busy = False

    def _handle(self, event: lc.Input, answer: asyncio.Future[None] | None) -> None:
        before = self._state
        after, effects = lc.step(before, event, self._tools.clock.now())
        self._state = after
        if after.progress.phase != before.progress.phase and before.state is State.STARTING:
            self._close_phase(before.progress.phase)
        if after.state is not before.state:
            self._entered(before, after)
        refused: str | None = None
        for effect in effects:
            if isinstance(effect, lc.Refuse):
                refused = effect.reason
            else:
                self._perform(effect)
        if after is not before or isinstance(event, lc.Tick):
            self._arm()  # after a tick in any case: a loop's timer may fire a moment before its time
        if after is not before:
            self._host.changed(self, before, after)
        if answer is not None and not answer.done():
            if refused is None:
                answer.set_result(None)
            else:
                answer.set_exception(Conflict(refused))

    def _entered(self, before: Instance, after: Instance) -> None:
        if before.state in lc.LOADING or before.state is State.READY:
            self._stop_watching()
        if after.state is State.READY:
            self._watch(self._monitor(after.generation))
        if before.state is State.STARTING:
            self._close_phase(before.progress.phase)
            self._remember_start(before, after)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = lc.next_tick(self._state)
        if when is not None:
            self._timer = self._tools.clock.call_at(when, lambda: self.tell(lc.Tick()))

    # Effects.

    def _perform(self, effect: lc.Effect) -> None:
        now = self._tools.clock.now()
        generation = self._state.generation
        match effect:
            case lc.Spawn():
                self._spawn(generation)
            case lc.OpenGate():
                if self._channel is None:
                    address = self._address(self._require_process().record)
                    self._channel = self._tools.inference(address, self.spec.concurrency)
                    self.gate.open(self._channel, generation, now)
                else:
                    self.gate.reopen(now)
            case lc.CloseGate():
                self.gate.close(lambda: self.tell(lc.LeasesGone(generation)), now)
            case lc.RevokeLeases():
                cut = self.gate.revoke(died=effect.died, reason=effect.reason)
                if cut:
                    self._emit("lease.revoked", data={"count": cut, "died": effect.died, "reason": effect.reason})
            case lc.Suspend():
                self._run(self._suspend(generation))
            case lc.WakeEngine():
                self._watch(self._wake(generation))
            case lc.StopProcess():
                self._run(self._stop(generation, graceful=effect.graceful))
            case lc.KillAgain():
                self._run(self._stop(generation, graceful=False))
            case lc.Settle():
                self._host.settled(self, ok=effect.ok, reason=effect.reason)
            case lc.Emit():
                self._emit(effect.kind, cause=effect.cause, data=effect.data)
            case lc.Refuse():
                pass

    def _emit(self, kind: str, *, cause: str = "", data: Mapping[str, Any] | None = None) -> None:
        self._tools.journal.emit(kind, model=self.spec.id, cause=cause, data=data)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that has to come to its end whatever the state becomes."""
        return self._keep(self._tasks, work)

    def _note(
        self, what: str, write: Callable[[], Coroutine[Any, Any, None]], *, wanted: Callable[[], bool] | None = None
    ) -> asyncio.Task[None]:
        """Write something down that no engine has to wait for, or to suffer for."""
        return self._run(note(write, self._tools.clock, f"{self.spec.id}: {what}", wanted=wanted))

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that belongs to the present state and is dropped with it."""
        self._keep(self._watchers, work)

    def _keep(self, group: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        group.add(task)
        task.add_done_callback(group.discard)
        task.add_done_callback(self._report)
        return task

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a task of the instance failed", self.spec.id, exc_info=error)
            self.tell(lc.Unhealthy(self._state.generation, f"internal error: {error!r}"))

    def _stop_watching(self) -> None:
        current = asyncio.current_task()
        for task in tuple(self._watchers):
            if task is not current:
                task.cancel()

    # Launching.

    def _spawn(self, generation: int) -> None:
        self._failure = None
        self._phases = {}
        self.facts = {}
        self._phase_began = self._tools.clock.now()
        self._started_wall = self._tools.clock.wall()
        self._fingerprint_answer = None
        self._watch(self._launch(generation))

    async def _launch(self, generation: int) -> None:
        try:
            plan = self._host.plan_launch(self.spec, generation)
        except (OSError, MMError) as error:
            self.tell(lc.Exited(generation, f"could not be started: {error}", permanent=_permanent(error)))
            return
        self._plan, self._distrusted = plan, False
        await self._start(generation, plan)

    async def _start(self, generation: int, plan: LaunchPlan) -> None:
        try:
            self._launching = asyncio.get_running_loop().create_task(self._tools.launcher.start(plan))
            # Shielded: if the load is called off meanwhile, `_stop` still has to find and end what was started.
            process = await asyncio.shield(self._launching)
        except (OSError, MMError) as error:
            self._launching = None
            self.tell(lc.Exited(generation, f"could not be started: {error}", permanent=_permanent(error)))
            return
        if self._state.generation != generation or self._state.state is not State.STARTING:
            return
        self._launching = None
        self._attach(process)
        self._note(
            "its process", lambda: self._tools.store.save(process.record), wanted=lambda: self._process is process
        )
        await self._until_ready(generation)

    def _attach(self, process: EngineProcess) -> None:
        self._process = process
        self._control = self._tools.control(self._address(process.record), self.spec.start.probe)
        generation = process.record.generation
        self._unfollow = process.follow(lambda line: self._on_line(generation, line))
        for line in process.tail(200):  # one that ends at once has said why before anybody listened
            self._on_line(generation, line)
        self._run(self._watch_exit(process))

    async def _watch_exit(self, process: EngineProcess) -> None:
        status = await process.exited()
        generation = process.record.generation
        if self._state.generation != generation or self._state.state in {State.STOPPING, State.STOPPED}:
            return
        self.last_tail = process.tail(200)
        known = self._failure if self._state.state in lc.LOADING else None
        if known is None and await self._another_way(process, status):
            return
        detail = f"{known.message} ({status}). {known.advice}" if known is not None else f"the engine {status} unasked"
        if known is None and self.last_tail and self._state.state in lc.LOADING:
            detail += "; last lines: " + " | ".join(line.strip() for line in self.last_tail[-3:])
        self.tell(lc.Exited(generation, detail, permanent=known is not None and known.permanent))

    async def _another_way(self, process: EngineProcess, status: ExitStatus) -> bool:
        """A start that ended for no reason that was recognised, from a launcher that has another way: try that at once, in
        the same load. Not after a kill from outside: that says nothing about the launcher."""
        plan, generation = self._plan, process.record.generation
        if plan is None or self._state.state is not State.STARTING:
            return False
        if self._distrusted:
            self._tools.launcher.vindicate(plan)
            return False
        if process.launcher == "local" or status.signal in {signal.SIGKILL, signal.SIGTERM}:
            return False
        last = " | ".join(line.strip() for line in process.tail(3))
        if not self._tools.launcher.distrust(plan, f"a {process.launcher} start {status}; last lines: {last}"):
            return False
        self._distrusted = True
        self._stop_watching()  # whoever asks the process that died whether it is ready
        report = await process.stop(graceful=False, grace=0, deadline=self._state.timeouts.stop)
        if self._state.generation != generation or self._state.state is not State.STARTING:
            return True  # called off meanwhile, and whoever did that has stopped the process too
        if report.survivors:
            return False
        self._drop_channels()
        self._process = None
        self._watch(self._start(generation, plan))
        return True

    def _on_line(self, generation: int, line: str) -> None:
        if self._state.state is not State.STARTING or self._state.generation != generation:
            return
        info = progress.parse(line)
        if info is None:
            self.tell(lc.Progressed(generation))
            return
        if info.failure is not None and (self._failure is None or info.failure.permanent):
            self._failure = info.failure
        self.facts.update(info.facts)
        if info.phase:
            self.tell(lc.Progressed(generation, lc.Progress(info.phase, info.percent)))
        else:
            self.tell(lc.Progressed(generation))

    async def _until_ready(self, generation: int) -> None:
        """Healthy *and* able to produce one token. How long it may take is the lifecycle's business."""
        control, delay = self._require_control(), 0.03
        while True:
            if await self._answers(control):
                if self._state.progress.phase != "probe":  # once: being asked again and again is no sign of life
                    self.tell(lc.Progressed(generation, lc.Progress("probe")))
                try:
                    self._fingerprint_answer = await control.probe(self.gate.engine_name, self.spec.task)
                except MMError as error:
                    log.info("%s: healthy, but the probe failed: %s", self.spec.id, error)
                else:
                    self.tell(lc.BecameReady(generation))
                    return
            await self._tools.clock.sleep(delay)
            delay = min(delay * 1.3, 0.5)

    async def _answers(self, control: ControlChannel) -> bool:
        if await control.healthy():
            return True
        if self.spec.engine is not EngineKind.COMMAND:
            return False
        try:  # Not every OpenAI-compatible server has /health.
            await control.models()
        except MMError:
            return False
        return True

    def _close_phase(self, phase: str) -> None:
        now = self._tools.clock.now()
        warm = self._process is not None and self._process.launcher == "warm"
        name = phase or ("fork" if warm else "spawn")
        self._phases[name] = round(self._phases.get(name, 0.0) + now - self._phase_began, 3)
        self._phase_began = now

    def _remember_start(self, before: Instance, after: Instance) -> None:
        ready = after.state is State.READY
        outcome = "ready" if ready else "failed" if after.then is not lc.Then.STOPPED else "cancelled"
        process, plan = self._process, self._plan
        if (
            outcome == "failed"
            and self._failure is None
            and plan is not None
            and process is not None
            and process.launcher not in {"local", ""}
        ):
            # A hang, say: what no exit told.
            self._distrusted = self._tools.launcher.distrust(plan, after.reason)
        began, ended, phases = self._started_wall, self._tools.clock.wall() if ready else None, dict(self._phases)
        self._note(
            "its start",
            lambda: self._tools.store.record_start(
                self.spec.id, before.generation, began, ended, phases, outcome, after.reason
            ),
        )

    # Ready.

    async def _monitor(self, generation: int) -> None:
        """Notice an engine that lives but is of no use."""
        control, misses, reads, quiet_since = self._require_control(), 0, -1, self._tools.clock.now()
        while True:
            await self._tools.clock.sleep(self._state.timeouts.health)
            misses = 0 if await self._answers(control) else misses + 1
            if misses >= HEALTH_MISSES:
                self.tell(lc.Unhealthy(generation, f"health did not answer {misses} times in a row"))
                return
            now, before = self._tools.clock.now(), reads
            reads = self._channel.reads if self._channel is not None else 0
            if reads != before or not self.gate.count:
                quiet_since = now
            if now - quiet_since < self._state.timeouts.stuck:
                continue
            try:
                await control.probe(self.gate.engine_name, self.spec.task)
                quiet_since = self._tools.clock.now()
            except MMError as error:
                detail = (
                    f"{self.gate.count} requests got nothing for {now - quiet_since:.0f} s and a probe failed: {error}"
                )
                self.tell(lc.Unhealthy(generation, detail))
                return

    async def _suspend(self, generation: int) -> None:
        control = self._require_control()
        try:
            await control.sleep(1)
            if not await control.is_sleeping():
                raise Conflict("the engine says that it is not asleep")
        except MMError as error:
            self.tell(lc.Unhealthy(generation, f"it would not sleep: {error}"))
            return
        self.tell(lc.FellAsleep(generation))

    async def _wake(self, generation: int) -> None:
        control = self._require_control()
        try:
            await control.wake()
            answer = await control.probe(self.gate.engine_name, self.spec.task)
        except MMError as error:
            self.tell(lc.Unhealthy(generation, f"it would not wake: {error}"))
            return
        if self._fingerprint_answer is not None and answer != self._fingerprint_answer:
            detail = f"it answers differently after its sleep ({answer!r}, before {self._fingerprint_answer!r})"
            self.tell(lc.Unhealthy(generation, detail))
            return
        self._fingerprint_answer = answer
        self.tell(lc.BecameReady(generation))

    # Stopping.

    async def _stop(self, generation: int, *, graceful: bool) -> None:
        """The whole tree gone, the memory seen free, the row forgotten: then, and only then, `Reaped`."""
        self._drop_channels()
        process = await self._whatever_started()
        if process is not None:
            before = {d.id: d.foreign for d in self._tools.inventory.devices()}
            times = self._state.timeouts
            report = await process.stop(graceful=graceful, grace=times.grace, deadline=times.stop)
            self.last_tail = process.tail(200)
            for pid, name in report.orphans:
                self._emit("orphan.swept", data={"pid": pid, "name": name, "generation": generation})
            if report.survivors:
                pids = ", ".join(map(str, report.survivors))
                self._emit("alert.survivors", data={"pids": list(report.survivors), "reason": f"cannot kill {pids}"})
                return  # The deadline of STOPPING kills again.
            held = dict(process.record.device_bytes)
            if not await self._tools.inventory.wait_free(held, before, MEMORY_DEADLINE):
                self._emit("alert.memory_not_back", data={"devices": sorted(held), "waited_s": MEMORY_DEADLINE})
        await self._forget(generation)
        if self._state.generation != generation or self._state.state is not State.STOPPING:
            return  # A second stop of the same launch, and the first one has told.
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        self._process = None
        self.memory = 0
        self.tell(lc.Reaped(generation))
        if process is not None:
            await process.close()

    async def _forget(self, generation: int) -> None:
        forgotten = self._note("its end", lambda: self._tools.store.forget(self.spec.id, generation))
        patience = asyncio.ensure_future(self._tools.clock.sleep(NOTE_PATIENCE))
        try:
            await asyncio.wait({forgotten, patience}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()

    async def _whatever_started(self) -> EngineProcess | None:
        if self._launching is not None:
            with contextlib.suppress(OSError, MMError):
                self._process = await self._launching
            self._launching = None
        return self._process

    def _drop_channels(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._control is not None:
            control, self._control = self._control, None
            self._run(control.close())

    def _address(self, record: LaunchRecord) -> Address:
        return replace(record.address, key=command.engine_key(self.spec, record.token))

    def _require_process(self) -> EngineProcess:
        if self._process is None:
            raise RuntimeError(f"{self.spec.id} is {self.state.value} without a process")
        return self._process

    def _require_control(self) -> ControlChannel:
        if self._control is None:
            raise RuntimeError(f"{self.spec.id} is {self.state.value} without a control channel")
        return self._control


def _permanent(error: OSError | MMError) -> bool:
    """Whether only a change can mend a launch that did not come about; a system that is short of something recovers."""
    return not isinstance(error, OSError) or error.errno in _LASTING


async def _sleeps(control: ControlChannel) -> bool:
    """Engines without sleep mode have no such route; they are awake."""
    try:
        return await control.is_sleeping()
    except MMError:
        return False
