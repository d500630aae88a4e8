"""Deliveries: tried again, given up, kept, sent again by hand; and nobody waits for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from tenacity.wait import wait_fixed

from fakes import FakeClock
from vllm_mm.control import webhooks
from vllm_mm.control.webhooks import ENDED, Webhooks
from vllm_mm.domain.errors import NotFound
from vllm_mm.domain.events import Event
from vllm_mm.domain.webhooks import DeadLetter, Hook, Place
from vllm_mm.store.failures import DatabaseUnavailable


class Receiver:
    """Answers what it is told to, and remembers what came."""

    def __init__(self, *answers: int | OSError, then: int = 200) -> None:
        self.answers = list(answers)
        self.then = then
        self.came: list[tuple[str, bytes, Mapping[str, str]]] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        self.came.append((url, body, headers))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else self.then
        if isinstance(answer, OSError):
            raise answer
        return answer


class Letters:
    def __init__(self) -> None:
        self.kept: Sequence[DeadLetter] = ()
        self.at: Place | None = None
        self.broken = False

    async def all(self) -> Sequence[DeadLetter]:
        return self.kept

    async def save(self, letters: Sequence[DeadLetter]) -> None:
        if self.broken:
            raise DatabaseUnavailable("locked")
        self.kept = tuple(letters)

    async def place(self) -> Place | None:
        return self.at

    async def came(self, place: Place | None) -> None:
        if self.broken:
            raise DatabaseUnavailable("locked")
        self.at = place


class Events:
    """A journal that tells what it has from before; later events are handed over by `take`."""

    last_seq = -1

    def __init__(self, *events: Event) -> None:
        self.events = list(events)
        self.away = False

    def subscribe(self, after: int | None = None) -> "Events":
        assert after is not None
        self.events = [e for e in self.events if e.seq > after]
        return self

    async def __aenter__(self) -> "Events":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Event:
        if self.away:
            self.away = False
            raise DatabaseUnavailable("away")
        if self.events:
            return self.events.pop(0)
        await asyncio.Event().wait()
        raise StopAsyncIteration


HOOK = Hook("here", "http://hooks/x", ("failed", "alert.*"), "secret")


def alert(seq: int = 1) -> Event:
    return Event(seq, 0.0, "alert.survivors", None, "test", {})


async def until(clock: FakeClock, condition: Callable[[], object]) -> None:
    """Time passes until it is so."""
    async with asyncio.timeout(30):
        while not condition():
            await clock.advance(1.0)
            await asyncio.sleep(0)


@asynccontextmanager
async def running(
    receiver: Receiver,
    letters: Letters | None = None,
    *,
    hooks: Sequence[Hook] = (HOOK,),
    attempts: int = 3,
    journal: Events | None = None,
    crash: bool = False,
) -> AsyncIterator[tuple[Webhooks, FakeClock]]:
    clock = FakeClock()
    made = Webhooks(hooks, receiver, letters or Letters(), clock, attempts=attempts, wait=wait_fixed(5))
    await made.load()
    task = asyncio.ensure_future(made.run(journal or Events()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    try:
        yield made, clock
    finally:
        if crash and letters is not None:
            letters.broken = True  # nothing is written down any more
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_fails_is_tried_again_with_the_same_number() -> None:
    """Later, and signed anew; then all is well."""
    receiver = Receiver(OSError("refused"), 503)
    async with running(receiver) as (made, clock):
        made.take(alert())
        await until(clock, lambda: made.hooks[0].delivered == 1)
        (view,) = made.hooks
        assert (view.failed_tries, view.dead, view.problem, view.waiting) == (2, 0, "", 0)
    ids = {headers["X-VLLM-MM-Delivery"] for _, _, headers in receiver.came}
    stamps = [int(headers["X-VLLM-MM-Timestamp"]) for _, _, headers in receiver.came]
    assert (len(receiver.came), len(ids), stamps == sorted(set(stamps))) == (3, 1, True)
    assert len({headers["X-VLLM-MM-Signature"] for _, _, headers in receiver.came}) == 3


async def test_what_is_tried_in_vain_is_kept_and_can_be_sent_again() -> None:
    """With the reason of the last try; it leaves the list when it is sent again."""
    letters = Letters()
    receiver = Receiver(500, 500, OSError("gone"))
    async with running(receiver, letters) as (made, clock):
        made.take(alert(7))
        await until(clock, lambda: made.dead)
        (letter,) = made.dead
        assert (letter.reason, letter.attempts, letter.delivery.seq, letters.kept) == ("gone", 3, 7, (letter,))
        with pytest.raises(NotFound):
            await made.retry("dlv_nope")
        await made.retry(letter.delivery.id)
        await until(clock, lambda: made.hooks[0].delivered == 1)
        assert (made.dead, letters.kept) == ((), ())


async def test_what_is_refused_for_good_is_not_tried_again() -> None:
    """404 is no accident."""
    receiver = Receiver(404, 404)
    async with running(receiver) as (made, clock):
        made.take(alert(1))
        made.take(alert(2))
        await until(clock, lambda: len(made.dead) == 2)
        assert len(receiver.came) == 2
        assert made.dead[0].reason == "it answered 404"
        assert await made.retry_all() == 2
        await until(clock, lambda: made.hooks[0].delivered == 2)


async def test_a_receiver_that_hangs_holds_up_nobody() -> None:
    """Events are taken at once, other hooks get theirs; what does not fit the queue is a dead letter, the oldest first."""
    slow, quick = Receiver(), Receiver()
    slow.gate = asyncio.Event()

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
        return await (slow if "slow" in url else quick)(url, body, headers)

    hooks = (Hook("slow", "http://slow", ("alert.*",)), Hook("quick", "http://quick", ("alert.*",)))
    async with running(post, hooks=hooks) as (made, clock):  # type: ignore[arg-type]
        made.take(alert(0))
        await until(clock, lambda: slow.came and quick.came)
        for seq in range(1, webhooks.QUEUE + 3):
            made.take(alert(seq))
            if seq % 100 == 0:
                await until(clock, lambda: made.hooks[1].waiting == 0)
        assert [d.delivery.seq for d in made.dead] == [1, 2]
        assert "more than 1000 deliveries waited" in made.dead[0].reason
        await until(clock, lambda: made.hooks[1].delivered == webhooks.QUEUE + 3)
        assert made.hooks[0].delivered == 0


async def test_what_had_no_time_at_the_end_is_sent_by_the_next_server() -> None:
    """Also the one that was under way."""
    letters = Letters()
    receiver = Receiver()
    receiver.gate = asyncio.Event()
    async with running(receiver, letters) as (made, clock):
        made.take(alert(1))
        made.take(alert(2))
        await until(clock, lambda: receiver.came)
    assert [(d.delivery.seq, d.reason) for d in letters.kept] == [(1, ENDED), (2, ENDED)]
    again = Receiver()
    async with running(again, letters) as (made, clock):
        await until(clock, lambda: made.hooks[0].delivered == 2)
        assert made.dead == ()


async def test_letters_of_a_hook_that_is_gone_stay() -> None:
    """They can be read, and not sent."""
    letters = Letters()
    async with running(Receiver(404), letters) as (made, clock):
        made.take(alert())
        await until(clock, lambda: made.dead)
    other = Hook("other", "http://x", ("failed",))
    async with running(Receiver(), letters, hooks=(other,)) as (made, _):
        assert await made.retry_all() == 0
        with pytest.raises(NotFound, match="no hook here any more"):
            await made.retry(made.dead[0].delivery.id)


async def test_a_database_that_is_away_costs_no_letter() -> None:
    """It is kept with the next one."""
    letters = Letters()
    letters.broken = True
    async with running(Receiver(404, 404), letters) as (made, clock):
        made.take(alert(1))
        await until(clock, lambda: made.dead)
        letters.broken = False
        made.take(alert(2))
        await until(clock, lambda: len(letters.kept) == 2)


async def test_the_list_of_letters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten."""
    monkeypatch.setattr(webhooks, "DEAD", 3)
    async with running(Receiver(then=404)) as (made, clock):
        for seq in range(5):
            made.take(alert(seq))
        await until(clock, lambda: made.hooks[0].dead == 5)
        assert [d.delivery.seq for d in made.dead] == [2, 3, 4]


