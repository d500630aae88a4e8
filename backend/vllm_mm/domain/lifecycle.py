"""The life of one instance as a pure function: `step(instance, event, now) -> (instance', effects)`.

The actor in `engine.instance` is the only caller in the product. Differences from a naive state table are recorded in
docs/adr/003-lifecycle.md. The words are those of `domain.states`, and can be had from here too.
"""

from dataclasses import replace
from typing import Any, TypeAlias

from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.specs import RetryPolicy
from vllm_mm.domain.states import (
    LIVE,
    LOADING,
    TRANSITIONAL,
    Adopt,
    BecameReady,
    CloseGate,
    Drain,
    Effect,
    Emit,
    Exited,
    FellAsleep,
    FreezeLeases,
    Goal,
    Input,
    Instance,
    Judge,
    Kill,
    KillAgain,
    LeasesGone,
    OnTimeout,
    OpenGate,
    Outcome,
    Progress,
    Progressed,
    Reaped,
    Refuse,
    Reset,
    RevokeLeases,
    Settle,
    Spawn,
    Start,
    State,
    StopProcess,
    Suspend,
    ThawLeases,
    Then,
    Tick,
    Timeouts,
    Undrain,
    Unhealthy,
    Wake,
    WakeEngine,
)

__all__ = [
    "LIVE",
    "LOADING",
    "TRANSITIONAL",
    "Adopt",
    "BecameReady",
    "CloseGate",
    "Drain",
    "Effect",
    "Emit",
    "Exited",
    "FellAsleep",
    "FreezeLeases",
    "Goal",
    "Input",
    "Instance",
    "Judge",
    "Kill",
    "KillAgain",
    "LeasesGone",
    "OnTimeout",
    "OpenGate",
    "Outcome",
    "Progress",
    "Progressed",
    "Reaped",
    "Refuse",
    "Reset",
    "RevokeLeases",
    "Settle",
    "Spawn",
    "Start",
    "State",
    "Step",
    "StopProcess",
    "Suspend",
    "ThawLeases",
    "Then",
    "Tick",
    "Timeouts",
    "Undrain",
    "Unhealthy",
    "Wake",
    "WakeEngine",
    "back_at",
    "backoff_delay",
    "next_tick",
    "step",
]

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


def back_at(instance: Instance, now: float) -> float | None:
    """When one that failed while it served can be started again, at the earliest; None for all others: whose start failed has told why."""
    if not instance.served:
        return None
    if instance.state is State.STOPPING and instance.then is Then.BACKOFF:
        return now + backoff_delay(instance.retry, instance.failures)
    return instance.deadline if instance.state is State.BACKOFF else None


def _goto(instance: Instance, state: State, now: float, **changes: Any) -> Instance:
    """Enter `state`; whatever belongs to the old one only is cleared unless given."""
    blank: dict[str, Any] = {
        "deadline": None, "stall_at": None, "goal": None, "then": None,
        "on_timeout": OnTimeout.CUT, "progress": Progress(), "reason": "",
        "ready_since": instance.ready_since if state in {State.READY, State.DRAINING} else None, "frozen_since": None,
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
                after = _goto(i, State.WAKING, now, deadline=now + i.timeouts.wake, **_kept(i))
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
            if i.frozen and i.goal is not None:
                return replace(i, goal=None, reason=""), ()
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
            then = Then.STOPPED if i.then in {Then.BACKOFF, Then.FAILED} else i.then
            return replace(i, failures=0, then=then), ()
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
                goal=event.goal, deadline=now + event.timeout, on_timeout=_at_deadline(event), reason=event.cause,
            )  # fmt: skip
            # The event first: with no leases out, closing the gate reports LeasesGone at once.
            return after, (_emit(after, event.cause, goal=event.goal.value), CloseGate())
        case State.DRAINING:
            return _drain_further(i, event), ()
        case State.SUSPENDING | State.SLEEPING | State.WAKING if (
            i.frozen and event.goal is Goal.STOP and event.on_timeout is OnTimeout.WAIT
        ):
            # What it holds is to finish first: it stays, and drains when it was woken.
            return replace(i, goal=Goal.STOP, reason=event.cause), ()
        case State.SLEEPING if event.goal is Goal.STOP:
            return _stop(i, now, Then.STOPPED, event.cause, event.cause)
        case State.STARTING | State.WAKING | State.BACKOFF | State.STOPPING if event.goal is Goal.STOP:
            return _kill(i, Kill(event.cause), now)
        case State.SUSPENDING if event.goal is Goal.STOP:
            return _stop(i, now, Then.STOPPED, event.cause, event.cause)
        case State.STOPPED | State.FAILED if event.goal is Goal.STOP:
            return i, ()
        case State.SLEEPING | State.SUSPENDING:
            return i, ()
        case _:
            return i, (Refuse(f"{i.model} is {i.state.value}, only a ready instance can be put to sleep"),)


