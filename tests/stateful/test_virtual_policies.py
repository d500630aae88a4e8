"""Policies in virtual time over random fleets and arrivals: nothing is over capacity, nobody is forgotten, nobody starves,
and none does better than the offline optimum."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Device
from vllm_mm.domain.scheduling import Rules
from vllm_mm.domain.specs import DeviceWish, IdlePolicy
from vllm_mm.virtual.engine import EngineTimes, VirtualModel
from vllm_mm.virtual.fleet import Fleet, simulate
from vllm_mm.virtual.generate import Kind, generate
from vllm_mm.virtual.optimum import least_mean_wait
from vllm_mm.virtual.policies import POLICIES
from vllm_mm.virtual.records import Outcome
from vllm_mm.virtual.results import bound
from vllm_mm.virtual.terms import Terms
from vllm_mm.virtual.trace import Request

FROZEN = {State.SUSPENDING, State.SLEEPING, State.WAKING}
"""States in which requests stand still in an engine."""
Scene = tuple[list[VirtualModel], list[Device], list[Request], Terms]


class Watched(Fleet):
    """Looks after every round at what must always hold."""

    def _round(self) -> None:
        super()._round()
        for device in self._ledger.devices.values():
            assert self._ledger.in_use(device.id) <= device.usable, "over capacity"
            assert self._ledger.free_after_leaving(device.id) >= 0, "promised twice"
        for body in self._bodies.values():
            assert len(body.running) <= body.model.concurrency
            awake = body.frozen_since is None
            assert not body.running or body.state in ({State.READY, State.DRAINING} if awake else FROZEN)
        asleep = sum(b.model.host_bytes for b in self._sleepers())
        assert asleep <= self._terms.sleep_budget, "more asleep than the host has room for"
        assert self._waiting == sum(len(b.tickets) for b in self._bodies.values())


times = st.integers(0, 1500).map(lambda n: n / 10)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    devices = [
        Device(f"d{i}", size, kind=draw(st.sampled_from(["sim", "cpu"])))
        for i, size in enumerate(draw(st.lists(st.sampled_from([10, 10, 8]), min_size=1, max_size=2)))
    ]
    models = [
        VirtualModel(
            name,
            memory=draw(st.integers(3, 11)),
            times=EngineTimes(
                load=draw(st.sampled_from([0.5, 3.0, 20.0])), wake=1.0, decode=100.0, sleeps=draw(st.booleans()),
                asleep=draw(st.sampled_from([0, 0, 2])),
            ),
            wish=DeviceWish(count=draw(st.sampled_from([1, 1, 2]))),
            concurrency=draw(st.sampled_from([1, 3, 50])),
            pinned=draw(st.integers(0, 9)) == 0,
            preload=draw(st.integers(0, 9)) == 0,
            idle=draw(st.sampled_from([IdlePolicy(None, None), IdlePolicy(5.0, 20.0)])),
        )
        for name in "abcde"[: draw(st.integers(2, 5))]
    ]  # fmt: skip
    names = st.sampled_from([m.id for m in models])
    work = st.sampled_from([0, 10, 100, 400, 3000])
    requests = draw(
        st.lists(st.builds(Request, times, names, st.sampled_from([0, 5000]), work), min_size=1, max_size=40)
    )
    terms = Terms(
        Rules(draw(st.sampled_from([5.0, 20.0])), draw(st.sampled_from([0.0, 5.0]))), 10.0, draw(st.sampled_from([0, 12, 99])),
        draw(st.sampled_from([float("inf"), 30.0])),
    )  # fmt: skip
    return models, devices, sorted(requests, key=lambda r: r.at), terms


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scene=scenes())
def test_everybody_is_served_refused_or_gone_and_memory_is_kept(policy: str, scene: Scene) -> None:
    """For every policy: each request has exactly one end, and what must always hold holds after every round."""
    models, devices, requests, terms = scene
    outcome = Watched(models, devices, POLICIES[policy], terms).run(requests)
    assert len(outcome.served) + len(outcome.refused) + len(outcome.timed_out) == len(requests)
    assert all(s.arrived <= s.leased <= s.finished for s in outcome.served)
    event(f"loads {min(len(outcome.loads), 10)}")


@st.composite
def alike(draw: st.DrawFn) -> Scene:
    """Models of one size, memory for one or two of them: where the bound is exact."""
    models = [
        VirtualModel(n, 10, EngineTimes(load=draw(st.sampled_from([3.0, 20.0])), decode=100.0))
        for n in "abcde"[: draw(st.integers(2, 5))]
    ]
    names = st.sampled_from([m.id for m in models])
    work = st.sampled_from([10, 100, 400, 3000])
    requests = draw(st.lists(st.builds(Request, times, names, st.just(0), work), min_size=5, max_size=60))
    devices = [Device("d0", 10 * draw(st.integers(1, 2)), kind="cpu")]
    return (
        models,
        devices,
        sorted(requests, key=lambda r: r.at),
        Terms(Rules(20.0, draw(st.sampled_from([0.0, 5.0]))), 10.0),
    )


@pytest.mark.parametrize("policy", ["brain", "first"])
@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(scene=alike())
def test_nobody_starves(policy: str, scene: Scene) -> None:
    """No request waits longer than `max_wait` + (models that wait for a load - 1) x (swap + quantum) for its model's load."""
    models, devices, requests, terms = scene
    outcome = simulate(requests, models, devices, POLICIES[policy], terms)
    judged = bound(outcome, models, terms)
    event(f"{10 * round(10 * judged.worst / judged.allowed)} % of the bound")
    assert judged.held, judged


