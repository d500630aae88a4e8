"""The tiers of a model: READY, SLEEPING, STOPPED. Whether one that has to go sleeps or stops, and the host's memory. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllm_mm.domain.ledger import gib
from vllm_mm.domain.states import Goal


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Who holds how much of the host's memory for sleep, or was promised it: from the decision that it sleeps until it is
    awake again or gone. Every change returns another one. Bytes."""

    budget: int | None
    """None: as much as anybody wants."""
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    leaving: Mapping[str, int] = field(default_factory=dict[str, int])
    """Who was told to stop and is not gone: a decision may count on that memory, a sleep may not use it yet."""

    @property
    def used(self) -> int:
        return sum(self.held.values()) + sum(self.leaving.values())

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Who has to be gone before one that was promised memory may take it; nobody when it is there already."""
        over = self.budget is not None and self.used > self.budget
        return tuple(self.leaving) if over else ()

    def lacks(self, size: int, without: Sequence[str] = ()) -> int:
        """Bytes by which `size` more would exceed the budget once those in `without` are gone; 0 when it fits."""
        if self.budget is None:
            return 0
        stay = sum(held for model, held in self.held.items() if model not in without)
        return max(0, stay + size - self.budget)

    def take(self, model: str, size: int) -> "HostMemory":
        """Replaces what `model` held before. A fact or a decision that was made: may exceed."""
        return replace(self, held={**self.held, model: size})

    def leave(self, model: str) -> "HostMemory":
        """It sleeps, or goes to sleep, and was told to stop. Unknown models change nothing."""
        if model not in self.held:
            return self
        return replace(self.release(model), leaving={**self.leaving, model: self.held[model]})

    def release(self, model: str) -> "HostMemory":
        """Awake, or gone. Unknown models change nothing."""
        held, leaving = ({m: n for m, n in sizes.items() if m != model} for sizes in (self.held, self.leaving))
        return replace(self, held=held, leaving=leaving)


@dataclass(frozen=True, slots=True)
class Sleeper:
    """One that holds host memory, as somebody who may be stopped to make room for another sleeper."""

    model: str
    asleep_since: float
    spare: bool
    """Asleep, without frozen requests, not pinned, and not about to wake."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a model that has to go. `stops`: sleepers to be stopped for it, those that slept longest first."""

    goal: Goal
    reason: str
    """For people."""
    stops: tuple[str, ...] = ()


def fate(
    host: HostMemory, need: int, sleepers: Sequence[Sleeper], *, why_not: str = "", device_room: bool = True,
    last: Sequence[str] = (),
) -> Fate:  # fmt: skip
    """SLEEP where the engine can (`why_not` says why it cannot), what stays of it fits beside what was promised on its devices
    (`device_room`), and the host has `need` bytes for it, or will have once sleepers that can be spared are stopped. Else STOP.

    A budget of 0 turns sleep off, also for models that need nothing of it. `last`: those that would be woken, and give up their
    sleep where all others together are too little; they are started anew, and no more of the others go than are needed beside them.
    """
    if why_not:
        return Fate(Goal.STOP, why_not)
    if host.budget == 0:
        return Fate(Goal.STOP, "`host_memory.sleep_budget` is 0")
    if not device_room:
        return Fate(Goal.STOP, "what would stay of it on its devices is promised to others")
    spare = sorted((s for s in sleepers if s.spare and host.held.get(s.model)), key=lambda s: (s.asleep_since, s.model))
    stops = _stops(host, need, spare, ())
    if last and host.lacks(need, stops):
        stops = _stops(host, need, spare, last)
    if lacking := host.lacks(need, stops):
        return Fate(
            Goal.STOP, f"the host's memory for sleep has no room for its {gib(need)}: {gib(lacking)} too little"
        )
    return Fate(Goal.SLEEP, f"its weights ({gib(need)}) stay in host memory" if need else "it sleeps", tuple(stops))


def _stops(host: HostMemory, need: int, spare: Sequence[Sleeper], first: Sequence[str]) -> list[str]:
    """Of `spare` as many as are needed beside `first`; all, where that is too little."""
    stops = list(first)
    for sleeper in spare:
        if not host.lacks(need, stops):
            break
        stops.append(sleeper.model)
    return stops
