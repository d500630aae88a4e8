"""The fleet in virtual time: hand-reckoned runs."""

import time
from dataclasses import replace

import pytest

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.reasons import Reason, split
from vllm_mm.domain.residency import Device, Ledger
from vllm_mm.domain.scheduling import Hold, Lane, Load, Refuse, Rules, Ticket, View
from vllm_mm.domain.specs import DeviceWish, IdlePolicy
from vllm_mm.virtual.engine import EngineTimes, VirtualModel
from vllm_mm.virtual.fleet import Stuck, simulate
from vllm_mm.virtual.generate import Kind, generate
from vllm_mm.virtual.policies import POLICIES, Policy, pick
from vllm_mm.virtual.records import Outcome
from vllm_mm.virtual.results import bound, spread, summary
from vllm_mm.virtual.terms import Terms
from vllm_mm.virtual.trace import Request

TIMES = EngineTimes(load=20.0, stop=1.0, sleep=1.0, wake=2.0, prefill=1000.0, decode=100.0, batch_slowdown=0.0)
A, B, C = (VirtualModel(name, 10, TIMES) for name in "abc")
TERMS = Terms(rules=Rules(max_wait=20.0, min_dwell=5.0))


def run(
    *requests: tuple[float, str, int],
    models: tuple[VirtualModel, ...] = (A, B, C),
    policy: str = "brain",
    terms: Terms = TERMS,
    devices: tuple[int, ...] = (10,),
) -> Outcome:
    """Requests as (when, model, seconds of decoding)."""
    trace = [Request(at, model, 0, 100 * seconds) for at, model, seconds in requests]
    gpus = [Device(f"d{i}", size, kind="sim") for i, size in enumerate(devices)]
    return simulate(trace, models, gpus, POLICIES[policy], terms)


def leases(outcome: Outcome) -> list[tuple[str, float]]:
    return [(s.model, s.leased) for s in outcome.served]


def test_a_start_a_swap_and_their_times() -> None:
    """Load 20 s; the first runs 4 s; the second model takes the room once it is idle and has dwelt; stop 1 s, load 20 s."""
    outcome = run((0, "a", 4), (1, "b", 3))
    assert leases(outcome) == [("a", 20.0), ("b", 46.0)]
    assert [(n.model, n.kind, n.victims, n.decided, n.begun, n.ready) for n in outcome.loads] == [
        ("a", "start", (), 0.0, 0.0, 20.0), ("b", "start", ("a",), 25.0, 26.0, 46.0),
    ]  # fmt: skip
    result = summary(outcome, (A, B, C), TERMS)
    assert (result.swaps, result.evictions, result.lost, result.span) == (2, 1, 20.0 + 21.0, 49.0)
    assert [round(m.resident, 4) for m in result.models] == [round(5 / 49, 4), round(3 / 49, 4), 0.0]
    assert result.wait.mean == (20 + 45) / 2
    assert result.ttft.max == pytest.approx(45.01)


def test_a_busy_model_drains_at_the_bound_and_is_cut_at_its_end() -> None:
    """B is overdue at 41: A, which runs for 100 s, may finish for 10 s and is cut then."""
    outcome = run((0, "a", 100), (21, "b", 1), terms=replace(TERMS, drain_timeout=10.0))
    assert [(s.model, s.leased, s.finished, s.cut) for s in outcome.served] == [
        ("a", 20.0, 51.0, True), ("b", 72.0, 73.0, False),
    ]  # fmt: skip
    assert outcome.draining == 10.0
    patient = run((0, "a", 100), (21, "b", 1), terms=replace(TERMS, drain_timeout=float("inf")))
    assert leases(patient) == [("a", 20.0), ("b", 141.0)]


