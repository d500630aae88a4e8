"""An instance in virtual time, and what decisions see of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger, Resident
from vllm_mm.domain.scheduling import Lane, Ticket
from vllm_mm.domain.specs import DeviceWish
from vllm_mm.virtual.engine import Decoder, VirtualModel
from vllm_mm.virtual.outlook import Backlog, Outlook, Rate
from vllm_mm.virtual.records import LoadRecord, Served

LEARN = 0.1
"""Weight of the latest request in what is known of a model's requests."""


@dataclass(slots=True, eq=False)
class Body:
    """An instance as the manager sees it."""

    model: VirtualModel
    state: State = State.STOPPED
    tickets: dict[str, Ticket] = field(default_factory=dict[str, Ticket])
    running: dict[int, Served] = field(default_factory=dict[int, Served])
    decoder: Decoder | None = None
    finish_at: float = inf
    """The one event at which the decoder is looked at; others are stale."""
    launch: int = 0
    last_used: float = 0.0
    ready_since: float | None = None
    served_until: float | None = None
    load: LoadRecord | None = None
    """The load that was decided and is not ready yet."""
    begun: bool = False
    goal_sleep: bool = False
    drained_at: float = 0.0
    since: float | None = None
    """Since when it serves; None when it does not."""
    slept_on: tuple[str, ...] = ()
    rate: Rate = field(default_factory=Rate)
    arrived: float = 0.0
    """Sum of the arrival times of its tickets."""
    work: float = 5.0
    """A request's seconds on the engine, as learned."""
    wait: float = 0.0
    """A request's seconds from arrival to lease, as learned."""
    rivals: int = 0
    """Most models that waited for a load at once since somebody waits for this one."""

    @property
    def loading(self) -> bool:
        return self.load is not None

    def may_sleep(self, budget: int) -> bool:
        """Whether it can, and the host would have room for it alone."""
        return self.model.times.sleeps and self.model.host_bytes <= budget

    def swap(self, budget: int, *, asleep: bool) -> float:
        """Seconds for one like it to go, and for it to come."""
        times = self.model.times
        return (times.sleep if self.may_sleep(budget) else times.stop) + (times.wake if asleep else times.load)

    def learn_wait(self, seconds: float) -> None:
        self.wait += LEARN * (seconds - self.wait)

    def learn_work(self, seconds: float) -> None:
        self.work += LEARN * (seconds - self.work)

    def lane(self) -> Lane:
        """Of the tickets as many as a decision can depend on: one more than it may grant."""
        model, state = self.model, State.STARTING if self.loading else self.state
        free = model.concurrency - len(self.running) if state is State.READY else 0
        wish = DeviceWish(ids=self.slept_on) if state is State.SLEEPING and self.slept_on else model.wish
        return Lane(
            model.id, state, tuple(islice(self.tickets.values(), free + 1)), None, wish, model.memory, free,
            model.priority, served_until=self.served_until,
        )  # fmt: skip


def residents(bodies: Mapping[str, Body]) -> list[Resident]:
    """Those that may hold memory."""
    return [
        Resident(name, b.state, len(b.running), b.model.pinned, b.last_used, b.ready_since, b.model.priority)
        for name, b in bodies.items()
        if b.state is not State.STOPPED
    ]


def outlook(
    bodies: Mapping[str, Body],
    lanes: Mapping[str, Body],
    waiting: Mapping[str, Body],
    ledger: Ledger,
    now: float,
    budget: int,
) -> Outlook:
    """The view of `lanes`, with what is known of all models; `waiting` are those with tickets."""
    return Outlook(
        [b.lane() for b in lanes.values()], residents(bodies), ledger,
        swap={m: b.swap(budget, asleep=b.state is State.SLEEPING) for m, b in bodies.items()},
        back={m: b.swap(budget, asleep=b.may_sleep(budget)) for m, b in bodies.items()},
        work={m: b.work for m, b in bodies.items()},
        rates={m: b.rate.at(now) for m, b in bodies.items()},
        waits={m: b.wait for m, b in bodies.items()},
        waiting={m: Backlog(len(b.tickets), b.arrived) for m, b in waiting.items()},
    )  # fmt: skip
