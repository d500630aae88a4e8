"""What a run comes to: waits and times to first token by model, swaps and what they cost, and whether nobody starved."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from vllm_mm.domain.scheduling.bound import bound as limit_of
from vllm_mm.virtual.engine import EngineTimes, VirtualModel
from vllm_mm.virtual.records import Outcome
from vllm_mm.virtual.terms import Terms


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some seconds. Percentiles are those of a sorted list (nearest rank)."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model's part."""

    model: str
    wait: Spread
    """From the arrival to the lease."""
    ttft: Spread
    """From the arrival to the first token, of those that had one."""
    loads: int
    resident: float
    """Share of the time in which it could serve."""
    cut: int
    unserved: int
    """Refused, or gave up."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound on starvation (`domain.scheduling.bound`): `max_wait` + (models that wait for a load at once - 1) x (swap +
    quantum)."""

    held: bool
    worst: float
    """The longest that a request waited until its model was ready or being loaded."""
    allowed: float
    """What the bound allows for as many models as waited then. It is nearest to being broken here."""
    swap: float
    """Seconds of the longest drain and the slowest stop and load."""
    quantum: float
    """Seconds for which a model that became ready may go on though others are overdue."""


@dataclass(frozen=True, slots=True)
class Result:
    """One policy's figures. Seconds."""

    policy: str
    wait: Spread
    ttft: Spread
    models: tuple[ModelResult, ...]
    starts: int
    wakes: int
    evictions: int
    lost: float
    """From the last victim's end to ready, over all loads: memory that served nobody."""
    draining: float
    refused: int
    timed_out: int
    cut: int
    span: float
    """From the first arrival to the last end."""
    bound: Bound

    @property
    def swaps(self) -> int:
        return self.starts + self.wakes

    @property
    def requests(self) -> int:
        """All that came: served, refused, or gone."""
        return self.wait.count + self.refused + self.timed_out


def spread(values: Iterable[float]) -> Spread:
    """All zero when there are none."""
    ordered = sorted(values)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def rank(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    return Spread(len(ordered), sum(ordered) / len(ordered), rank(0.5), rank(0.95), rank(0.99), ordered[-1])


def summary(outcome: Outcome, models: Sequence[VirtualModel], terms: Terms) -> Result:
    """The figures of a run."""
    by_model = [_model(outcome, m.id) for m in models]
    return Result(
        policy=outcome.policy,
        wait=spread(s.leased - s.arrived for s in outcome.served),
        ttft=spread(s.first_token - s.arrived for s in outcome.served if s.first_token is not None),
        models=tuple(by_model),
        starts=sum(load.kind == "start" for load in outcome.loads),
        wakes=sum(load.kind == "wake" for load in outcome.loads),
        evictions=sum(len(load.victims) for load in outcome.loads),
        lost=sum(load.lost for load in outcome.loads),
        draining=outcome.draining,
        refused=len(outcome.refused),
        timed_out=len(outcome.timed_out),
        cut=sum(s.cut for s in outcome.served),
        span=outcome.ended,
        bound=bound(outcome, models, terms),
    )


def bound(outcome: Outcome, models: Sequence[VirtualModel], terms: Terms) -> Bound:
    """Judges the longest waits against what the rules allow."""
    drain = max((s.finished - s.leased - s.frozen for s in outcome.served), default=0.0)
    swap = min(terms.drain_timeout, drain) + max((_swap(m.times) for m in models), default=0.0)

    def allowed(rivals: int) -> float:
        return limit_of(terms.rules, rivals, swap)

    shares = [(waited / allowed(rivals), waited, allowed(rivals)) for rivals, waited in outcome.worst.items()]
    share, worst, limit = max(shares, default=(0.0, 0.0, terms.rules.max_wait))
    return Bound(share <= 1 + 1e-9, worst, limit, swap, terms.rules.stay)


def _swap(times: EngineTimes) -> float:
    """The slowest way: asleep or not, one goes and one comes."""
    return max(times.stop, times.sleep) + max(times.load, times.wake)


def _model(outcome: Outcome, model: str) -> ModelResult:
    served = [s for s in outcome.served if s.model == model]
    return ModelResult(
        model=model,
        wait=spread(s.leased - s.arrived for s in served),
        ttft=spread(s.first_token - s.arrived for s in served if s.first_token is not None),
        loads=sum(load.model == model for load in outcome.loads),
        resident=outcome.resident(model) / outcome.ended if outcome.ended else 0.0,
        cut=sum(s.cut for s in served),
        unserved=sum(u.model == model for u in (*outcome.refused, *outcome.timed_out)),
    )
