"""The life of one instance as a pure function: `step(instance, event, now) -> (instance', effects)`.

Commands are what somebody wants; facts are what was observed, and carry the generation (the number of the
launch) that they are about, so that a late one changes nothing. The actor in `engine.instance` is the only
caller in the product. Differences from a naive state table are recorded in docs/adr/003-lifecycle.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from vllm_mm.domain.specs import RetryPolicy, StartLimits


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    SUSPENDING = "suspending"
    SLEEPING = "sleeping"
    WAKING = "waking"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


LIVE = frozenset(
    {State.STARTING, State.READY, State.DRAINING, State.SUSPENDING, State.SLEEPING, State.WAKING, State.STOPPING}
)
"""A process exists, and memory is reserved, exactly in these states (invariant 3)."""

TRANSITIONAL = frozenset({State.STARTING, State.DRAINING, State.SUSPENDING, State.WAKING, State.STOPPING})
"""Each of these has a deadline (invariant 4)."""

LOADING = frozenset({State.STARTING, State.WAKING})


class Goal(StrEnum):
    """What a drain leads to."""

    SLEEP = "sleep"
    STOP = "stop"


class Then(StrEnum):
    """Where STOPPING leads once the whole tree is reaped."""

    STOPPED = "stopped"
    BACKOFF = "backoff"
    FAILED = "failed"


class OnTimeout(StrEnum):
    """What a drain does with the leases that are left at its deadline."""

    CUT = "cut"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is; `percent` is of the phase, None where the engine gives none."""

    phase: str = ""
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of the transitional states other than STARTING, in seconds."""

    suspend: float = 120.0
    wake: float = 120.0
    stop: float = 30.0
    """TERM to reaped; afterwards the tree is killed again and an alert is raised."""
    grace: float = 10.0
    """TERM to KILL for an idle engine (vLLM needs 0.4 to 0.75 s)."""
    health: float = 5.0
    """Between two health requests to a READY engine."""
    stuck: float = 60.0
    """With leases out and nothing from the engine for this long, a probe decides whether it hangs."""


@dataclass(frozen=True, slots=True)
class Instance:
    """The state of one instance. Immutable; only `step` makes the next one."""

    model: str
    state: State = State.STOPPED
    generation: int = 0
    """Counts launches; zero when it never ran."""
    since: float = 0.0
    deadline: float | None = None
    stall_at: float | None = None
    goal: Goal | None = None
    then: Then | None = None
    on_timeout: OnTimeout = OnTimeout.CUT
    failures: int = 0
    reason: str = ""
    """Why it is where it is, for people."""
    ready_since: float | None = None
    progress: Progress = field(default_factory=Progress)
    limits: StartLimits = field(default_factory=StartLimits)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeouts: Timeouts = field(default_factory=Timeouts)


# Commands: what somebody wants.


@dataclass(frozen=True, slots=True)
class Start:
    """Memory is reserved; launch now."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class Wake:
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """Give out no more leases, then sleep or stop. On a draining instance the goal may rise to STOP, never fall."""

    goal: Goal
    timeout: float
    cause: str = ""
    on_timeout: OnTimeout = OnTimeout.CUT


@dataclass(frozen=True, slots=True)
class Undrain:
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop at once, whatever is running."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the failures: an operator says so, or the spec changed."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class Adopt:
    """A healthy engine of an earlier controller was found and matches its spec."""

    generation: int
    cause: str = ""
    asleep: bool = False


# Facts: what was observed about launch number `generation`.


@dataclass(frozen=True, slots=True)
class Progressed:
    """A sign of life from a load. `progress` is None for a line that tells no phase."""

    generation: int
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Health and the one-token probe both answered."""

    generation: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The leader is gone, unasked. Its exit code is no news: vLLM exits 0 when its engine crashed."""

    generation: int
    detail: str
    permanent: bool = False
    """A known failure that trying again cannot mend (a bad argument, a model that does not exist)."""


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """Alive, but of no use: health fails, or requests make no progress; also a load step that failed."""

    generation: int
    detail: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class LeasesGone:
    generation: int


@dataclass(frozen=True, slots=True)
class FellAsleep:
    generation: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """Every process of the launch is gone and its memory was seen to be free (or its deadline passed, with an alert)."""

    generation: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; deadlines are looked at. Harmless at any moment."""


Input: TypeAlias = (
    Start | Wake | Drain | Undrain | Kill | Reset | Adopt
    | Progressed | BecameReady | Exited | Unhealthy | LeasesGone | FellAsleep | Reaped | Tick
)  # fmt: skip


# Effects: what the actor has to do, in order.


@dataclass(frozen=True, slots=True)
class Spawn:
    """Launch the process and watch it until it is ready."""


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Leases may be taken from now on."""