async def test_a_fault_of_ours_ends_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be sent is given up, and the next one goes out."""
    receiver = Receiver()
    receiver.answers = [ValueError("odd")]  # type: ignore[list-item]

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
        if receiver.answers:
            raise receiver.answers.pop(0)  # type: ignore[misc]
        return await receiver(url, body, headers)

    async with running(post) as (made, clock):  # type: ignore[arg-type]
        made.take(alert(1))
        made.take(alert(2))
        await until(clock, lambda: made.hooks[0].delivered == 1)
        assert "odd" in made.dead[0].reason
    assert "cannot be sent" in caplog.text


async def test_events_that_were_missed_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sent for the marker itself."""
    async with running(Receiver(), hooks=(Hook("all", "http://x", ("*.*", "lagged")),)) as (made, _):
        made.take(Event(5, 0.0, "lagged", None, "", {"lost": 3}))
        assert made.hooks[0].waiting == 0
    assert "3 were not looked at" in caplog.text


def failed(seq: int, kind: str = "instance.backoff", model: str = "m") -> Event:
    return Event(seq, 0.0, kind, model, "test", {})


def seqs(receiver: Receiver) -> list[int]:
    return [json.loads(text)["seq"] for _, text, _ in receiver.came]


async def test_what_waited_at_a_crash_is_sent_by_the_next_server_with_the_same_number() -> None:
    """From the journal, from where the first one came: nothing that was written down as sent is sent again, nothing is left out, and
    what was under way comes twice. Who failed is remembered as it was then."""
    letters, receiver = Letters(), Receiver()
    events = [failed(1), alert(2), failed(3), alert(4), failed(5, "instance.ready")]
    hook = Hook("here", "http://hooks/x", ("failed", "back", "alert.*"))
    async with running(receiver, letters, hooks=(hook,), crash=True) as (made, clock):
        made.take(events[0])
        await until(clock, lambda: letters.at is not None and letters.at.seq == 1)
        receiver.gate = asyncio.Event()
        for event in events[1:4]:
            made.take(event)
        await until(clock, lambda: len(receiver.came) == 2)
        await clock.advance(5.0)
        assert letters.at == Place(1, {"here": 1}, ("m",))
    assert letters.kept == ()
    letters.broken = False
    again = Receiver()
    async with running(again, letters, hooks=(hook,), journal=Events(*events)) as (made, clock):
        await until(clock, lambda: made.hooks[0].delivered == 3)
        await until(clock, lambda: letters.at is not None and letters.at.seq == 5)
    assert seqs(again) == [2, 4, 5]
    assert [json.loads(text)["event"] for _, text, _ in again.came] == ["alert.*", "alert.*", "back"]
    assert receiver.came[1][2]["X-VLLM-MM-Delivery"] == again.came[0][2]["X-VLLM-MM-Delivery"]


