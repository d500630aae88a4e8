"""`lifecycle.step` against the table in tests/lifecycle_table.py, and the details that a table cannot show."""

from dataclasses import replace

import pytest

from lifecycle_table import EDGES, FACTS, LIMITS, PREFIXES, REFUSED, RETRY, TIMEOUTS, fresh, inputs, reach, where
from vllm_mm.domain import lifecycle as lc
from vllm_mm.domain.lifecycle import Goal, OnTimeout, Outcome, State, Then

PAIRS = [(place, name) for place in PREFIXES for name in inputs(1)]


def emits(effects: tuple[lc.Effect, ...]) -> list[lc.Emit]:
    return [e for e in effects if isinstance(e, lc.Emit)]


@pytest.mark.parametrize("place", PREFIXES)
def test_prefixes_lead_where_they_say(place: str) -> None:
    """Every place is reached by commands and facts alone, and its sub-state is the one named."""
    assert where(reach(place)) == place


@pytest.mark.parametrize(("place", "name"), PAIRS)
def test_every_place_and_input(place: str, name: str) -> None:
    """Each input in each place leads where the table says; what the table does not list stays, and says so if refused."""
    before = reach(place)
    after, effects = lc.step(before, inputs(before.generation)[name], 1.0)
    assert where(after) == EDGES[place].get(name, place)
    refused = [e for e in effects if isinstance(e, lc.Refuse)]
    assert bool(refused) == (name in REFUSED[place])
    if refused:
        assert (after, len(effects)) == (before, 1)
        assert before.state.value in refused[0].reason
    # One event for each change of state, none without: a changed goal or `then` is no change of state.
    assert len(emits(effects)) == (after.state is not before.state)


@pytest.mark.parametrize("place", PREFIXES)
@pytest.mark.parametrize("name", sorted(FACTS))
def test_stale_facts_change_nothing(place: str, name: str) -> None:
    """A fact about another launch is dropped, whatever it says."""
    before = reach(place)
    assert lc.step(before, inputs(before.generation + 1)[name], 1.0) == (before, ())


@pytest.mark.parametrize("place", PREFIXES)
def test_deadlines(place: str) -> None:
    """Just before its deadline nothing happens; at the deadline what the table says, or an alert and a new deadline."""
    before = replace(reach(place), stall_at=None)
    assert (before.deadline is not None) == (before.state in lc.TRANSITIONAL or before.state is State.BACKOFF)
    if before.deadline is None:
        assert lc.step(before, lc.Tick(), 1e9) == (before, ())
        return
    assert lc.step(before, lc.Tick(), before.deadline - 0.001) == (before, ())
    after, effects = lc.step(before, lc.Tick(), before.deadline)
    assert where(after) == EDGES[place].get("deadline", place)
    if after.state is before.state:
        assert after.deadline is not None
        assert after.deadline > before.deadline
        assert [e.kind for e in emits(effects)] == ["alert.stop_overdue"]
    else:
        assert [e.kind for e in emits(effects)] == [f"instance.{after.state.value}"]


def test_start_launches_and_counts() -> None:
    """A start is one launch with a new generation, an overall deadline and a stall deadline; repeating it does nothing."""
    started, effects = lc.step(fresh(), lc.Start("request req_1"), 5.0)
    assert effects == (lc.Spawn(), lc.Emit("instance.starting", "request req_1", {"generation": 1}))
    assert (started.deadline, started.stall_at) == (5.0 + LIMITS.deadline, 5.0 + LIMITS.stall)
    for place in ("starting", "ready", "waking"):
        before = reach(place)
        assert lc.step(before, lc.Start("again"), 1.0) == (before, ())