def windows(count: int, seed: int) -> list[list[Request]]:
    """Four to eight requests for two or three models within a few minutes."""
    rng = random.Random(seed)
    made: list[list[Request]] = []
    for _ in range(count):
        models, span = rng.choice(["ab", "abc"]), rng.choice([20, 60, 120, 240])
        ats = sorted(rng.uniform(0, span) for _ in range(rng.randint(4, 8)))
        made.append([Request(t - ats[0], rng.choice(models), 0, rng.choice([75, 225, 600])) for t in ats])
    return made


def mean_wait(outcome: Outcome) -> float:
    return sum(s.leased - s.arrived for s in outcome.served) / len(outcome.served)


def ratios(policy: str, load: float, made: Sequence[Sequence[Request]]) -> list[float]:
    engine = EngineTimes(load=load, batch_slowdown=0.0)
    models = [VirtualModel(n, 10, engine) for n in "abc"]
    found: list[float] = []
    for window in made:
        outcome = simulate(window, models, [Device("d", 10, kind="sim")], POLICIES[policy], Terms(Rules(20.0, 0.0)))
        found.append(mean_wait(outcome) / least_mean_wait(window, dict.fromkeys("abc", engine)))
    return found


@pytest.mark.parametrize("load", [3.0, 20.0])
@pytest.mark.parametrize(("policy", "most"), [("brain", 1.25), ("first", None), ("lru", None), ("fifo", None)])
def test_how_far_from_the_offline_optimum(policy: str, most: float | None, load: float) -> None:
    """Over 150 small windows nobody beats the optimum, and the server's policies are within 1.25 of it on average."""
    found = ratios(policy, load, windows(150, seed=7))
    assert min(found) >= 1 - 1e-9
    if most is not None:
        assert sum(found) / len(found) <= most


@pytest.mark.parametrize("seed", [100, 101, 102, 103])
def test_newcomers_do_not_pass_an_overdue_model_one_after_the_other(seed: int) -> None:
    """Twenty models in bursts: each newcomer has more waiting than the overdue one, which still is loaded within its bound."""
    models = [VirtualModel(f"m{n}", 10, EngineTimes(load=19.0)) for n in range(20)]
    trace = generate(Kind.BURSTS, [m.id for m in models], 300 / 3600, 7200.0, seed=seed)
    terms = Terms(Rules(20.0, 0.0))
    outcome = simulate(trace, models, [Device("d", 10, kind="sim")], POLICIES["brain"], terms)
    assert bound(outcome, models, terms).held