async def test_a_hook_that_is_slow_costs_the_others_nothing_after_a_crash() -> None:
    """Each goes on from its own place; one that is new begins now; without hooks nothing is kept for later."""
    letters, slow, quick = Letters(), Receiver(), Receiver()
    slow.gate = asyncio.Event()

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
        return await (slow if "slow" in url else quick)(url, body, headers)

    hooks = (Hook("slow", "http://slow", ("alert.*",)), Hook("quick", "http://quick", ("alert.*",)))
    async with running(post, letters, hooks=hooks, crash=True) as (made, clock):  # type: ignore[arg-type]
        made.take(alert(1))
        made.take(alert(2))
        await until(clock, lambda: letters.at is not None and letters.at.done["quick"] == 2)
    letters.broken = False
    slow.gate = None
    again = (*hooks, Hook("new", "http://new", ("alert.*",)))
    journal = Events(alert(1), alert(2), alert(3))
    async with running(post, letters, hooks=again, journal=journal) as (made, clock):  # type: ignore[arg-type]
        await until(clock, lambda: [h.delivered for h in made.hooks] == [3, 1, 1])
    assert seqs(slow) == [1, 1, 2, 3]
    assert seqs(quick) == [1, 2, 3, 3]
    assert letters.at is not None
    async with running(post, letters, hooks=()):  # type: ignore[arg-type]
        pass
    assert letters.at is None


async def test_what_was_given_up_or_is_sent_again_outlives_a_crash_too() -> None:
    """A dead letter is kept before its event is written down as done, and is not sent by itself after that; one that is sent again is kept
    until it arrives."""
    letters, receiver = Letters(), Receiver(404, 404)
    async with running(receiver, letters, crash=True) as (made, clock):
        letters.broken = True
        made.take(alert(1))
        await until(clock, lambda: made.dead)
        await clock.advance(5.0)
        assert letters.at is None
        letters.broken = False
        await until(clock, lambda: letters.at is not None and letters.at.seq == 1)
        assert [d.delivery.seq for d in letters.kept] == [1]
        made.take(alert(2))
        await until(clock, lambda: len(letters.kept) == 2)
        receiver.gate = asyncio.Event()
        await made.retry(letters.kept[0].delivery.id)
    assert [(d.delivery.seq, d.reason == ENDED) for d in letters.kept] == [(2, False), (1, True)]
    letters.broken = False
    letters.at = Place(0, {"here": 0})
    again = Receiver()
    async with running(again, letters, journal=Events(alert(1), alert(2))) as (made, clock):
        await until(clock, lambda: made.hooks[0].delivered == 1 and letters.at == Place(2, {"here": 2}))
        assert [d.delivery.seq for d in made.dead] == [2]
    assert seqs(again) == [1]
    assert [d.delivery.seq for d in letters.kept] == [2]


async def test_a_journal_that_cannot_be_read_now_is_read_later(caplog: pytest.LogCaptureFixture) -> None:
    """What is caught up comes from the database."""
    letters, receiver = Letters(), Receiver()
    letters.at = Place(0, {"here": 0})
    journal = Events(alert(1))
    journal.away = True
    async with running(receiver, letters, journal=journal) as (made, clock):
        await until(clock, lambda: made.hooks[0].delivered == 1)
    assert "cannot be read now" in caplog.text
