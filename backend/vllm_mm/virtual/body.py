"""An instance in virtual time, and what decisions see of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Ledger, Resident
from vllm_mm.domain.scheduling import Backlog, Expected, Habits, Lane, SwapTimes, Ticket, View
from vllm_mm.domain.specs import DeviceWish
from vllm_mm.virtual.engine import Decoder, VirtualModel
from vllm_mm.virtual.records import LoadRecord, Served


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
    anew: bool = False
    """It is stopped to be started again, for its load."""
    slept_on: tuple[str, ...] = ()
    habits: Habits = field(default_factory=Habits)
    arrived: float = 0.0
    """Sum of the arrival times of its tickets."""
    prefills: dict[int, float] = field(default_factory=dict[int, float])
    """When the prompts that are not in yet will be; while frozen, the seconds that are left."""
    frozen_since: float | None = None
    rivals: int = 0
    """Most models that waited for a load at once since somebody waits for this one."""

    @property
    def loading(self) -> bool:
        return self.load is not None

    def may_sleep(self, budget: int) -> bool:
        """Whether it can, and the host would have room for it alone."""
        return self.model.times.sleeps and self.model.host_bytes <= budget

    @property
    def waits(self) -> bool:
        """Somebody waits for it, or in it."""
        return bool(self.tickets) or self.frozen_since is not None

    def expected(self, budget: int, now: float) -> Expected:
        times = self.model.times
        return self.habits.expected(
            SwapTimes(times.load, times.wake, times.stop, times.sleep), now, sleeps=self.may_sleep(budget)
        )

    def lane(self) -> Lane:
        """Of the tickets as many as a decision can depend on: one more than it may grant."""
        model, state = self.model, State.STARTING if self.loading else self.state
        free = model.concurrency - len(self.running) if state is State.READY else 0
        wish = DeviceWish(ids=self.slept_on) if state is State.SLEEPING and self.slept_on else model.wish
        return Lane(
            model.id, state, tuple(islice(self.tickets.values(), free + 1)), None, wish, model.memory, free,
            model.priority, served_until=self.served_until, backlog=Backlog(len(self.tickets), self.arrived),
            frozen=len(self.running) if self.frozen_since is not None else 0, frozen_since=self.frozen_since,
        )  # fmt: skip


def view(
    bodies: Mapping[str, Body], lanes: Iterable[Body], ledger: Ledger, now: float, budget: int, *, weighs: bool
) -> View:
    """What a decision about `lanes` may depend on; with expectations for a policy that weighs them."""
    asked, here = list(lanes), [b for b in bodies.values() if b.state is not State.STOPPED]
    known = {b.model.id: b.expected(budget, now) for b in (*asked, *here)} if weighs else {}
    return View([b.lane() for b in asked], [_resident(b) for b in here], ledger, known)


def _resident(body: Body) -> Resident:
    model, frozen = body.model, body.frozen_since is not None
    return Resident(
        model.id, body.state, 0 if frozen else len(body.running), model.pinned, body.last_used, body.ready_since,
        model.priority, frozen=len(body.running) if frozen else 0,
    )  # fmt: skip