def test_requests_that_are_left_at_the_end_of_a_drain_freeze_and_go_on() -> None:
    """A (100 s to go from 20 s) is frozen at 51 s, sleeps 1 s for B (52 to 72 s, idle at 73); it wakes for its frozen request
    when B is idle: no token is lost, and 69 s are left when it is awake at 76 s. Its 3,100 tokens are taken in anew, which takes
    another 3.1 s."""
    terms = replace(TERMS, drain_timeout=10.0, preempt=True, sleep_budget=100, rules=Rules(20.0, 0.0, 10.0))
    outcome = run((0, "a", 100), (21, "b", 1), terms=terms)
    a, b = outcome.served
    assert (b.leased, b.finished, b.cut) == (72.0, 73.0, False)
    assert [(n.model, n.kind, n.decided, n.ready) for n in outcome.loads[1:]] == [
        ("b", "start", 41.0, 72.0), ("a", "wake", 73.0, 76.0),
    ]  # fmt: skip
    assert (a.cut, a.frozen, outcome.freezes) == (False, 25.0, 1)
    assert a.finished == pytest.approx(76.0 + 3.1 + 69.0)


def test_prompts_that_were_being_taken_in_are_late_by_the_freeze() -> None:
    """A's prompt of 30,000 tokens takes 30 s from 20 s on; frozen from 43 s to 68 s, it is in at 75 s, then 1 s of decoding."""
    terms = replace(TERMS, drain_timeout=2.0, preempt=True, sleep_budget=100, rules=Rules(20.0, 0.0, 10.0))
    trace = [Request(0.0, "a", 30_000, 100), Request(21.0, "b", 0, 100)]
    outcome = simulate(trace, (A, B), [Device("d0", 10, kind="sim")], POLICIES["brain"], terms)
    a, b = outcome.served
    assert (b.leased, b.finished) == (64.0, 65.0)
    assert (a.frozen, a.first_token) == (25.0, pytest.approx(75.01))
    assert a.finished == pytest.approx(76.0)


def test_where_an_engine_cannot_sleep_preemption_cuts() -> None:
    """No budget for sleepers, or no sleep mode."""
    terms = replace(TERMS, drain_timeout=10.0, preempt=True)
    assert [s.cut for s in run((0, "a", 100), (21, "b", 1), terms=terms).served] == [True, False]
    awake = replace(A, times=replace(TIMES, sleeps=False))
    terms = replace(terms, sleep_budget=100)
    assert [s.cut for s in run((0, "a", 100), (21, "b", 1), models=(awake, B), terms=terms).served] == [True, False]


def test_what_is_frozen_keeps_the_host_memory() -> None:
    """Room for one sleeper: A, frozen, keeps it; B is stopped when it makes room."""
    terms = replace(TERMS, drain_timeout=10.0, preempt=True, sleep_budget=10, rules=Rules(20.0, 0.0, 10.0))
    outcome = run((0, "a", 100), (21, "b", 1), (200, "b", 1), terms=terms)
    assert [(n.model, n.kind) for n in outcome.loads] == [("a", "start"), ("b", "start"), ("a", "wake"), ("b", "start")]
    assert not any(s.cut for s in outcome.served)


def test_who_is_woken_gives_up_its_sleep_before_anybody_is_cut() -> None:
    """Room for one sleeper, which is B, when A is busy: at 80 s its drain has taken 10 s, B stops, A sleeps with its request, and B
    starts in its room at 81 s. Where A ends before that, B wakes."""
    terms = replace(TERMS, drain_timeout=10.0, preempt=True, sleep_budget=10, rules=Rules(20.0, 0.0, 10.0))
    outcome = run((0, "b", 1), (1, "a", 100), (50, "b", 1), terms=terms)
    assert [(n.model, n.kind, n.decided, n.ready) for n in outcome.loads] == [
        ("b", "start", 0.0, 20.0), ("a", "start", 21.0, 42.0), ("b", "start", 70.0, 101.0), ("a", "wake", 102.0, 105.0),
    ]  # fmt: skip
    assert not any(s.cut for s in outcome.served)
    outcome = run((0, "b", 1), (1, "a", 33), (50, "b", 1), terms=terms)
    assert [(n.model, n.kind, n.ready) for n in outcome.loads[2:]] == [("b", "wake", 78.0)]


