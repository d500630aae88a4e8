"""What the scheduler is asked with and answers with. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason
from vllm_mm.domain.residency import Ledger, Resident
from vllm_mm.domain.scheduling.expectations import NOTHING_KNOWN, Backlog, Expected
from vllm_mm.domain.specs import DeviceWish


@dataclass(
    slots=True, unsafe_hash=True
)  # nobody changes one; to make a frozen one takes three times as long, for every request
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
    weight: float = 1.0
    """Its key's share of a model's slots, beside other keys that wait for the same model: twice the weight, twice the slots."""
    evicts: bool = True
    """Others may be told to go for it. False where its key may not have that: it waits for room that nobody else holds."""
    loads: bool = True
    """A model may be started or woken for it. False where its key may not have that: it is refused where that would be needed."""
    live: bool = False
    """It is for a session with somebody at the other end, which is never frozen: it ends where others would stand still."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How far the keys of one lane are (`fairness`). Kept while somebody waits there; begins anew when it was empty."""

    clock: float = 0.0
    """Of the key that was served last: a key that comes new or returns starts here, and does not catch up."""
    ahead: Mapping[str | None, float] = field(default_factory=dict[str | None, float])
    """The clocks that are later than that."""


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
    urgent: bool = False
    """`wanted_since` was set by an operator's explicit start: as good as `max_wait` old from the first moment."""
    served_until: float | None = None
    """When the instance last stopped granting leases; None when it never did, or does now. Lanes that were served lately
    come after those that were not, so that two models with a backlog cannot keep a third one out."""
    back_at: float | None = None
    """In BACKOFF after it had served: when it can be started again."""
    frozen: int = 0
    """Leases whose requests are frozen in its sleeping engine."""
    frozen_since: float | None = None
    """Since when they wait to go on; None when there are none."""
    backlog: Backlog | None = None
    """Who waits, where `tickets` are only the first of them; None when they are all."""
    turns: Turns = Turns()
    returning_since: float | None = None
    """When the first of those came who were told to come again, have had nothing yet, and of whom one is here again (`returning`).
    Counts while somebody waits: as if that one had waited since then."""

    @property
    def oldest(self) -> float | None:
        """The time since when somebody waits; None when nobody does."""
        times = [t.arrived for t in self.tickets]
        if self.tickets and self.returning_since is not None:
            times.append(self.returning_since)
        if self.wanted_since is not None:
            times.append(self.wanted_since)
        if self.frozen_since is not None:
            times.append(self.frozen_since)
        return min(times, default=None)

    @property
    def may_evict(self) -> bool:
        """Whether anybody waits for whom others may be told to go."""
        return self.wanted_since is not None or self.frozen_since is not None or any(t.evicts for t in self.tickets)

    @property
    def kept(self) -> bool:
        """Wanted only to be there: by a pin, a time of the week, or to come back after a lease on a device. No request waits for
        it, and no operator."""
        return self.wanted_since is not None and not (self.urgent or self.tickets or self.frozen)

    @property
    def waiting(self) -> Backlog:
        """Everybody who waits; a wish counts as one."""
        known = self.backlog or Backlog(len(self.tickets), sum(t.arrived for t in self.tickets))
        if self.frozen_since is not None:
            known += Backlog(self.frozen, self.frozen * self.frozen_since)
        if self.wanted_since is not None:
            known += Backlog(1, self.wanted_since)
        return known

    def overdue_at(self, max_wait: float) -> float | None:
        """When its oldest waiter reaches the aging bound; None when nobody waits for whom others may be told to go."""
        times = [t.arrived + max_wait for t in self.tickets if t.evicts]
        if times and self.returning_since is not None:
            times.append(self.returning_since + max_wait)
        if self.wanted_since is not None:
            times.append(self.wanted_since + (0.0 if self.urgent else max_wait))
        if self.frozen_since is not None:
            times.append(self.frozen_since + max_wait)
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Rules:
    """The knobs of the policy, in seconds."""

    max_wait: float = 20.0
    min_dwell: float = 5.0
    quantum: float = 10.0
    """How long a model may serve after it became ready although another one is overdue."""
    spread: bool = False
    """Of several devices with room, the emptiest is taken instead of the fullest."""

    @property
    def stay(self) -> float:
        """How long whoever is overdue may have to wait for one that became ready. No quantum is longer than `max_wait`: else
        somebody who came right after a load would not even be next."""
        return max(self.min_dwell, min(self.quantum, self.max_wait))


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a decision may depend on, taken at one moment."""

    lanes: Sequence[Lane]
    residents: Sequence[Resident]
    ledger: Ledger
    expected: Mapping[str, Expected] = field(default_factory=dict[str, Expected])
    """By model, of all that are in a lane or resident."""

    def of(self, model: str) -> Expected:
        return self.expected.get(model, NOTHING_KNOWN)


@dataclass(frozen=True, slots=True)
class Grant:
    """These tickets get leases now, in this order."""

    model: str
    tickets: tuple[Ticket, ...]
    reason: str = field(default=Reason.READY.because("it is ready and has a slot"), compare=False)
    turns: Turns = field(default=Turns(), compare=False)
    """Of the lane, once they have them."""


@dataclass(frozen=True, slots=True)
class Load:
    """Start (or wake) `model` on these devices after the victims went.

    For the ledger: `reserve`, or `grow` if the model (a sleeping one) has a reservation already. `reason`: see
    `domain.reasons`.
    """

    model: str
    device_bytes: dict[str, int]
    victims: tuple[str, ...]
    reason: str
    overdue: bool = field(default=False, compare=False)
    """Its victims go although they are busy; else only while they are not."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing for this lane yet; `until` is when time alone may change that.

    `reason`: see `domain.reasons`.
    """

    model: str
    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The lane can never be served as things stand: answer its tickets now.

    `reason` is for the callers. It is empty for an instance in BACKOFF or FAILED: its own reason says it better.
    """

    model: str
    reason: str


Decision: TypeAlias = Grant | Load | Hold | Refuse
