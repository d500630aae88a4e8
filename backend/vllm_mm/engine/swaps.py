"""Swaps: from a decision to a model that is READY, and what becomes of those that have to go for it.

`_swap_inflight` is held only around "decide and flip": re-check, reserve, mark the target, write its row. Never across
a stop, a start, a sleep, a wake, or any wait for a network or a process. `_loading_events` has one entry per load under
way: N waiters, one start; it is cleared on success and on failure, and everybody is answered either way.
"""

import asyncio
import logging
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ConfigError, Conflict, MMError, StartFailed, Unavailable
from vllm_mm.domain.estimates import Stage
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.lifecycle import Drain, Goal, Instance, Kill, OnTimeout, State, Then
from vllm_mm.domain.partings import Memory, Parting, part
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Ledger
from vllm_mm.domain.scheduling import Load, View
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.tiers import HostMemory, fate
from vllm_mm.engine import launching
from vllm_mm.engine.expectations import Expectations
from vllm_mm.engine.footprints import Footprints
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.leasing import WaitingRoom
from vllm_mm.engine.lets import Lets
from vllm_mm.engine.loading import Loading
from vllm_mm.engine.policy import Places, Policy
from vllm_mm.engine.ports import LaunchPlan
from vllm_mm.engine.tools import Tools
from vllm_mm.engine.views import start_failed

log = logging.getLogger(__name__)

DB_DEADLINE = 10.0
"""Seconds for the one row that is written while `_swap_inflight` is held."""
FRESH = 0.25
"""Seconds for which a reading of the devices is good enough to start on."""
LOOK_DEADLINE = 1.0
"""Seconds that a start waits for a new one."""
DB_PAUSE = 1.0
"""Seconds from a row that the database did not take in time until its load may be decided again."""