def _at_deadline(event: Drain) -> OnTimeout:
    """Nothing is frozen for a stop: it would be lost."""
    stops = event.goal is Goal.STOP and event.on_timeout is OnTimeout.FREEZE
    return OnTimeout.CUT if stops else event.on_timeout


def _drain_further(i: Instance, event: Drain) -> Instance:
    """A drain of one that drains: the goal may rise to STOP. Whoever was promised once that what runs is let finish has that
    promise kept; where it may be frozen, it still is, for somebody was promised the room, and it stops once it was woken."""
    if event.goal is not Goal.STOP:
        return i
    on_timeout, freezes = i.on_timeout, i.on_timeout in {OnTimeout.FREEZE, OnTimeout.KEEP}
    if event.on_timeout is OnTimeout.WAIT:
        on_timeout = OnTimeout.FREEZE if freezes else OnTimeout.WAIT
    elif freezes and (i.goal is Goal.SLEEP or on_timeout is OnTimeout.KEEP):
        on_timeout = OnTimeout.CUT
    return replace(i, goal=Goal.STOP, on_timeout=on_timeout)


def _kill(i: Instance, event: Kill, now: float) -> Step:
    match i.state:
        case State.STOPPED | State.FAILED:
            return i, ()
        case State.BACKOFF:
            after = _goto(i, State.STOPPED, now, reason=event.cause)
            return after, (_emit(after, event.cause),)
        case State.STOPPING:
            # Stopping already; but nobody wants the retry any more.
            load = (Settle(ok=False, reason=event.cause),) if i.then is Then.COLD else ()
            return replace(i, then=Then.STOPPED), load
        case State.SLEEPING if event.cold and not i.frozen:
            return _stop(i, now, Then.COLD, event.cause, event.cause)
        case _:
            return _stop(i, now, Then.STOPPED, event.cause, event.cause)


def _stop(i: Instance, now: float, then: Then, reason: str, cause: str, *, died: bool = False) -> Step:
    """Into STOPPING. Whoever waits for a load is answered here, not after the reaping: that may take seconds."""
    after = _goto(i, State.STOPPING, now, then=then, reason=reason, deadline=now + i.timeouts.stop)
    effects: list[Effect] = []
    if i.state in {State.READY, State.DRAINING}:
        effects += [CloseGate(), RevokeLeases(died=died, reason=reason)]
    elif i.frozen:
        effects.append(RevokeLeases(died=died, reason=reason))
    effects += [
        StopProcess(graceful=not died and i.state in {State.READY, State.DRAINING, State.SLEEPING}),
        _emit(after, cause, then=then.value),
    ]
    if i.state in LOADING and then is not Then.COLD:
        effects.append(Settle(ok=False, reason=reason))
    return after, tuple(effects)


def _sleepless(i: Instance, now: float, detail: str, outcome: Outcome, cause: str) -> Step:
    """It would not sleep, or not wake. That is no failure of the model, which was well before: it is stopped, and where
    somebody waits for its wake, they get a start."""
    waking, why = i.state is State.WAKING, Reason.SLEEPLESS.because(detail)
    after, effects = _stop(
        i, now, Then.COLD if waking else Then.STOPPED, why, cause, died=outcome is Outcome.DIED
    )  # fmt: skip
    return after, (*effects, Judge(outcome, waking, detail))


def _fail(i: Instance, now: float, detail: str, *, permanent: bool, died: bool, cause: str) -> Step:
    """Count a failure and stop; what is left of the tree still has to be found and killed."""
    failures = i.failures + 1
    final = permanent or failures >= i.retry.max_failures
    then = Then.FAILED if final else Then.BACKOFF
    failed = replace(i, failures=failures, served=i.state is not State.STARTING)
    return _stop(failed, now, then, detail, cause, died=died)


