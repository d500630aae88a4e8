"""Continuous batching as a model of time."""

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.sim.batch import Batch, Output, Sequence, Speed

TEN = Speed(tokens_per_second=10.0)


def drain(batch: Batch, now: float = 0.0, limit: int = 10_000) -> Iterator[tuple[float, Output]]:
    """Run to the end, waking exactly when something is due."""
    while (due := batch.due()) is not None:
        limit -= 1
        assert limit, "the batch does not end"
        now = max(now, due)
        if output := batch.poll(now):
            yield now, output


def test_one_sequence_at_its_speed() -> None:
    """Five tokens at ten a second."""
    batch = Batch(TEN)
    batch.add(Sequence(1, prompt=3, total=5), 0.0)
    times = [now for now, _ in drain(batch)]
    assert times == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_the_first_token_waits_for_the_prompt() -> None:
    """Prefill first, in chunks of at most `max_num_batched_tokens`."""
    batch = Batch(Speed(prefill_tokens_per_second=100.0, max_num_batched_tokens=20))
    batch.add(Sequence(1, prompt=50, total=1), 0.0)
    assert [now for now, _ in drain(batch)] == pytest.approx([0.5])


def test_a_step_grows_mildly_with_the_batch() -> None:
    """1 % for each further sequence."""
    batch = Batch(Speed(tokens_per_second=10.0, batch_slowdown=0.01))
    for one in range(11):
        batch.add(Sequence(one, prompt=1, total=1), 0.0)
    assert batch.due() == pytest.approx(0.1)  # the first came alone
    batch.poll(0.1)
    assert batch.due() == pytest.approx(0.1 + 0.1 * 1.09)


def test_it_does_not_drift() -> None:
    """Late wake-ups are made up for: the end is when it would have been."""
    batch = Batch(TEN)
    batch.add(Sequence(1, prompt=1, total=20), 0.0)
    now = 0.0
    while (due := batch.due()) is not None:
        now = due + 0.037
        batch.poll(now)
    assert now == pytest.approx(2.0 + 0.037)


def test_after_a_long_stop_it_goes_on_from_now() -> None:
    """No burst for the time that the process did not run."""
    batch = Batch(TEN)
    batch.add(Sequence(1, prompt=1, total=100), 0.0)
    assert sum(batch.poll(5.0).tokens.values()) == 1
    assert batch.due() == pytest.approx(5.1)


def test_more_than_fit_wait_in_order() -> None:
    """`max_num_seqs` run; the others come in as these end."""
    batch = Batch(Speed(tokens_per_second=10.0, max_num_seqs=2))
    for one, total in ((1, 2), (2, 2), (3, 1)):
        batch.add(Sequence(one, prompt=1, total=total), 0.0)
    batch.poll(0.1)
    assert (batch.running, batch.waiting) == (2, 1)
    assert [one for _, output in drain(batch, 0.1) for one in output.finished] == [1, 2, 3]


def test_the_cache_limits_admission() -> None:
    """A prompt that does not fit beside what runs waits; alone it is let in."""
    batch = Batch(Speed(tokens_per_second=10.0, kv_tokens=100))
    batch.add(Sequence(1, prompt=60, total=1), 0.0)
    batch.add(Sequence(2, prompt=60, total=1), 0.0)
    assert (batch.running, batch.waiting) == (1, 1)
    assert [output.finished for _, output in drain(batch)] == [[1], [2]]


def test_a_full_cache_preempts_the_newest() -> None:
    """It is taken in again later, and nobody gets a token twice."""
    batch = Batch(Speed(tokens_per_second=10.0, kv_tokens=60))
    batch.add(Sequence(1, prompt=10, total=40), 0.0)
    batch.add(Sequence(2, prompt=10, total=40), 0.0)
    tokens: dict[int, int] = {}
    for _, output in drain(batch):
        for one, count in output.tokens.items():
            tokens[one] = tokens.get(one, 0) + count
    assert tokens == {1: 40, 2: 40}
    assert batch.preemptions > 0