def test_progress_moves_the_stall_deadline_but_not_the_overall_one() -> None:
    """A lively load is not killed for being slow; a line without a phase is a sign of life too."""
    before = reach("starting")
    after, effects = lc.step(before, lc.Progressed(1, lc.Progress("weights", 10.0)), 40.0)
    assert (after.stall_at, after.deadline, effects) == (40.0 + LIMITS.stall, before.deadline, ())
    again, _ = lc.step(after, lc.Progressed(1), 60.0)
    assert again.progress == lc.Progress("weights", 10.0)
    dead, _ = lc.step(again, lc.Tick(), LIMITS.deadline)
    assert dead.reason == "not ready after 100 s"


@pytest.mark.parametrize(
    ("progress", "reason"), [(None, "no progress for 50 s"), ("weights", "no progress for 50 s in phase weights")]
)
def test_a_silent_load_is_stopped(progress: str | None, reason: str) -> None:
    """No sign of life for the stall limit ends the start, naming the phase where it hung."""
    before, _ = lc.step(reach("starting"), lc.Progressed(1, lc.Progress(progress) if progress else None), 0.0)
    assert lc.step(before, lc.Tick(), LIMITS.stall - 0.1) == (before, ())
    after, effects = lc.step(before, lc.Tick(), LIMITS.stall)
    assert (after.then, after.reason) == (Then.BACKOFF, reason)
    assert effects[-1] == lc.Settle(ok=False, reason=reason)


def test_ready_opens_the_gate_before_it_answers_the_waiters() -> None:
    """Whoever is told that the load is done can take a lease at once."""
    _, effects = lc.step(reach("starting"), lc.BecameReady(1), 3.25)
    assert effects == (
        lc.OpenGate(),
        lc.Emit("instance.ready", "probe", {"generation": 1, "took_s": 3.25}),
        lc.Settle(ok=True),
    )


@pytest.mark.parametrize(
    ("place", "name"),
    [(p, n) for p in ("starting", "waking") for n in ("kill", "drain to stop")]
    + [("starting", "exited"), ("starting", "unhealthy")],
)
def test_a_load_that_ends_badly_answers_everybody_at_once(place: str, name: str) -> None:
    """The waiters do not wait for the reaping. vLLM swallows TERM while loading, so it is killed."""
    before = reach(place)
    _, effects = lc.step(before, inputs(1)[name], 1.0)
    assert [e for e in effects if isinstance(e, lc.Settle)] == [effects[-1]]
    assert isinstance(effects[-1], lc.Settle)
    assert not effects[-1].ok
    assert lc.StopProcess(graceful=False) in effects


@pytest.mark.parametrize("place", ["ready", "draining>sleep", "draining>stop"])
@pytest.mark.parametrize(("name", "died"), [("exited", True), ("unhealthy", False), ("kill", False)])
def test_an_end_while_leases_are_out_revokes_them_first(place: str, name: str, died: bool) -> None:
    """The gate is shut, then running exchanges are told the truth, then the process is stopped: TERM only for the living."""
    _, effects = lc.step(reach(place), inputs(1)[name], 1.0)
    assert effects[0] == lc.CloseGate()
    assert isinstance(effects[1], lc.RevokeLeases)
    assert effects[1].died is died
    assert effects[2] == lc.StopProcess(graceful=not died)


def test_drain_tells_before_it_closes_the_gate() -> None:
    """Closing the gate without leases reports LeasesGone at once, so the event of this transition goes first."""
    after, effects = lc.step(reach("ready"), lc.Drain(Goal.STOP, 10.0, "swap b"), 2.0)
    assert [type(e) for e in effects] == [lc.Emit, lc.CloseGate]
    assert (after.deadline, after.reason) == (12.0, "swap b")


def test_a_drain_goal_rises_and_never_falls() -> None:
    """Stop overrules sleep; sleep does not save an instance from being stopped. The deadline stays the first one."""
    before = reach("draining>sleep")
    risen, effects = lc.step(before, lc.Drain(Goal.STOP, 99.0, "t"), 1.0)
    assert (risen.goal, risen.deadline, effects) == (Goal.STOP, before.deadline, ())
    assert lc.step(risen, lc.Drain(Goal.SLEEP, 99.0, "t"), 1.0) == (risen, ())