@dataclass(frozen=True, slots=True)
class CloseGate:
    """No new leases; report `LeasesGone` when the last one ends (at once if there is none)."""


@dataclass(frozen=True, slots=True)
class RevokeLeases:
    """End every exchange that still runs, now and synchronously."""

    died: bool
    """True when the engine died, False when we cut it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Put the engine to sleep, verify it, report `FellAsleep` or `Unhealthy`."""


@dataclass(frozen=True, slots=True)
class WakeEngine:
    """Wake it, probe it, report `BecameReady` or `Unhealthy`."""


@dataclass(frozen=True, slots=True)
class StopProcess:
    """End the whole tree, see its memory free, report `Reaped`."""

    graceful: bool
    """TERM first. False while loading: vLLM swallows TERM then."""


@dataclass(frozen=True, slots=True)
class KillAgain:
    """STOPPING is overdue: SIGKILL and sweep once more."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Answer everybody who waits for this load."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Emit:
    """Publish exactly one event for this transition."""

    kind: str
    cause: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Refuse:
    """The command contradicts the state; nothing changed."""

    reason: str


Effect: TypeAlias = (
    Spawn
    | OpenGate
    | CloseGate
    | RevokeLeases
    | Suspend
    | WakeEngine
    | StopProcess
    | KillAgain
    | Settle
    | Emit
    | Refuse
)
Step: TypeAlias = tuple[Instance, tuple[Effect, ...]]


def step(instance: Instance, event: Input, now: float) -> Step:
    """The next state and what to do about it. Stale facts and repeated commands change nothing."""
    match event:
        case Progressed() | BecameReady() | Exited() | Unhealthy() | LeasesGone() | FellAsleep() | Reaped():
            if event.generation != instance.generation:
                return instance, ()
            return _fact(instance, event, now)
        case Tick():
            return _tick(instance, now)
        case _:
            return _command(instance, event, now)


def next_tick(instance: Instance) -> float | None:
    """When `Tick` will next change something; None when time alone changes nothing."""
    times = [t for t in (instance.deadline, instance.stall_at) if t is not None]
    if instance.state is State.READY and instance.failures and instance.ready_since is not None:
        times.append(instance.ready_since + instance.retry.stable_after)
    return min(times, default=None)


def backoff_delay(retry: RetryPolicy, failures: int) -> float:
    """Seconds to wait after the `failures`-th failure in a row (from 1)."""
    return min(retry.backoff * 2.0 ** min(failures - 1, 30), retry.backoff_max)


def _goto(instance: Instance, state: State, now: float, **changes: Any) -> Instance:
    """Enter `state`; whatever belongs to the old one only is cleared unless given."""
    blank: dict[str, Any] = {
        "deadline": None, "stall_at": None, "goal": None, "then": None,
        "on_timeout": OnTimeout.CUT, "progress": Progress(), "reason": "",
        "ready_since": instance.ready_since if state in {State.READY, State.DRAINING} else None,
    }  # fmt: skip
    return replace(instance, state=state, since=now, **(blank | changes))


def _emit(after: Instance, cause: str, **data: Any) -> Emit:
    details: dict[str, Any] = {"generation": after.generation}
    if after.reason:
        details["reason"] = after.reason
    return Emit(f"instance.{after.state.value}", cause, details | data)


def _command(i: Instance, event: Start | Wake | Drain | Undrain | Kill | Reset | Adopt, now: float) -> Step:
    match event:
        case Start():
            return _start(i, event, now)
        case Wake():
            if i.state is State.SLEEPING:
                after = _goto(i, State.WAKING, now, deadline=now + i.timeouts.wake)
                return after, (WakeEngine(), _emit(after, event.cause))
            if i.state in {State.WAKING, State.READY}:
                return i, ()
            return i, (Refuse(f"{i.model} is {i.state.value}, only a sleeping instance can be woken"),)
        case Drain():
            return _drain(i, event, now)
        case Undrain():
            if i.state is State.DRAINING:
                after = _goto(i, State.READY, now)
                return after, (OpenGate(), _emit(after, event.cause), Settle(ok=True))
            if i.state is State.READY:
                return i, ()
            return i, (Refuse(f"{i.model} is {i.state.value}, only a draining instance can be undrained"),)
        case Kill():
            return _kill(i, event, now)
        case Reset():
            if i.state in {State.FAILED, State.BACKOFF}:
                after = _goto(i, State.STOPPED, now, failures=0)
                return after, (_emit(after, event.cause),)
            # On its way there: the failure that made it stop is forgotten too.
            return replace(i, failures=0, then=None if i.then is None else Then.STOPPED), ()
        case _:  # Adopt
            if i.state is not State.STOPPED:
                return i, (Refuse(f"{i.model} is {i.state.value}, only a stopped instance can adopt an engine"),)
            state = State.SLEEPING if event.asleep else State.READY
            after = _goto(i, state, now, generation=event.generation, ready_since=None if event.asleep else now)
            gate: tuple[Effect, ...] = () if event.asleep else (OpenGate(),)
            return after, (*gate, _emit(after, event.cause, adopted=True))


def _start(i: Instance, event: Start, now: float) -> Step:
    match i.state:
        case State.STOPPED:
            after = _goto(
                i, State.STARTING, now,
                generation=i.generation + 1,
                deadline=now + i.limits.deadline,
                stall_at=now + i.limits.stall,
            )  # fmt: skip
            return after, (Spawn(), _emit(after, event.cause))
        case State.STARTING | State.READY | State.WAKING:
            return i, ()
        case _:
            return i, (Refuse(f"{i.model} is {i.state.value}: {i.reason or 'it cannot start now'}"),)


def _drain(i: Instance, event: Drain, now: float) -> Step:
    match i.state:
        case State.READY:
            after = _goto(
                i, State.DRAINING, now,
                goal=event.goal, deadline=now + event.timeout, on_timeout=event.on_timeout, reason=event.cause,
            )  # fmt: skip
            # The event first: with no leases out, closing the gate reports LeasesGone at once.
            return after, (_emit(after, event.cause, goal=event.goal.value), CloseGate())
        case State.DRAINING:
            if event.goal is Goal.STOP and i.goal is Goal.SLEEP:
                return replace(i, goal=Goal.STOP), ()
            return i, ()
        case State.SLEEPING if event.goal is Goal.STOP:
            return _stop(i, now, Then.STOPPED, event.cause, event.cause)
        case State.STARTING | State.WAKING if event.goal is Goal.STOP:
            return _kill(i, Kill(event.cause), now)
        case State.SUSPENDING if event.goal is Goal.STOP:
            return _stop(i, now, Then.STOPPED, event.cause, event.cause)
        case State.STOPPED | State.STOPPING | State.BACKOFF | State.FAILED if event.goal is Goal.STOP:
            return i, ()
        case State.SLEEPING | State.SUSPENDING:
            return i, ()
        case _:
            return i, (Refuse(f"{i.model} is {i.state.value}, only a ready instance can be put to sleep"),)


def _kill(i: Instance, event: Kill, now: float) -> Step:
    match i.state:
        case State.STOPPED | State.FAILED:
            return i, ()
        case State.BACKOFF:
            after = _goto(i, State.STOPPED, now, reason=event.cause)
            return after, (_emit(after, event.cause),)
        case State.STOPPING:
            # Stopping already; but nobody wants the retry any more.
            return replace(i, then=Then.STOPPED), ()
        case _:
            return _stop(i, now, Then.STOPPED, event.cause, event.cause)


def _stop(i: Instance, now: float, then: Then, reason: str, cause: str, *, died: bool = False) -> Step:
    """Into STOPPING. Whoever waits for a load is answered here, not after the reaping: that may take seconds."""
    after = _goto(i, State.STOPPING, now, then=then, reason=reason, deadline=now + i.timeouts.stop)
    effects: list[Effect] = []
    if i.state in {State.READY, State.DRAINING}:
        effects += [CloseGate(), RevokeLeases(died=died, reason=reason)]
    effects += [
        StopProcess(graceful=not died and i.state in {State.READY, State.DRAINING, State.SLEEPING}),
        _emit(after, cause, then=then.value),
    ]
    if i.state in LOADING:
        effects.append(Settle(ok=False, reason=reason))
    return after, tuple(effects)


def _fail(i: Instance, now: float, detail: str, *, permanent: bool, died: bool, cause: str) -> Step:
    """Count a failure and stop; what is left of the tree still has to be found and killed."""
    failures = i.failures + 1
    final = permanent or failures >= i.retry.max_failures
    then = Then.FAILED if final else Then.BACKOFF
    return _stop(replace(i, failures=failures), now, then, detail, cause, died=died)


def _fact(
    i: Instance,
    event: Progressed | BecameReady | Exited | Unhealthy | LeasesGone | FellAsleep | Reaped,
    now: float,
) -> Step:
    match event, i.state:
        case Progressed(), State.STARTING:
            return replace(i, progress=event.progress or i.progress, stall_at=now + i.limits.stall), ()
        case BecameReady(), State.STARTING | State.WAKING:
            after = _goto(i, State.READY, now, ready_since=now)
            return after, (OpenGate(), _emit(after, "probe", took_s=round(now - i.since, 3)), Settle(ok=True))
        case LeasesGone(), State.DRAINING:
            return _drained(i, now)
        case FellAsleep(), State.SUSPENDING:
            after = _goto(i, State.SLEEPING, now)
            return after, (_emit(after, "engine", took_s=round(now - i.since, 3)),)
        case Reaped(), State.STOPPING:
            return _reaped(i, now)
        case Exited(), State.DRAINING if i.goal is Goal.STOP:
            # It was to go anyway; the leases it held are told the truth.
            return _stop(i, now, Then.STOPPED, event.detail, "crash", died=True)
        case Unhealthy(), State.DRAINING if i.goal is Goal.STOP:
            return _stop(i, now, Then.STOPPED, event.detail, "unhealthy")
        case Exited(), State.SLEEPING:
            return _stop(i, now, Then.STOPPED, event.detail, "crash", died=True)
        case Exited(), State.STARTING | State.WAKING | State.READY | State.DRAINING | State.SUSPENDING:
            return _fail(i, now, event.detail, permanent=event.permanent, died=True, cause="crash")
        case Unhealthy(), State.STARTING | State.WAKING | State.READY | State.DRAINING | State.SUSPENDING:
            return _fail(i, now, event.detail, permanent=event.permanent, died=False, cause="unhealthy")
        case _:
            return i, ()


def _drained(i: Instance, now: float) -> Step:
    if i.goal is Goal.SLEEP:
        after = _goto(i, State.SUSPENDING, now, deadline=now + i.timeouts.suspend, reason=i.reason)
        return after, (Suspend(), _emit(after, i.reason))
    return _stop(i, now, Then.STOPPED, i.reason, i.reason)


def _reaped(i: Instance, now: float) -> Step:
    match i.then:
        case Then.BACKOFF:
            after = _goto(i, State.BACKOFF, now, reason=i.reason, deadline=now + backoff_delay(i.retry, i.failures))
            return after, (_emit(after, "crash", failures=i.failures),)
        case Then.FAILED:
            after = _goto(i, State.FAILED, now, reason=i.reason)
            return after, (_emit(after, "crash", failures=i.failures),)
        case _:
            after = _goto(i, State.STOPPED, now, reason=i.reason)
            return after, (_emit(after, i.reason),)


def _tick(i: Instance, now: float) -> Step:
    stable = i.ready_since is not None and now >= i.ready_since + i.retry.stable_after
    if i.state is State.READY and i.failures and stable:
        return replace(i, failures=0), ()
    if i.state is State.STARTING and i.stall_at is not None and now >= i.stall_at:
        phase = f" in phase {i.progress.phase}" if i.progress.phase else ""
        detail = f"no progress for {i.limits.stall:g} s{phase}"
        return _fail(i, now, detail, permanent=False, died=False, cause="stalled")
    if i.deadline is None or now < i.deadline:
        return i, ()
    match i.state:
        case State.STARTING:
            detail = f"not ready after {i.limits.deadline:g} s"
            return _fail(i, now, detail, permanent=False, died=False, cause="deadline")
        case State.WAKING:
            detail = f"not awake after {i.timeouts.wake:g} s"
            return _fail(i, now, detail, permanent=False, died=False, cause="deadline")
        case State.SUSPENDING:
            detail = f"not asleep after {i.timeouts.suspend:g} s"
            return _fail(i, now, detail, permanent=False, died=False, cause="deadline")
        case State.DRAINING if i.on_timeout is OnTimeout.WAIT:
            after = replace(i, deadline=now + max(1.0, i.deadline - i.since))
            return after, (Emit("alert.drain_overdue", "deadline", {"generation": i.generation}),)
        case State.DRAINING:
            after, effects = _drained(i, now)
            cut = RevokeLeases(died=False, reason=f"the drain took too long ({i.reason})")
            return after, (cut, *(e for e in effects if not isinstance(e, RevokeLeases)))
        case State.STOPPING:
            after = replace(i, deadline=now + i.timeouts.stop)
            return after, (KillAgain(), Emit("alert.stop_overdue", "deadline", {"generation": i.generation}))
        case _:  # BACKOFF: the wait is over; whoever still wants the model starts it, with memory reserved first.
            after = _goto(i, State.STOPPED, now, reason=i.reason)
            return after, (_emit(after, "backoff over", failures=i.failures),)
