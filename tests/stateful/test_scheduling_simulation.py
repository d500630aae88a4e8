"""Scheduling over time, in virtual time: nobody starves, nobody ready waits, nothing is over capacity, swaps are collated."""

from collections.abc import Sequence

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from virtual_fleet import DRAIN, REAP, Arrival, Fleet, Model
from vllm_mm.domain.scheduling import Rules
from vllm_mm.domain.scheduling import bound as longest_wait

RULES = Rules(max_wait=20.0, min_dwell=5.0)


def bound(models: Sequence[Model]) -> float:
    """The longest that a ticket of a loadable model waits until its model is being loaded."""
    return longest_wait(RULES, len(models), DRAIN + REAP + max(m.load for m in models))


times = st.integers(0, 1200).map(lambda n: n / 10)


@st.composite
def fleets(
    draw: st.DrawFn,
) -> tuple[list[int], list[Model], list[Arrival], list[tuple[float, str]], list[tuple[float, str, int]]]:
    capacities = draw(st.lists(st.sampled_from([10, 10, 8, 6]), min_size=1, max_size=3))
    models = [
        Model(
            name,
            need=draw(st.integers(2, 11)),
            load=draw(st.sampled_from([0.5, 3.0, 8.0])),
            devices=draw(st.sampled_from([1, 1, 1, 2])),
            slots=draw(st.integers(1, 3)),
            pinned=draw(st.integers(0, 9)) == 0,
            priority=draw(st.sampled_from([0, 0, 1])),
        )
        for name in "abcde"[: draw(st.integers(2, 5))]
    ]
    names = st.sampled_from([m.name for m in models])
    work = st.sampled_from([0.1, 1.0, 4.0, 30.0])
    arrivals = draw(st.lists(st.builds(Arrival, times, names, work, st.integers(0, 1)), min_size=1, max_size=40))
    orders = draw(st.lists(st.tuples(times, names), max_size=3))
    naps = draw(st.lists(st.tuples(times, names, st.sampled_from([1, 4])), max_size=6))
    return capacities, models, arrivals, orders, naps


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(fleets())
def test_nobody_starves_whatever_comes(
    fleet: tuple[list[int], list[Model], list[Arrival], list[tuple[float, str]], list[tuple[float, str, int]]],
) -> None:
    """A ticket of a loadable model sees its model loading within the bound; every ticket is served or refused.

    The fleet itself checks at every step: ready lanes never wait, the pinned and the just loaded are never evicted,
    memory is never over capacity, no instance is victim twice, no hold asks for a look in the past.
    """
    capacities, models, arrivals, orders, naps = fleet
    world = Fleet(capacities, models, RULES)
    world.arrive(arrivals)
    for at, model in orders:
        world.order(at, model)
    for at, model, share in naps:
        world.nap(at, model, share)
    world.run()
    assert len(world.served) + len(world.refused) == len(arrivals)
    assert len(world.waited) == len(world.served)
    longest = max(world.waited.values(), default=0.0)
    event(f"longest wait {longest // 10 * 10:.0f} s, loads {min(len(world.loads), 10)}")
    assert longest <= bound(models) + 1e-6


def test_who_can_never_be_there_does_not_wait_for_its_turn_first() -> None:
    """An operator's C closes the device while D loads; A needs more than the pinned B leaves."""
    world = Fleet(
        [6], [Model("a", 5, 0.5), Model("b", 2, 0.5, pinned=True), Model("c", 3, 0.5), Model("d", 2, 0.5)], RULES
    )
    world.arrive([Arrival(0.0, "d", 0.1), Arrival(0.1, "a", 0.1)])
    world.order(0.0, "c")
    world.run()
    assert world.refused == ["t1"]


def test_a_mixed_second_is_collated() -> None:
    """A B A A C A B C within a second on one device: three loads, where first come first served takes seven."""
    world = Fleet([10], [Model(m, need=10) for m in "abc"], RULES)
    world.arrive([Arrival(i / 10, m) for i, m in enumerate("abaacabc")])
    world.run()
    assert world.loads == ["a", "b", "c"]
    assert "".join(world.served) == "aaaabbcc"


