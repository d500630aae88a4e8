"""One run of an engine, from its launch to its reaping: the process, the channels to it, and what is watched of it.

A run decides nothing about the state of its instance: what happens to it, it tells the actor, as a fact with its generation.
"""

import asyncio
import errno
import logging
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.lifecycle import Instance, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.sleep import level
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.cached import CacheWatch
from vllm_mm.engine.lease import LeaseGate
from vllm_mm.engine.notes import note
from vllm_mm.engine.ports import Address, EngineProcess, ExitStatus, LaunchPlan, LaunchRecord
from vllm_mm.engine.sleeping import or_goes_on, put_to_sleep
from vllm_mm.engine.startlog import StartLog
from vllm_mm.engine.tasks import Tasks
from vllm_mm.engine.tools import Tools
from vllm_mm.engine.watch import Checks, Untrue, death
from vllm_mm.engine.wire import InferenceChannel

MEMORY_DEADLINE = 30.0
"""Seconds to wait for the memory of a reaped engine to be seen free, before an alert says that it is not."""
NOTE_PATIENCE = 2.0
"""Seconds that the end of an engine waits for its row to be deleted; later is harmless, for the row's pid is dead."""
ADOPTION_DEADLINE = 10.0
"""Seconds in which an engine of an earlier controller has to prove that it works."""
_LOG = logging.getLogger(__name__)
TAIL = 200
"""Lines of the log that are kept of a run that is over."""
_LASTING = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EROFS, errno.E2BIG,
})  # fmt: skip

_TOO_LITTLE = frozenset({"no_cache_blocks", "kv_cache_too_small"})
"""Failures of a start that more memory mends."""
_FROM_OUTSIDE = frozenset({
    ExitStatus(None, signal.SIGKILL), ExitStatus(None, signal.SIGTERM),
    ExitStatus(None),  # of a part whose parent was faster to ask for it
})  # fmt: skip
"""Ends that say nothing about how the process was launched."""