def test_abort_takes_out_what_runs_and_what_waits() -> None:
    """And says what it found."""
    batch = Batch(Speed(tokens_per_second=10.0, max_num_seqs=1))
    batch.add(Sequence(1, prompt=1, total=9), 0.0)
    batch.add(Sequence(2, prompt=1, total=9), 0.0)
    batch.add(Sequence(3, prompt=1, total=1), 0.0)
    assert sorted(batch.abort([1, 2, 99], 0.05)) == [1, 2]
    assert [output.finished for _, output in drain(batch, 0.05)] == [[3]]
    assert batch.abort_all(1.0) == []


def test_not_admitting_lets_the_running_finish() -> None:
    """And holds the new."""
    batch = Batch(TEN)
    batch.add(Sequence(1, prompt=1, total=2), 0.0)
    batch.admitting = False
    batch.add(Sequence(2, prompt=1, total=1), 0.0)
    assert [output.finished for _, output in drain(batch) if output.finished] == [[1]]
    assert batch.waiting == 1
    batch.thaw(1.0)
    assert [output.finished for _, output in drain(batch, 1.0)] == [[2]]


def test_frozen_nothing_happens() -> None:
    """Not at a new request, not at an abort; thawed, it goes on where it was."""
    batch = Batch(TEN)
    for one in (1, 2):
        batch.add(Sequence(one, prompt=1, total=3), 0.0)
    batch.poll(0.1)
    batch.freeze()
    batch.add(Sequence(3, prompt=1, total=1), 0.2)
    assert batch.told_running == 2
    batch.abort([2], 0.3)
    assert batch.told_running == 1
    assert batch.due() is None
    assert not batch.poll(9.0)
    batch.thaw(10.0)
    assert sorted(one for _, output in drain(batch, 10.0) for one in output.finished) == [1, 3]


@pytest.mark.parametrize(("drop_cache", "next_token"), [(True, 51.3), (False, 50.1)])
def test_what_was_frozen_is_taken_in_anew_if_its_cache_is_gone(drop_cache: bool, next_token: float) -> None:
    """A sleep drops the KV cache: prompt and answer so far are computed again before the next token; a pause may keep it."""
    batch = Batch(Speed(tokens_per_second=10.0, prefill_tokens_per_second=10.0))
    batch.add(Sequence(1, prompt=10, total=5), 0.0)
    assert batch.poll(1.1).tokens == {1: 1}
    assert batch.poll(1.21).tokens == {1: 1}
    batch.freeze(drop_cache=drop_cache)
    assert (batch.running, batch.kv_usage > 0) == ((0, False) if drop_cache else (1, True))
    batch.thaw(50.0)
    assert batch.due() == pytest.approx(next_token)
    assert sum(output.tokens.get(1, 0) for _, output in drain(batch, 50.0)) == 3


def test_a_speed_without_limit_still_yields() -> None:
    """A batch that takes no time comes up for air, so that an abort gets through."""
    batch = Batch(Speed())
    batch.add(Sequence(1, prompt=5, total=10_000), 0.0)
    first = batch.poll(0.0)
    assert 0 < first.tokens[1] < 10_000
    assert batch.abort([1], 0.0) == [1]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(20, 200),
    st.sampled_from([10.0, math.inf]),
    st.sets(st.integers(0, 30), max_size=5),
)
def test_everybody_gets_exactly_their_tokens(
    asked: list[tuple[int, int]], seats: int, cache: int, rate: float, freezes: set[int]
) -> None:
    """Whatever the limits, and however often it is frozen, each sequence gets its total and finishes once."""
    batch = Batch(Speed(tokens_per_second=rate, max_num_seqs=seats, kv_tokens=cache, max_num_batched_tokens=16))
    for one, (prompt, total) in enumerate(asked):
        batch.add(Sequence(one, prompt=prompt, total=total), 0.0)
    tokens = dict.fromkeys(range(len(asked)), 0)
    finished: list[int] = []
    for step, (at, output) in enumerate(drain(batch)):
        finished += output.finished
        for one, count in output.tokens.items():
            tokens[one] += count
        if step in freezes:
            batch.freeze(drop_cache=step % 3 > 0)
            batch.thaw(at)
    assert tokens == {one: total for one, (_, total) in enumerate(asked)}
    assert sorted(finished) == list(range(len(asked)))
    assert (batch.running, batch.waiting, batch.kv_usage) == (0, 0, 0.0)
