"""One model's instance: an actor around `lifecycle.step`, and the only writer of that instance's state.

Inputs are handled one after another, to the end, in the turn of the event loop in which they arrive; what takes time
(launching, sleeping, stopping) runs as a task of the actor and comes back as a fact with its generation.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.errors import Conflict
from vllm_mm.domain.lifecycle import Instance, State
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine import progress
from vllm_mm.engine.lease import LeaseGate
from vllm_mm.engine.notes import note
from vllm_mm.engine.ports import EngineProcess, LaunchPlan, LaunchRecord
from vllm_mm.engine.run import ADOPTION_DEADLINE, Run
from vllm_mm.engine.tasks import Tasks
from vllm_mm.engine.tools import Tools, real_channels

if TYPE_CHECKING:
    from vllm_mm.clock import Timer

__all__ = ["InstanceHost", "ModelInstance", "Tools", "real_channels"]

log = logging.getLogger(__name__)

_SLEEP = frozenset({State.SUSPENDING, State.SLEEPING, State.WAKING})


class InstanceHost(Protocol):
    """What the actor tells its manager. All calls are synchronous and quick."""

    def plan_launch(self, spec: ModelSpec, generation: int) -> LaunchPlan: ...

    def changed(self, instance: "ModelInstance", before: Instance, after: Instance) -> None: ...

    def settled(self, instance: "ModelInstance", *, ok: bool, reason: str) -> None: ...

    def judged(self, instance: "ModelInstance", verdict: lc.Judge) -> None: ...

    def slot_freed(self, model: str) -> None: ...

    def gives_more(self, instance: "ModelInstance") -> bool: ...

    async def host_room(self) -> str:
        """Wait until the host has the memory that its sleepers were promised; why it has not, or empty."""
        ...


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
        self.tasks = Tasks(self._task_failed, lambda: self._state.generation)
        """Of this actor and of its runs."""
        self._run: Run | None = None
        """The present launch, or the last one."""
        self._next: ModelSpec | None = None
        """A changed declaration that the present launch, or its sleep, keeps out."""

    # What others may read. Nothing that they decide may depend on it staying so.

    @property
    def state(self) -> State:
        return self._state.state

    @property
    def snapshot(self) -> Instance:
        return self._state

    @property
    def record(self) -> LaunchRecord | None:
        return self._run.record if self._run is not None else None

    @property
    def pid(self) -> int | None:
        return self.record.pid if self.record is not None else None

    @property
    def launcher(self) -> str:
        """How its process came into being; see `ports.EngineProcess.launcher`. Empty without a process."""
        process = self._process
        return process.launcher if process is not None else ""

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds spent in each phase of the current or last load."""
        return self._run.log.phases if self._run is not None else {}

    @property
    def facts(self) -> Mapping[str, progress.Fact]:
        """What the log of the current or last launch told: weights, KV cache, version (see `progress`)."""
        return self._run.log.facts if self._run is not None else {}

    @property
    def size(self) -> int | None:
        """Bytes that its process takes on each of its devices when it is awake: what it was launched with, or more if more was
        seen. None without a process."""
        record = self.record
        if record is None or self._run is None or not record.device_bytes:
            return None
        return max(*record.device_bytes.values(), self._run.seen)

    def saw(self, used: Mapping[str, int]) -> None:
        """Its process takes that much (bytes) on these devices."""
        if self._run is not None:
            self._run.seen = max(self._run.seen, *used.values())

    @property
    def memory(self) -> int:
        """Bytes that the process tree used when it was last measured."""
        return self._run.memory if self._run is not None else 0

    @property
    def pids(self) -> Collection[int]:
        """Of the process tree when it was last measured."""
        return self._run.pids if self._run is not None else ()

    def tail(self, lines: int) -> tuple[str, ...]:
        """The last lines of the log of the current or last launch."""
        return self._run.tail(lines) if self._run is not None else ()

    @property
    def written(self) -> int:
        """Lines of the log of the current launch that were read so far; 0 without a process."""
        return self._run.written if self._run is not None else 0

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        """Log lines from now on; raises Conflict when there is no process."""
        process = self._process
        if process is None:
            raise Conflict(f"{self.spec.id} is {self.state.value}: there is no process whose log could be followed")
        return process.follow(on_line)

    async def measure(self) -> int:
        """Bytes that the process tree uses now; 0 without a process. Reads /proc, in a thread; `memory` has it afterwards."""
        return await self._run.measure() if self._run is not None else 0

    @property
    def cache_loss(self) -> float:
        """Seconds that its clients would wait, altogether, if its prefix cache were lost now; see `domain.prefix_cache`."""
        if self._run is None or self.state is not State.READY:
            return 0.0
        room = self.facts.get("kv_tokens")
        return self._run.cache.loss(room if isinstance(room, int) else None)

    async def metrics(self) -> str:
        """The engine's own Prometheus text; empty unless READY or DRAINING. Never counts as use."""
        if self._run is None or self.state not in {State.READY, State.DRAINING}:
            return ""
        return await self._run.metrics()

    @property
    def _process(self) -> EngineProcess | None:
        return self._run.process if self._run is not None else None

    async def host_room(self) -> str:
        """Before it sleeps: wait until the host's memory is there; why it is not, or empty."""
        return await self._host.host_room()

    def gives_more(self) -> bool:
        """Of a start that just failed: whether the next one is given more memory, for what its log told."""
        return self._host.gives_more(self)

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
        """A changed declaration; what the process depends on counts for the next launch, and the terms of a sleep for the next
        sleep: until then those count that the engine was started, or put to sleep, with. The caller drains first where it must."""
        self._next = spec
        self._renew()

    def _renew(self) -> None:
        """Take over what can be by now."""
        spec = self._next
        if spec is None:
            return
        if self.state in lc.LIVE and spec.fingerprint != self.spec.fingerprint:
            return
        if self.state in _SLEEP and spec.sleep != self.spec.sleep:
            spec = replace(spec, sleep=self.spec.sleep)
        else:
            self._next = None
        self.spec = spec
        self.gate.limit = spec.concurrency
        self._state = replace(self._state, limits=spec.start, retry=spec.retry)

    @property
    def outdated(self) -> bool:
        """Whether a changed declaration waits for the end of this launch, or of its sleep."""
        return self._next is not None

    async def adopt(self, process: EngineProcess) -> bool:
        """Take over a running engine of an earlier controller; False, and nothing changed, when it is of no use."""
        run = Run(self, self._tools, process.record.generation)
        asleep = await run.take_over(process)
        if asleep is None:
            return False
        self._run = run
        run.attach(process)
        self.gate.last_used = self._tools.clock.now()  # nobody knows when it was; a sleeper's gate stays closed
        await self.ask(lc.Adopt(process.record.generation, "adopted at boot", asleep=asleep))
        self._write_start(run, None, "adopted", "")
        return True

    async def hand_over(self) -> None:
        """Let go of the process without touching it, for the next controller."""
        record, process = self.record, self._run.let_go() if self._run is not None else None
        await self.close()
        if record is not None and process is not None:
            await self._write_at_last(record)
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
        if self._timer is not None:
            self._timer.cancel()
        await self.tasks.close()
        if self._run is not None:
            self._run.drop_channels()

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
            self._end_phase(before.progress.phase)
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
        if after.state is not before.state:
            self._renew()
        if answer is not None and not answer.done():
            if refused is None:
                answer.set_result(None)
            else:
                answer.set_exception(Conflict(refused))

    def _entered(self, before: Instance, after: Instance) -> None:
        if before.state in lc.LOADING or before.state in {State.READY, State.SUSPENDING}:
            self.tasks.stop_watching()
        if after.state is State.READY:
            self.tasks.watch(self._present().monitor())
        if before.state is State.STARTING:
            self._end_phase(before.progress.phase)
            self._remember_start(after)

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
                run = self._run = Run(self, self._tools, generation)
                self.tasks.watch(run.launch(lambda: self._host.plan_launch(self.spec, generation)))
            case lc.OpenGate():
                run = self._present()
                if run.channel() is None:
                    self.gate.open(run.make_channel(), generation, now)
                else:
                    self.gate.reopen(now)
            case lc.CloseGate():
                self.gate.close(lambda: self.tell(lc.LeasesGone(generation)), now)
            case lc.RevokeLeases():
                cut = self.gate.revoke(died=effect.died, reason=effect.reason)
                if cut:
                    self.emit("lease.revoked", data={"count": cut, "died": effect.died, "reason": effect.reason})
            case lc.FreezeLeases():
                if live := self.gate.cut_live(effect.reason):
                    self.emit("lease.revoked", data={"count": live, "died": False, "reason": effect.reason})
                count = self.gate.freeze(now)
                self.emit("lease.frozen", cause=effect.reason, data={"count": count, "generation": generation})
            case lc.ThawLeases():
                thawed = self.gate.thaw(now)
                data = {"count": thawed.leases, "frozen_s": round(thawed.seconds, 3), "generation": generation}
                self.emit("lease.thawed", cause="awake", data=data)
            case lc.Suspend():
                self.tasks.watch(self._present().suspend(keep=effect.keep))
            case lc.WakeEngine():
                self.tasks.watch(self._present().wake())
            case lc.StopProcess():
                self.tasks.run(self._present().stop(graceful=effect.graceful))
            case lc.KillAgain():
                self.tasks.run(self._present().stop(graceful=False))
            case lc.Settle():
                self._host.settled(self, ok=effect.ok, reason=effect.reason)
            case lc.Judge():
                self._host.judged(self, effect)
            case lc.Emit():
                self.emit(effect.kind, cause=effect.cause, data=effect.data)
            case lc.Refuse():
                pass

    def emit(self, kind: str, *, cause: str = "", data: Mapping[str, Any] | None = None) -> None:
        """An event of this model; for the actor and its runs."""
        self._tools.journal.emit(kind, model=self.spec.id, cause=cause, data=data)

    def _task_failed(self, error: BaseException, generation: int) -> None:
        log.error("%s: a task of the instance failed", self.spec.id, exc_info=error)
        self.tell(lc.Unhealthy(generation, f"internal error: {error!r}"))

    def _present(self) -> Run:
        if self._run is None:
            raise RuntimeError(f"{self.spec.id} is {self.state.value} and never ran")
        return self._run

    def _end_phase(self, phase: str) -> None:
        self._present().log.end_phase(phase, warm=self.launcher == "warm")

    def _remember_start(self, after: Instance) -> None:
        run, ready = self._present(), after.state is State.READY
        outcome = "ready" if ready else "failed" if after.then is not lc.Then.STOPPED else "cancelled"
        if outcome == "failed":
            run.blame_launcher(after.reason)
        self._write_start(run, self._tools.clock.wall() if ready else None, outcome, after.reason)

    def _write_start(self, run: Run, ended: float | None, outcome: str, reason: str) -> None:
        began, phases, launcher = run.log.began_at, dict(run.log.phases), run.launcher
        self.tasks.run(
            note(
                lambda: self._tools.store.record_start(
                    self.spec.id, run.generation, began, ended, phases, outcome, reason, launcher
                ),
                self._tools.clock,
                f"{self.spec.id}: its start",
            )
        )
