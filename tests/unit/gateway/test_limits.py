"""What a request is expected to use, what its answer tells, and that workers ask the controller."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from fakes import FakeClock
from vllm_mm.domain.errors import BudgetSpent, RateLimited, Unavailable
from vllm_mm.domain.keys import Key, Limits
from vllm_mm.domain.limits import Limit, Refusal, Spent, Standing
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import Usage
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.limits import PATIENCE, Asking, Places
from vllm_mm.gateway.limits import LimitBook, count_running, duration, look, refused, tokens_of, told, used

LIMITED = Key("k", "k", "", frozenset(), limits=Limits(concurrency=1))


def body(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 20, "max_tokens": 10}, 20),
        ({"max_output_tokens": 30}, 30),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"max_tokens": 10, "n": 2, "best_of": 4}, 40),
        ({"max_tokens": 10, "prompt": ["a", "b"]}, 20),
        ({"max_tokens": 10, "prompt": [[1, 2], [3]], "n": 2}, 40),
        ({"max_tokens": 10, "prompt": [1, 2, 3]}, 10),
        ({"max_tokens": 10, "prompt": "a", "n": 0}, 10),
        ({"max_tokens": 10, "prompt": [], "n": None}, 10),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -5}, 0),
        ({"max_tokens": None}, 256),
        ({"max_tokens": "10"}, 256),
        ({"max_tokens": True}, 256),
        ({"max_tokens": 10**30}, 10**9),
        ({"max_tokens": 10**9, "n": 10**9}, 10**9),
        ({}, 256),
    ],
)
def test_what_a_request_is_expected_to_use(fields: Mapping[str, Any], answer: int) -> None:
    """What it may answer at most, in all its choices, and a quarter of its bytes."""
    sent = body(model="m", **fields)
    assert tokens_of(sent) == answer + -(-len(sent) // 4)
    assert tokens_of(bytearray(sent)) == tokens_of(sent)


@pytest.mark.parametrize("sent", [b"{", b"[1]", b"\xff" * 8, b"[" * 100_000])
def test_what_is_not_understood_goes_by_its_size(sent: bytes) -> None:
    """It is refused elsewhere; nobody gets in for less by sending it."""
    assert tokens_of(sent) == 256 + -(-len(sent) // 4)


def test_forms_and_looks_are_expected_to_use_nothing() -> None:
    """They have no body here."""
    assert tokens_of(b"") == 0


def test_what_was_used() -> None:
    """Prompt and completion; not known where neither is."""
    assert [used(u) for u in (Usage(3, 4), Usage(3), Usage(None, 4), Usage())] == [7, 3, None, None]


def test_durations_are_written_as_openai_writes_them() -> None:
    """Clients parse them."""
    seconds = (-1.0, 0.0, 0.0001, 0.12, 0.9996, 1.0, 1.5, 59.9994, 60.0, 90.4, 3599.0, 3600.0, 86399.0)
    assert [duration(s) for s in seconds] == [
        b"0s", b"0s", b"1ms", b"120ms", b"1000ms", b"1s", b"1.5s", b"59.999s", b"1m0s", b"1m30s", b"59m59s", b"1h0m0s", b"23h59m59s",
    ]  # fmt: skip


def test_what_is_told_is_what_is_limited() -> None:
    """And nothing of what is not."""
    bare = Standing(3, 7, 9, Spent(), Spent())
    assert told(bare) == []
    full = Standing(
        3, 7, 9, Spent(), Spent(), concurrency=2, requests_limit=5, requests_reset=1.5, tokens_limit=100, tokens_left=91, tokens_reset=60.0
    )  # fmt: skip
    assert told(full) == [
        (b"x-ratelimit-limit-requests", b"5"),
        (b"x-ratelimit-remaining-requests", b"0"),  # a limit that was lowered: not less than nothing
        (b"x-ratelimit-reset-requests", b"1.5s"),
        (b"x-ratelimit-limit-tokens", b"100"),
        (b"x-ratelimit-remaining-tokens", b"91"),
        (b"x-ratelimit-reset-tokens", b"1m0s"),
        (b"x-vllm-mm-limit-concurrency", b"2"),
        (b"x-vllm-mm-remaining-concurrency", b"0"),
    ]


@pytest.mark.parametrize("limit", list(Limit))
def test_a_budget_is_another_error_than_a_rate(limit: Limit) -> None:
    """As with OpenAI: trying again soon helps with the one and not with the other."""
    error = refused(Refusal(limit, "no", 12.0))
    assert type(error) is (BudgetSpent if limit.value.endswith(("day", "month")) else RateLimited)
    assert (error.message, error.retry_after) == ("no", 12.0)


async def test_what_was_used_before_is_read_once() -> None:
    """At the start, and when a key gets limits; by day and by month."""
    clock, asked = FakeClock(), list[tuple[float, float]]()

    async def spending(since: float, until: float) -> Mapping[str, Spent]:
        asked.append((since, until))
        return {"k": Spent(len(asked))}

    book = LimitBook(clock, spending)
    await book.recall()
    assert asked == []
    book.use([LIMITED])
    await book.recall()
    await book.recall()
    assert len(asked) == 2
    assert all(since <= clock.wall() < until for since, until in asked)
    standing = book.standing("k")
    assert standing is not None
    assert (standing.month, standing.day) == (Spent(1), Spent(2))
    without = LimitBook(clock)
    without.use([LIMITED])
    await without.recall()
    assert without.standing("k") is not None


class Between:
    """The link between a worker and the controller, as it is on a wire."""

    def __init__(self, book: LimitBook) -> None:
        self.clock = FakeClock()
        self.asking = Asking(self, self.clock)
        self.places = Places(self, book)
        self.lost = False

    def send(self, message: Any) -> None:
        whole = msgspec.msgpack.decode(
            msgspec.msgpack.encode(message), type=say.Enter | say.Leave | say.Entered | say.Runs | say.Look
        )
        match whole:
            case say.Enter():
                if not self.lost:
                    self.places.enter(whole)
            case say.Leave():
                self.places.leave(whole)
            case say.Runs():
                self.places.runs(whole)
            case say.Look():
                if not self.lost:
                    self.places.look(whole)
            case say.Entered():
                self.asking.heard(whole)


async def test_workers_share_one_book() -> None:
    """What one has let in counts for the other; what one gives back is free for both; leaving twice gives back once."""
    book = LimitBook(FakeClock())
    book.use([LIMITED])
    one, two = Between(book), Between(book)
    assert (await one.asking.enter("a", "k", 5)).refusal is None
    told_no = await two.asking.enter("b", "k", 5)
    assert told_no.refusal is not None
    assert told_no.refusal.limit is Limit.CONCURRENCY
    assert await two.asking.look("k") == told_no.standing
    two.asking.leave("b", 0, 0.0)
    two.asking.leave("a", 0, 0.0)  # not its own
    assert (await two.asking.enter("c", "k", 5)).refusal is not None
    one.asking.leave("a", 7, 1.5)
    one.asking.leave("a", 7, 1.5)
    assert (await two.asking.enter("d", "k", 5)).refusal is None
    standing = book.standing("k")
    assert standing is not None
    assert (standing.running, standing.day) == (1, Spent(7, 1.5))


async def test_a_worker_that_is_gone_gives_back_what_it_had() -> None:
    """What its requests used is not known: what was expected counts."""
    book = LimitBook(FakeClock())
    book.use([LIMITED])
    link = Between(book)
    await link.asking.enter("a", "k", 5)
    link.places.end()
    link.places.end()
    standing = book.standing("k")
    assert standing is not None
    assert (standing.running, standing.day) == (0, Spent(5))


async def test_a_key_whose_limits_went_is_let_in() -> None:
    """It was asked for with the limits of before; what was known of it is forgotten."""
    book = LimitBook(FakeClock())
    book.use([LIMITED])
    link = Between(book)
    await link.asking.enter("a", "k", 5)
    book.use([])
    entered = await link.asking.enter("b", "k", 5)
    assert (entered.refusal, entered.standing, await link.asking.look("k")) == (None, None, None)


async def test_no_book_no_limits() -> None:
    """Where nothing is ever limited, everybody is let in."""
    link = Between(LimitBook(FakeClock()))
    link.places = Places(link, None)
    assert (await link.asking.enter("a", "k", 5)).refusal is None
    link.asking.leave("a", 0, 0.0)
    link.places.end()


async def test_a_controller_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """The client is told to try again."""
    link = Between(LimitBook(FakeClock()))
    link.lost = True
    asking = asyncio.ensure_future(link.asking.enter("a", "k", 5))
    await asyncio.sleep(0)
    await link.clock.advance(PATIENCE)
    with pytest.raises(Unavailable, match="does not answer"):
        await asking
    link.asking.heard(say.Entered("a", None, None))


@dataclass
class Running:
    """A request or a session under way."""

    own_id: str
    key: Key | None
    entered: bool = False
    standing: Standing | None = None
    spec: ModelSpec | None = None


@pytest.mark.parametrize("worker", [False, True])
async def test_what_runs_counts_when_its_key_gets_limits(*, worker: bool) -> None:
    """In the controller and in workers; it is given back when it ends, or with its worker. Nobody else's is counted."""
    book = LimitBook(FakeClock())
    link = Between(book)
    gate = link.asking if worker else book
    free = replace(LIMITED, limits=None)
    comers = [Running("a", free), Running("b", free), Running("c", replace(free, id="other")), Running("d", None)]
    count_running(comers, {"k": free, "other": replace(free, id="other")}, gate)
    assert [c.entered for c in comers] == [False] * 4
    book.use([LIMITED])
    for _ in range(2):
        count_running(comers, {"k": LIMITED}, gate)
    assert [c.entered for c in comers] == [True, True, False, False]
    standing = book.standing("k")
    assert standing is not None
    assert standing.running == 2
    assert (await gate.enter("e", "k", 1)).refusal is not None
    gate.leave("a", 7, 0.0)
    if worker:
        link.places.end()
    else:
        gate.leave("b", None, 0.0)
    assert (await gate.enter("f", "k", 1)).refusal is None
    standing = book.standing("k")
    assert standing is not None
    assert (standing.running, standing.day.tokens) == (1, 7)
    no_book = Places(link, None)
    no_book.runs(say.Runs("x", "k"))
    no_book.look(say.Look("x", "k"))


async def test_one_that_is_refused_early_is_told_how_its_key_stands() -> None:
    """A worker asks for it; where nobody answers the refusal goes out without."""
    book = LimitBook(FakeClock())
    book.use([LIMITED])
    link = Between(book)
    for gate in (book, link.asking):
        who = Running("a", LIMITED)
        await look(who, gate)
        assert who.standing == book.standing("k") is not None
        await look(other := Running("b", replace(LIMITED, limits=None)), gate)
        await look(Running("c", None), gate)
        assert other.standing is None
    link.lost = True
    asking = asyncio.ensure_future(look(who := Running("d", LIMITED), link.asking))
    await asyncio.sleep(0)
    await link.clock.advance(PATIENCE)
    await asking
    assert who.standing is None
