"""What the outside sees of instances and of the queue: plain, frozen, taken at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mm.domain.lifecycle import Progress, State


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
    why: str
