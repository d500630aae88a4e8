"""The vocabulary of an instance's life: its states, what it may be told, what may be observed, and what is to be done.

Commands are what somebody wants; facts are what was observed, and carry the generation (the number of the launch) that
they are about, so that a late one changes nothing. `domain.lifecycle` says how they go together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    COLD = "cold"
    """As STOPPED, but its load goes on: the wake failed, or its sleep was given up, and those who wait for it get a start."""


class Outcome(StrEnum):
    """How a sleep or a wake went."""

    OK = "ok"
    REFUSED = "refused"
    """The engine answered with an error, or not in time."""
    LIED = "lied"
    """It said yes and did not do it: its memory did not come back, or it answers differently after its sleep."""
    DIED = "died"


class OnTimeout(StrEnum):
    """What a drain does with the leases that are left at its deadline."""

    CUT = "cut"
    WAIT = "wait"
    FREEZE = "freeze"
    """Their requests stay in the engine while it sleeps, and go on after its wake. A drain that led to STOP from the first cuts
    instead; one that was to sleep, and is now to let them finish and stop, sleeps with them, and stops once they have ended."""
    KEEP = "keep"
    """For a drain that leads to STOP: it stops if they end in time; if not they are frozen, for which others give up their sleep."""


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
    served: bool = False
    """The latest failure was that of an engine which had been READY, and not of a start."""
    frozen_since: float | None = None
    """Leases are out although it is on its way to sleep, asleep or waking: their requests were frozen then. A `goal` of
    STOP beside it says that it is to stop once it was woken and they have ended."""
    progress: Progress = field(default_factory=Progress)
    limits: StartLimits = field(default_factory=StartLimits)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeouts: Timeouts = field(default_factory=Timeouts)

    @property
    def frozen(self) -> bool:
        """Whether leases are out whose requests are frozen."""
        return self.frozen_since is not None


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
    """Give out no more leases, then sleep or stop. On a draining instance the goal may rise to STOP, never fall, and a promise that
    what runs is let finish (WAIT) is kept, whichever drain gave it."""

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
    cold: bool = False
    """Of one that sleeps and is to be loaded: that goes on, by a start instead of a wake."""


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
    lied: bool = False
    """It answered that it sleeps, or is awake, and that was seen to be untrue."""


@dataclass(frozen=True, slots=True)
class LeasesGone:
    generation: int


@dataclass(frozen=True, slots=True)
class FellAsleep:
    generation: int
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes that it was seen to hold on its devices now; nothing for a device that cannot be read."""


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
class FreezeLeases:
    """Mark the leases that are out: their requests will stand still. `LeasesGone` is still reported when the last one ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class ThawLeases:
    """The leases that were frozen go on."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Put the engine to sleep, see its memory come back, report `FellAsleep` or `Unhealthy`."""

    keep: bool = False
    """With the requests that it has, which go on when it wakes."""


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
class Judge:
    """A sleep or a wake came to its end; whether this engine is put to sleep again depends on it."""

    outcome: Outcome
    waking: bool
    reason: str = ""
    kept: Mapping[str, int] = field(default_factory=dict[str, int])
    """As in `FellAsleep`."""


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
    | FreezeLeases
    | ThawLeases
    | Suspend
    | WakeEngine
    | StopProcess
    | KillAgain
    | Settle
    | Judge
    | Emit
    | Refuse
)
