"""What to load next, and when: FIFO lanes, collated by model, with a bound on how long anybody is passed over. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger, Resident
from vllm_mm.domain.specs import DeviceWish


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request's place in its model's lane. Times are monotonic seconds."""

    id: str
    model: str
    arrived: float
    deadline: float
    """When the caller stops waiting for a lease."""
    key: str | None = None
    priority: int = 0
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """A model and those who wait for it, oldest first."""

    model: str
    state: State
    tickets: tuple[Ticket, ...]
    wanted_since: float | None
    """Set when an operator, preload or pin wants it ready, whether or not a request waits."""
    wish: DeviceWish
    per_device: int
    """Footprint in bytes per device."""
    free_slots: int
    """Leases that the instance would still grant; zero unless READY."""
    priority: int = 0

    @property
    def oldest(self) -> float | None:
        """The time since when somebody waits; None when nobody does."""
        times = [t.arrived for t in self.tickets[:1]]
        if self.wanted_since is not None:
            times.append(self.wanted_since)
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Rules:
    """The knobs of the policy, in seconds."""

    max_wait: float = 20.0
    min_dwell: float = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a decision may depend on, taken at one moment."""

    lanes: Sequence[Lane]
    residents: Sequence[Resident]
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Grant:
    """These tickets get leases now, in this order."""

    model: str
    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Start (or wake) `model` on these devices after the victims went."""

    model: str
    device_bytes: dict[str, int]
    victims: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing for this lane yet; `until` is when time alone may change that."""

    model: str
    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The lane can never be served as things stand: answer its tickets now."""

    model: str
    reason: str


Decision: TypeAlias = Grant | Load | Hold | Refuse


def decide(view: View, rules: Rules, now: float) -> tuple[Decision, ...]:
    """One decision per lane that has somebody waiting, in the order in which they are to be carried out.

    Guarantees: a READY lane with free slots is granted whatever other lanes do; loads that fit together are decided
    together; each decision is made against the ledger as the decisions before it will leave it; a lane whose oldest
    waiter is `max_wait` old takes its room from busy instances too, and no younger lane may take that room first.
    """
    raise NotImplementedError
