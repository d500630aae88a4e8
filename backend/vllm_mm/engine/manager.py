"""The ProcessManager: which engines exist, in which state, on which devices, and the one way to reach them.

`_swap_inflight` is held only around "decide and flip": re-check, reserve, mark the target, write its row. Never across
a stop, a start, a sleep, a wake, or any wait for a network or a process. `_loading_events` has one entry per load under
way: N waiters, one start; it is cleared on success and on failure, and everybody is answered either way.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import ConfigError, Conflict, MMError, ShuttingDown, StartFailed, TornDown, UnknownModel
from vllm_mm.domain.estimates import Stage
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.lifecycle import Drain, Goal, Instance, Kill, State
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.scheduling import Lane, Load, Ticket, View
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine import launching, survey
from vllm_mm.engine.footprints import Footprints
from vllm_mm.engine.instance import ModelInstance, Tools
from vllm_mm.engine.lease import Lease
from vllm_mm.engine.leasing import Leasing, WaitingRoom
from vllm_mm.engine.lets import Lets
from vllm_mm.engine.loading import Loading
from vllm_mm.engine.policy import OnTeardown, Places, Policy
from vllm_mm.engine.ports import LaunchPlan
from vllm_mm.engine.progress import PROFILED_FROM
from vllm_mm.engine.registry import on_its_way_out
from vllm_mm.engine.views import InstanceView, WaitInfo, instance_view, start_failed, torn_down, wait_info

log = logging.getLogger(__name__)

DB_DEADLINE = 10.0
"""Seconds for the one row that is written while `_swap_inflight` is held."""
FRESH = 0.25
"""Seconds for which a reading of the devices is good enough to start on."""
LOOK_DEADLINE = 1.0
"""Seconds that a start waits for a new one."""
PROFILED = PROFILED_FROM | {"probe"}
"""Phases of a load in which the engine has sized its KV cache."""


class ProcessManager(Lets):
    """Owns all instances and the device ledger."""

    def __init__(self, catalog: Catalog, tools: Tools, policy: Policy, places: Places) -> None:
        super().__init__(catalog, tools, policy)
        self._footprints = Footprints(places.environment)
        self._places = places
        self._swap_inflight = asyncio.Lock()
        self._loading_events: dict[str, Loading] = {}
        self._queue: WaitingRoom | None = None
        self._seen: View | None = None
        """What the latest decision was made on."""

    def attach(self, queue: WaitingRoom) -> None:
        """Wire the queue in; once, before the first request."""
        self._queue = queue

    # The one way to an engine.

    def lease(self, ticket: Ticket) -> Leasing:
        """`async with manager.lease(ticket) as lease:` is the only way to send anything to an engine.

        At once, without a lock or a wait, when the model is READY, has a free slot and nobody waits for one; else
        through the queue, with its errors.
        """
        return Leasing(self, ticket)

    def fast_lease(self, ticket: Ticket) -> Lease | None:
        """The fast path of `lease`."""
        if self._waiting.waits(ticket.model):
            return None
        return self.grant(ticket)

    async def slow_lease(self, ticket: Ticket) -> Lease:
        """The other path of `lease`."""
        return await self._waiting.admit(ticket)

    def grant(self, ticket: Ticket) -> Lease | None:
        instance = self._instances.get(ticket.model)
        return instance.gate.try_acquire(ticket, self._tools.clock.now()) if instance is not None else None

    def take_back(self, lease: Lease) -> None:
        """Give a lease back; harmless when it was revoked or given back before."""
        instance = self._instances.get(lease.model)
        if instance is not None:
            instance.gate.release(lease, self._tools.clock.now())

    @property
    def _waiting(self) -> WaitingRoom:
        if self._queue is None:
            raise RuntimeError("ProcessManager.attach was not called")
        return self._queue

    # What the queue asks.

    def view(self, lanes: Sequence[tuple[str, tuple[Ticket, ...]]]) -> View:
        """Everything that a scheduling decision may depend on, at this moment."""
        waiting = dict(lanes)
        frozen = (m for m, i in self._instances.items() if i.gate.frozen)
        models = dict.fromkeys((*waiting, *self._wishes.models(), *frozen))
        self._seen = view = View(
            lanes=[lane for m in models if (lane := self._lane(m, waiting.get(m, ()))) is not None],
            residents=[
                survey.resident(i, pinned=self.pinned(i.spec)) for i in self._instances.values() if i.state in lc.LIVE
            ],
            ledger=self._room.ledger,
        )
        return view

    def _lane(self, model: str, tickets: tuple[Ticket, ...]) -> Lane | None:
        instance = self._instance(model)
        if instance is None or (model not in self.catalog and not instance.gate.frozen):
            return None
        return survey.lane(
            instance, tickets, self._wishes.get(model), loading=model in self._loading_events,
            per_device=self.footprint(instance.spec).per_device,
        )  # fmt: skip

    def refusal(self, ticket: Ticket) -> MMError | None:
        if self._closing:
            return ShuttingDown("The server is shutting down. Try again in a few seconds.", retry_after=5.0)
        instance = self._instance(ticket.model)
        if instance is None or ticket.model not in self.catalog:
            return UnknownModel(f"The model `{ticket.model}` does not exist any more.")
        i = instance.snapshot
        if i.state in {State.FAILED, State.BACKOFF}:
            return self._start_failed(instance)
        doomed = i.state is State.STOPPING and i.then is not lc.Then.STOPPED
        if doomed and ticket.model not in self._loading_events:
            return self._start_failed(instance)
        if ticket.stream and on_its_way_out(i) and self._policy.on_teardown is OnTeardown.RETRY:
            return self._torn_down(instance)
        return None

    def _torn_down(self, instance: ModelInstance) -> TornDown:
        return torn_down(instance.snapshot, self.eta(instance.spec.id))

    def _start_failed(self, instance: ModelInstance, reason: str = "") -> StartFailed:
        return start_failed(instance, reason, self._tools.clock.now())

    def held(self, model: str, reason: str, until: float | None = None) -> None:
        """Those who want it have to wait, until then at least; remembered to be shown, and to say how long."""
        self._wishes.hold(model, reason)
        sleeper = self._instances.get(model)
        if sleeper is not None and sleeper.state is State.SLEEPING and split(reason)[0] is Reason.DEVICE:
            # It would not wake there; stopped, it can be started elsewhere.
            sleeper.tell(Drain(Goal.STOP, self._policy.drain_timeout, cause=reason))
        self.forecast.hold(model, until, self._seen, self._policy.rules)

    def refused(self, model: str, error: MMError) -> None:
        """A wish that can never be fulfilled is dropped and told."""
        if self._wishes.drop(model):
            self._wishes.refuse(model, error.message)
            code = error.reason or Reason.NEVER
            self._emit("swap.refused", model, error.message, {"code": code.value})

    def unwanted(self, model: str) -> None:
        if model not in self._loading_events:
            self.forecast.forget(model)
        wanted = self._wishes.get(model) is not None or self._instances[model].gate.frozen
        if self._policy.cancel_unwanted_loads and model in self._loading_events and not wanted:
            self._call_off(model, Reason.UNWANTED.because("nobody waits for it any more"))

    async def carry_out(self, load: Load) -> None:
        """Decide and flip, under `_swap_inflight`; what follows runs in a task of its own."""
        await self._look_again()
        async with self._swap_inflight:
            loading = await self._flip(load)
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

    async def _flip(self, load: Load) -> Loading | None:
        """Re-check, reserve, mark, write the row. None when the decision is stale: the next round decides again."""
        instance = self._instance(load.model)
        if self._closing or instance is None or load.model in self._loading_events:
            return None
        if instance.state not in {State.STOPPED, State.SLEEPING}:
            return None
        victims = [self._instances[v] for v in load.victims if v in self._instances]
        if any(v.state not in {State.READY, State.SLEEPING} or v.gate.frozen for v in victims):
            return None
        if not self._room.promise(load.model, load.device_bytes, load.victims):
            return None
        loading = self._mark(instance, load)
        if instance.state is State.STOPPED:
            try:
                async with asyncio.timeout(DB_DEADLINE):
                    await self._tools.store.save(self._intent(instance.spec, loading))
            except ConfigError as error:
                self._give_up(loading, error.message)
            except MMError as error:
                self._give_up(loading, f"its start could not be written down. {error.message}")
            except Exception as error:  # whatever the database says, the promise has to be undone
                self._give_up(loading, f"the database did not take the launch: {error!r}")
            if loading.ok is not None:  # given up, or called off while the row was written
                self._spare(victims, load)
                return None
        for victim in victims:
            victim.tell(self._eviction(load))
        return loading

    def _spare(self, victims: Sequence[ModelInstance], load: Load) -> None:
        """They were promised away, but not told. If another load counts on what one leaves, it has to go all the same."""
        for victim in victims:
            if not self._room.stay(victim.spec.id):
                victim.tell(self._eviction(load))

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
        self.forecast.tell(load.model, Stage.DECIDED)
        return loading

    def _who_waits(self, instance: ModelInstance) -> str:
        first = self._waiting.first(instance.spec.id)
        return f"request {first}" if first else f"{instance.gate.frozen} frozen"

    def _eviction(self, load: Load) -> Drain:
        return Drain(
            Goal.STOP,
            self._policy.drain_timeout,
            cause=Reason.EVICTED.because(f"room for {load.model} ({load.reason})"),
            on_timeout=self._policy.on_drain_timeout,
        )

    async def _swap_in(self, loading: Loading) -> None:
        """Wait for the room, then start (or wake). Every way out settles the load."""
        model = loading.load.model
        instance = self._instances[model]
        held = dict(self._room.ledger.reservations[model].held)
        patience = self._policy.drain_timeout + 3 * self._policy.timeouts.stop + instance.spec.start.deadline
        try:
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
        if instance.state not in lc.LIVE:
            self._room.release(model)
            self._wishes.refuse(model, reason)
        self._emit("swap.given_up", model, reason)
        self.settled(instance, ok=False, reason=reason)

    # What the instances tell.

    def _make(self, spec: ModelSpec) -> ModelInstance:
        return ModelInstance(spec, self, self._tools, self._policy.timeouts)

    def plan_launch(self, spec: ModelSpec, generation: int) -> LaunchPlan:
        record = self._intent(spec, self._loading_events[spec.id])
        kv_cache = self.footprint(spec).parts.kv_cache
        return launching.plan(spec, generation, record, self._places, self.devices(), kv_cache)

    def _intent(self, spec: ModelSpec, loading: Loading) -> LaunchRecord:
        return launching.intent(spec, loading, self._places, self._tools.clock.wall())

    def changed(self, instance: ModelInstance, before: Instance, after: Instance) -> None:
        model = instance.spec.id
        self.estimator.changed(instance, before, after)
        if after.state is before.state:
            if after.progress.phase in PROFILED and after.progress.phase != before.progress.phase:
                self._room.profiled(model)
            return
        if after.state is State.STOPPING or (after.state is State.DRAINING and after.goal is Goal.STOP):
            self._room.leave(model)
        if before.state in lc.LOADING:
            self._room.profiled(model)
        if before.state in lc.LIVE and after.state not in lc.LIVE:
            self._room.release(model)
        if on_its_way_out(after) and self._policy.on_teardown is OnTeardown.RETRY:
            self._waiting.refuse_streams(model, self._torn_down(instance))
        self._waiting.kick()

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
        if not ok:
            self.forecast.forget(model)
            self._waiting.fail(model, self._start_failed(instance, reason))
        self._waiting.kick()

    def slot_freed(self, model: str) -> None:
        queue = self._queue
        if queue is None:
            return
        # Those who wait for the model may have its slot; those who wait for another may have its room once it is idle.
        wanted = queue.size or self._wishes.models()
        if queue.waits(model) or (wanted and not self._instances[model].gate.count):
            queue.kick()

    # What the acts ask.

    def _call_off(self, model: str, reason: str) -> bool:
        """End a load that waits for room (True), or kill one that has a process."""
        loading = self._loading_events.get(model)
        if loading is None:
            return False
        instance = self._instances[model]
        if instance.state in lc.LOADING:
            instance.tell(Kill(reason))
            return True
        if loading.task is not None:
            loading.task.cancel()
        self._give_up(loading, reason)
        return True

    def _decide(self) -> None:
        self._waiting.kick()

    # Boot, reload and the end.

    async def adopt(self, record: LaunchRecord) -> bool:
        """Take over the engine of `record` if it provably is that one, is healthy, and its spec is still the same."""
        spec = self.catalog.get(record.model)
        if spec is None or spec.fingerprint != record.fingerprint or not record.pid:
            return False
        process = await self._tools.launcher.adopt(record)
        if process is None:
            return False
        self._room.hold(record.model, record.device_bytes)
        if await self.require(record.model).adopt(process):
            return True
        self._room.release(record.model)
        await process.close()
        return False

    def observe_devices(self) -> None:
        """Take over the latest readings of the inventory."""
        before = self._room.ledger.devices
        self._room.observe(self._tools.inventory.devices())
        self.device_alerts.look(self._room.ledger, self._tools.inventory.foreign_processes())
        if self._room.ledger.devices != before:
            self._waiting.kick()

    @property
    def wants_memory(self) -> bool:
        """Somebody waits for a model without a process: if a device has more room now, it is good to know."""
        without = [i.spec.id for i in self._instances.values() if i.state in {State.STOPPED, State.SLEEPING}]
        return any(m in self._loading_events or self._wishes.get(m) or self._waiting.waits(m) for m in without)

    def close_admission(self, error: MMError) -> None:
        """No new lease, no new load, from now on; those who wait get `error`; loads without a process are called off."""
        self._closing = True
        self._waiting.refuse_all(error)
        for model in tuple(self._loading_events):
            if self._instances[model].state not in lc.LIVE:
                self._call_off(model, error.message)

    def set_catalog(self, catalog: Catalog) -> None:
        """What may be asked for from now on; what becomes of running engines is `control.reload`'s business."""
        self.catalog = catalog
        for model in self._instances:
            if model not in catalog:
                self._waiting.fail(model, UnknownModel(f"The model `{model}` does not exist any more."))
        self._waiting.kick()

    # What anybody may look at.

    def loading(self, model: str) -> Loading | None:
        return self._loading_events.get(model)

    def wait_info(self, ticket: Ticket) -> WaitInfo:
        """Where a waiting request stands."""
        position, why = self._waiting.position(ticket.id, ticket.model), self._waiting.why(ticket.model)
        return wait_info(self.require(ticket.model).snapshot, position, self.eta(ticket.model), why)

    def describe(self, model: str) -> InstanceView:
        """The instance as the admin API shows it."""
        instance = self.require(model)
        return instance_view(
            instance,
            reservation=self._room.ledger.reservations.get(model),
            why=self._why_not_live(model),
            eta_s=self.eta(model),
            queued=self._waiting.count(model),
            pinned=self.pinned(instance.spec),
            clock=self._tools.clock,
        )

    def _why_not_live(self, model: str) -> str:
        loading, wish = self._loading_events.get(model), self._wishes.get(model)
        if loading is not None:
            return f"waits for its memory to become free: {loading.load.reason}"
        if wish is not None:
            return wish.why_not or "about to start"
        return self._waiting.why(model) or self._wishes.refusal(model)

    def _emit(self, kind: str, model: str, cause: str, data: Mapping[str, Any] | None = None) -> None:
        self._tools.journal.emit(kind, model=model, cause=cause, data=data)
