"""Limits of keys: nothing is let in beyond them, everything is released once, and what is told of them is so."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.keys import Key, Limits
from vllm_mm.domain.limits import SOON, WINDOW, Allowance, Book, Limit, Periods, Refusal, Spent, expected

NOON = 1_767_960_000.0
"""2026-01-09, 12:00 UTC."""
MIDNIGHT = NOON + 12 * 3600


def refused(found: Refusal | None) -> Limit:
    assert found is not None
    return found.limit


def test_so_many_at_the_same_time_and_no_more() -> None:
    """The one too many is refused and changes nothing; when one has ended, one more may come."""
    allowance, limits = Allowance(NOON), Limits(concurrency=2)
    assert [allowance.enter(limits, 0, 0.0, NOON) for _ in range(2)] == [None, None]
    found = allowance.enter(limits, 0, 0.0, NOON)
    assert refused(found) is Limit.CONCURRENCY
    assert found is not None
    assert found.retry_after == SOON
    assert "2 requests of this key are under way, and it may have 2" in found.message
    allowance.leave(0, Spent(), 1.0, NOON)
    assert allowance.enter(limits, 0, 1.0, NOON) is None
    assert allowance.running == 2


def test_so_many_in_any_minute() -> None:
    """Not by the clock's minutes: in no 60 seconds are there more. The wait that is told is the true one; refused ones do not count."""
    allowance, limits = Allowance(NOON), Limits(requests_per_minute=3)
    for at in (0.0, 10.0, 59.0):
        assert allowance.enter(limits, 0, at, NOON) is None
    for at in (59.0, 59.5, 59.999):
        found = allowance.enter(limits, 0, at, NOON)
        assert refused(found) is Limit.REQUESTS
        assert found is not None
        assert found.retry_after == pytest.approx(60.0 - at)
    assert allowance.enter(limits, 0, 60.0, NOON) is None
    found = allowance.enter(limits, 0, 60.0, NOON)
    assert found is not None
    assert found.retry_after == pytest.approx(10.0)


def test_a_lower_limit_waits_for_as_many_as_are_too_many() -> None:
    """A limit that was lowered meanwhile: enough have to leave the window, and not only the oldest."""
    allowance = Allowance(NOON)
    for at in (0.0, 1.0, 2.0, 3.0):
        assert allowance.enter(Limits(requests_per_minute=4), 0, at, NOON) is None
    found = allowance.enter(Limits(requests_per_minute=2), 0, 4.0, NOON)
    assert found is not None
    assert found.retry_after == pytest.approx(2.0 + WINDOW - 4.0)


def test_tokens_are_reserved_before_and_counted_after() -> None:
    """What is expected is held while it runs; what it used counts for a minute after that, also where that is more."""
    allowance, limits = Allowance(NOON), Limits(tokens_per_minute=100)
    assert allowance.enter(limits, 60, 0.0, NOON) is None
    found = allowance.enter(limits, 41, 0.0, NOON)
    assert refused(found) is Limit.TOKENS
    assert found is not None
    assert "expected to use 41 tokens, and of 100 a minute this key has 40 left" in found.message
    assert found.retry_after == SOON  # what runs may end any time
    assert allowance.enter(limits, 40, 0.0, NOON) is None
    allowance.leave(60, Spent(10), 5.0, NOON)
    allowance.leave(40, Spent(130), 6.0, NOON)
    found = allowance.enter(limits, 1, 7.0, NOON)
    assert found is not None
    assert "has 0 left" in found.message  # and not less than nothing
    assert found.retry_after == pytest.approx(6.0 + WINDOW - 7.0)  # the ten of before are not enough
    assert allowance.enter(limits, 1, 66.0, NOON) is None


def test_what_never_fits_is_told_so() -> None:
    """Waiting does not help it."""
    found = Allowance(NOON).enter(Limits(tokens_per_minute=100), 101, 0.0, NOON)
    assert found is not None
    assert "never fits" in found.message