def test_a_busy_model_gives_way_at_the_aging_bound() -> None:
    """The hard case: overlapping streams keep A busy; B is being loaded when its request is `max_wait` old."""
    world = Fleet([10], [Model("a", need=10), Model("b", need=10)], RULES)
    world.arrive([*(Arrival(float(t), "a", work=3.0) for t in range(60)), Arrival(10.0, "b")])
    world.run()
    assert world.waited["t60"] == RULES.max_wait
    assert world.loads == ["a", "b", "a"]


def test_two_backlogs_do_not_starve_a_third_model() -> None:
    """A and B have old tickets for ever and one slot each; C's single request still comes within its bound."""
    models = [Model(m, need=10, slots=1) for m in "abc"]
    world = Fleet([10], models, RULES)
    world.arrive([*(Arrival(0.0, m, work=4.0) for m in "ab" * 30), Arrival(1.0, "c")])
    world.run()
    assert world.waited["t60"] <= bound(models)
    assert world.loads.index("c") <= 3


def test_ready_models_are_served_while_others_load() -> None:
    """B loads for 30 s beside A: every request to A is served the moment it comes."""
    world = Fleet([20], [Model("a", need=10), Model("b", need=10, load=30.0)], RULES)
    world.arrive([*(Arrival(float(t), "a", work=0.1) for t in range(60)), Arrival(20.0, "b")])
    world.run()
    assert all(world.waited[f"t{t}"] == 0.0 for t in range(5, 60))
    assert world.loads == ["a", "b"]


def test_an_operator_does_not_wait_for_a_busy_model() -> None:
    """An explicit start takes the room at once, or at the end of the dwell time, though A is busy without end."""
    for ordered, loaded in ((12.0, 12.0), (4.0, 8.0)):
        world = Fleet([10], [Model("a", need=10), Model("b", need=10)], RULES)
        world.arrive([Arrival(t / 2, "a", work=3.0) for t in range(60)])
        world.order(ordered, "b")
        world.run()
        assert world.loads[:2] == ["a", "b"]
        assert world.loaded_at[1] == loaded


def test_a_large_model_is_not_kept_out_by_small_ones() -> None:
    """Small models take turns on two devices, one of which is always loading or just loaded; the large one, which needs
    both, still gets them soon after its aging bound: two of those that waited already go first, each with its quantum."""
    small = [Model(m, need=10) for m in "abcdef"]
    world = Fleet([10, 10], [Model("big", need=10, devices=2), *small], RULES)
    stream = [Arrival(t * 0.7, "abcdef"[t % 6], work=0.1) for t in range(200)]
    world.arrive([*stream, Arrival(10.0, "big")])
    world.run()
    assert world.waited[f"t{len(stream)}"] <= RULES.max_wait + 2 * (REAP + 3.0 + RULES.stay)


def test_a_sleeper_wakes_without_a_swap() -> None:
    """Its memory is still its own: no victim, and it is awake as fast as its wake time."""
    world = Fleet([10], [Model("a", need=6), Model("b", need=4)], RULES)
    world.arrive([Arrival(0.0, "a"), Arrival(0.0, "b", work=60.0), Arrival(30.0, "a")])
    world.nap(20.0, "a", 1)
    world.run()
    assert world.loads == ["a", "b", "a"]
    assert world.waited["t2"] == 0.0


def test_the_pinned_stay_though_they_are_used_least() -> None:
    """P was never used, A only just: A goes for B all the same."""
    world = Fleet([10], [Model("p", need=5, pinned=True), Model("a", need=5), Model("b", need=5)], RULES)
    world.arrive([Arrival(10.0, "a"), Arrival(20.0, "b"), Arrival(30.0, "a"), Arrival(31.0, "p")])
    world.run()
    assert world.loads == ["a", "b", "a"]
    assert world.waited["t3"] == 0.0
