"""What operators and policies do with models: load, unload, drain, sleep, pin. A base of the `ProcessManager`, whose public
side this is; it decides nothing and waits for nothing: each act puts down a wish, or tells an instance."""

from abc import abstractmethod
from collections.abc import Callable, Collection

from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.errors import Conflict, ShuttingDown
from vllm_mm.domain.estimates import Kind
from vllm_mm.domain.lifecycle import Drain, Goal, Kill, OnTimeout, Reset, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.tiers import Fate, Sleeper
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.notes import note
from vllm_mm.engine.policy import Policy
from vllm_mm.engine.registry import Registry
from vllm_mm.engine.tiers import Departure
from vllm_mm.engine.tools import Tools
from vllm_mm.engine.wishes import Wish, Wishes


class Acts(Registry):
    """`cause`: who or what wants it, as it is told in events."""

    def __init__(self, catalog: Catalog, tools: Tools, policy: Policy) -> None:
        super().__init__(catalog, tools, policy)
        self._wishes = Wishes()
        self._closing = False
        """No new lease and no new load: the server ends."""
        self.objection: Callable[[ModelSpec], str] = lambda _: ""
        """Why no engine would start with that declaration, by its own word (`control.arguments`); empty when nothing is known."""

    # What the acts need of the manager.

    @abstractmethod
    def _call_off(self, model: str, reason: str) -> bool: ...

    @abstractmethod
    def _decide(self) -> None: ...

    @abstractmethod
    def awaited(self, model: str) -> bool:
        """Whether somebody waits for it: a request, a wish, a load, or requests that are frozen in it."""
        ...

    @abstractmethod
    def unwanted(self, model: str) -> None:
        """Nobody waits for it any more."""
        ...

    @abstractmethod
    def awaited_by_requests(self, model: str) -> bool: ...

    # The acts.

    async def start(self, model: str, cause: str, *, urgent: bool = True) -> None:
        """Want `model` READY. Returns at once. An operator's start forgets earlier failures.

        Raises UnknownModel, ShuttingDown, and to an operator Conflict when its engine would not start with its declaration.
        """
        instance = self.require(model)
        if self._closing:
            raise ShuttingDown("The server is shutting down.")
        if instance.state is State.READY or self.loading(model) is not None:
            return
        if instance.state in {State.FAILED, State.BACKOFF, State.STOPPING}:
            await instance.ask(Reset(cause))
        if urgent and instance.state is State.STOPPED and (wrong := self.objection(instance.spec)):
            raise Conflict(f"{model} cannot be started: {wrong}")
        self._wishes.want(model, Wish(self._tools.clock.now(), urgent, cause))
        self._decide()

    async def stop(self, model: str, cause: str, *, force: bool = False) -> None:
        """Drain and stop; at once with `force`, while it loads, or when its requests are frozen, for then their drain has
        taken its time. Returns when it is told, not when it is gone."""
        instance = self.require(model)
        self._wishes.dismiss(model)
        if self._call_off(model, f"stopped by {cause}") and instance.state is not State.SLEEPING:
            return
        timeout = self._policy.drain_timeout
        await instance.ask(Kill(cause) if force else Drain(Goal.STOP, timeout, cause, self._policy.on_drain_timeout))

    async def retire(self, model: str, cause: str) -> None:
        """Its declaration changed or is gone: let what runs finish, then stop; earlier failures are forgotten."""
        instance = self._instance(model)
        self._wishes.drop(model)
        if instance is None:
            return
        # A load that is to bring frozen requests back goes on: they are what runs.
        if (instance.gate.frozen or not self._call_off(model, cause)) and instance.state in lc.LIVE:
            await instance.ask(Drain(Goal.STOP, self._policy.drain_timeout, cause, OnTimeout.WAIT))
        instance.tell(Reset(cause))

    async def restart(self, model: str, cause: str) -> None:
        """Drain, stop, start again."""
        instance = self.require(model)
        if instance.state in lc.LIVE:
            await self.stop(model, cause)
        await self.start(model, cause)

    async def sleep(self, model: str, cause: str) -> None:
        """Let what runs finish, then put to sleep; sleepers may be stopped for its place in host memory. Nobody keeps it awake
        until somebody wants it. Raises Conflict where the engine cannot, or where there is no room for its weights."""
        instance = self.require(model)
        self._make_bed(instance)
        # Frozen in it, its requests would have it awake again at once: they finish first.
        await instance.ask(Drain(Goal.SLEEP, self._policy.drain_timeout, cause, OnTimeout.WAIT))
        self._wishes.dismiss(model)

    async def rest(self, model: str, goal: Goal, cause: str) -> None:
        """Let it go because nobody uses it, unless somebody does by now or waits for it. Unlike `stop` and `sleep` it has no last
        word: nothing is called off, and whoever wants the model has it again. Raises Conflict as `sleep` does."""
        instance = self.require(model)
        if instance.gate.count or self.awaited(model):
            return
        if goal is Goal.SLEEP:
            self._make_bed(instance)
        await instance.ask(Drain(goal, self._policy.drain_timeout, cause, OnTimeout.WAIT))

    async def wake(self, model: str, cause: str) -> None:
        """Wake a sleeping instance. Raises Conflict when it does not sleep."""
        instance = self.require(model)
        if instance.state in {State.READY, State.WAKING}:
            return
        if instance.state is not State.SLEEPING:
            raise Conflict(f"{model} is {instance.state.value}, not asleep. `load` starts it.")
        await self.start(model, cause)

    async def drain(self, model: str, cause: str) -> None:
        """No new requests; what runs is let finish, however long it takes; then stop. A load that has no process yet is called
        off. Nobody keeps it ready until somebody wants it."""
        instance = self.require(model)
        self._wishes.dismiss(model)
        called_off = not instance.gate.frozen and self._call_off(model, f"stopped by {cause}")
        if not called_off or instance.state is State.SLEEPING:
            await instance.ask(Drain(Goal.STOP, self._policy.drain_timeout, cause, OnTimeout.WAIT))

    async def undrain(self, model: str, cause: str) -> None:
        """Take a drain back. Raises Conflict when the memory was promised to another model."""
        instance = self.require(model)
        if instance.state is State.DRAINING and not self._room.stay(model):
            raise Conflict(f"{model} cannot stay: its memory was promised to another model")
        await instance.ask(lc.Undrain(cause))
        self._wishes.came(model)

    async def reset(self, model: str, cause: str) -> None:
        """Forget the failures of a FAILED or backing-off instance, and those of its sleep."""
        instance = self.require(model)
        if self._tiers.forgive(instance.spec):
            self._write_down_sleep(instance)
        await instance.ask(Reset(cause))

    def pin(self, model: str, *, pinned: bool) -> None:
        """Never (or again) a victim, until the controller restarts or the configuration says otherwise. Raises Conflict for one
        that goes already, and whose memory was promised to another model."""
        instance = self.require(model)
        if pinned and instance.state in {State.DRAINING, State.SUSPENDING, State.STOPPING}:
            try:
                self.ledger.stay(model)
            except ValueError as error:
                raise Conflict(
                    f"{model} cannot be pinned while it is {instance.state.value}: {error}. Pin it when it has gone."
                ) from None
        self._wishes.pin(model, pinned=pinned)
        if not pinned:
            self.withdraw(model, Reason.PINNED.value, "it is not pinned any more")
        self._decide()

    def withdraw(self, model: str, cause: str, why: str) -> None:
        """It was wanted for `cause`, which is over: a load that nobody else waits for is not begun. One that is decided goes on, as
        with `queue.cancel_unwanted_loads` off; with that it is called off. Harmless when repeated. `why`: for people."""
        if not self._wishes.withdraw(model, cause):
            return
        if self.loading(model) is None:
            self._tools.journal.emit("swap.withdrawn", model=model, cause=Reason.UNWANTED.because(why))
        if not self.awaited_by_requests(model):
            self.unwanted(model)

    def in_time(self, models: Collection[str]) -> None:
        """For these it is one of their times of the week, and for no others: they go last when somebody has to."""
        self._wishes.in_time(models)

    # Sleep instead of a stop.

    def fate(self, model: str) -> Fate:
        """What would become of it if it had to go now, alone and for nobody's load: sleep where that is possible and there is room
        for it, else a stop."""
        return self._tiers.fate(self.require(model), self.ledger, self.sleepers())

    def sleepers(self, loading: Collection[str] = ()) -> list[Sleeper]:
        """Who sleeps, as those who may be stopped for the host's memory: not who is pinned or about to wake, as these in `loading`
        are."""
        return [
            Sleeper(
                i.spec.id, i.snapshot.since,
                spare=not (
                    i.gate.count or i.gate.frozen or self.pinned(i.spec) or self.loading(i.spec.id) is not None
                    or i.spec.id in loading
                ),
            )
            for i in self._instances.values()
            if i.state is State.SLEEPING
        ]  # fmt: skip

    def eviction_goal(self, instance: ModelInstance) -> Goal:
        return self.fate(instance.spec.id).goal if instance.state is State.READY else Goal.STOP

    def departure(self, model: str) -> Departure:
        """What an eviction of it would be now, and how long that and its return take."""
        instance = self.require(model)
        goal = self.eviction_goal(instance)
        back = (
            self.estimator.expected(instance.spec, Kind.WAKE)
            if goal is Goal.SLEEP
            else self.estimator.start(instance.spec)
        )
        return Departure(goal, leaves=self.estimator.going(instance, goal), back=back)

    def _make_bed(self, instance: ModelInstance) -> None:
        """Before it is told to sleep for its own sake. Raises Conflict where it cannot."""
        model, reason = instance.spec.id, self.why_no_sleep(instance.spec)
        if not reason and instance.state is State.READY:
            fate = self.fate(model)
            if fate.goal is Goal.SLEEP:
                self._lay_down(instance, fate)
            else:
                reason = fate.reason
        if reason:
            raise Conflict(f"{model} cannot sleep: {reason}. Stop it instead.")

    def _lay_down(self, instance: ModelInstance, fate: Fate, *, frozen: bool = False) -> None:
        """Keep what it needs to sleep, before it is told to: host memory, and what stays of it on its devices."""
        for sleeper in fate.stops:
            cause = Reason.SLEEP_ROOM.because(
                f"host memory for the sleep of {instance.spec.id}, which was in use later"
            )
            self._instances[sleeper].tell(Drain(Goal.STOP, self._policy.drain_timeout, cause))
        self._tiers.take(instance, self.ledger, frozen=frozen)
        self._room.leave_asleep(instance.spec.id, self._tiers.residue(instance.spec, self.ledger))

    def _write_down_sleep(self, instance: ModelInstance) -> None:
        """What its sleeps taught, for the next controller."""
        spec, store = instance.spec, self._tools.store
        instance.tasks.run(
            note(
                lambda: store.slept(spec.fingerprint, self._tiers.known(spec)),
                self._tools.clock, f"{spec.id}: what its sleep taught",
            )
        )  # fmt: skip

    # What became of them.

    def pinned(self, spec: ModelSpec) -> bool:
        """Whether it is never a victim."""
        return self._wishes.pinned(spec)

    def dismissed(self, model: str) -> bool:
        """Whether it was told to stop or to sleep, and nobody has wanted it since."""
        return self._wishes.dismissed(model)

    def refused_because(self, model: str) -> str:
        """Why the last wish for `model` came to nothing before there was a process; empty when it did not."""
        return self._wishes.refusal(model)