class Swaps(Lets):
    """A base of the `ProcessManager`."""

    def __init__(self, catalog: Catalog, tools: Tools, policy: Policy, places: Places) -> None:
        super().__init__(catalog, tools, policy)
        self._footprints = Footprints(places.environment)
        self._places = places
        self._swap_inflight = asyncio.Lock()
        self._loading_events: dict[str, Loading] = {}
        self._queue: WaitingRoom | None = None
        self._expectations = Expectations(self.estimator, self.eviction_goal)
        self._rows_put_off = 0
        """How often the database did not take the row of a launch in time."""
        self._seen: View | None = None
        """What the latest decision was made on."""

    def attach(self, queue: WaitingRoom) -> None:
        """Wire the queue in; once, before the first request."""
        self._queue = queue

    @property
    def _waiting(self) -> WaitingRoom:
        if self._queue is None:
            raise RuntimeError("ProcessManager.attach was not called")
        return self._queue

    # Decide and flip.

    async def carry_out(self, load: Load) -> None:
        """Decide and flip, under `_swap_inflight`; what follows runs in a task of its own."""
        await self._look_again()
        before = self._rows_put_off
        async with self._swap_inflight:
            loading = await self._flip(load)
        if self._rows_put_off != before:
            await self._tools.clock.sleep(DB_PAUSE)
            self._waiting.kick()
        if loading is not None:
            loading.task = asyncio.get_running_loop().create_task(self._swap_in(loading), name=f"load-{load.model}")

    async def _look_again(self) -> None:
        """Before anything is started: a stranger may have come since the last reading."""
        if self._tools.inventory.age() <= FRESH:
            return
        try:
            await self._tools.inventory.refresh(LOOK_DEADLINE)
        except Exception:  # what was known has to do
            log.exception("reading the devices failed")
        self.observe_devices()

    @abstractmethod
    def refused(self, model: str, error: MMError) -> None: ...

    @abstractmethod
    def observe_devices(self) -> None:
        """Take over the latest readings of the inventory."""

    async def _flip(self, load: Load) -> Loading | None:
        """Re-check, reserve, mark, write the row. None when the decision is stale: the next round decides again."""
        instance = self._instance(load.model)
        if self._closing or instance is None or load.model in self._loading_events:
            return None
        if instance.state not in {State.STOPPED, State.SLEEPING}:
            return None
        if instance.state is State.STOPPED and (error := self._cannot_launch(instance.spec)) is not None:
            self.refused(load.model, error)
            self._waiting.fail(load.model, self._start_failed(instance, error.message, lasting=True))
            return None
        victims = [self._instances[v] for v in load.victims if v in self._instances]
        if any(v.state not in {State.READY, State.SLEEPING} for v in victims):
            return None
        if self._stale(victims, load):
            self._waiting.kick()
            return None
        if not self._room.promise(load.model, load.device_bytes, load.victims):
            return None
        loading = self._mark(instance, load)
        if instance.state is State.STOPPED and not await self._written(instance, loading):
            self._spare(victims, load)
            return None
        if why := self._stale(victims, load):  # only a start has to be written, which holds nothing yet
            self._decide_again(loading, why, {})
            self._spare(victims, load)
            return None
        self._evict(load)
        return loading

    def _cannot_launch(self, spec: ModelSpec) -> ConfigError | None:
        """What is wrong with its declaration, or with the places of this server, so that no load of it would come to a process: seen
        before anybody is told to go for it. Settings are checked when they are read; this is what they do not see."""
        try:
            launching.check(spec, self._places)
        except ConfigError as error:
            return error
        wrong = self.objection(spec)
        return ConfigError(wrong) if wrong else None

    def _stale(self, victims: Sequence[ModelInstance], load: Load) -> str:
        """Why they do not go, by what happened since the decision; empty when they do."""
        for victim in victims:
            name = victim.spec.id
            if self.pinned(victim.spec):
                return f"{name}, which was to go for it, was pinned"
            if victim.gate.frozen:
                return f"{name}, which was to go for it, sleeps with frozen requests"
            if victim.gate.count and not load.overdue:
                return f"{name}, which was to go for it, is in use again"
        return ""

    async def _written(self, instance: ModelInstance, loading: Loading) -> bool:
        """Write down what is about to start. False when the load was given up for it, or called off meanwhile.

        A database that is busy for a moment costs no load: it is decided again, and those who wait for it go on waiting."""
        try:
            async with asyncio.timeout(DB_DEADLINE):
                await self._tools.store.save(self._intent(instance.spec, loading))
        except ConfigError as error:
            self._give_up(loading, error.message)
        except TimeoutError:
            self._put_off(
                loading, f"the database was busy, and did not take the row of its start within {DB_DEADLINE:g} s"
            )
        except Unavailable as error:
            if error.retryable:
                self._put_off(loading, f"its start could not be written down yet. {error.message}")
            else:
                self._give_up(loading, f"its start could not be written down. {error.message}")
        except MMError as error:
            self._give_up(loading, f"its start could not be written down. {error.message}")
        except Exception as error:  # whatever the database says, the promise has to be undone
            self._give_up(loading, f"the database did not take the launch: {error!r}")
        else:
            self._explain(loading.load.model, loading.load.reason)
        return loading.ok is None

    def _put_off(self, loading: Loading, why: str) -> None:
        self._rows_put_off += 1
        reason = Reason.DATABASE.because(why)
        log.warning("%s: %s; it is tried again", loading.load.model, why)
        self._decide_again(loading, reason, {})
        self._explain(loading.load.model, reason)

    def _explain(self, model: str, reason: str) -> None:
        """To requests, and to whoever else wants it."""
        self._waiting.explain(model, reason)
        self._wishes.hold(model, reason)

    def _spare(self, victims: Sequence[ModelInstance], load: Load) -> None:
        """They were promised away, but not told. If another load counts on what one leaves, it has to go all the same."""
        go = tuple(v.spec.id for v in victims if not self._room.stay(v.spec.id))
        self._evict(replace(load, victims=go))

    def _mark(self, instance: ModelInstance, load: Load) -> Loading:
        wish = self._wishes.get(load.model)
        loading = Loading(
            load=load,
            generation=instance.snapshot.generation + 1,
            token=secrets.token_hex(16),
            began=self._tools.clock.now(),
            cause=wish.cause if wish is not None else self._who_waits(instance),
        )
        self._loading_events[load.model] = loading
        self._emit(
            "swap.planned", load.model, loading.cause,
            {"victims": list(load.victims), "devices": load.device_bytes, "reason": load.reason},
        )  # fmt: skip
        loading.partings = self._part(load, self.ledger, self._tiers.host)[0]
        self.forecast.tell(load.model, Stage.DECIDED)
        return loading

    def _who_waits(self, instance: ModelInstance) -> str:
        first = self._waiting.first(instance.spec.id)
        return (
            f"request {first}" if first else Reason.THAW.because(f"{instance.gate.frozen} of its requests are frozen")
        )

    def _evict(self, load: Load, on_timeout: OnTimeout | None = None) -> None:
        """Their memory was promised away: to sleep with each of them where that is possible, else it is stopped. `on_timeout`: what
        becomes of requests that take longer than a drain, where it is not what the policy says."""
        cause = Reason.EVICTED.because(f"room for {load.model} ({load.reason})")
        partings = self._part(load, self.ledger, self._tiers.host, on_timeout)[0]
        if (loading := self._loading_events.get(load.model)) is not None:
            loading.partings = partings
        for parting in partings:
            victim = self._instances[parting.model]
            if parting.fate.goal is Goal.SLEEP:
                self._lay_down(victim, parting.fate, frozen=parting.keeps)
            elif parting.gives_up:  # it may come to that
                self._room.leave_asleep(parting.model, self._tiers.residue(victim.spec, self.ledger))
            victim.tell(Drain(parting.fate.goal, self._policy.drain_timeout, cause, parting.then))

    def _part(
        self, load: Load, ledger: Ledger, host: HostMemory, on_timeout: OnTimeout | None = None, *more: str
    ) -> tuple[tuple[Parting, ...], Memory]:
        """`ledger`: with the load promised. `more`: who else is about to wake."""
        goers = [self._tiers.goer(i, self.ledger) for v in load.victims if (i := self._instances.get(v)) is not None]
        sleepers = self.sleepers((load.model, *more))
        own = load.model if self._could_start_anew(load.model) else ""
        return part(Memory(host, ledger), goers, sleepers, on_timeout or self._policy.on_drain_timeout, own)

    def _could_start_anew(self, model: str) -> bool:
        """Whether a load of it could be a start although it sleeps: it keeps no requests, and nothing forbids its launch."""
        instance = self._instances.get(model)
        if instance is None or instance.state is not State.SLEEPING or instance.gate.frozen:
            return False
        return self._cannot_launch(instance.spec) is None

    def rehearse(self, loads: Sequence[Load]) -> tuple[Parting, ...]:
        """What the last of these loads would do to those who go for it, and to sleepers for them, if all were carried out now in
        this order. Changes nothing."""
        memory, partings = Memory(self._tiers.host, self.ledger), tuple[Parting, ...]()
        for load in loads:
            ledger = memory.ledger.promise(load.model, load.device_bytes, load.victims)
            partings, memory = self._part(load, ledger, memory.host, None, *(other.model for other in loads))
        return partings

    def _bed_for_frozen(self, instance: ModelInstance) -> None:
        """It is about to sleep with requests that took too long. Where the host's memory has no room for that, sleepers give up
        theirs, at last the one that is loaded for it (`Parting.gives_up`); if even that is too little, it is stopped and they are cut."""
        model, host = instance.spec.id, self._tiers.host.release(instance.spec.id)
        need = self._tiers.host_bytes(instance, self.ledger, frozen=True)
        if not host.lacks(need):
            return
        loads = [m for m, it in self._loading_events.items() if model in it.load.victims and self._could_start_anew(m)]
        found = fate(host, need, self.sleepers(), last=loads)
        for sleeper in found.stops:
            cause = f"host memory for the sleep of {model} with requests that took too long"
            if sleeper in loads:
                self._start_anew(sleeper, Reason.SLEEP_ROOM.because(f"{cause}; it is started anew"))
            else:
                self._instances[sleeper].tell(Drain(Goal.STOP, 0.0, Reason.SLEEP_ROOM.because(cause)))
        if found.goal is Goal.STOP:
            instance.tell(Drain(Goal.STOP, 0.0, Reason.EVICTED.because(found.reason)))

    def _start_anew(self, model: str, cause: str) -> None:
        """It sleeps and waits for the room to wake: it is stopped, and starts from nothing in that room."""
        if (task := self._loading_events[model].task) is not None:
            task.cancel()
        self._instances[model].tell(Kill(cause, cold=True))

    async def _start_cold(self, loading: Loading) -> None:
        """It was stopped before it woke: those who wait for the load get a start, in the room that it has."""
        async with self._swap_inflight:
            written = await self._written(self._instances[loading.load.model], loading)
        if written:
            await self._swap_in(loading)

    async def _swap_in(self, loading: Loading) -> None:
        """Wait for the room, then start (or wake). Every way out settles the load."""
        model = loading.load.model
        instance = self._instances[model]
        held: Mapping[str, int] = {}
        patience = self._policy.drain_timeout + 3 * self._policy.timeouts.stop + instance.spec.start.deadline
        try:
            if (own := self._room.ledger.reservations.get(model)) is not None:
                held = dict(own.held)
            async with asyncio.timeout(patience):
                await self._room.take(model)
            await self._look_again()
            self._room.confirm(model)
            if instance.state is State.SLEEPING:
                await instance.ask(lc.Wake(loading.cause))
            else:
                await instance.ask(lc.Start(loading.cause))
        except TimeoutError:
            self._give_up(loading, f"no room on its devices after {patience:.0f} s")
        except (Conflict, ValueError) as error:
            self._decide_again(loading, str(error), held)
        except Exception as error:
            log.exception("the load of %s failed", model)
            self._give_up(loading, f"internal error: {error!r}")

    def _decide_again(self, loading: Loading, reason: str, held: Mapping[str, int]) -> None:
        """What the load was decided on is gone (a sleeper died before it could wake, a stranger took the room): those who
        wait go on waiting, and the next round decides anew. `held`: what the model held before the load, in bytes."""
        model = loading.load.model
        if self._loading_events.get(model) is not loading:
            return
        del self._loading_events[model]
        self._room.profiled(model)
        if self._instances[model].state not in lc.LIVE:
            self._room.release(model)
        elif self._instances[model].state is State.SLEEPING:
            self._room.forgo(model, held)
        self._emit("swap.given_up", model, reason)
        loading.settle(ok=False, reason=reason)
        self._waiting.kick()

    def _give_up(self, loading: Loading, reason: str) -> None:
        """A load that never became a process: give the room back and answer everybody, once."""
        model = loading.load.model
        if self._loading_events.get(model) is not loading:
            return
        instance = self._instances[model]
        self._room.profiled(model)
        self._give_room_back(instance)
        if instance.state not in lc.LIVE:
            self._wishes.refuse(model, reason)
        self._emit("swap.given_up", model, reason)
        self.settled(instance, ok=False, reason=reason)

    def _give_room_back(self, instance: ModelInstance) -> None:
        """A load of it came to nothing: a sleeper keeps what it holds, and no process nothing."""
        if instance.state is State.SLEEPING:
            self._room.asleep(instance.spec.id, self._tiers.residue(instance.spec, self.ledger))
        elif instance.state not in lc.LIVE:
            self._room.release(instance.spec.id)

    # The end of a load.

    def settled(self, instance: ModelInstance, *, ok: bool, reason: str) -> None:
        model = instance.spec.id
        loading = self._loading_events.pop(model, None)
        self._wishes.drop(model)
        if loading is not None:
            loading.settle(ok=ok, reason=reason)
            if ok:
                self._emit(
                    "swap.done", model, loading.cause, loading.told(self.forecast.came(model), self._tools.clock.now())
                )
        if ok and instance.state is State.READY:  # and not back only to let frozen requests finish
            self._wishes.came(model)
        if not ok:
            self.forecast.forget(model)
            self._waiting.fail(model, self._start_failed(instance, reason))
        self._waiting.kick()

    def _gone(self, instance: ModelInstance, before: Instance) -> None:
        model = instance.spec.id
        loading = self._loading_events.get(model)
        if before.then is not Then.COLD or loading is None:
            self._room.release(model)
        elif self._closing:
            self._give_up(loading, "the server is shutting down")
        elif instance.outdated:
            self._decide_again(loading, "its declaration has changed since", {})
        elif not self._waiting.waits(model) and self._wishes.get(model) is None:
            self._give_up(loading, f"it was stopped ({before.reason}), and nobody waits for it any more")
        else:
            loading.task = asyncio.get_running_loop().create_task(
                self._start_cold(loading), name=f"load-{instance.spec.id}"
            )  # fmt: skip

    # What the acts ask.

    def _call_off(self, model: str, reason: str) -> bool:
        """End a load that waits for room (True), or kill one that has a process."""
        loading = self._loading_events.get(model)
        if loading is None:
            return False
        instance = self._instances[model]
        if instance.state in lc.LOADING or instance.snapshot.then is Then.COLD:
            instance.tell(Kill(reason))
            return True
        if loading.task is not None:
            loading.task.cancel()
        self._give_up(loading, reason)
        return True

    def _decide(self) -> None:
        self._waiting.kick()

    def awaited_by_requests(self, model: str) -> bool:
        return self._waiting.waits(model)

    def awaited(self, model: str) -> bool:
        loads = model in self._loading_events or self._wishes.get(model) is not None
        return loads or self._waiting.waits(model) or self._instances[model].gate.frozen > 0

    # What is launched, and told.

    def loading(self, model: str) -> Loading | None:
        return self._loading_events.get(model)

    def plan_launch(self, spec: ModelSpec, generation: int) -> LaunchPlan:
        record = self._intent(spec, self._loading_events[spec.id])
        kv_cache = self.footprint(spec).parts.kv_cache
        return launching.plan(spec, generation, record, self._places, self.devices(), kv_cache)

    def _intent(self, spec: ModelSpec, loading: Loading) -> LaunchRecord:
        return launching.intent(spec, loading, self._places, self._tools.clock.wall())

    def _start_failed(self, instance: ModelInstance, reason: str = "", *, lasting: bool = False) -> StartFailed:
        return start_failed(instance, reason, self._tools.clock.now(), lasting=lasting)

    def _emit(self, kind: str, model: str, cause: str, data: Mapping[str, Any] | None = None) -> None:
        self._tools.journal.emit(kind, model=model, cause=cause, data=data)