def test_a_drain_that_runs_out_of_time_cuts() -> None:
    """Under CUT the leases that are left are revoked exactly once, and the way goes on to the goal."""
    for goal, then in ((Goal.SLEEP, State.SUSPENDING), (Goal.STOP, State.STOPPING)):
        before, _ = lc.step(reach("ready"), lc.Drain(goal, 10.0, "idle"), 0.0)
        after, effects = lc.step(before, lc.Tick(), 10.0)
        assert after.state is then
        assert [e for e in effects if isinstance(e, lc.RevokeLeases)] == [
            lc.RevokeLeases(died=False, reason="the drain took too long (idle)")
        ]
        assert isinstance(effects[0], lc.RevokeLeases)


def test_a_drain_that_waits_alerts_and_goes_on_waiting() -> None:
    """Under WAIT nothing is cut; each overdue deadline raises an alert and sets the next one, at least a second away."""
    before, _ = lc.step(reach("ready"), lc.Drain(Goal.STOP, 0.0, "t", OnTimeout.WAIT), 0.0)
    after, effects = lc.step(before, lc.Tick(), 0.0)
    assert (after.state, after.deadline) == (State.DRAINING, 1.0)
    assert effects == (lc.Emit("alert.drain_overdue", "deadline", {"generation": 1}),)
    late, _ = lc.step(after, lc.Tick(), 5.0)
    assert late.deadline == 6.0


def test_undrain_reopens_and_keeps_the_dwell_time() -> None:
    """An undrained instance was ready all along; undraining a ready one does nothing."""
    before = reach("draining>stop")
    after, effects = lc.step(before, lc.Undrain("t"), 3.0)
    assert (after.state, after.ready_since) == (State.READY, before.ready_since)
    assert effects == (lc.OpenGate(), lc.Emit("instance.ready", "t", {"generation": 1}), lc.Settle(ok=True))
    assert lc.step(after, lc.Undrain("t"), 4.0) == (after, ())


def test_sleep_and_wake() -> None:
    """Suspended only when the leases are gone; waking proves itself again before the gate opens; repeats do nothing."""
    suspending, effects = lc.step(reach("draining>sleep"), lc.LeasesGone(1), 1.0)
    assert effects[0] == lc.Suspend()
    assert suspending.deadline == 1.0 + TIMEOUTS.suspend
    sleeping, effects = lc.step(suspending, lc.FellAsleep(1), 3.0)
    assert effects == (
        lc.Judge(Outcome.OK, waking=False),
        lc.Emit("instance.sleeping", "engine", {"generation": 1, "reason": suspending.reason, "took_s": 2.0}),
    )
    assert sleeping.ready_since is None
    waking, effects = lc.step(sleeping, lc.Wake("t"), 4.0)
    assert effects[0] == lc.WakeEngine()
    assert waking.deadline == 4.0 + TIMEOUTS.wake
    assert lc.step(waking, lc.Wake("t"), 5.0) == (waking, ())
    ready, effects = lc.step(waking, lc.BecameReady(1), 6.0)
    assert effects[0] == lc.Judge(Outcome.OK, waking=True)
    assert ready.ready_since == 6.0
    assert lc.step(ready, lc.Wake("t"), 7.0) == (ready, ())


ENDS = {"exited": Outcome.DIED, "unhealthy": Outcome.REFUSED, "lied": Outcome.LIED, "tick": Outcome.REFUSED}


@pytest.mark.parametrize("name", ENDS)
def test_a_sleep_that_fails_is_a_stop_and_no_failure(name: str) -> None:
    """The model was well before: nobody has to wait for a backoff. What came of it is told, for the next time."""
    before = reach("suspending")
    after, effects = lc.step(before, inputs(1)[name], before.deadline or 0.0)
    assert (after.then, after.failures) == (Then.STOPPED, 0)
    assert effects[-1] == lc.Judge(ENDS[name], waking=False, reason=after.reason.removeprefix("sleepless: "))
    assert not [e for e in effects if isinstance(e, lc.Settle)]