@pytest.mark.parametrize(
    ("limits", "limit", "again"),
    [
        (Limits(tokens_per_day=100), Limit.TOKENS_DAY, "2026-01-10 00:00 UTC"),
        (Limits(tokens_per_month=100), Limit.TOKENS_MONTH, "2026-02-01 00:00 UTC"),
        (Limits(device_seconds_per_day=5.0), Limit.SECONDS_DAY, "2026-01-10 00:00 UTC"),
        (Limits(device_seconds_per_month=5.0), Limit.SECONDS_MONTH, "2026-02-01 00:00 UTC"),
    ],
)
def test_budgets_of_a_day_and_of_a_month(limits: Limits, limit: Limit, again: str) -> None:
    """Used up until their period is over, at midnight UTC; then they begin anew."""
    allowance = Allowance(NOON)
    assert allowance.enter(limits, 50, 0.0, NOON) is None
    allowance.leave(50, Spent(60, 5.0), 1.0, NOON)
    found = allowance.enter(limits, 50, 2.0, NOON)
    assert refused(found) is limit
    assert found is not None
    assert again in found.message
    ends = MIDNIGHT if limit in {Limit.TOKENS_DAY, Limit.SECONDS_DAY} else Periods(NOON).month_ends
    assert found.retry_after == pytest.approx(ends - NOON)
    monthly = limit in {Limit.TOKENS_MONTH, Limit.SECONDS_MONTH}
    assert (allowance.enter(limits, 50, 3.0, MIDNIGHT) is not None) == monthly
    assert allowance.enter(limits, 50, 4.0, Periods(NOON).month_ends) is None


def test_months_have_their_own_lengths() -> None:
    """Also February, and December before January."""
    assert Periods(NOON).month == NOON - 8 * 86400 - 12 * 3600
    ends = [Periods(NOON)]
    for _ in range(13):
        ends.append(Periods(ends[-1].month_ends))
    assert [round((p.month_ends - p.month) / 86400) for p in ends] == [
        31,
        28,
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
        31,
        28,
    ]
    assert Periods(NOON).day == NOON - 12 * 3600


def test_what_was_used_before_counts() -> None:
    """After a restart a budget goes on where it was."""
    allowance = Allowance(NOON)
    allowance.load(Spent(90), Spent(95))
    assert refused(allowance.enter(Limits(tokens_per_day=100), 11, 0.0, NOON)) is Limit.TOKENS_DAY
    assert refused(allowance.enter(Limits(tokens_per_month=100), 6, 0.0, NOON)) is Limit.TOKENS_MONTH
    assert allowance.enter(Limits(tokens_per_day=100, tokens_per_month=100), 5, 0.0, NOON) is None


def test_what_is_told() -> None:
    """What is left, and until when: of the requests of a minute, and of that limit of tokens of which the least is left."""
    allowance = Allowance(NOON)
    limits = Limits(
        concurrency=4, requests_per_minute=5, tokens_per_minute=100, tokens_per_day=1000, tokens_per_month=150
    )
    fresh = allowance.standing(limits, 0.0, NOON)
    assert (fresh.requests_reset, fresh.tokens_limit, fresh.tokens_left, fresh.tokens_reset) == (0.0, 100, 100, 0.0)
    allowance.enter(limits, 30, 0.0, NOON)
    allowance.enter(limits, 20, 10.0, NOON)
    allowance.leave(30, Spent(40, 2.0), 20.0, NOON)
    now = allowance.standing(limits, 30.0, NOON)
    assert (now.running, now.concurrency, now.requests, now.requests_limit, now.requests_reset) == (1, 4, 2, 5, 40.0)
    assert (now.tokens, now.tokens_limit, now.tokens_left, now.tokens_reset) == (60, 100, 40, 50.0)
    assert (now.day, now.month) == (Spent(40, 2.0), Spent(40, 2.0))
    later = allowance.standing(limits, 90.0, NOON)
    assert (later.tokens, later.tokens_limit, later.tokens_left) == (20, 100, 80)
    allowance.leave(20, Spent(100), 91.0, NOON)
    tight = allowance.standing(limits, 92.0, NOON)
    assert (tight.tokens_limit, tight.tokens_left, tight.tokens_reset) == (100, 0, 59.0)
    monthly = allowance.standing(limits, 200.0, NOON)
    assert (monthly.tokens_limit, monthly.tokens_left) == (150, 10)
    assert monthly.tokens_reset == pytest.approx(Periods(NOON).month_ends - NOON)
    daily = allowance.standing(Limits(tokens_per_day=1000), 200.0, NOON)
    assert (daily.tokens_limit, daily.tokens_left, daily.tokens_reset) == (1000, 860, MIDNIGHT - NOON)
    none = allowance.standing(Limits(concurrency=1), 200.0, NOON)
    assert (none.requests_limit, none.tokens_limit, none.tokens_left, none.tokens_reset) == (None, None, 0, 0.0)


