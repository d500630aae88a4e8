"""Shares of a model's slots by key."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.scheduling import Ticket, Turns
from vllm_mm.domain.scheduling.fairness import deal

_numbers = count()


def ticket(key: str | None, arrived: float = 0.0, *, weight: float = 1.0, priority: int = 0) -> Ticket:
    return Ticket(f"t{next(_numbers)}", "m", arrived, 1e9, key=key, weight=weight, priority=priority)


def keys(tickets: tuple[Ticket, ...]) -> str:
    return "".join(str(t.key) for t in tickets)


def test_one_client_does_not_bury_another() -> None:
    """A has queued 500 requests when B's only one comes: it is served as the second."""
    queue = [*(ticket("a", n) for n in range(500)), ticket("b", 500.0)]
    dealt, _ = deal(queue, Turns(), 3)
    assert keys(dealt) == "aba"
    assert [t.arrived for t in dealt] == [0.0, 500.0, 1.0]


def test_without_keys_it_is_first_come_first_served() -> None:
    """Anonymous requests are one client; those that came at the same time stay in their order."""
    queue = [ticket(None, 2.0), ticket(None, 1.0), ticket(None, 1.0)]
    dealt, _ = deal(queue, Turns(), 10)
    assert dealt == (queue[1], queue[2], queue[0])


def test_priority_is_above_fairness() -> None:
    """All of the higher priority come first, fair among themselves."""
    queue = [ticket("a", 0.0), *(ticket("a", 1.0 + n, priority=1) for n in range(3)), ticket("b", 9.0, priority=1)]
    dealt, _ = deal(queue, Turns(), 5)
    assert keys(dealt) == "abaaa"
    assert [t.priority for t in dealt] == [1, 1, 1, 1, 0]


def test_turns_go_on_where_the_last_grant_left_them() -> None:
    """Slots that become free one by one are shared as if they had come together."""
    queue, turns, order = [ticket(k, n) for k in "abc" for n in range(3)], Turns(), ""
    while queue:
        (dealt,), turns = deal(queue, turns, 1)
        queue.remove(dealt)
        order += str(dealt.key)
    assert order == "abcabcabc"


def test_nothing_to_deal_changes_no_turn() -> None:
    """No slot, or nobody there."""
    turns = Turns(2.0, {"a": 3.0})
    assert deal([ticket("a")], turns, 0) == ((), turns)
    assert deal([], turns, 5) == ((), turns)


def test_whoever_was_away_does_not_catch_up() -> None:
    """B, which comes after A was served for long, gets every other slot and not a hundred at once."""
    _, turns = deal([ticket("a", n) for n in range(100)], Turns(), 100)
    dealt, turns = deal([ticket(k, n) for k in "ab" for n in range(10)], turns, 6)
    assert keys(dealt) == "bababa"
    assert set(turns.ahead) <= {"a", "b"}


def test_a_key_without_weight_is_served_all_the_same() -> None:
    """A weight of zero is a mistake that must not starve anybody, nor divide by zero."""
    dealt, _ = deal([ticket("a", weight=0.0), ticket("b", 1.0)], Turns(), 2)
    assert keys(dealt) == "ab"


weights = st.sampled_from([0.5, 1.0, 2.0, 5.0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from("abcd"), weights, min_size=1), st.integers(0, 50), st.integers(1, 20))
def test_long_run_shares_follow_the_weights(weigh: dict[str, float], before: int, slots: int) -> None:
    """With everybody queueing, no key is ever more than one lease off its share, however slots become free."""
    turns = deal([ticket("a", n, weight=weigh.get("a", 1.0)) for n in range(before)], Turns(), before)[1]
    queue, served = [ticket(k, n, weight=w) for k, w in weigh.items() for n in range(60)], Counter[str]()
    while sum(served.values()) + slots <= 60:
        dealt, turns = deal(queue, turns, slots)
        gone = {t.id for t in dealt}
        queue = [t for t in queue if t.id not in gone]
        served.update(str(t.key) for t in dealt)
        shares = [served[k] / w for k, w in weigh.items()]
        assert max(shares) - min(shares) <= 2 / min(weigh.values())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 60), st.floats(0.01, 100.0), st.lists(st.integers(1, 5), max_size=20),
    st.sampled_from([1.0, 3.0]),
)  # fmt: skip
def test_a_lone_request_is_among_the_next_two(many: int, weight: float, earlier: list[int], own: float) -> None:
    """Whenever B's request comes among A's, whatever their weights: at most one of A's goes before it."""
    turns, queue = Turns(), [ticket("a", n, weight=weight) for n in range(many + sum(earlier))]
    for slots in earlier:
        dealt, turns = deal(queue, turns, slots)
        queue = queue[len(dealt) :]
    lone = ticket("b", 1000.0, weight=own)
    dealt, _ = deal([*queue, lone], turns, 2)
    assert lone in dealt


def test_as_many_as_there_are() -> None:
    """More slots than tickets."""
    queue = [ticket("a"), ticket("b")]
    assert deal(queue, Turns(), 99)[0] == tuple(queue)
    with pytest.raises(AttributeError):
        Turns().clock = 1.0  # pyright: ignore[reportAttributeAccessIssue]  # turns are values