@pytest.mark.parametrize("name", ENDS)
def test_a_wake_that_fails_leaves_its_load_to_a_cold_start(name: str) -> None:
    """Nobody who waits is answered: they get the start that follows the reaping. Only who calls it off ends the load."""
    before = reach("waking")
    after, effects = lc.step(before, inputs(1)[name], before.deadline or 0.0)
    assert (after.then, after.failures) == (Then.COLD, 0)
    assert effects[-1] == lc.Judge(ENDS[name], waking=True, reason=after.reason.removeprefix("sleepless: "))
    assert lc.StopProcess(graceful=False) in effects
    assert not [e for e in effects if isinstance(e, lc.Settle)]
    assert lc.step(after, lc.Reset("t"), 40.0) == (after, ())
    stopped, effects = lc.step(after, lc.Reaped(1), 40.0)
    assert (stopped.state, len(effects)) == (State.STOPPED, 1)
    _, effects = lc.step(after, lc.Kill("operator"), 40.0)
    assert effects == (lc.Settle(ok=False, reason="operator"),)


def test_a_sleeper_is_stopped_with_term() -> None:
    """A sleeping engine handles TERM; its death costs no failure, because nobody was served by it."""
    _, effects = lc.step(reach("sleeping"), lc.Drain(Goal.STOP, 9.0, "swap"), 1.0)
    assert lc.StopProcess(graceful=True) in effects
    after, effects = lc.step(reach("sleeping"), lc.Exited(1, "gone"), 1.0)
    assert (after.then, after.failures) == (Then.STOPPED, 0)
    assert lc.StopProcess(graceful=False) in effects


def test_a_failing_engine_that_was_to_stop_anyway_is_just_stopped() -> None:
    """No failure is counted and no backoff follows for an instance that somebody was stopping."""
    for name in ("exited", "unhealthy"):
        after, _ = lc.step(reach("draining>stop"), inputs(1)[name], 1.0)
        assert (after.then, after.failures) == (Then.STOPPED, 0)


def test_overdue_stop_kills_again_and_stays() -> None:
    """Memory stays reserved until the tree is reaped, however long that takes."""
    before = reach("stopping>backoff")
    after, effects = lc.step(before, lc.Tick(), TIMEOUTS.stop)
    assert effects[0] == lc.KillAgain()
    assert (after.state, after.then, after.deadline) == (State.STOPPING, Then.BACKOFF, 2 * TIMEOUTS.stop)


def test_reset_while_stopping_forgets_the_failure() -> None:
    """An operator's reset holds also while the failed launch is still being reaped."""
    after, effects = lc.step(reach("stopping>failed"), lc.Reset("operator"), 1.0)
    assert (after.then, after.failures, effects) == (Then.STOPPED, 0, ())
    assert lc.step(reach("ready"), lc.Reset("t"), 1.0) == (reach("ready"), ())


def test_a_crash_loop_ends_in_failed() -> None:
    """Each failure waits longer, up to the limit; READY in between does not help unless it lasts."""
    instance, now, delays = fresh(), 0.0, []
    for _ in range(RETRY.max_failures):
        for event in ("start", "ready", "exited", "reaped"):
            instance, _ = lc.step(instance, inputs(instance.generation)[event], now)
            now += 1.0
        if instance.state is State.BACKOFF:
            assert instance.deadline is not None
            delays.append(instance.deadline - instance.since)
            now = instance.deadline
            instance, effects = lc.step(instance, lc.Tick(), now)
            assert emits(effects)[0].data["failures"] == instance.failures
    assert delays == [2.0, 4.0]
    assert (instance.state, instance.failures, instance.generation) == (State.FAILED, 3, 3)