def test_expected() -> None:
    """A quarter of the prompt's bytes, rounded up, and the answer that may come."""
    assert [expected(0, 0), expected(1, 0), expected(4, 10), expected(5, 10), expected(0, None)] == [0, 1, 11, 12, 256]


LIMITED = Key("k", "k", "", frozenset(), limits=Limits(concurrency=1, tokens_per_minute=100))


def test_a_place_is_left_once() -> None:
    """Leaving twice, or without having been let in, releases nothing of others."""
    book = Book()
    book.use([LIMITED], NOON)
    assert book.enter("a", "k", 10, 0.0, NOON) is None
    assert refused(book.enter("b", "k", 10, 0.0, NOON)) is Limit.CONCURRENCY
    book.leave("b", 10, 0.0, 0.0, NOON)
    assert refused(book.enter("b", "k", 10, 0.0, NOON)) is Limit.CONCURRENCY
    book.leave("a", 10, 0.0, 0.0, NOON)
    book.leave("a", 10, 0.0, 0.0, NOON)
    standing = book.standing("k", 0.0, NOON)
    assert standing is not None
    assert (standing.running, standing.tokens, book.running) == (0, 10, 0)


def test_where_the_tokens_are_not_known_what_was_expected_counts() -> None:
    """Nobody gets tokens for nothing by leaving before they are counted."""
    book = Book()
    book.use([LIMITED], NOON)
    book.enter("a", "k", 70, 0.0, NOON)
    book.leave("a", None, 3.0, 1.0, NOON)
    standing = book.standing("k", 1.0, NOON)
    assert standing is not None
    assert (standing.tokens, standing.day) == (70, Spent(70, 3.0))


def test_keys_without_limits_are_not_counted() -> None:
    """Nor are keys that nobody knows."""
    book = Book()
    book.use([replace(LIMITED, limits=None)], NOON)
    assert book.enter("a", "k", 10**9, 0.0, NOON) is None
    assert (book.running, book.standing("k", 0.0, NOON), book.unloaded) == (0, None, False)


def test_a_change_keeps_what_is_counted() -> None:
    """Another limit for a key under way; none any more, and what runs still leaves; revoked, and what runs still leaves."""
    book = Book()
    book.use([LIMITED], NOON)
    book.enter("a", "k", 10, 0.0, NOON)
    book.use([replace(LIMITED, limits=Limits(concurrency=2))], NOON)
    assert book.enter("b", "k", 10, 0.0, NOON) is None
    assert refused(book.enter("c", "k", 10, 0.0, NOON)) is Limit.CONCURRENCY
    book.use([replace(LIMITED, revoked_at=1.0)], NOON)
    assert book.standing("k", 0.0, NOON) is None
    book.leave("a", 1, 0.0, 0.0, NOON)
    book.use([], NOON)
    book.leave("b", 1, 0.0, 0.0, NOON)
    assert book.running == 0
    book.use([LIMITED], NOON)
    standing = book.standing("k", 0.0, NOON)
    assert standing is not None
    assert (standing.running, standing.tokens) == (0, 0)


def test_what_runs_already_counts_for_new_limits() -> None:
    """Each once, whatever the limits are; not for keys without any."""
    book = Book()
    book.runs("a", "k")
    assert book.running == 0
    book.use([LIMITED], NOON)
    for place in ("a", "b", "a"):
        book.runs(place, "k")
    standing = book.standing("k", 0.0, NOON)
    assert standing is not None
    assert (standing.running, standing.tokens, standing.requests) == (2, 0, 0)
    assert refused(book.enter("c", "k", 0, 0.0, NOON)) is Limit.CONCURRENCY
    book.leave("a", 5, 0.0, 0.0, NOON)
    book.leave("b", None, 0.0, 0.0, NOON)
    assert book.running == 0
    assert book.enter("c", "k", 0, 0.0, NOON) is None