def test_frozen_requests_have_their_place_in_any_order() -> None:
    """Also where it is strictly that of arrival: since they froze, they wait like a request that came then."""
    terms = replace(TERMS, drain_timeout=5.0, preempt=True, sleep_budget=100)
    for policy in POLICIES:
        outcome = run((0, "a", 60), (21, "b", 40), (22, "a", 1), (23, "c", 1), policy=policy, terms=terms)
        assert not any(s.cut for s in outcome.served)
        assert len(outcome.served) == 4


def test_on_arrival_collects_nothing() -> None:
    """A B A B with room for one: four loads. A request for a model that is ready, and that nobody waits for, is served at once."""
    order = ((0.0, "a", 1), (0.1, "b", 1), (0.2, "a", 1), (0.3, "b", 1))
    assert [n.model for n in run(*order, policy="arrival").loads] == ["a", "b", "a", "b"]
    outcome = run((0.0, "a", 9), (0.1, "c", 1), (25.0, "a", 1), policy="arrival", devices=(10, 10))
    assert ("a", 25.0) in leases(outcome)


def test_strict_fifo_lets_nobody_overtake() -> None:
    """A B A: the third request waits for B although A was there: three loads. The others need two."""
    order = ((0.0, "a", 1), (0.1, "b", 1), (0.2, "a", 1))
    outcome = run(*order, policy="fifo")
    assert [n.model for n in outcome.loads] == ["a", "b", "a"]
    assert leases(outcome) == [("a", 20.0), ("b", 42.0), ("a", 64.0)]
    for policy in ("brain", "lru", "first"):
        assert [n.model for n in run(*order, policy=policy).loads] == ["a", "b"]


def test_fifo_holds_back_even_those_whose_model_is_ready() -> None:
    """One slot: the second of A waits for the first, and B, which is ready on its own device, behind it."""
    one = replace(A, concurrency=1, pinned=True), replace(B, pinned=True)
    order = ((0.0, "a", 5), (1.0, "a", 1), (2.0, "b", 1))
    assert leases(run(*order, models=one, policy="fifo", devices=(10, 10))) == [("a", 0.0), ("a", 5.0), ("b", 5.0)]
    assert leases(run(*order, models=one, devices=(10, 10))) == [("a", 0.0), ("b", 2.0), ("a", 5.0)]


def test_lru_swaps_on_arrival_and_evicts_the_idle_one_unused_for_longest() -> None:
    """Room for two: B goes for C although A was loaded first, because A was used last; no dwell, no aging."""
    outcome = run((0, "a", 1), (0, "b", 1), (50, "b", 1), (60, "a", 1), (70, "c", 1), policy="lru", devices=(10, 10))
    assert [(n.model, n.victims, n.decided) for n in outcome.loads] == [
        ("a", (), 0.0),
        ("b", (), 0.0),
        ("c", ("b",), 70.0),
    ]


def test_within_a_budget_victims_sleep_and_wake() -> None:
    """A sleeps (1 s) for B, and wakes in 2 s; a budget for one sleeper stops the one that has slept longest."""
    order = ((0, "a", 1), (1, "b", 1), (100, "a", 1), (200, "c", 1), (300, "b", 1))
    outcome = run(*order, terms=replace(TERMS, sleep_budget=10), policy="lru")
    assert [(n.model, n.kind) for n in outcome.loads] == [
        ("a", "start"), ("b", "start"), ("a", "wake"), ("c", "start"), ("b", "start"),
    ]  # fmt: skip
    assert leases(outcome)[2] == ("a", 103.0)
    roomy = run(*order, terms=replace(TERMS, sleep_budget=100), policy="lru")
    assert [n.kind for n in roomy.loads] == ["start", "start", "wake", "start", "wake"]