def test_one_that_failed_while_it_served_says_when_it_can_be_back() -> None:
    """From its failure until its pause is over; one whose start failed, or that is left alone, does not."""
    back = []
    instance = fresh()
    for event in ("start", "ready", "exited", "reaped"):
        instance, _ = lc.step(instance, inputs(instance.generation)[event], 1.0)
        back.append(lc.back_at(instance, 1.0))
    assert back == [None, None, 3.0, 3.0]
    instance, _ = lc.step(instance, lc.Tick(), 3.0)
    assert lc.back_at(instance, 3.0) is None
    for event in ("start", "exited", "reaped"):
        instance, _ = lc.step(instance, inputs(instance.generation)[event], 3.0)
        assert lc.back_at(instance, 3.0) is None


def test_backoff_is_bounded() -> None:
    """The wait doubles from `backoff` to `backoff_max`, for any number of failures."""
    assert [lc.backoff_delay(RETRY, n) for n in (1, 2, 3, 4, 5000)] == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_failures_are_forgotten_after_stable_service() -> None:
    """READY for `stable_after` clears the count, and not before."""
    instance = reach("backoff")
    instance, _ = lc.step(instance, lc.Tick(), 2.0)
    for event in ("start", "ready"):
        instance, _ = lc.step(instance, inputs(instance.generation)[event], 10.0)
    assert lc.next_tick(instance) == 10.0 + RETRY.stable_after
    early, _ = lc.step(instance, lc.Tick(), 69.9)
    assert early.failures == 1
    stable, effects = lc.step(instance, lc.Tick(), 70.0)
    assert (stable.failures, effects) == (0, ())
    assert lc.next_tick(stable) is None


def test_next_tick_is_the_first_of_the_deadlines() -> None:
    """The actor's one timer: stall before deadline; nothing for rest states."""
    assert lc.next_tick(reach("starting")) == LIMITS.stall
    assert lc.next_tick(reach("stopping>stopped")) == TIMEOUTS.stop
    assert lc.next_tick(reach("stopped")) is None


def test_adopt() -> None:
    """A running engine is taken over with its generation: serving at once, or asleep. The next launch counts on."""
    ready, effects = lc.step(fresh(), lc.Adopt(7, "boot"), 1.0)
    assert (ready.generation, ready.ready_since) == (7, 1.0)
    assert effects == (lc.OpenGate(), lc.Emit("instance.ready", "boot", {"generation": 7, "adopted": True}))
    asleep, effects = lc.step(fresh(), lc.Adopt(7, "boot", asleep=True), 1.0)
    assert (asleep.ready_since, len(effects)) == (None, 1)


def frozen(place: str) -> lc.Instance:
    instance = reach(place)
    assert instance.frozen
    return instance


def test_why_it_sleeps_is_told_until_it_wakes() -> None:
    """As for one that stopped; awake it says nothing of the past."""
    draining, _ = lc.step(reach("ready"), lc.Drain(Goal.SLEEP, 10.0, "evicted: room for b"), 0.0)
    suspending, _ = lc.step(draining, lc.LeasesGone(1), 1.0)
    asleep, _ = lc.step(suspending, lc.FellAsleep(1), 2.0)
    assert asleep.reason == "evicted: room for b"
    waking, _ = lc.step(asleep, lc.Wake("t"), 3.0)
    ready, _ = lc.step(waking, lc.BecameReady(1), 4.0)
    assert (waking.reason, ready.reason) == ("", "")


