"""What the outside sees of instances and of the queue: plain, frozen, taken at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mm.clock import Clock
from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.errors import StartFailed, TornDown, advised
from vllm_mm.domain.lifecycle import Instance, Progress, State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Reservation
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.loading import retry_after


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance as the admin API shows it. Times in seconds, `since` in Unix time, memory in bytes."""

    id: str
    model: str
    state: State
    progress: Progress
    elapsed_s: float
    eta_s: float | None
    reason: str
    devices: tuple[str, ...]
    pid: int | None
    in_flight: int
    frozen: int
    """Of those in flight: they stand still in the sleeping engine."""
    queued: int
    since: float
    failures: int
    reserved: Mapping[str, int]
    generation: int
    pinned: bool
    idle_s: float | None
    """Seconds since the last lease ended; None unless READY and idle."""


@dataclass(frozen=True, slots=True)
class WaitInfo:
    """Where a waiting request stands."""

    position: int
    """From 1."""
    model: str
    state: State
    phase: str
    percent: float | None
    eta_s: float | None
    why: str


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One waiting request, for `/api/queue`."""

    ticket: str
    model: str
    key: str | None
    waited_s: float
    position: int
    deadline_in_s: float
    eta_s: float | None
    at_latest_s: float | None
    reason: Reason | None
    why: str
    """For people."""


def instance_view(
    instance: ModelInstance,
    *,
    reservation: Reservation | None,
    why: str,
    eta_s: float | None,
    queued: int,
    pinned: bool,
    clock: Clock,
) -> InstanceView:
    """`why`: what a model that stopped or sleeps waits for, or why it will not come; `eta_s` is None where nothing is expected."""
    i, now = instance.snapshot, clock.now()
    held = {d: reservation.shown(d) for d in reservation.device_bytes} if reservation is not None else {}
    idle = i.state is State.READY and not instance.gate.count
    return InstanceView(
        id=f"{i.model}#{i.generation}",
        model=i.model,
        state=i.state,
        progress=i.progress,
        elapsed_s=now - i.since,
        eta_s=eta_s if i.state in lc.LOADING or i.state not in lc.LIVE else None,
        reason=why if why and (i.state is State.SLEEPING or i.state not in lc.LIVE) else i.reason,
        devices=tuple(sorted(held)),
        pid=instance.pid,
        in_flight=instance.gate.count,
        frozen=instance.gate.frozen,
        queued=queued,
        since=clock.wall() - (now - i.since),
        failures=i.failures,
        reserved=held,
        generation=i.generation,
        pinned=pinned,
        idle_s=now - instance.gate.last_used if idle else None,
    )


def wait_info(i: Instance, position: int, eta_s: float | None, why: str) -> WaitInfo:
    return WaitInfo(position, i.model, i.state, i.progress.phase, i.progress.percent, eta_s, why)


def torn_down(i: Instance, eta_s: float | None) -> TornDown:
    """What a stream is told whose engine is on its way out."""
    return TornDown(
        f"The engine of `{i.model}` is {i.state.value} ({i.reason}). Try again after the time in Retry-After.",
        retry_after=retry_after(eta_s),
    )


def start_failed(instance: ModelInstance, reason: str, now: float, *, lasting: bool = False) -> StartFailed:
    """What everybody is told who waited for a load that failed, or who comes while it backs off. `lasting`: only another declaration
    mends it."""
    i = instance.snapshot
    phase = list(instance.phases)[-1] if instance.phases else "spawn"
    if lasting:
        after = 60.0
        then = "It cannot be started until its declaration is another."
    elif i.state is State.BACKOFF and i.deadline is not None:
        after = max(1.0, i.deadline - now)
        then = f"It is tried again in {after:.0f} s."
    elif i.state is State.FAILED or i.then is lc.Then.FAILED:
        after = 60.0
        then = f"It stays down until `vllm-mm load {i.model}` or a changed configuration."
    else:
        after = max(1.0, lc.backoff_delay(i.retry, max(1, i.failures)))
        then = "Try again."
    return StartFailed(
        advised(f"The model `{i.model}` could not be served: {reason or i.reason}", then),
        phase=phase,
        log_tail=instance.tail(20),
        retry_after=retry_after(after),
    )
