"""What a load would do, without doing it: who would go, where it would run, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_mm.domain.estimates import Kind, Span
from vllm_mm.domain.footprint import Footprint
from vllm_mm.domain.lifecycle import LOADING, Goal, OnTimeout, State
from vllm_mm.domain.partings import Parting
from vllm_mm.domain.residency import lent
from vllm_mm.domain.scheduling import Decision, Hold, Lane, Load, Refuse, Rules, View, decide
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.manager import ProcessManager


class Act(StrEnum):
    """What would happen first if somebody asked for the model now."""

    NONE = "none"
    """It is ready."""
    LOADING = "loading"
    """A load is under way; everybody shares it."""
    START = "start"
    WAKE = "wake"
    WAIT = "wait"
    """Not now; the reason says what it waits for."""
    REFUSE = "refuse"
    """Not ever, as things are declared."""


@dataclass(frozen=True, slots=True)
class Victim:
    """An instance that would be evicted: what it would give back in bytes per device, and what that would cost in seconds."""

    model: str
    state: State
    in_flight: int
    device_bytes: Mapping[str, int]
    goal: Goal
    """Where its eviction would lead."""
    why: str
    """Why it would sleep, or be stopped instead; for people."""
    then: OnTimeout
    """What would become of requests that outlast its drain."""
    drain_s: float
    """Until its last request ends; at most until `swap.drain_timeout`."""
    go_s: float
    """From there until its memory is free."""
    return_s: float
    """What it would take to have it back: a wake, or a start."""
    cache_s: float
    """What its clients would wait longer then, altogether, because its prefix cache is lost, if they come."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A sleeper that would be stopped, although it takes no room of the load: a victim is to sleep, and the host's memory for
    sleep has no room for both. The model itself, where it would be started anew instead of woken."""

    model: str
    sleeps_for: str
    """The victim."""
    host_bytes: int
    """What it gives back of the host's memory."""
    asleep_s: float
    """Seconds that it has slept."""
    return_s: float
    """A start, instead of a wake."""
    late: bool = False
    """Only if the drain of the victim takes too long, so that it has to sleep with requests."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Times in seconds from now, memory in bytes per device."""

    model: str
    act: Act
    reason: str
    state: State
    device_bytes: Mapping[str, int]
    victims: tuple[Victim, ...]
    """In the order in which they would be told to go."""
    stopped: tuple[Stopped, ...]
    footprint: Footprint
    room_s: float
    """Until the victims have made room; they go at the same time, and one that is to sleep waits for the sleepers that are
    stopped for it."""
    load_s: float | None
    """The load alone; None when there is none to come."""
    eta_s: float | None
    """Until it could be READY, waiting and room included: as likely sooner as later. None when that is not known or will not be."""
    at_latest_s: float | None
    """The same, kept nine times of ten."""
    again_in_s: float | None
    """When time alone may change a WAIT."""


def plan(manager: ProcessManager, spec: ModelSpec, rules: Rules, now: float) -> Plan:
    """What an operator's start of `spec` would do at `now` (monotonic seconds). Changes nothing."""
    known = {i.spec.id: i for i in manager.instances()}
    instance = known.get(spec.id)
    state = instance.state if instance is not None else State.STOPPED
    size = manager.footprint(spec)
    expected = manager.expected(spec.id)
    answer = Plan(
        model=spec.id, act=Act.NONE, reason="it is ready", state=state, device_bytes=_held(manager, spec.id), victims=(), stopped=(),
        footprint=size, room_s=0.0, load_s=None, again_in_s=None,
        eta_s=expected.likely if expected is not None else None,
        at_latest_s=expected.at_latest if expected is not None else None,
    )  # fmt: skip
    if state is State.READY:
        return answer
    loading = manager.loading(spec.id)
    if loading is not None or state in LOADING:
        reason = loading.load.reason if loading is not None else f"it is {state.value}"
        return replace(answer, act=Act.LOADING, reason=reason)
    # An operator's start forgets failures first.
    startable = State.STOPPED if state in {State.BACKOFF, State.FAILED} else state
    lane = Lane(
        model=spec.id, state=startable, tickets=(), wanted_since=now, urgent=True, wish=spec.devices,
        per_device=size.per_device, free_slots=0, priority=spec.priority,
    )  # fmt: skip
    view = manager.view(())
    view = replace(view, lanes=[*(other for other in view.lanes if other.model != spec.id), lane])
    before, decision = _decided(view, rules, now, spec.id)
    told = _told(manager, answer, decision, before, startable, now)
    if isinstance(decision, Hold) and decision.until is not None:
        # What time alone will allow: shown as what it waits for.
        before, later = _decided(view, rules, decision.until, spec.id)
        if isinstance(later, Load):
            wait = max(0.0, decision.until - now)
            then = _told(manager, answer, later, before, startable, now, wait=wait)
            return replace(then, act=told.act, reason=told.reason, again_in_s=told.again_in_s)
    ledger = view.ledger.release(spec.id)
    if isinstance(decision, Hold) and lent(ledger, spec.devices, size.per_device, view.residents, now):
        return replace(told, eta_s=None, at_latest_s=None)  # nobody knows whether its holder ends it early or goes on
    return told


