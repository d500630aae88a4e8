"""Who may still wait when many do."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.scheduling.shares import LATELY, MANY, Asked, Places, refusal


def places(taken: int, by_key: int, by_model: int, by_both: int = 0, *, others: bool = True, bound: int = 10) -> Places:
    return Places(bound, taken, by_key, by_model, by_both, other_keys=others, other_models=others)


def test_who_asks_alone_may_have_all_places() -> None:
    """Up to the bound, and not one more."""
    assert refusal(places(9, 9, 9, others=False)) == ""
    assert refusal(places(10, 10, 10, others=False)) == (
        "10 requests are waiting already, which is the bound (queue.max_size)"
    )


def test_a_key_and_a_model_have_as_many_as_are_left() -> None:
    """Half for one of them; whoever has few has a place while there is any."""
    assert refusal(places(4, 4, 0)) == ""
    assert refusal(places(5, 5, 0)) == (
        "5 requests of this key are waiting already; the last 5 of 10 places (queue.max_size) are kept for others"
    )
    assert refusal(places(5, 1, 5)) == "", (
        "others wait for this model, and there is a place for one more who asks for it"
    )
    assert refusal(places(5, 1, 5, 1)) == (
        "5 requests for this model are waiting already; the last 5 of 10 places (queue.max_size) are kept for others"
    )
    assert refusal(places(9, 0, 0)) == ""
    assert refusal(places(10, 0, 0)) != ""


def test_who_asked_long_ago_is_nobody_else() -> None:
    """And of many only those are remembered that asked lately."""
    asked = Asked()
    asked.last[None] = 0.0
    assert not asked.others(None, 0.0)
    asked.last["k"] = 1.0
    assert asked.others(None, 1.0 + LATELY)
    assert not asked.others(None, 1.1 + LATELY)
    assert not asked.others("k", 1.1 + LATELY)
    for n in range(MANY):
        asked.last[f"k{n}"] = 2.0
    assert asked.others("k", 1.5 + LATELY)
    assert len(asked.last) == MANY
    assert not asked.others("k", 2.5 + LATELY)


@settings(deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=300),
)  # fmt: skip
def test_nobody_fills_the_queue_while_others_ask(bound: int, hogs: int, steps: list[tuple[int, int, bool]]) -> None:
    """Whatever some keys send and whatever leaves: with n of them that hold places there is always one for somebody who has none,
    if there are 2**n or more (who comes first may have half, the next half of what is left); nobody has more than are free when it comes, and nobody who waits is sent away."""
    waiting: list[tuple[int, int]] = []
    for one, model, leaves in steps:
        key = one % hogs
        if leaves and waiting:
            waiting.pop()
            continue
        by_key = sum(k == key for k, _ in waiting)
        by_model = sum(m == model for _, m in waiting)
        by_both = waiting.count((key, model))
        asked = places(len(waiting), by_key, by_model, by_both, bound=bound)
        if not refusal(asked):
            assert by_key < asked.free
            assert by_model < asked.free or not by_both
            waiting.append((key, model))
        if bound >= 2**hogs:
            assert refusal(places(len(waiting), 0, 0, bound=bound)) == "", "a newcomer finds no place"
