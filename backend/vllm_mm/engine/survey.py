"""What a scheduling decision sees of the engines: each lane and each resident as plain data, taken at one moment."""

from dataclasses import dataclass, field

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Resident
from vllm_mm.domain.scheduling import Lane, Ticket, Turns
from vllm_mm.engine.instance import ModelInstance
from vllm_mm.engine.wishes import Wish


@dataclass(frozen=True, slots=True)
class Waiting:
    """Those who wait for one model, as the queue tells them."""

    model: str
    tickets: tuple[Ticket, ...] = ()
    turns: Turns = field(default_factory=Turns)
    """How far their keys are."""
    returning_since: float | None = None
    """See `Lane.returning_since`."""


def lane(instance: ModelInstance, waiting: Waiting, wish: Wish | None, *, loading: bool, per_device: int) -> Lane:
    """Those who wait for a model, whose turn is that of the highest priority among them. `loading`: a load of it is decided, so it counts as starting; `per_device` in bytes."""
    state = State.STARTING if loading else instance.state
    return Lane(
        model=instance.spec.id, state=state, tickets=waiting.tickets, turns=waiting.turns,
        returning_since=waiting.returning_since,
        wanted_since=wish.since if wish is not None and state is not State.READY else None,
        urgent=wish is not None and wish.urgent,
        served_until=instance.gate.closed_at,
        back_at=instance.snapshot.deadline if state is State.BACKOFF and instance.snapshot.served else None,
        wish=instance.spec.devices, per_device=per_device,
        free_slots=instance.gate.free, priority=max((instance.spec.priority, *(t.priority for t in waiting.tickets))),
        frozen=instance.gate.frozen, frozen_since=instance.gate.frozen_since,
    )  # fmt: skip


def resident(instance: ModelInstance, *, pinned: bool, kept: bool, expected: bool) -> Resident:
    """A model that holds memory, as a possible victim. `expected`: see `Resident`."""
    return Resident(
        model=instance.spec.id, state=instance.state, leases=instance.gate.count, pinned=pinned,
        last_used=instance.gate.last_used, ready_since=instance.snapshot.ready_since, priority=instance.spec.priority,
        frozen=instance.gate.frozen, kept=kept, expected=expected,
    )  # fmt: skip
