"""The ProcessManager: which engines exist, in which state, on which devices, and the one way to reach them."""

import logging
from collections.abc import Callable, Iterable, Sequence
from math import inf

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Forbidden, MMError, NoRoom, ShuttingDown, TornDown, UnknownModel
from vllm_mm.domain.estimates import Span, turn
from vllm_mm.domain.launches import LaunchRecord
from vllm_mm.domain.lifecycle import Drain, Goal, Instance, Judge, Kill, OnTimeout, Outcome, State, Then
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Lane, Ticket, View
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine import survey
from vllm_mm.engine.endings import Ending
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.lease import Lease
from vllm_mm.engine.leasing import Leasing, Looking
from vllm_mm.engine.policy import OnTeardown, Places, Policy
from vllm_mm.engine.progress import PROFILED_FROM
from vllm_mm.engine.registry import on_its_way_out
from vllm_mm.engine.run import MEMORY_DEADLINE
from vllm_mm.engine.survey import Waiting
from vllm_mm.engine.swaps import Swaps
from vllm_mm.engine.tools import Tools
from vllm_mm.engine.views import InstanceView, WaitInfo, instance_view, torn_down, wait_info

log = logging.getLogger(__name__)

PROFILED = PROFILED_FROM | {"probe"}
"""Phases of a load in which the engine has sized its KV cache."""


_THERE = frozenset({State.READY, State.STARTING, State.WAKING})
"""A request that waits for a model in these states causes no load of it."""
NOT_LOOKED_AT = "about to start"
"""What a model waits for that is wanted since the last round of the scheduler."""

DEVICE_PATIENCE = 300.0
"""Seconds that frozen requests wait for their device to be of use again: it may be a hiccup of the driver, or a reset."""