def _decided(view: View, rules: Rules, now: float, model: str) -> tuple[list[Load], Decision]:
    """What is decided for `model`, and the loads that are carried out before that."""
    before: list[Load] = []
    for decision in decide(view, rules, now):
        if decision.model == model:
            return before, decision
        if isinstance(decision, Load):
            before.append(decision)
    raise AssertionError(f"no decision for {model}")


def _told(
    manager: ProcessManager, answer: Plan, decision: Decision, before: Sequence[Load], state: State, now: float, *,
    wait: float = 0.0,
) -> Plan:  # fmt: skip
    match decision:
        case Load():
            partings = manager.rehearse((*before, decision))
            victims = tuple(_victim(manager, p) for p in partings)
            stopped = tuple(
                _stopped(manager, s, p.model, now, late=late)
                for p in partings
                for names, late in ((p.fate.stops, False), (p.gives_up, True))
                for s in names
            )
            act = Act.WAKE if state is State.SLEEPING else Act.START
            forecast = manager.forecast
            room, load = forecast.room(partings), forecast.load(manager.require(answer.model), partings)
            whole = Span(wait, wait).then(room).then(load)
            return replace(
                answer, act=act, reason=decision.reason, device_bytes=dict(decision.device_bytes), victims=victims,
                stopped=stopped, room_s=room.likely, load_s=load.likely, eta_s=whole.likely, at_latest_s=whole.at_latest,
            )  # fmt: skip
        case Hold():
            again = max(0.0, decision.until - now) if decision.until is not None else None
            return replace(answer, act=Act.WAIT, reason=decision.reason, again_in_s=again)
        case Refuse():
            return replace(answer, act=Act.REFUSE, reason=decision.reason, eta_s=None, at_latest_s=None)
        case _:
            return answer


def _victim(manager: ProcessManager, parting: Parting) -> Victim:
    model, goal = parting.model, parting.fate.goal
    instance, estimator = manager.require(model), manager.estimator
    drain = estimator.drain(instance).likely
    return Victim(
        model, instance.state, instance.gate.count, _held(manager, model), goal, parting.fate.reason, parting.then, drain_s=drain,
        go_s=max(0.0, manager.forecast.going(parting).likely - drain),
        return_s=(
            estimator.expected(instance.spec, Kind.WAKE) if goal is Goal.SLEEP else estimator.start(instance.spec)
        ).likely,
        cache_s=instance.cache_loss,
    )  # fmt: skip


def _stopped(manager: ProcessManager, model: str, sleeps_for: str, now: float, *, late: bool) -> Stopped:
    instance = manager.require(model)
    return Stopped(
        model, sleeps_for, manager.host_memory.held.get(model, 0), now - instance.snapshot.since,
        return_s=manager.estimator.start(instance.spec).likely, late=late,
    )  # fmt: skip


def _held(manager: ProcessManager, model: str) -> dict[str, int]:
    reservation = manager.ledger.reservations.get(model)
    return dict(reservation.device_bytes) if reservation is not None else {}
