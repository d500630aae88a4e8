"""When a model will be READY: its own load, and what has to happen before it. And how good that was, once it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vllm_mm.clock import Clock
from vllm_mm.domain.estimates import NOTHING, Accuracy, Compared, Kind, Span, Stage
from vllm_mm.domain.lifecycle import LOADING, Goal, State
from vllm_mm.domain.partings import Parting
from vllm_mm.domain.residency import lent
from vllm_mm.domain.scheduling import Load, Rules, View, decide
from vllm_mm.engine.estimator import Estimator
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.loading import Loading


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a model waits for that nothing is loaded for yet."""

    at: float | None
    """When the policy will look again because of the time alone; None when something else has to happen first."""
    partings: tuple[Parting, ...] = ()
    """Who would make room then, and what would become of them."""
    by_chance: bool = False
    """Nobody knows when: it waits for the end of a lease on device memory, which may end at any time or be asked for anew, or for
    room that somebody may free, or not."""


class Forecast:
    """One for all models; reads the instances and changes nothing of them."""

    def __init__(
        self,
        estimator: Estimator,
        clock: Clock,
        instances: Mapping[str, ModelInstance],
        loading: Callable[[str], Loading | None],
        rehearse: Callable[[Sequence[Load]], tuple[Parting, ...]],
        profilers: Callable[[str], frozenset[str]],
    ) -> None:
        """`rehearse`: what the last of some loads would do to those who go for it. `profilers`: who sizes its memory on the devices of a model that
        was decided, so that this one has to wait."""
        self._estimator = estimator
        self._clock = clock
        self._instances = instances
        self._loading = loading
        self._rehearse = rehearse
        self._profilers = profilers
        self._foreseen: dict[str, Foreseen] = {}
        self._told: dict[str, dict[Stage, tuple[float, Span]]] = {}
        self.accuracy: dict[Stage, Accuracy] = {stage: Accuracy() for stage in Stage}

    def ready(self, instance: ModelInstance) -> Span | None:
        """From now until it is READY, if somebody wants it; None when it will not be by itself."""
        i, now = instance.snapshot, self._clock.now()
        match i.state:
            case State.READY:
                return NOTHING
            case State.STARTING | State.WAKING:
                return self._estimator.loading(instance)
            case State.FAILED:
                return None
            case State.BACKOFF:
                wait = max(0.0, (i.deadline or now) - now)
                return Span(wait, wait).then(self._estimator.start(instance.spec))
            case _ if self._waits_for_chance(instance.spec.id):
                return None
            case _:
                return self._before(instance).then(self.load(instance, self._partings(instance.spec.id)))

    def _waits_for_chance(self, model: str) -> bool:
        foreseen = self._foreseen.get(model)
        return foreseen is not None and foreseen.by_chance and self._loading(model) is None

    def load(self, instance: ModelInstance, partings: Sequence[Parting] = ()) -> Span:
        """The load alone, once these have made room: a wake if it sleeps, or will; a start if it gives that up for one of them."""
        i = instance.snapshot
        if not (i.state is State.SLEEPING or (i.state in {State.DRAINING, State.SUSPENDING} and i.goal is Goal.SLEEP)):
            return self._estimator.start(instance.spec)
        wake, start = self._estimator.expected(instance.spec, Kind.WAKE), self._estimator.start(instance.spec)
        late = [self._late(p) for p in partings if instance.spec.id in p.gives_up]
        return Span(
            start.likely if any(likely for likely, _ in late) else wake.likely,
            max(start.at_latest, wake.at_latest) if any(at_latest for _, at_latest in late) else wake.at_latest,
        )

    def room(self, partings: Sequence[Parting]) -> Span:
        """Until these have made room; they go at the same time, and one that is to sleep waits for the sleepers that are stopped
        for it."""
        span = NOTHING
        for parting in partings:
            span = span.with_at_least(self.going(parting))
        return span

    def going(self, parting: Parting) -> Span:
        """Until one of them has."""
        instance = self._instances.get(parting.model)
        if instance is None:
            return NOTHING
        leaves = self._estimator.going(instance, parting.fate.goal)
        if parting.gives_up and instance.state in {State.READY, State.DRAINING}:
            return self._kept_or_not(instance, parting, leaves)
        if parting.fate.goal is Goal.SLEEP or instance.state is State.SUSPENDING:
            leaves = leaves.with_at_least(self._bed(instance, (*parting.fate.stops, *parting.gives_up)))
        return leaves

    def _kept_or_not(self, instance: ModelInstance, parting: Parting, leaves: Span) -> Span:
        """What is left when its drain is over it sleeps with, and only then others give up their sleep for it."""
        drain, sleep = self._estimator.draining(instance), self._estimator.expected(instance.spec, Kind.SLEEP)
        asleep = drain.then(sleep.with_at_least(self._bed(instance, parting.gives_up)))
        likely, at_latest = self._late(parting)
        return Span(
            asleep.likely if likely else leaves.likely,
            max(asleep.at_latest, leaves.at_latest) if at_latest else leaves.at_latest,
        )

    def _late(self, parting: Parting) -> tuple[bool, bool]:
        """Whether its drain likely takes too long, and whether it may."""
        instance = self._instances.get(parting.model)
        if instance is None or not instance.gate.count:
            return False, False
        drain, limit = self._estimator.draining(instance), self._estimator.drains_until(instance)
        return drain.likely >= limit, drain.at_latest >= limit

    def _bed(self, instance: ModelInstance, stops: Sequence[str]) -> Span:
        """Until it sleeps, once these have been stopped for it; nothing where none of them is left."""
        found = [i for name in stops if (i := self._instances.get(name)) is not None]
        left = [self._estimator.going(i) for i in found if i.state in {State.SLEEPING, State.STOPPING}]
        if not left:
            return NOTHING
        stopped = Span(max(s.likely for s in left), max(s.at_latest for s in left))
        return stopped.then(self._estimator.expected(instance.spec, Kind.SLEEP))

    def _partings(self, model: str) -> tuple[Parting, ...]:
        """Those who make room for its load, or would."""
        loading, foreseen = self._loading(model), self._foreseen.get(model)
        if loading is not None:
            return loading.partings
        return foreseen.partings if foreseen is not None else ()

    def _before(self, instance: ModelInstance) -> Span:
        """Until its load can begin: itself gone or asleep, and what it waits for."""
        model = instance.spec.id
        own = NOTHING if instance.state is State.SLEEPING else self._estimator.going(instance, Goal.SLEEP)
        if self._loading(model) is not None:
            return own.with_at_least(self.room(self._partings(model))).with_at_least(self._profiles(model))
        foreseen = self._foreseen.get(model)
        if foreseen is None:
            return own
        wait = max(0.0, foreseen.at - self._clock.now()) if foreseen.at is not None else 0.0
        if foreseen.partings:
            return own.with_at_least(Span(wait, wait).then(self.room(foreseen.partings)))
        # Somebody else's load, or stop, is in the way.
        others = NOTHING
        for other in self._instances.values():
            if other is not instance and other.state in LOADING | {State.STOPPING, State.SUSPENDING}:
                left = self._estimator.loading(other) if other.state in LOADING else self._estimator.going(other)
                others = others.with_at_least(left)
        return own.with_at_least(others).with_at_least(Span(wait, wait))

    def _profiles(self, model: str) -> Span:
        """One engine at a time sizes its memory on a device; at latest it is done with that when it is ready."""
        span = NOTHING
        for other in self._profilers(model):
            if (instance := self._instances.get(other)) is not None and instance.state in LOADING:
                span = span.with_at_least(self._estimator.loading(instance))
        return span

    # What was told, and what came.

    def hold(self, model: str, until: float | None, view: View | None, rules: Rules) -> None:
        """The policy holds those who wait for `model`; what it would decide at `until`, on what it saw, is what they wait for.
        Its first word since somebody waits is a forecast that is compared."""
        known, by_chance = self._foreseen.get(model), _by_chance(model, view, self._clock.now())
        if known is None or known.at != until or known.by_chance != by_chance:
            self._foreseen[model] = Foreseen(until, self._then(model, until, view, rules), by_chance)
        self.tell(model, Stage.QUEUED)

    def _then(self, model: str, until: float | None, view: View | None, rules: Rules) -> tuple[Parting, ...]:
        """What becomes of those who go for `model` at `until`."""
        if until is None or view is None:
            return ()
        loads: list[Load] = []
        for decision in decide(view, rules, until):
            if isinstance(decision, Load):
                loads.append(decision)
                if decision.model == model:
                    return self._rehearse(loads)
        return ()

    def tell(self, model: str, stage: Stage) -> None:
        """Keep what is expected now. The first word of each stage counts; a decision without a hold before it is both."""
        told = self._told.setdefault(model, {})
        instance = self._instances.get(model)
        span = self.ready(instance) if instance is not None else None
        if span is not None:
            told.setdefault(stage, (self._clock.now(), span))
            if stage is Stage.DECIDED:
                told.setdefault(Stage.QUEUED, told[stage])

    def came(self, model: str) -> tuple[Compared, ...]:
        """It is READY: compare."""
        self._foreseen.pop(model, None)
        now, found = self._clock.now(), list[Compared]()
        for stage, (at, span) in self._told.pop(model, {}).items():
            found.append(Compared(stage, span, now - at))
            self.accuracy[stage] = self.accuracy[stage].note(span, now - at)
        return tuple(found)

    def forget(self, model: str) -> None:
        """It will not come, or nobody waits any more: there is nothing to compare."""
        self._foreseen.pop(model, None)
        self._told.pop(model, None)


def _by_chance(model: str, view: View | None, now: float) -> bool:
    lane = next((lane for lane in view.lanes if lane.model == model), None) if view is not None else None
    if view is None or lane is None:
        return False
    return not lane.may_evict or bool(lent(view.ledger.release(model), lane.wish, lane.per_device, view.residents, now))