class ProcessManager(Swaps):
    """Owns all instances and the device ledger."""

    def __init__(self, catalog: Catalog, tools: Tools, policy: Policy, places: Places) -> None:
        super().__init__(catalog, tools, policy, places)
        self._out_since: dict[str, float] = {}
        """By model: since when it waits for a device that is out of use."""
        self.on_change: Callable[[str | None], None] | None = None
        """Called, if set, with a model whose instance is in another state, and with None when the catalog is another."""

    # The one way to an engine.

    def lease(self, ticket: Ticket) -> Leasing:
        """`async with manager.lease(ticket) as lease:` is the only way to send anything to an engine.

        At once, without a lock or a wait, when the model is READY, has a free slot and nobody waits for one; else
        through the queue, with its errors.
        """
        return Leasing(self, ticket)

    def fast_lease(self, ticket: Ticket) -> Lease | None:
        """The fast path of `lease`."""
        self._expectations.arrived(ticket.model, ticket.arrived)
        self._waiting.asked(ticket)
        if self._waiting.waits(ticket.model):
            return None
        return self.grant(ticket)

    async def slow_lease(self, ticket: Ticket) -> Lease:
        """The other path of `lease`."""
        for instance in self._instances.values():
            # What is lent and not used: a slot of this model, or the room of another.
            if instance.gate.borrowers is not None:
                instance.gate.borrowers.wanted()
        return await self._waiting.admit(ticket)

    def grant(self, ticket: Ticket) -> Lease | None:
        instance = self._instances.get(ticket.model)
        if instance is None:
            return None
        now = self._tools.clock.now()
        lease = instance.gate.try_acquire(ticket, now)
        if lease is not None:
            self._expectations.leased(ticket.model, now - ticket.arrived)
            self._waiting.served(ticket.model)
        return lease

    def take_back(self, lease: Lease) -> None:
        """Give a lease back; harmless when it was revoked or given back before."""
        instance = self._instances.get(lease.model)
        if instance is not None:
            now = self._tools.clock.now()
            if (
                instance.gate.holds(lease) and not lease.ticket.live
            ):  # sessions say nothing about how long requests take
                self._expectations.ended(lease.model, now - lease.granted_at - lease.frozen_s(now))
            instance.gate.release(lease, now)

    def spare(self, ticket: Ticket, count: int) -> list[Lease]:
        """Up to so many leases more of the model of `ticket`, to be lent: none while somebody waits for it. They go back by
        `look_back`: how long requests took that used them, whoever borrowed them tells `served`."""
        instance = self._instances.get(ticket.model)
        if instance is None or self._waiting.waits(ticket.model):
            return []
        now = self._tools.clock.now()
        found = (instance.gate.try_acquire(ticket, now) for _ in range(count))
        return [lease for lease in found if lease is not None]

    def waits(self, model: str) -> bool:
        """Whether anybody waits for it."""
        return self._waiting.waits(model)

    def served(self, model: str, arrived: float | None, worked: float) -> None:
        """A request has ended that used a lent lease for `worked` seconds. `arrived` (monotonic): it asked nobody for it."""
        if arrived is not None:
            self._expectations.arrived(model, arrived)
            self._expectations.leased(model, 0.0)
        self._expectations.ended(model, worked)

    def suspected(self, model: str, generation: int, streams: int) -> None:
        """As `Lease.suspect`, for so many streams in another process."""
        instance = self._instances.get(model)
        if instance is not None and instance.gate.generation == generation:
            instance.gate.suspicions += streams

    def look(self, ticket: Ticket, generation: int) -> Looking:
        """`async with manager.look(ticket, generation) as lease:` is the way to work that this launch of the model has already: to look
        at it or to end it, but to give it none. None instead of a lease when it is not there; nothing is woken or started."""
        return Looking(self, ticket, generation)

    def look_lease(self, ticket: Ticket, generation: int) -> Lease | None:
        instance = self._instances.get(ticket.model)
        if instance is None or instance.gate.generation != generation:
            return None
        return instance.gate.try_look(ticket, self._tools.clock.now())

    def look_back(self, lease: Lease) -> None:
        """Give back what `look` gave. It says nothing about how long requests take."""
        instance = self._instances.get(lease.model)
        if instance is not None:
            instance.gate.release(lease, self._tools.clock.now())

    def ending(self, model: str, generation: int) -> Ending | None:
        """When and why that launch ended; None when it did not, or that was long ago."""
        return self._endings.of(model, generation)

    # What the queue asks.

    def view(self, lanes: Sequence[Waiting]) -> View:
        """Everything that a scheduling decision may depend on, at this moment."""
        waiting = {w.model: w for w in lanes}
        frozen = (m for m, i in self._instances.items() if i.gate.frozen)
        models = dict.fromkeys((*waiting, *self._wishes.models(), *frozen))
        now, here = self._tools.clock.now(), [i for i in self._instances.values() if i.state in lc.LIVE]
        asked = [lane for m in models if (lane := self._lane(m, waiting.get(m, Waiting(m)))) is not None]
        known = {i.spec.id: i for i in (*here, *(self._instances[lane.model] for lane in asked))}
        self._seen = view = View(
            lanes=asked,
            residents=[
                survey.resident(
                    i,
                    pinned=self.pinned(i.spec),
                    kept=self._wishes.kept(i.spec.id),
                    expected=self._waiting.expects(i.spec.id),
                )
                for i in here
            ],
            ledger=self._room.ledger,
            expected={m: self._expectations.of(i, now) for m, i in known.items()},
        )
        return view

    def _lane(self, model: str, waiting: Waiting) -> Lane | None:
        instance = self._instance(model)
        if instance is None or (model not in self.catalog and not instance.gate.frozen):
            return None
        return survey.lane(
            instance, waiting, self._wishes.get(model), loading=model in self._loading_events,
            per_device=self.needs(instance),
        )  # fmt: skip

    def refusal(self, ticket: Ticket) -> MMError | None:
        if self._closing:
            return ShuttingDown("The server is shutting down. Try again in a few seconds.", retry_after=5.0)
        instance = self._instance(ticket.model)
        if instance is None or ticket.model not in self.catalog:
            return UnknownModel(f"The model `{ticket.model}` does not exist any more.")
        i = instance.snapshot
        doomed = i.state is State.STOPPING and i.then is not lc.Then.STOPPED
        if i.state in {State.FAILED, State.BACKOFF} or (doomed and ticket.model not in self._loading_events):
            back = lc.back_at(i, self._tools.clock.now())
            if back is None or ticket.deadline <= back:
                return self._start_failed(instance)
        if i.state is State.STOPPED and (wrong := self.objection(instance.spec)):
            return self._start_failed(instance, wrong, lasting=True)
        if ticket.stream and self._tears_down(i):
            return self._torn_down(instance)
        if not ticket.loads and i.state not in _THERE and ticket.model not in self._loading_events:
            return Forbidden(
                f"`{ticket.model}` is {i.state.value}, and this key may not load models (its right `load`), so nothing was started. "
                "Ask for a model that is ready, or for a key that may load.",
                reason=Reason.RIGHTS,
            )
        return None

    def _tears_down(self, i: Instance) -> bool:
        """Streams that want it are told to come again. Not while a load of it goes on: they will have that; nor after a crash, when it
        comes back by itself."""
        going = on_its_way_out(i) and i.then is not Then.BACKOFF and self._policy.on_teardown is OnTeardown.RETRY
        return going and i.model not in self._loading_events

    def _torn_down(self, instance: ModelInstance) -> TornDown:
        return torn_down(instance.snapshot, self.eta(instance.spec.id))

    def held(self, model: str, reason: str, until: float | None = None) -> None:
        """Those who want it have to wait, until then at least; remembered to be shown, and to say how long."""
        self._wishes.hold(model, reason)
        sleeper = self._instances.get(model)
        out = split(reason)[0] is Reason.DEVICE
        now = self._tools.clock.now()
        since = self._out_since.setdefault(model, now) if out else self._out_since.pop(model, now)
        if (
            out
            and sleeper is not None
            and sleeper.state is State.SLEEPING
            and not (sleeper.gate.frozen and now < since + DEVICE_PATIENCE)
        ):
            # It would not wake there; stopped, it can be started elsewhere. Frozen requests would be lost: they wait for the device.
            sleeper.tell(Drain(Goal.STOP, self._policy.drain_timeout, cause=reason))
        self.forecast.hold(model, until, self._seen, self._policy.rules)

    def refused(self, model: str, error: MMError) -> None:
        """A wish that can never be fulfilled is dropped; told when that is news, for a pinned model is wanted again at once. Frozen
        requests whose engine can never wake are told so, and not kept."""
        sleeper = self._instances.get(model)
        if sleeper is not None and sleeper.gate.frozen and sleeper.state is State.SLEEPING:
            sleeper.tell(Kill((error.reason or Reason.NEVER).because(error.message)))
        if self._wishes.drop(model) and self._wishes.refuse(model, error.message, no_room=isinstance(error, NoRoom)):
            code = error.reason or Reason.NEVER
            self._emit("swap.refused", model, error.message, {"code": code.value})

    def unwanted(self, model: str) -> None:
        if model not in self._loading_events:
            self.forecast.forget(model)
        wanted = self._wishes.get(model) is not None or self._instances[model].gate.frozen
        if self._policy.cancel_unwanted_loads and model in self._loading_events and not wanted:
            self._call_off(model, Reason.UNWANTED.because("nobody waits for it any more"))

    # What the instances tell.

    def _make(self, spec: ModelSpec) -> ModelInstance:
        return ModelInstance(spec, self, self._tools, self._policy.timeouts)

    def changed(self, instance: ModelInstance, before: Instance, after: Instance) -> None:
        model = instance.spec.id
        self.estimator.changed(instance, before, after)
        if after.state is before.state:
            if after.progress.phase in PROFILED and after.progress.phase != before.progress.phase:
                self._room.profiled(model)
            if after.goal is Goal.STOP and before.goal is Goal.SLEEP and after.on_timeout is not OnTimeout.FREEZE:
                self._tiers.release(model)
                self._room.leave(model)
            return
        self._out_since.pop(model, None)
        self._wishes.moved(model)
        if self.on_change is not None:
            self.on_change(model)
        if after.state is State.STOPPING:
            self._endings.note(model, Ending(after.generation, self._tools.clock.wall(), after.reason))
        if after.state is State.STOPPING and _may_sleep(before) and before.state is not State.DRAINING:
            self._tiers.leave(model)  # it holds it until it is gone
        elif not _may_sleep(after):
            self._tiers.release(model)
        stops = after.state is State.STOPPING and after.then is not Then.COLD
        if stops or (
            after.state is State.DRAINING and after.goal is Goal.STOP and after.on_timeout is not OnTimeout.KEEP
        ):
            self._room.leave(model)
        if after.state is State.SUSPENDING:  # now it is known whether it keeps requests
            if after.frozen:
                self._bed_for_frozen(instance)
            self._tiers.take(instance, self.ledger, frozen=after.frozen)
        if after.state is State.SLEEPING:
            self._fell_asleep(instance)
        if before.state in lc.LOADING:
            self._room.profiled(model)
        if before.state in lc.LIVE and after.state not in lc.LIVE:
            self._wishes.room_may_differ()
            self._gone(instance, before)
        if after.state in {State.BACKOFF, State.FAILED}:  # whose start failed were told before
            back = lc.back_at(after, self._tools.clock.now())
            end = inf if back is None else back
            self._waiting.refuse_those(model, lambda ticket: ticket.deadline <= end, self._start_failed(instance))
        if self._tears_down(after):
            self._waiting.refuse_those(model, lambda ticket: ticket.stream, self._torn_down(instance))
        self._waiting.kick()

    def _fell_asleep(self, instance: ModelInstance) -> None:
        model = instance.spec.id
        if model not in self._tiers.host.held:  # adopted, or put to sleep by other means
            self._tiers.take(instance, self.ledger)
        if not self._room.asleep(model, self._tiers.residue(instance.spec, self.ledger)):
            instance.tell(
                Drain(Goal.STOP, 0.0, Reason.EVICTED.because("it keeps more of its memory asleep than can be spared"))
            )

    def judged(self, instance: ModelInstance, verdict: Judge) -> None:
        last = self._tiers.judged(instance.spec, verdict)
        self._write_down_sleep(instance)
        if verdict.outcome is not Outcome.OK:
            data = {"outcome": verdict.outcome.value, "reason": verdict.reason, "again": not last}
            self._emit(
                "wake.failed" if verdict.waking else "sleep.failed",
                instance.spec.id,
                Reason.SLEEPLESS.because(verdict.reason),
                data,
            )

    async def host_room(self) -> str:
        return await self._tiers.room(self._tools.clock, self._policy.timeouts.stop + MEMORY_DEADLINE)

    def slot_freed(self, model: str) -> None:
        queue = self._queue
        if queue is None:
            return
        # Those who wait for the model may have its slot; those who wait for another may have its room once it is idle.
        if queue.waits(model) or (not self._instances[model].gate.count and (queue.size or self._wishes.models())):
            queue.kick()

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
        after = self._room.ledger.devices
        if _sizes(after.values()) != _sizes(before.values()):
            self._wishes.room_may_differ()
        if after != before:
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
        self._wishes.declared(self.catalog, catalog)
        self.catalog = catalog
        self._expectations.keep(catalog)
        for spec in catalog:
            if not self.pinned(spec):
                self.withdraw(spec.id, Reason.PINNED.value, "it is not pinned any more")
        for model in self._instances:
            if model not in catalog:
                self._waiting.fail(model, UnknownModel(f"The model `{model}` does not exist any more."))
        if self.on_change is not None:
            self.on_change(None)
        self._waiting.kick()

    # What anybody may look at.

    def wait_info(self, ticket: Ticket) -> WaitInfo:
        """Where a waiting request stands."""
        position, why = self._waiting.position(ticket.id, ticket.model), self._waiting.why(ticket.model)
        span = self.turn(ticket.model, position)
        return wait_info(self.require(ticket.model).snapshot, position, span.likely if span is not None else None, why)

    def follow(self, ticket: Ticket, *, on: bool) -> None:
        """Somebody will ask `wait_info` of it: here it is always known."""

    def turn(self, model: str, position: int) -> Span | None:
        """From now until the request at `position` of its lane could have its lease: when the model is ready, and if that is so
        and all its slots are taken, when as many of those have ended."""
        instance = self._instance(model)
        if instance is None or instance.state is not State.READY or instance.gate.free or position < 1:
            return self.expected(model)
        return turn(position, self._expectations.of(instance, self._tools.clock.now()).work, instance.spec.concurrency)

    def describe(self, model: str) -> InstanceView:
        """The instance as the admin API shows it."""
        instance = self.require(model)
        waits = self._why_it_waits(model)
        return instance_view(
            instance,
            reservation=self._room.ledger.reservations.get(model),
            why=self._objects(instance) or waits or self._wishes.refusal(model),
            # Before the scheduler has looked at it nobody knows whether it will be there at all.
            eta_s=self.eta(model) if instance.state in lc.LOADING or waits not in {"", NOT_LOOKED_AT} else None,
            queued=self._waiting.count(model),
            pinned=self.pinned(instance.spec),
            clock=self._tools.clock,
        )

    def _objects(self, instance: ModelInstance) -> str:
        return self.objection(instance.spec) if instance.state not in lc.LIVE else ""

    def _why_it_waits(self, model: str) -> str:
        loading, wish = self._loading_events.get(model), self._wishes.get(model)
        told = (wish.why_not or NOT_LOOKED_AT) if wish is not None else self._waiting.why(model)
        if loading is not None and split(told)[0] is not Reason.DATABASE:  # of which the next try may be under way
            return f"waits for its memory to become free: {loading.load.reason}"
        return told


def _sizes(devices: Iterable[Device]) -> set[tuple[str, int, int, bool]]:
    """What changes whether a model can ever fit: not the use of others, which comes and goes."""
    return {(d.id, d.capacity, d.headroom, bool(d.problem)) for d in devices}


def _may_sleep(i: Instance) -> bool:
    """Whether host memory is kept for it: from the decision that it sleeps until it is awake or told to stop."""
    asleep = i.state in {State.SUSPENDING, State.SLEEPING, State.WAKING}
    return asleep or i.goal is Goal.SLEEP or i.on_timeout is OnTimeout.FREEZE