def test_a_drain_that_may_freeze_freezes_what_is_left() -> None:
    """At its deadline nothing is revoked: the leases are marked, then the engine sleeps with what it has."""
    before, _ = lc.step(reach("ready"), lc.Drain(Goal.SLEEP, 10.0, "room for b", OnTimeout.FREEZE), 0.0)
    after, effects = lc.step(before, lc.Tick(), 10.0)
    assert effects == (
        lc.FreezeLeases("room for b"),
        lc.Suspend(keep=True),
        lc.Emit("instance.suspending", "room for b", {"generation": 1, "reason": "room for b", "frozen": True}),
    )
    assert (after.frozen_since, after.deadline) == (10.0, 10.0 + TIMEOUTS.suspend)
    asleep, _ = lc.step(after, lc.FellAsleep(1), 11.0)
    assert asleep.reason == "room for b"
    waking, effects = lc.step(asleep, lc.Wake("frozen"), 20.0)
    assert (asleep.frozen_since, waking.frozen_since) == (10.0, 10.0)
    ready, effects = lc.step(waking, lc.BecameReady(1), 22.0)
    assert [type(e) for e in effects] == [lc.Judge, lc.ThawLeases, lc.OpenGate, lc.Emit, lc.Settle]
    assert (ready.frozen, ready.ready_since) == (False, 22.0)


def test_a_drain_that_leads_to_stop_cannot_freeze() -> None:
    """What is to be gone cannot keep anything: it cuts, as the drain that becomes such a stop on its way does."""
    stop = lc.Drain(Goal.STOP, 10.0, "operator", OnTimeout.FREEZE)
    direct, _ = lc.step(reach("ready"), stop, 0.0)
    risen, _ = lc.step(reach("draining*>sleep"), stop, 0.0)
    for before in (direct, risen):
        after, effects = lc.step(before, lc.Tick(), 10.0)
        assert after.state is State.STOPPING
        assert isinstance(effects[0], lc.RevokeLeases)


def test_a_drain_that_keeps_what_is_left_stops_where_nothing_is() -> None:
    """With nothing left it is a stop; what is left at its deadline sleeps along, and is served on when it woke."""
    keep = lc.Drain(Goal.STOP, 10.0, "room for b", OnTimeout.KEEP)
    draining, _ = lc.step(reach("ready"), keep, 0.0)
    stopped, effects = lc.step(draining, lc.LeasesGone(1), 5.0)
    assert (stopped.state, stopped.then) == (State.STOPPING, Then.STOPPED)
    asleep, effects = lc.step(draining, lc.Tick(), 10.0)
    assert [type(e) for e in effects] == [lc.FreezeLeases, lc.Suspend, lc.Emit]
    assert (asleep.state, asleep.frozen, asleep.goal) == (State.SUSPENDING, True, None)
    risen, _ = lc.step(draining, lc.Drain(Goal.STOP, 10.0, "operator", OnTimeout.CUT), 1.0)
    cut, effects = lc.step(risen, lc.Tick(), 10.0)
    assert (cut.state, type(effects[0])) == (State.STOPPING, lc.RevokeLeases)


def test_a_sleep_that_is_given_up_lets_its_load_go_on() -> None:
    """It stops in order, and is started where somebody waits for it; frozen requests are not lost that way, and neither is
    what runs or loads: there it is a kill like any other."""
    after, effects = lc.step(reach("sleeping"), lc.Kill("room", cold=True), 1.0)
    assert (after.state, after.then) == (State.STOPPING, Then.COLD)
    assert [type(e) for e in effects] == [lc.StopProcess, lc.Emit]
    for place in ("sleeping*", "ready", "waking", "starting"):
        assert lc.step(reach(place), lc.Kill("room", cold=True), 1.0)[0].then is Then.STOPPED
    killed, effects = lc.step(after, lc.Kill("operator"), 2.0)
    assert (killed.then, effects) == (Then.STOPPED, (lc.Settle(ok=False, reason="operator"),))


