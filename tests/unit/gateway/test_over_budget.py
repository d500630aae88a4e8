"""A key that has used up a budget is told of once."""

from dataclasses import replace

from fakes import FakeClock
from vllm_mm.domain.keys import Key, Scope
from vllm_mm.domain.limits import Limit, Refusal
from vllm_mm.gateway.limits import LimitBook


def refusing(book: LimitBook, refusal: Refusal | None) -> None:
    """The book answers so from now on."""
    book.book.enter = lambda *_: refusal  # type: ignore[method-assign,assignment]


async def test_a_spent_budget_is_told_once_until_it_is_there_again() -> None:
    """Not at each request; each budget for itself; limits by the minute never."""
    clock = FakeClock()
    book = LimitBook(clock)
    book.use([Key("key_1", "ada", "", frozenset({Scope.INFER}))])
    told: list[tuple[str, Limit]] = []
    day, month = Limit.TOKENS_DAY, Limit.SECONDS_MONTH
    spent = Refusal(day, "spent", 1.0)
    refusing(book, spent)
    book.enter_now("a", "key_1", 1)  # nobody listens
    book.on_over_budget = lambda key, refusal: told.append((key, refusal.limit))
    for _ in range(3):
        book.enter_now("a", "key_1", 1)
    refusing(book, replace(spent, limit=month))
    book.enter_now("a", "key_1", 1)
    book.enter_now("a", "key_2", 1)
    refusing(book, Refusal(Limit.REQUESTS, "too many", 1.0))
    book.enter_now("a", "key_1", 1)
    assert told == [("key_1", day), ("key_1", month), ("key_2", month)]
    await clock.advance(3601.0)
    refusing(book, spent)
    book.enter_now("a", "key_1", 1)
    assert told[3:] == [("key_1", day)]