def test_an_idle_key_that_goes_is_forgotten() -> None:
    """Memory is held for keys that are limited, or have something running."""
    book = Book()
    book.use([LIMITED], NOON)
    book.use([], NOON)
    assert book._allowances == {}


def test_the_past_is_loaded_once() -> None:
    """For keys whose limits are new; those that are known are counted already."""
    book = Book()
    book.use([LIMITED], NOON)
    assert book.unloaded
    book.load({"k": Spent(5)}, {"k": Spent(7, 1.0), "other": Spent(9)})
    assert not book.unloaded
    book.load({"k": Spent(5)}, {"k": Spent(7)})
    book.use([LIMITED, replace(LIMITED, id="new")], NOON)
    assert book.unloaded
    book.load({"k": Spent(5)}, {"k": Spent(7)})
    found = book.standing("k", 0.0, NOON), book.standing("new", 0.0, NOON)
    assert [(s.day, s.month) for s in found if s is not None] == [(Spent(5), Spent(7, 1.0)), (Spent(), Spent())]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "go", "wait"]), st.integers(0, 60), st.integers(0, 120), st.floats(0, 40, allow_nan=False),
        st.booleans(),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS, st.integers(1, 5), st.integers(1, 6), st.integers(20, 200), st.integers(50, 400))
def test_never_more_than_allowed(
    steps: list[tuple[str, int, int, float, bool]], most: int, per_minute: int, tokens: int, daily: int
) -> None:
    """Whatever comes, ends and is refused: never more at a time, never more in any 60 seconds, never more tokens than what went
    beyond its expectation explains; and when all have left nothing is held."""
    limits = Limits(concurrency=most, requests_per_minute=per_minute, tokens_per_minute=tokens, tokens_per_day=daily)
    book = Book()
    book.use([replace(LIMITED, limits=limits)], NOON)
    now, running, entered = 0.0, dict[str, int](), list[float]()
    ended: list[tuple[float, int, int]] = []
    for number, (what, expects, uses, seconds, known) in enumerate(steps):
        if what == "come":
            found = book.enter(str(number), "k", expects, now, NOON + now)
            if found is None:
                running[str(number)] = expects
                entered.append(now)
            else:
                assert found.retry_after > 0
        elif what == "go" and running:
            place, reserved = running.popitem()
            used = uses if known else reserved
            book.leave(place, uses if known else None, 0.0, now, NOON + now)
            ended.append((now, used, max(0, used - reserved)))
        else:
            now += seconds
        assert len(running) <= most
        assert sum(at > now - WINDOW for at in entered) <= per_minute
        recent = [(used, beyond) for at, used, beyond in ended if at > now - WINDOW]
        assert sum(used - beyond for used, beyond in recent) + sum(running.values()) <= tokens
        assert sum(used - beyond for _, used, beyond in ended) + sum(running.values()) <= daily
        standing = book.standing("k", now, NOON + now)
        assert standing is not None
        assert standing.running == len(running) == book.running
        assert standing.tokens == sum(used for used, _ in recent) + sum(running.values())
    for place in running:
        book.leave(place, 0, 0.0, now, NOON + now)
    standing = book.standing("k", now + WINDOW + 1.0, NOON + now)
    assert standing is not None
    assert (standing.running, standing.tokens, standing.requests) == (0, 0, 0)


@pytest.mark.parametrize(
    "release",
    [lambda b: b.leave("x", 0, 0.0, 0.0, NOON), lambda b: b.leave("x", None, 1.0, 0.0, NOON)],
    ids=["known", "unknown"],
)
def test_one_out_one_in(release: Callable[[Book], None]) -> None:
    """A place that is given back can be had at once."""
    book = Book()
    book.use([replace(LIMITED, limits=Limits(concurrency=1))], NOON)
    assert book.enter("x", "k", 1, 0.0, NOON) is None
    release(book)
    assert book.enter("y", "k", 1, 0.0, NOON) is None
