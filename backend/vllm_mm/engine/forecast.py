"""When a model will be READY: its own load, and what has to happen before it. And how good that was, once it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllm_mm.clock import Clock
from vllm_mm.domain.estimates import NOTHING, Accuracy, Compared, Kind, Span, Stage
from vllm_mm.domain.lifecycle import LOADING, Goal, State
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
    victims: tuple[str, ...] = ()
    """Who would make room then."""
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
        goal: Callable[[ModelInstance], Goal],
        profilers: Callable[[str], frozenset[str]],
    ) -> None:
        """`goal`: where an eviction of an instance would lead. `profilers`: who sizes its memory on the devices of a model that
        was decided, so that this one has to wait."""
        self._estimator = estimator
        self._clock = clock
        self._instances = instances
        self._loading = loading
        self._goal = goal
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
                return self._before(instance).then(self.load(instance))

    def _waits_for_chance(self, model: str) -> bool:
        foreseen = self._foreseen.get(model)
        return foreseen is not None and foreseen.by_chance and self._loading(model) is None

    def load(self, instance: ModelInstance) -> Span:
        """The load alone, once there is room: a wake if it sleeps, or will."""
        i = instance.snapshot
        if i.state is State.SLEEPING or (i.state in {State.DRAINING, State.SUSPENDING} and i.goal is Goal.SLEEP):
            return self._estimator.expected(instance.spec, Kind.WAKE)
        return self._estimator.start(instance.spec)

    def room(self, victims: tuple[str, ...]) -> Span:
        """Until these have made room; they go at the same time."""
        span = NOTHING
        for victim in victims:
            if (instance := self._instances.get(victim)) is not None:
                span = span.with_at_least(self._estimator.going(instance, self._goal(instance)))
        return span

    def _before(self, instance: ModelInstance) -> Span:
        """Until its load can begin: itself gone or asleep, and what it waits for."""
        model = instance.spec.id
        own = NOTHING if instance.state is State.SLEEPING else self._estimator.going(instance, Goal.SLEEP)
        loading = self._loading(model)
        if loading is not None:
            return own.with_at_least(self.room(loading.load.victims)).with_at_least(self._profiles(model))
        foreseen = self._foreseen.get(model)
        if foreseen is None:
            return own
        wait = max(0.0, foreseen.at - self._clock.now()) if foreseen.at is not None else 0.0
        if foreseen.victims:
            return own.with_at_least(Span(wait, wait).then(self.room(foreseen.victims)))
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
            self._foreseen[model] = Foreseen(until, _victims(model, until, view, rules), by_chance)
        self.tell(model, Stage.QUEUED)

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


def _victims(model: str, until: float | None, view: View | None, rules: Rules) -> tuple[str, ...]:
    if until is None or view is None:
        return ()
    loads = (d for d in decide(view, rules, until) if isinstance(d, Load) and d.model == model)
    return next((load.victims for load in loads), ())


def _by_chance(model: str, view: View | None, now: float) -> bool:
    lane = next((lane for lane in view.lanes if lane.model == model), None) if view is not None else None
    if view is None or lane is None:
        return False
    return not lane.may_evict or bool(lent(view.ledger.release(model), lane.wish, lane.per_device, view.residents, now))