def test_what_stays_on_the_device_is_never_promised_twice() -> None:
    """Asleep, A would keep 4 of 10, but B was promised all: A is stopped instead. Beside a small C it sleeps."""
    sleepy = replace(A, times=replace(TIMES, asleep=4))
    small = replace(C, memory=6)
    terms = replace(TERMS, sleep_budget=100)
    whole = run((0, "a", 1), (1, "b", 1), (100, "a", 1), models=(sleepy, B), terms=terms)
    assert [n.kind for n in whole.loads] == ["start", "start", "start"]
    beside = run((0, "a", 1), (1, "c", 1), (100, "a", 1), models=(sleepy, small), terms=terms)
    assert [n.kind for n in beside.loads] == ["start", "start", "wake"]


def test_idle_models_sleep_then_stop() -> None:
    """After 30 s and 100 s without a request: a wake in between, a start afterwards; the pinned stay."""
    idle = replace(A, idle=IdlePolicy(30.0, 100.0))
    terms = replace(TERMS, sleep_budget=100)
    outcome = run((0, "a", 1), (71, "a", 1), (300, "a", 1), models=(idle,), terms=terms)
    assert [(n.kind, n.decided) for n in outcome.loads] == [("start", 0.0), ("wake", 71.0), ("start", 300.0)]
    pinned = run((0, "a", 1), (300, "a", 1), models=(replace(idle, pinned=True),), terms=terms)
    assert (pinned.loads, leases(pinned)) == ([], [("a", 0.0), ("a", 300.0)])


def test_a_request_gives_up_and_one_that_can_never_be_served_is_refused() -> None:
    """Both are counted, with the reason; the bound says nothing about them."""
    giant = replace(C, memory=11)
    outcome = run((0, "a", 1), (0, "c", 1), (1, "b", 1), models=(A, B, giant), terms=replace(TERMS, patience=15.0))
    assert [(u.model, u.at) for u in outcome.timed_out] == [("a", 15.0), ("b", 16.0)]
    assert [(u.model, u.at) for u in outcome.refused] == [("c", 0.0)]
    assert "more than there can ever be" in outcome.refused[0].why
    result = summary(outcome, (A, B, giant), replace(TERMS, patience=15.0))
    assert (result.timed_out, result.refused, result.wait.count) == (2, 1, 0)
    assert [m.unserved for m in result.models] == [1, 1, 1]


def test_loads_on_one_device_size_their_memory_one_after_the_other() -> None:
    """Room for two, but the second load begins when the first is done; on two devices, or on a CPU, at once."""
    order = ((0, "a", 1), (0, "b", 1))
    assert [s.leased for s in run(*order, devices=(20,)).served] == [20.0, 40.0]
    assert [s.leased for s in run(*order, devices=(10, 10)).served] == [20.0, 20.0]
    trace = [Request(0.0, m, 0, 100) for m in "ab"]
    host = simulate(trace, (A, B), [Device("cpu", 20, kind="cpu")], POLICIES["brain"], TERMS)
    assert [s.leased for s in host.served] == [20.0, 20.0]


def test_a_model_over_two_devices() -> None:
    """It evicts on both."""
    wide = replace(C, wish=DeviceWish(count=2))
    outcome = run((0, "a", 1), (0, "b", 1), (30, "c", 1), models=(A, B, wide), devices=(10, 10))
    assert outcome.loads[2].victims == ("a", "b")
    assert leases(outcome)[2] == ("c", 51.0)


def test_an_answer_without_tokens_ends_with_its_prompt() -> None:
    """An embedding: its first token is its end."""
    outcome = simulate([Request(0.0, "a", 500, 0)], (A,), [Device("d", 10)], POLICIES["brain"], TERMS)
    assert (outcome.served[0].first_token, outcome.served[0].finished) == (20.5, 20.5)


def test_unknown_models_and_forgetful_policies_are_told() -> None:
    """A policy that only holds would leave its requests for ever: an error, not an endless run."""
    with pytest.raises(ValueError, match="the trace asks for x; the models are a"):
        simulate([Request(0.0, "x", 1, 1)], (A,), [Device("d", 10)], POLICIES["brain"], TERMS)
    lazy = Policy("lazy", lambda view, _rules, _now: tuple(Hold(n.model, "later") for n in view.lanes))
    with pytest.raises(Stuck, match="1 requests wait for a, and nothing would happen any more under the policy lazy"):
        simulate([Request(0.0, "a", 1, 1)], (A,), [Device("d", 10)], lazy, TERMS)


