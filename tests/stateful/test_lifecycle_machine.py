"""The lifecycle driven by a shell that believes every effect: the invariants of the design, over long random lives."""

from typing import ClassVar

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lifecycle_table import EDGES, FACTS, PREFIXES, fresh, inputs, where
from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.lifecycle import State

COMMANDS = sorted(set(inputs(1)) - FACTS - {"tick"})

WAYS = {(place, name, to) for place, ways in EDGES.items() for name, to in ways.items()}

seen: set[tuple[str, str, str]] = set()
"""Changes of place over all the runs of the machine: (from, by what, to)."""


SETTINGS = settings(
    max_examples=5,
    stateful_step_count=25,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Life(RuleBasedStateMachine):
    """One instance and the world around it, as the effects say that it is."""

    way: ClassVar[tuple[str, str, str]]
    """What it does first: a line of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.instance = fresh()
        self.now = 0.0
        self.process = False
        self.reserved = False
        self.gate = False
        self.leases = 0
        self.frozen = False
        self.loads = 0
        self.stopping = False
        self.suspending = False

    @initialize()
    def begin_somewhere(self) -> None:
        """Deep states are reached by a legal prefix, through the same door as everything else."""
        place, by, to = self.way
        for name in PREFIXES[place]:
            if name == "deadline":
                self.leases = 2  # somebody has to be there, for the drain to come to its deadline
                self.wait_for_the_deadline()
            else:
                self.feed(name)
        assert where(self.instance) == place
        if by == "deadline":
            self.wait_for_the_deadline()
        else:
            self.stopping, self.suspending = self.stopping and by != "reaped", self.suspending and by != "asleep"
            self.feed(by)
        assert where(self.instance) == to

    def feed(self, name: str, generation: int | None = None) -> None:
        event = inputs(self.instance.generation if generation is None else generation)[name]
        if isinstance(event, lc.Adopt):  # adopts a launch that this controller cannot have made
            event = lc.Adopt(self.instance.generation + 1, event.cause, event.asleep)
        before = self.instance
        after, effects = lc.step(before, event, self.now)
        self.instance = after
        if where(before) != where(after):
            seen.add((where(before), "deadline" if name == "tick" else name, where(after)))
        changed = before.state is not after.state
        events = [e for e in effects if isinstance(e, lc.Emit) and not e.kind.startswith("alert.")]
        assert len(events) == changed
        if any(isinstance(e, lc.Refuse) for e in effects):
            assert len(effects) == 1
            assert after == before
        if changed:
            assert events[0].kind == f"instance.{after.state.value}"
            assert events[0].cause
        cold = lc.Then.COLD
        loaded = before.state in lc.LOADING and after.state not in lc.LOADING and after.then is not cold
        called_off = before.then is cold and after.state is State.STOPPING and after.then is not cold
        undrained = before.state is State.DRAINING and after.state is State.READY
        settled = [e for e in effects if isinstance(e, lc.Settle)]
        assert len(settled) == (loaded or undrained or called_off)
        assert all(e.ok == (after.state in {State.READY, State.DRAINING}) for e in settled)
        if isinstance(event, lc.Adopt) and changed:
            self.process = self.reserved = True
        if name == "no leases" and event == lc.LeasesGone(before.generation):
            self.leases, self.frozen = 0, False
        for effect in effects:
            self.perform(effect)
        if name == "reaped" and before.state is State.STOPPING and changed:
            self.reserved = self.process = self.stopping = False
            self.loads = 0  # of one that goes on cold: whoever starts it again

    def perform(self, effect: lc.Effect) -> None:
        match effect:
            case lc.Spawn():
                assert not self.process, "a second process beside the first"
                self.process = self.reserved = True
                self.loads += 1
            case lc.WakeEngine():
                assert self.process
                self.loads += 1
            case lc.OpenGate():
                assert not self.gate
                self.gate = True
            case lc.CloseGate():
                self.gate = False
            case lc.RevokeLeases():
                assert not self.gate, "revoked while new ones may come"
                self.leases, self.frozen = 0, False
            case lc.FreezeLeases():
                assert not self.gate, "frozen while new ones may come"
                self.frozen = True
            case lc.ThawLeases():
                assert self.frozen, "thawed though it was not frozen"
                self.frozen = False
            case lc.Suspend():
                assert self.leases == 0 or effect.keep, "put to sleep with leases out"
                assert effect.keep == self.frozen
                self.suspending = True
            case lc.StopProcess():
                assert self.leases == 0
                assert not self.stopping, "stopped twice"
                self.stopping = True
            case lc.KillAgain():
                assert self.stopping
            case lc.Settle():
                self.loads = 0
            case _:
                pass

    # What the world does.

    @rule(name=st.sampled_from(COMMANDS), dt=st.floats(0.0, 3.0))
    def command(self, name: str, dt: float) -> None:
        self.now += dt
        self.feed(name)

    @rule(name=st.sampled_from(sorted(FACTS)), older=st.integers(1, 3))
    def stale_fact(self, name: str, older: int) -> None:
        before = self.instance
        self.feed(name, self.instance.generation - older)
        assert self.instance == before

    @rule()
    def wait_for_the_deadline(self) -> None:
        due = lc.next_tick(self.instance)
        if due is not None:
            before = self.instance
            self.now = max(self.now, due)
            self.feed("tick")
            assert self.instance != before, "a tick that was asked for changes something"

    @rule(dt=st.floats(0.0, 3.0))
    def time_passes(self, dt: float) -> None:
        self.now += dt
        self.feed("tick")

    @precondition(lambda self: self.gate)
    @rule()
    def take_a_lease(self) -> None:
        self.leases += 1

    @precondition(lambda self: self.leases > 0)
    @rule()
    def end_the_leases(self) -> None:
        self.leases = 0

    @precondition(lambda self: (self.instance.state is State.DRAINING or self.frozen) and self.leases == 0)
    @rule()
    def leases_gone(self) -> None:
        self.feed("no leases")

    @precondition(lambda self: self.loads)
    @rule(name=st.sampled_from(["progressed", "ready", "ready", "unhealthy", "unhealthy for good", "lied"]))
    def load_goes_on(self, name: str) -> None:
        self.feed(name)

    @precondition(lambda self: self.suspending)
    @rule()
    def fell_asleep(self) -> None:
        self.suspending = False
        self.feed("asleep")

    @precondition(lambda self: self.process)
    @rule(name=st.sampled_from(["exited", "exited for good", "unhealthy", "unhealthy for good"]))
    def crash(self, name: str) -> None:
        self.feed(name)

    @precondition(lambda self: self.stopping)
    @rule()
    def reaped(self) -> None:
        self.feed("reaped")

    # What always holds.

    @invariant()
    def gate_is_open_only_in_ready(self) -> None:
        assert self.gate == (self.instance.state is State.READY)

    @invariant()
    def leases_only_in_ready_or_draining_or_frozen(self) -> None:
        asleep = {State.SUSPENDING, State.SLEEPING, State.WAKING}
        assert self.leases == 0 or self.instance.state in {State.READY, State.DRAINING} or self.frozen
        assert self.frozen == self.instance.frozen
        assert not self.frozen or self.instance.state in asleep

    @invariant()
    def process_and_reservation_iff_live(self) -> None:
        live = self.instance.state in lc.LIVE
        assert self.process == live
        assert self.reserved == live

    @invariant()
    def transitional_states_have_deadlines(self) -> None:
        timed = self.instance.state in lc.TRANSITIONAL or self.instance.state is State.BACKOFF
        assert (self.instance.deadline is not None) == timed
        assert (self.instance.then is not None) == (self.instance.state is State.STOPPING)
        assert self.instance.goal is not None or self.instance.state is not State.DRAINING
        assert self.instance.goal is None or self.instance.state is State.DRAINING or self.frozen

    @invariant()
    def somebody_waits_iff_it_loads(self) -> None:
        assert self.loads == (self.instance.state in lc.LOADING or self.instance.then is lc.Then.COLD)

    @invariant()
    def ready_since_tells_of_ready_only(self) -> None:
        assert (self.instance.ready_since is not None) == (self.instance.state in {State.READY, State.DRAINING})

    def teardown(self) -> None:
        """From wherever it is, a crash loop ends in FAILED and a kill in rest, within a bounded number of steps."""
        for _ in range(6 * self.instance.retry.max_failures):
            match self.instance.state:
                case State.FAILED:
                    break
                case State.STOPPED:
                    self.feed("start")
                case State.STOPPING:
                    self.feed("reaped")
                case State.BACKOFF:
                    self.now = self.instance.deadline or self.now
                    self.feed("tick")
                case _:
                    self.leases = 0
                    self.feed("exited")
        assert self.instance.state is State.FAILED
        self.feed("reset")
        assert (self.instance.state, self.instance.failures) == (State.STOPPED, 0)
        assert not any((self.process, self.reserved, self.gate, self.leases, self.loads))


def test_lives_keep_the_invariants_and_take_every_way() -> None:
    """Invariants 2 to 7 of the design hold after every step, and each line of the table was seen to happen.

    Nothing else happened, but that what leads to BACKOFF leads to FAILED once there were too many failures."""
    seen.clear()
    for number, way in enumerate(sorted(WAYS)):
        machine = seed(number)(type("Life", (Life,), {"way": way}))
        run_state_machine_as_test(machine, settings=SETTINGS)
    assert seen >= WAYS
    assert {(place, by, to.replace("failed", "backoff")) for place, by, to in seen - WAYS} <= WAYS
