"""Learns how long loads, sleeps, drains and stops take, and says how long one of them will, or has left."""

import math
from collections.abc import Callable, Mapping

from vllm_mm.clock import Clock
from vllm_mm.domain import estimates
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.estimates import NOTHING, Kind, Span, Times
from vllm_mm.domain.lifecycle import Goal, Instance, State, Then
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.notes import note
from vllm_mm.engine.ports import LaunchStore
from vllm_mm.vocabulary.profile import load_seconds, move_seconds

GUESSES: Mapping[Kind, Span] = {
    Kind.START: Span(30.0, 120.0),
    Kind.WARM: Span(5.0, 30.0),
    Kind.WAKE: Span(3.0, 15.0),
    Kind.SLEEP: Span(3.0, 15.0),
    Kind.STOP: Span(1.0, 5.0),
    Kind.DRAIN: Span(5.0, 60.0),
}
"""What a thing takes of which nothing is known and nothing like it was seen."""
_PYTHON = 0.4
"""Seconds that the process of a simulated engine takes beyond its profile."""
_STOPPED_BY_US = frozenset({State.READY, State.DRAINING, State.SLEEPING})
"""A stop from these is the one that a swap waits for; the end of a failed start is another matter."""


class Estimator:
    """One for all models. `changed` is to be told of every change of every instance."""

    def __init__(self, store: LaunchStore, clock: Clock, catalog: Callable[[], Catalog], drain_timeout: float) -> None:
        self._store = store
        self._clock = clock
        self._catalog = catalog
        self._drain_timeout = drain_timeout
        self._times: dict[str, Times] = {}
        self._phase_since: dict[str, float] = {}
        self._timed: dict[str, Kind] = {}
        """What the present state is the time of, where that cannot be seen from the state alone."""

    def remember(self, times: Mapping[str, Times]) -> None:
        """What earlier runs learned."""
        self._times = dict(times)

    def times(self, model: str) -> Times:
        """Of that model alone."""
        return self._times.get(model, Times())

    def expected(self, spec: ModelSpec, kind: Kind) -> Span:
        """What it will take: as this model did before; else as its simulated engine declares; else as models with the same
        engine did; else a guess."""
        own = self.times(spec.id).span(kind)
        if own is not None:
            return own
        declared = _declared(spec, kind)
        if declared is not None:
            return declared
        alike = (self._times[s.id] for s in self._catalog() if s.id in self._times and _alike(s, spec))
        return estimates.pooled(alike, kind) or GUESSES[kind]

    def start(self, spec: ModelSpec) -> Span:
        """A start from nothing, of the kind that the latest one was."""
        return self.expected(spec, self.times(spec.id).start)

    # Learning.

    def changed(self, instance: ModelInstance, before: Instance, after: Instance) -> None:
        """Called in the turn of the change, after its effects."""
        model, now = instance.spec.id, self._clock.now()
        if after.progress.phase != before.progress.phase or after.state is not before.state:
            self._phase_since[model] = now
        if after.state is before.state:
            return
        took = after.since - before.since
        match before.state, after.state:
            case State.STARTING, State.READY:
                phases = instance.phases
                self._times[model] = self.times(model).note(estimates.start_kind(phases), took, phases)
            case State.WAKING, State.READY:
                self._note(instance, Kind.WAKE, took)
            case State.SUSPENDING, State.SLEEPING:
                self._note(instance, Kind.SLEEP, took)
            case State.DRAINING, State.SUSPENDING | State.STOPPING if self._timed.get(model) is Kind.DRAIN:
                self._note(instance, Kind.DRAIN, took)
            case State.STOPPING, State.STOPPED if self._timed.get(model) is Kind.STOP:
                self._note(instance, Kind.STOP, took)
            case _:
                pass
        self._timed.pop(model, None)
        if after.state is State.DRAINING and instance.gate.count:
            self._timed[model] = Kind.DRAIN
        elif after.state is State.STOPPING and before.state in _STOPPED_BY_US and after.then is Then.STOPPED:
            self._timed[model] = Kind.STOP

    def _note(self, instance: ModelInstance, kind: Kind, seconds: float) -> None:
        model = instance.spec.id
        self._times[model] = times = self.times(model).note(kind, seconds)
        kept = times.seconds(kind)
        instance.tasks.run(
            note(lambda: self._store.took(model, kind, kept), self._clock, f"{model}: how long its {kind.value} took")
        )

    # What is left.

    def loading(self, instance: ModelInstance) -> Span:
        """Of a load that has begun, until READY."""
        i, now = instance.snapshot, self._clock.now()
        passed = now - i.since
        if i.state is State.WAKING:
            return self._left(instance.spec, Kind.WAKE, passed)
        known = self.times(i.model)
        kind = Kind.WARM if instance.launcher == "warm" else Kind.START if instance.launcher else known.start
        in_phase = now - self._phase_since.get(i.model, i.since)
        return known.left(kind, passed, i.progress.phase, in_phase) or self._left(instance.spec, kind, passed)

    def going(self, instance: ModelInstance, goal: Goal = Goal.STOP) -> Span:
        """Until its memory is free: all of it with `goal` STOP, what sleep frees with SLEEP. Nothing when it is gone."""
        i, spec, now = instance.snapshot, instance.spec, self._clock.now()
        passed = now - i.since
        go = Kind.SLEEP if (i.goal or goal) is Goal.SLEEP else Kind.STOP
        match i.state:
            case State.READY | State.DRAINING:
                return self.draining(instance).then(self.expected(spec, go))
            case State.SUSPENDING:
                return self._left(spec, Kind.SLEEP, passed)
            case State.SLEEPING:
                return NOTHING if goal is Goal.SLEEP else self.expected(spec, Kind.STOP)
            case State.STOPPING:
                return self._left(spec, Kind.STOP, passed)
            case State.STARTING | State.WAKING:
                return self.loading(instance).then(self.expected(spec, go))
            case _:
                return NOTHING

    def draining(self, instance: ModelInstance) -> Span:
        """What is left of its drain, or would be if it began now."""
        if instance.state is not State.DRAINING:
            return self.drain(instance)
        if not instance.gate.count:
            return NOTHING
        passed = self._clock.now() - instance.snapshot.since
        return self._left(instance.spec, Kind.DRAIN, passed).within(self.drains_until(instance))

    def drains_until(self, instance: ModelInstance) -> float:
        """Seconds until its drain is over, whatever is left by then."""
        if instance.state is not State.DRAINING:
            return self._drain_timeout
        now = self._clock.now()
        return max(0.0, (instance.snapshot.deadline or now) - now)

    def drain(self, instance: ModelInstance) -> Span:
        """If it began now."""
        if not instance.gate.count:
            return NOTHING
        return self.expected(instance.spec, Kind.DRAIN).within(self._drain_timeout)

    def _left(self, spec: ModelSpec, kind: Kind, passed: float) -> Span:
        known = self.times(spec.id).left(kind, passed)
        if known is not None:
            return known
        guess = self.expected(spec, kind)
        late = estimates.overdue(passed)
        likely = guess.likely - passed if passed < guess.likely else late.likely
        return Span(likely, max(guess.at_latest - passed, likely, late.at_latest if passed >= guess.likely else 0.0))


def _alike(one: ModelSpec, other: ModelSpec) -> bool:
    return (one.engine, one.executable) == (other.engine, other.executable) and one.id != other.id


def _declared(spec: ModelSpec, kind: Kind) -> Span | None:
    """What the profile of a simulated engine says; None for others, and for what no profile says."""
    if spec.engine is not EngineKind.SIM:
        return None
    match kind:
        case Kind.START | Kind.WARM:
            seconds = load_seconds(spec.sim, imports=kind is Kind.START) + _PYTHON
        case Kind.WAKE | Kind.SLEEP:
            seconds = move_seconds(spec.sim, spec.devices.count) + 0.1
        case _:
            return None
    return Span(seconds, 1.5 * seconds) if math.isfinite(seconds) else None
