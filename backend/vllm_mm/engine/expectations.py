"""What scheduling decisions may expect of the models: from their requests as they come and go, and from the times of their swaps.

Every request passes `arrived`, `leased` and `ended`: a look-up and a few additions each, no lock and no allocation.
"""

from collections.abc import Callable, Container
from dataclasses import replace

from vllm_mm.domain.estimates import Kind
from vllm_mm.domain.lifecycle import Goal
from vllm_mm.domain.scheduling import Expected, Habits, SwapTimes
from vllm_mm.engine.estimator import Estimator
from vllm_mm.engine.instance import ModelInstance


class Expectations:
    """One for all models; forgotten when the controller ends, but for the times."""

    def __init__(self, estimator: Estimator, goal: Callable[[ModelInstance], Goal]) -> None:
        """`goal`: where an eviction of an instance would lead."""
        self._estimator = estimator
        self._goal = goal
        self._habits: dict[str, Habits] = {}

    def arrived(self, model: str, now: float) -> None:
        """A request came; `now` in monotonic seconds."""
        habits = self._habits.get(model)
        if habits is None:
            habits = self._habits[model] = Habits()
        habits.arrived(now)

    def leased(self, model: str, waited: float) -> None:
        """It got its lease after so many seconds."""
        habits = self._habits.get(model)
        if habits is not None:
            habits.leased(waited)

    def ended(self, model: str, worked: float) -> None:
        """Its lease is back after so many seconds."""
        habits = self._habits.get(model)
        if habits is not None:
            habits.ended(worked)

    def keep(self, models: Container[str]) -> None:
        """Forget the others: they are not declared any more."""
        self._habits = {m: h for m, h in self._habits.items() if m in models}

    def of(self, instance: ModelInstance, now: float) -> Expected:
        """What is expected of it at `now`."""
        spec, of = instance.spec, self._estimator.expected
        times = SwapTimes(
            start=self._estimator.start(spec).likely,
            wake=of(spec, Kind.WAKE).likely,
            stop=of(spec, Kind.STOP).likely,
            sleep=of(spec, Kind.SLEEP).likely,
        )
        sleeps = self._goal(instance) is Goal.SLEEP
        habits, loss = self._habits.get(spec.id), instance.cache_loss
        known = habits.expected(times, now, sleeps=sleeps) if habits is not None else Expected(times, sleeps)
        return replace(known, cache=loss) if loss else known
