"""What becomes of a model that has to go, and the host's memory for sleep."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.states import Goal
from vllm_mm.domain.tiers import Fate, HostMemory, Sleeper, fate


def host(budget: int | None, **held: int) -> HostMemory:
    return HostMemory(budget, held)


def sleepers(*names: str, spare: bool = True) -> list[Sleeper]:
    """In the order in which they fell asleep."""
    return [Sleeper(name, float(since), spare) for since, name in enumerate(names)]


def test_who_fits_sleeps() -> None:
    """With room in the host's memory, up to the last byte, and nobody is stopped for it."""
    assert fate(host(10, a=4), 6, sleepers("a")) == Fate(Goal.SLEEP, "its weights (0.0 GiB) stay in host memory")
    assert fate(host(None, a=4), 600, sleepers("a")).goal is Goal.SLEEP
    assert fate(host(10, a=10), 0, sleepers("a")) == Fate(Goal.SLEEP, "it sleeps")


def test_who_is_to_wake_gives_up_its_sleep_last() -> None:
    """Only where all the others are too little, and then no more of them go than are needed beside it."""
    assert fate(host(10, a=4, w=4), 6, sleepers("a"), last=["w"]).stops == ("a",)
    assert fate(host(10, a=4, w=4), 8, sleepers("a"), last=["w"]).stops == ("w", "a")
    assert fate(host(10, a=2, w=8), 8, sleepers("a"), last=["w"]).stops == ("w",)
    assert fate(host(10, a=2, w=8), 11, sleepers("a"), last=["w"]).goal is Goal.STOP


@pytest.mark.parametrize(
    ("budget", "why_not", "device_room", "told"),
    [
        (10, "the CPU build has none", True, "CPU build"),
        (0, "", True, "sleep_budget` is 0"),
        (10, "", False, "promised to others"),
        (5, "", True, "too little"),
    ],
)
def test_who_cannot_sleep_is_stopped(budget: int, why_not: str, device_room: bool, told: str) -> None:
    """With the reason, and without anybody else being stopped for nothing."""
    found = fate(host(budget), 6, sleepers("a"), why_not=why_not, device_room=device_room)
    assert (found.goal, found.stops) == (Goal.STOP, ())
    assert told in found.reason


def test_a_budget_of_zero_turns_sleep_off_for_those_that_need_nothing_too() -> None:
    """Level 2, say."""
    assert fate(host(0), 0, ()).goal is Goal.STOP


def test_those_that_slept_longest_make_room() -> None:
    """As few as needed, in that order; not those that cannot be spared, nor those that hold nothing."""
    found = fate(host(10, a=3, b=3, c=3), 5, sleepers("a", "b", "c"))
    assert (found.goal, found.stops) == (Goal.SLEEP, ("a", "b"))
    kept = [Sleeper("a", 0.0, spare=False), *sleepers("b", "c")]
    assert fate(host(10, a=3, b=3, c=3), 5, kept).stops == ("b", "c")
    assert fate(host(10, b=6), 5, sleepers("a", "b")).stops == ("b",)
    assert fate(host(10, a=3, b=6), 8, [Sleeper("a", 0.0, spare=False), *sleepers("b")]) == Fate(
        Goal.STOP, "the host's memory for sleep has no room for its 0.0 GiB: 0.0 GiB too little"
    )


def test_host_memory_is_held_once() -> None:
    """Who takes it again has another amount, not twice as much; who releases what it does not hold changes nothing."""
    book = host(10).take("a", 4).take("a", 5).take("b", 2)
    assert (book.used, book.lacks(4), book.lacks(3), book.lacks(8, ["a"])) == (7, 1, 0, 0)
    assert book.release("x") == book
    assert book.release("a").held == {"b": 2}


@given(
    st.one_of(st.none(), st.integers(0, 30)),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10)),
    st.integers(0, 20),
    st.frozensets(st.sampled_from("abcdef")),
)
def test_the_budget_holds_once_the_stopped_are_gone(
    budget: int | None, held: Mapping[str, int], need: int, kept: frozenset[str]
) -> None:
    """Whoever is put to sleep fits into the budget with those that stay; none of them could have been spared, and those that
    must not be stopped are not. A stop stops nobody else."""
    book = HostMemory(budget, dict(held))
    found = fate(book, need, [Sleeper(m, float(i), m not in kept) for i, m in enumerate(sorted(held))])
    assert not kept.intersection(found.stops)
    if found.goal is Goal.STOP:
        assert not found.stops
        assert budget is not None
    else:
        assert not book.lacks(need, found.stops)
        assert not found.stops or book.lacks(need, found.stops[:-1])


def test_a_decision_counts_on_who_leaves_and_a_sleep_waits_for_it() -> None:
    """What a sleeper holds is there to be promised when it was told to stop, and to be used when it is gone."""
    before = host(10, a=8).leave("a").leave("unknown")
    assert (before.used, before.lacks(8), before.waits_for) == (8, 0, ())
    promised = before.take("b", 8)
    assert (promised.used, promised.waits_for) == (16, ("a",))
    gone = promised.release("a")
    assert (gone.used, gone.leaving, gone.waits_for) == (8, {}, ())
    assert host(None, a=8).leave("a").take("b", 8).waits_for == ()