def _fact(
    i: Instance,
    event: Progressed | BecameReady | Exited | Unhealthy | LeasesGone | FellAsleep | Reaped,
    now: float,
) -> Step:
    match event, i.state:
        case Progressed(), State.STARTING:
            return replace(i, progress=event.progress or i.progress, stall_at=now + i.limits.stall), ()
        case BecameReady(), State.WAKING if i.frozen:
            return _thawed(i, now)
        case BecameReady(), State.STARTING | State.WAKING:
            after = _goto(i, State.READY, now, ready_since=now)
            woke = (Judge(Outcome.OK, waking=True),) if i.state is State.WAKING else ()
            return after, (*woke, OpenGate(), _emit(after, "probe", took_s=round(now - i.since, 3)), Settle(ok=True))
        case LeasesGone(), State.DRAINING:
            return _drained(i, now)
        case LeasesGone(), State.SUSPENDING | State.SLEEPING | State.WAKING if i.frozen:
            melted = replace(i, frozen_since=None)
            return (melted, ()) if i.goal is None else _stop(melted, now, Then.STOPPED, i.reason, i.reason)
        case FellAsleep(), State.SUSPENDING:
            after = _goto(i, State.SLEEPING, now, **(_kept(i) | {"reason": i.reason}))
            slept = Judge(Outcome.OK, waking=False, kept=event.kept)
            return after, (slept, _emit(after, "engine", took_s=round(now - i.since, 3)))
        case Exited(), State.SUSPENDING | State.WAKING:
            return _sleepless(i, now, event.detail, Outcome.DIED, "crash")
        case Unhealthy(), State.SUSPENDING | State.WAKING:
            return _sleepless(i, now, event.detail, Outcome.LIED if event.lied else Outcome.REFUSED, "unhealthy")
        case Reaped(), State.STOPPING:
            return _reaped(i, now)
        case Exited(), State.DRAINING if i.goal is Goal.STOP:
            # It was to go anyway; the leases it held are told the truth.
            return _stop(i, now, Then.STOPPED, event.detail, "crash", died=True)
        case Unhealthy(), State.DRAINING if i.goal is Goal.STOP:
            return _stop(i, now, Then.STOPPED, event.detail, "unhealthy")
        case Exited(), State.SLEEPING:
            return _stop(i, now, Then.STOPPED, Reason.CRASH.because(event.detail), "crash", died=True)
        case Exited(), State.STARTING | State.READY | State.DRAINING:
            return _fail(i, now, event.detail, permanent=event.permanent, died=True, cause="crash")
        case Unhealthy(), State.STARTING | State.READY | State.DRAINING:
            return _fail(i, now, event.detail, permanent=event.permanent, died=False, cause="unhealthy")
        case _:
            return i, ()


def _kept(i: Instance) -> dict[str, Any]:
    """What goes along from state to state while leases are frozen."""
    if not i.frozen:
        return {}
    return {"frozen_since": i.frozen_since, "goal": i.goal, "reason": i.reason if i.goal is not None else ""}


def _thawed(i: Instance, now: float) -> Step:
    """Awake again with the requests that it kept: on to serve, or, if it was to stop, on to let them finish."""
    took, woke = round(now - i.since, 3), Judge(Outcome.OK, waking=True)
    if i.goal is None:
        after = _goto(i, State.READY, now, ready_since=now)
        return after, (woke, ThawLeases(), OpenGate(), _emit(after, "probe", took_s=took), Settle(ok=True))
    after = _goto(
        i, State.DRAINING, now,
        goal=i.goal, deadline=now + i.timeouts.stop, on_timeout=OnTimeout.WAIT, reason=i.reason, ready_since=now,
    )  # fmt: skip
    # The load is over, and it went well; whoever waits for the model gets it after this one has stopped.
    return after, (woke, ThawLeases(), _emit(after, i.reason, goal=i.goal.value), CloseGate(), Settle(ok=True))


def _frozen(i: Instance, now: float) -> Step:
    """The drain has taken its time: what is left sleeps along."""
    stops = i.goal is Goal.STOP and i.on_timeout is not OnTimeout.KEEP
    after = _goto(
        i, State.SUSPENDING, now,
        deadline=now + i.timeouts.suspend, reason=i.reason, frozen_since=now, goal=Goal.STOP if stops else None,
    )  # fmt: skip
    return after, (FreezeLeases(i.reason), Suspend(keep=True), _emit(after, i.reason, frozen=True))


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
            return _sleepless(i, now, f"not awake after {i.timeouts.wake:g} s", Outcome.REFUSED, "deadline")
        case State.SUSPENDING:
            return _sleepless(i, now, f"not asleep after {i.timeouts.suspend:g} s", Outcome.REFUSED, "deadline")
        case State.DRAINING if i.on_timeout is OnTimeout.WAIT:
            after = replace(i, deadline=now + max(1.0, i.deadline - i.since))
            return after, (Emit("alert.drain_overdue", "deadline", {"generation": i.generation}),)
        case State.DRAINING if i.on_timeout in {OnTimeout.FREEZE, OnTimeout.KEEP}:
            return _frozen(i, now)
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
