"""Lent leases with messages under way: the controller never counts fewer than there are, none is lost, and a drain ends."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vllm_mm.domain.credits import Account, Purse, portion

SETTINGS = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
WORKERS = st.integers(0, 2)


@dataclass
class Side:
    """One worker and the controller's account of it; `up` and `down` are what is on its way."""

    account: Account = field(default_factory=Account)
    purse: Purse = field(default_factory=Purse)
    up: deque[tuple[str, int, int]] = field(default_factory=deque)
    down: deque[tuple[str, int, int, bool]] = field(default_factory=deque)
    asks: int = 0
    """Requests of the worker that wait for an answer."""
    left: int = 0
    """Of those: their client has gone meanwhile."""
    alive: bool = True


class Lending(RuleBasedStateMachine):
    """A gate with a limit, three workers, and links that deliver in order, whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.sides: list[Side] = []
        self.limit = 0
        self.open = True

    @initialize(limit=st.integers(1, 12))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.sides = [Side() for _ in range(3)]

    @property
    def out(self) -> int:
        return sum(side.account.out for side in self.sides)

    def back(self, side: Side, count: int) -> None:
        if count:
            side.up.append(("back", side.purse.epoch, count))

    # The worker

    @rule(at=WORKERS)
    def request(self, at: int) -> None:
        side = self.sides[at]
        if side.alive and not side.purse.take():
            side.asks += 1
            side.up.append(("ask", 0, 0))

    @rule(at=WORKERS)
    def ended(self, at: int) -> None:
        side = self.sides[at]
        if side.alive and side.purse.used:
            self.back(side, side.purse.give())

    @rule(at=WORKERS)
    def client_leaves(self, at: int) -> None:
        side = self.sides[at]
        if side.alive and side.left < side.asks:
            side.left += 1

    @rule(at=WORKERS)
    def sweep(self, at: int) -> None:
        side = self.sides[at]
        if side.alive:
            self.back(side, side.purse.sweep())

    @rule(at=WORKERS)
    def hears(self, at: int) -> None:
        side = self.sides[at]
        if not side.alive or not side.down:
            return
        kind, epoch, count, keep = side.down.popleft()
        if kind == "lent":
            assert side.purse.lent(epoch, count, keep=keep), "a lease came in another epoch"
            side.asks -= 1
            if side.left:
                side.left -= 1
            else:
                assert side.purse.take()
            if side.purse.idle and not side.purse.keeps:
                self.back(side, side.purse.recalled())
        elif kind == "recall":
            self.back(side, side.purse.recalled())
        else:
            side.purse.revoked(epoch)

    @rule(at=WORKERS)
    def dies(self, at: int) -> None:
        """Another one takes its place: with a new link, a new account, a new purse."""
        self.sides[at] = Side()

    # The controller

    @rule(at=WORKERS)
    def reads(self, at: int) -> None:
        side = self.sides[at]
        if not side.up:
            return
        kind, epoch, count = side.up[0]
        if kind == "back":
            side.up.popleft()
            side.account.returned(epoch, count)
        elif self.open and self.out < self.limit:
            side.up.popleft()
            more = portion(self.limit - self.out - 1, len(self.sides), 8)
            keep = more > 0 or self.limit - self.out - 1 > 0
            side.down.append(("lent", side.account.lend(1 + more, keep=keep), 1 + more, keep))
        else:
            # It waits in a lane; what others keep is asked for. Later messages of the worker are read all the same.
            side.up.rotate(-1)
            self._recall()

    @rule()
    def closes(self) -> None:
        self.open = False
        self._recall()

    @rule()
    def opens(self) -> None:
        self.open = True

    @precondition(lambda self: self.sides)
    @rule()
    def revokes(self) -> None:
        for side in self.sides:
            if side.account.out:
                side.down.append(("revoke", side.account.revoke(), 0, False))

    def _recall(self) -> None:
        for side in self.sides:
            if side.account.out and side.account.recall():
                side.down.append(("recall", 0, 0, False))

    # What holds

    @invariant()
    def never_more_than_there_are(self) -> None:
        assert self.out <= self.limit

    @invariant()
    def none_is_used_that_is_not_counted(self) -> None:
        for side in self.sides:
            if any(kind == "revoke" for kind, *_ in side.down):
                continue  # the worker does not know yet; an engine is touched only when it has answered
            assert side.purse.used <= side.purse.held <= side.account.out

    @invariant()
    def none_is_lost(self) -> None:
        """What is out is in the purse, or on its way."""
        for side in self.sides:
            revoked = [i for i, (kind, *_) in enumerate(side.down) if kind == "revoke"]
            later = list(side.down)[revoked[-1] + 1 :] if revoked else list(side.down)
            coming = sum(count for kind, _, count, _ in later if kind == "lent")
            going = sum(count for kind, epoch, count in side.up if kind == "back" and epoch == side.account.epoch)
            held = 0 if revoked else side.purse.held
            assert side.account.out == held + coming + going

    @invariant()
    def who_may_not_keep_has_nothing_idle(self) -> None:
        for side in self.sides:
            assert side.purse.keeps or not side.purse.idle

    def teardown(self) -> None:
        """Closed, and with the requests ended, all come back by messages alone: no sweep is needed."""
        if not self.sides:
            return
        self.closes()
        for at, side in enumerate(self.sides):
            while side.down or any(kind == "back" for kind, *_ in side.up) or side.purse.used:
                while side.down:
                    self.hears(at)
                while side.purse.used:
                    self.ended(at)
                side.up = deque(m for m in side.up if m[0] == "back")
                while side.up:
                    self.reads(at)
        assert self.out == 0


def test_lent_leases() -> None:
    """Whatever comes in between: counted at least as many as are used, none lost, and a drain ends."""
    run_state_machine_as_test(Lending, settings=SETTINGS)