class Actor(Protocol):
    """What a run needs of its instance."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def gate(self) -> LeaseGate: ...
    @property
    def snapshot(self) -> Instance: ...
    @property
    def tasks(self) -> Tasks: ...
    def tell(self, event: lc.Input) -> None: ...
    def gives_more(self) -> bool: ...
    async def host_room(self) -> str: ...
    def emit(self, kind: str, *, cause: str = "", data: Mapping[str, Any] | None = None) -> None: ...


class Run:
    """Of one generation. Made without a process: then `launch`, or `take_over`."""

    def __init__(self, actor: Actor, tools: Tools, generation: int) -> None:
        self.generation = generation
        self.log = StartLog(tools.clock)
        self.process: EngineProcess | None = None
        self.launcher = ""
        """How its process came into being, also when that is gone; empty while there was none."""
        self.last_tail: tuple[str, ...] = ()
        """The end of the log, once the run is over."""
        self.memory = 0
        """Bytes that the process tree used when it was last measured."""
        self.seen = 0
        """Bytes on a device, of the largest use beyond its reservation that was seen."""
        self.pids: Collection[int] = ()
        """Of that tree, at that moment."""
        self._actor = actor
        self._tools = tools
        self._launching: asyncio.Task[EngineProcess] | None = None
        self._plan: LaunchPlan | None = None
        self._distrusted = False
        self._checks: Checks | None = None
        self._channel: InferenceChannel | None = None
        self._unfollow: Callable[[], None] | None = None
        self._level: int | None = None
        """Of its last sleep, when that was our doing."""
        self._answer: str | None = None
        """Of the last probe; a later one is compared with it."""
        self.cache = CacheWatch(tools.clock, self.metrics, self._reads)

    def tail(self, lines: int) -> tuple[str, ...]:
        """The last lines of the log."""
        if self.process is not None:
            return self.process.tail(lines)
        return self.last_tail[-lines:] if lines else ()

    @property
    def written(self) -> int:
        """Lines of the log that were read so far; 0 when there is no process."""
        return self.process.written if self.process is not None else 0

    @property
    def record(self) -> LaunchRecord | None:
        """Of its process, with what it answered last: the next controller may have to wake it."""
        return replace(self.process.record, answer=self._answer or "") if self.process is not None else None

    def channel(self) -> InferenceChannel | None:
        """The way for requests, if it was made before."""
        return self._channel

    def make_channel(self) -> InferenceChannel:
        """The way for requests; only for the gate."""
        self._channel = self._tools.inference(
            self._address(self._require_process().record), self._actor.spec.concurrency
        )
        return self._channel

    async def measure(self) -> int:
        """Bytes that the process tree uses now; reads /proc, in a thread."""
        process = self.process
        self.memory = await asyncio.to_thread(process.rss) if process is not None else 0
        self.pids = process.pids if process is not None else ()
        return self.memory

    async def metrics(self) -> str:
        """The engine's own Prometheus text; empty without a way to ask for it."""
        return await self._checks.control.metrics() if self._checks is not None else ""

    # Launching.

    async def launch(self, plan: Callable[[], LaunchPlan]) -> None:
        """Start the process, and wait until it is of use."""
        try:
            self._plan = plan()
        except (OSError, MMError) as error:
            self._not_started(error)
            return
        await self._start(self._plan)

    def _not_started(self, error: OSError | MMError | ValueError) -> None:
        # Only a change can mend it, unless the system is short of something, which recovers.
        lasting = not isinstance(error, OSError) or error.errno in _LASTING
        self._actor.tell(lc.Exited(self.generation, f"could not be started: {error}", permanent=lasting))

    async def _start(self, plan: LaunchPlan) -> None:
        try:
            self._launching = asyncio.get_running_loop().create_task(self._tools.launcher.start(plan))
            # Shielded: if the load is called off meanwhile, `stop` still has to find and end what was started.
            process = await asyncio.shield(self._launching)
        except (OSError, MMError, ValueError) as error:
            # ValueError: an environment or an argument list that no program can be given (a NUL in it, say).
            self._launching = None
            self._not_started(error)
            return
        if not self._in({State.STARTING}):
            return
        self._launching = None
        checks = self._attach(process)
        self._actor.tasks.run(
            note(
                lambda: self._tools.store.save(process.record), self._tools.clock,
                f"{self._actor.spec.id}: its process", wanted=lambda: self.process is process,
            )
        )  # fmt: skip
        self._answer = await checks.until_ready(self._probing)
        process.read_log()  # a start may be over sooner than its log is looked at
        self._actor.tell(lc.BecameReady(self.generation))

    def _attach(self, process: EngineProcess) -> Checks:
        self.process, self.launcher = process, process.launcher
        checks = self._checks = self._examine(process.record, self._actor.spec.start.probe)
        self._unfollow = process.follow(self._on_line)
        for line in process.tail(TAIL):  # one that ends at once has said why before anybody listened
            self._on_line(line)
        self._actor.tasks.run(self._watch_life(process))
        return checks

    def _probing(self) -> None:
        if self._actor.snapshot.progress.phase != "probe":  # once: being asked again and again is no sign of life
            self._actor.tell(lc.Progressed(self.generation, lc.Progress("probe")))

    def _on_line(self, line: str) -> None:
        if self._in({State.STARTING}):
            self._actor.tell(lc.Progressed(self.generation, self.log.read(line)))

    async def _watch_life(self, process: EngineProcess) -> None:
        end = await death(process, self._tools.clock, loading=lambda: self._in(lc.LOADING))
        if not self._in(lc.LIVE - {State.STOPPING}):
            return
        self.last_tail = process.tail(TAIL)
        loading = self._in(lc.LOADING)
        known = self.log.failure if loading else None
        if known is not None and self._distrusted and self._plan is not None:
            self._tools.launcher.vindicate(self._plan)  # another way failed for a reason of the model's own
        if known is None and await self._another_way(process, end.status):
            return
        more = loading and self._actor.gives_more()
        permanent = known is not None and known.permanent and not (more and known.kind in _TOO_LITTLE)
        why = self.log.why(end, self.last_tail, loading=loading)
        self._actor.tell(lc.Exited(self.generation, why, permanent=permanent))

    async def _another_way(self, process: EngineProcess, status: ExitStatus) -> bool:
        """A start that ended for no reason that was recognised, from a launcher that has another way: try that at once, in
        the same load. Not after a kill from outside: that says nothing about the launcher."""
        plan = self._plan
        if plan is None or not self._in({State.STARTING}):
            return False
        if self._distrusted:
            self._tools.launcher.vindicate(plan)
            return False
        if process.launcher == "local":
            self._tools.launcher.vindicate(plan)  # an earlier warm start may have failed for the same reason
            return False
        if status in _FROM_OUTSIDE:
            return False
        last = " | ".join(line.strip() for line in process.tail(3))
        if not self._tools.launcher.distrust(plan, f"a {process.launcher} start {status}; last lines: {last}"):
            return False
        self._distrusted = True
        report = await process.stop(graceful=False, grace=0, deadline=self._actor.snapshot.timeouts.stop)
        if not self._in({State.STARTING}):
            return True  # called off meanwhile, and whoever did that has stopped the process too
        if report.survivors:
            return False
        self._actor.tasks.stop_watching()  # who still waits for the first process to become ready
        self.drop_channels()
        self.process = None
        self._actor.tasks.watch(self._start(plan))
        return True

    def blame_launcher(self, reason: str) -> None:
        """The start failed as no exit tells it, by hanging say: if its launcher has another way, that is for the next."""
        process, plan = self.process, self._plan
        if plan is None or process is None:
            return
        if process.launcher == "local":
            self._tools.launcher.vindicate(plan)
        if self.log.failure is not None or process.launcher in {"local", ""}:
            return
        self._distrusted = self._tools.launcher.distrust(plan, reason)

    # Adopting and letting go.

    async def take_over(self, process: EngineProcess) -> bool | None:
        """A running engine of an earlier controller: whether it is asleep; None, and nothing is held, when it is of no use."""
        checks = self._examine(process.record, ADOPTION_DEADLINE)
        try:
            async with asyncio.timeout(ADOPTION_DEADLINE):
                if not await checks.answers():
                    return None
                asleep = await checks.sleeps()
                self._answer = (process.record.answer or None) if asleep else await checks.probe()
        except (MMError, TimeoutError):
            return None
        finally:
            await checks.control.close()
        self.log.began_at = process.record.started_at
        return asleep

    def attach(self, process: EngineProcess) -> None:
        """After `take_over`, in the same turn as the actor's adoption."""
        self._attach(process)

    def let_go(self) -> EngineProcess | None:
        """The process is somebody else's from now on."""
        process, self.process = self.process, None
        return process

    # In use.

    async def monitor(self) -> None:
        """Notice an engine that lives but is of no use."""
        await self._require_process().take_stock()  # now everything that it needs to serve is there
        await self.cache.look()
        timeouts = self._actor.snapshot.timeouts
        reason = await self._require_checks().until_useless(
            timeouts.health,
            timeouts.stuck,
            reads=self._reads,
            count=lambda: self._actor.gate.count,
            suspicions=lambda: self._actor.gate.suspicions,
            look=self.cache.look,
        )
        self._actor.tell(lc.Unhealthy(self.generation, reason))

    async def suspend(self, *, keep: bool) -> None:
        """Put it to sleep, with the requests that it has if `keep`, and see its memory come back."""
        process = self._require_process()
        await self._actor.gate.settled()
        if late := await self._actor.host_room():
            self._actor.tell(lc.Drain(lc.Goal.STOP, 0.0, Reason.EVICTED.because(late)))
            return
        self._remember_answer(process)
        self.cache.slept()
        self._level = level(self._actor.spec, frozen=keep)
        try:
            kept = await put_to_sleep(
                self._require_checks(), self._actor.spec, process.record, self._tools.inventory, self._tools.clock,
                level=self._level, keep=keep,
            )  # fmt: skip
        except MMError as error:
            lied = isinstance(error, Untrue)
            self._actor.tell(lc.Unhealthy(self.generation, f"it would not sleep: {error}", lied=lied))
        else:
            self._actor.tell(lc.FellAsleep(self.generation, kept))

    def _remember_answer(self, process: EngineProcess) -> None:
        """Written down, for nobody can ask an engine that sleeps."""
        record = self.record or process.record
        self._actor.tasks.run(
            note(
                lambda: self._tools.store.save(record), self._tools.clock,
                f"{record.model}: what it answers", wanted=lambda: self.process is process,
            )
        )  # fmt: skip

    async def wake(self) -> None:
        """Wake it, and see that it answers as before."""
        waking = self._require_checks().wake(self._level or self._actor.spec.sleep.level, self._answer)
        try:
            if self._actor.gate.frozen:
                waking = or_goes_on(waking, self._answer, self._reads, self._tools.clock)
            self._answer = await waking
        except MMError as error:
            self._actor.tell(lc.Unhealthy(self.generation, str(error), lied=isinstance(error, Untrue)))
        else:
            self._actor.tell(lc.BecameReady(self.generation))

    def _reads(self) -> int:
        return self._actor.gate.reads + (self._channel.reads if self._channel is not None else 0)

    # Stopping.

    async def stop(self, *, graceful: bool) -> None:
        """The whole tree gone, the memory seen free, the row forgotten: then, and only then, `Reaped`."""
        self.drop_channels()
        process = await self._whatever_started()
        if process is not None:
            before = {d.id: d.foreign for d in self._tools.inventory.devices()}
            if not await self._end(process, graceful=graceful):
                return  # The deadline of STOPPING kills again.
            # Its row says nothing that is still true, whether or not its memory has come back: neither waits for the other.
            await asyncio.gather(self._forget(), self._see_free(process, before))
        else:
            await self._forget()
        if not self._in({State.STOPPING}):
            return  # A second stop of the same launch, and the first one has told.
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        self.process = None
        self.memory = 0
        self._actor.tell(lc.Reaped(self.generation))
        if process is not None:
            await process.close()

    async def _end(self, process: EngineProcess, *, graceful: bool) -> bool:
        """False when something of it cannot be killed."""
        times = self._actor.snapshot.timeouts
        report = await process.stop(graceful=graceful, grace=times.grace, deadline=times.stop)
        self.last_tail = process.tail(TAIL)
        for pid, name in report.orphans:
            self._actor.emit("orphan.swept", data={"pid": pid, "name": name, "generation": self.generation})
        if report.survivors:
            pids = ", ".join(map(str, report.survivors))
            self._actor.emit("alert.survivors", data={"pids": list(report.survivors), "reason": f"cannot kill {pids}"})
            return False
        return True

    async def _see_free(self, process: EngineProcess, before: Mapping[str, int]) -> None:
        """`before`: foreign use of each device while it ran."""
        held = dict(process.record.device_bytes)
        if not await self._tools.inventory.wait_free(held, before, MEMORY_DEADLINE):
            self._actor.emit("alert.memory_not_back", data={"devices": sorted(held), "waited_s": MEMORY_DEADLINE})

    async def _forget(self) -> None:
        model, generation = self._actor.spec.id, self.generation
        forgotten = self._actor.tasks.run(
            note(lambda: self._tools.store.forget(model, generation), self._tools.clock, f"{model}: its end")
        )
        patience = asyncio.ensure_future(self._tools.clock.sleep(NOTE_PATIENCE))
        try:
            await asyncio.wait({forgotten, patience}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()

    async def _whatever_started(self) -> EngineProcess | None:
        launching, self._launching = self._launching, None
        if launching is not None:
            # It may wait for minutes of imports. A launcher that is cancelled leaves nothing behind.
            launching.cancel()
            await asyncio.wait({launching})
            if not launching.cancelled():
                error = launching.exception()
                if error is None:
                    self.process = launching.result()
                else:
                    _LOG.info("%s: what was being started while it was stopped: %s", self._actor.spec.id, error)
        return self.process

    def drop_channels(self) -> None:
        """Close the connections to the engine; whatever runs over them ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._checks is not None:
            checks, self._checks = self._checks, None
            self._actor.tasks.run(checks.control.close())

    def _in(self, states: frozenset[State] | set[State]) -> bool:
        """Whether the instance is still at this run, and in one of `states`."""
        now = self._actor.snapshot
        return now.generation == self.generation and now.state in states

    def _examine(self, record: LaunchRecord, timeout: float) -> Checks:
        control = self._tools.control(self._address(record), timeout)
        return Checks(control, self._actor.spec, self._actor.gate.engine_name, self._tools.clock)

    def _address(self, record: LaunchRecord) -> Address:
        return replace(record.address, key=command.engine_key(self._actor.spec, record.token))

    def _require_process(self) -> EngineProcess:
        if self.process is None:
            raise RuntimeError(f"{self._actor.spec.id} is {self._actor.snapshot.state.value} without a process")
        return self.process

    def _require_checks(self) -> Checks:
        if self._checks is None:
            raise RuntimeError(f"{self._actor.spec.id} is {self._actor.snapshot.state.value} without a control channel")
        return self._checks