def test_a_promise_to_let_them_finish_outlives_every_other_drain() -> None:
    """Whoever drains first or later: once somebody was promised that what runs is let finish, the deadline cuts nobody. One that
    may freeze still does, for its room is promised, and stops when they have ended."""
    promise = lc.Drain(Goal.STOP, 10.0, "reload", OnTimeout.WAIT)
    for on_timeout in OnTimeout:
        for goal in Goal:
            other = lc.Drain(goal, 10.0, "other", on_timeout)
            for first, then in ((other, promise), (promise, other)):
                draining, _ = lc.step(reach("ready"), first, 0.0)
                draining, _ = lc.step(draining, then, 0.0)
                assert (draining.goal, draining.deadline) == (Goal.STOP, 10.0)
                after, effects = lc.step(draining, lc.Tick(), 10.0)
                assert not [e for e in effects if isinstance(e, lc.RevokeLeases)]
                may = on_timeout is OnTimeout.KEEP or (on_timeout is OnTimeout.FREEZE and goal is Goal.SLEEP)
                freezes = first is other and may
                assert after.state is (State.SUSPENDING if freezes else State.DRAINING)
                assert (after.goal, after.frozen) == (Goal.STOP, freezes)
    stopped, _ = lc.step(reach("draining*>stop"), lc.Drain(Goal.STOP, 10.0, "operator", OnTimeout.CUT), 0.0)
    assert stopped == reach("draining*>stop")


@pytest.mark.parametrize("place", ["suspending*", "sleeping*", "waking*", "sleeping*>stop"])
@pytest.mark.parametrize(
    ("name", "died"), [("exited", True), ("unhealthy", False), ("kill", False), ("drain to stop", False)]
)
def test_whatever_ends_a_frozen_engine_tells_its_leases(place: str, name: str, died: bool) -> None:
    """No lease hangs: they are revoked with the truth before the process is stopped, and once."""
    before = frozen(place)
    after, effects = lc.step(before, inputs(1)[name], 50.0)
    if (after, effects) == (before, ()):
        assert (before.state, name) == (State.SLEEPING, "unhealthy")  # it is not asked while it sleeps
        return
    assert after.state is State.STOPPING
    assert not after.frozen
    assert isinstance(effects[0], lc.RevokeLeases)
    assert effects[0].died is died
    assert isinstance(effects[1], lc.StopProcess)
    assert not [e for e in effects[1:] if isinstance(e, lc.RevokeLeases)]


@pytest.mark.parametrize("place", ["suspending*", "waking*"])
def test_a_frozen_engine_that_would_not_sleep_or_wake_in_time_tells_its_leases(place: str) -> None:
    """The deadlines of the way to sleep and back hold for frozen requests too."""
    before = frozen(place)
    assert before.deadline is not None
    after, effects = lc.step(before, lc.Tick(), before.deadline)
    assert (after.state, after.then) == (State.STOPPING, Then.COLD if place == "waking*" else Then.STOPPED)
    assert isinstance(effects[0], lc.RevokeLeases)
    assert "not a" in effects[0].reason


@pytest.mark.parametrize("place", ["suspending*", "sleeping*", "waking*"])
def test_when_the_last_frozen_lease_has_ended_it_is_like_any_other(place: str) -> None:
    """Everybody left: nothing is to be thawed, and the sleeper may be stopped for room."""
    after, effects = lc.step(frozen(place), lc.LeasesGone(1), 50.0)
    assert (after.frozen, effects) == (False, ())
    assert after == replace(frozen(place), frozen_since=None)


def test_a_frozen_engine_that_is_to_finish_is_woken_first() -> None:
    """`finish and stop` of a sleeper with frozen requests: it is woken by its turn, drains without a limit, and stops."""
    waking, _ = lc.step(frozen("sleeping*>stop"), lc.Wake("frozen"), 20.0)
    draining, effects = lc.step(waking, lc.BecameReady(1), 22.0)
    assert [type(e) for e in effects] == [lc.Judge, lc.ThawLeases, lc.Emit, lc.CloseGate, lc.Settle]
    assert (draining.state, draining.goal, draining.on_timeout) == (State.DRAINING, Goal.STOP, OnTimeout.WAIT)
    assert effects[-1] == lc.Settle(ok=True)
    stopping, effects = lc.step(draining, lc.LeasesGone(1), 30.0)
    assert stopping.state is State.STOPPING
    back, effects = lc.step(frozen("sleeping*>stop"), lc.Undrain("t"), 20.0)
    assert (back.goal, back.frozen, effects) == (None, True, ())