def test_a_short_view_decides_as_the_whole_one() -> None:
    """What the fleet leaves out of a view (waiters behind the oldest, rounds in which nothing can change) changes nothing."""
    models = [VirtualModel(f"m{i}", 10, TIMES, concurrency=4) for i in range(5)]
    trace = generate(Kind.BURSTS, [m.id for m in models], 0.4, 1200.0, seed=2)
    gpus = [Device("d0", 20, kind="sim")]
    brain = POLICIES["brain"]
    short = simulate(trace, models, gpus, brain, TERMS)
    whole = simulate(trace, models, gpus, replace(brain, passes=False, ordered=True), TERMS)
    assert leases(short) == leases(whole)
    assert [(n.model, n.victims, n.decided) for n in short.loads] == [
        (n.model, n.victims, n.decided) for n in whole.loads
    ]
    assert short.rounds < whole.rounds


def test_the_bound_is_judged_by_those_who_waited_at_once() -> None:
    """One alone has `max_wait`; with two more, two swaps and quanta longer."""
    outcome = Outcome("x", TERMS.rules)
    outcome.note_reached(20.0, 1)
    outcome.note_reached(80.0, 3)
    outcome.note_reached(70.0, 3)
    judged = bound(outcome, (A,), replace(TERMS, drain_timeout=0.0))
    assert (judged.held, judged.worst, judged.swap, judged.quantum) == (True, 20.0, 21.0, 10.0)
    outcome.note_reached(82.1, 3)
    judged = bound(outcome, (A,), replace(TERMS, drain_timeout=0.0))
    assert (judged.held, judged.worst, judged.allowed) == (False, 82.1, 82.0)


def test_percentiles_are_ranks() -> None:
    """Of a hundred values, the 50th, 95th and 99th."""
    found = spread(range(1, 101))
    assert (found.count, found.mean, found.p50, found.p95, found.p99, found.max) == (100, 50.5, 50, 95, 99, 100)
    assert spread(()).count == 0


def test_policies_are_picked_by_name() -> None:
    assert [p.name for p in pick("lru, brain,lru")] == ["lru", "brain"]
    for wrong in ("best", "", ","):
        with pytest.raises(ValueError, match="there are brain, first, lru, arrival, fifo"):
            pick(wrong)


def test_other_policies_answer_as_the_servers_own() -> None:
    """A failed model is refused, a stopped one that fits is loaded."""
    lane = Lane("a", State.FAILED, (Ticket("t", "a", 0.0, 1.0),), None, DeviceWish(), 1, 0)
    for name in POLICIES:
        decisions = POLICIES[name].decide(View([lane], (), Ledger({"d": Device("d", 10)})), Rules(), 0.0)
        assert decisions == (Refuse("a", "failed: its last start failed"),)
    stopped = replace(lane, state=State.STOPPED)
    for name in POLICIES:
        (load,) = POLICIES[name].decide(View([stopped], (), Ledger({"d": Device("d", 10)})), Rules(), 0.0)
        assert isinstance(load, Load)
        assert (load.device_bytes, load.victims, split(load.reason)[0]) == ({"d": 1}, (), Reason.FITS)


def test_an_hour_of_ten_thousand_requests_is_quick() -> None:
    """Over 20 models with memory for 5, under the server's own policy: less than 10 s of this process's time."""
    models = [VirtualModel(f"m{i}", 10, EngineTimes(load=20.0)) for i in range(20)]
    trace = generate(Kind.ZIPF, [m.id for m in models], 10_000 / 3600, 3600.0, seed=1)
    began = time.process_time()
    outcome = simulate(trace, models, [Device("d0", 50, kind="sim")], POLICIES["brain"], TERMS)
    assert time.process_time() - began < 10.0
    assert len(outcome.served) == len(trace) > 9500
