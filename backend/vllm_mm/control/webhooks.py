"""Webhooks: events go to whoever the configuration names, and nobody waits for them.

Each hook has a bounded queue and a task of its own, so that a receiver that is slow or away holds up neither the server nor
another hook. What is refused for good, tried in vain or finds its queue full becomes a dead letter, which an operator can have
sent again.

What waits is nowhere but in memory, and yet outlives a crash: it is made of events, which are in the journal. How far they were
delivered is written down, a moment late, and the next controller goes on from there. So an event may be sent twice, with the same id.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base, wait_exponential, wait_random

from vllm_mm.clock import Clock, RealClock
from vllm_mm.domain.errors import MMError, NotFound
from vllm_mm.domain.events import Event
from vllm_mm.domain.webhooks import DeadLetter, Delivery, Hook, Namer, Place, body, final, headers, number
from vllm_mm.store.journal import LAGGED, Journal

log = logging.getLogger(__name__)

ENDED: Final = "the server ended before it was delivered"
Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[int]]
"""Sends a body; the status of the answer. Raises OSError when there is none."""
QUEUE: Final = 1000
"""Deliveries that may wait for one hook."""
DEAD: Final = 200
"""Dead letters that are kept; the oldest are forgotten."""
ATTEMPTS: Final = 8
"""About two minutes of trying."""
EVERY: Final = 1.0
"""Seconds between two looks at whether more was delivered, which is then written down."""
WAIT: Final = wait_exponential(multiplier=0.5, max=60.0) + wait_random(0, 0.5)
"""Between two tries: half a second, doubled each time, and a little more so that hooks do not try all at once."""


class Letters(Protocol):
    """Where dead letters are kept (`store.dead_letters`)."""

    async def all(self) -> Sequence[DeadLetter]: ...
    async def save(self, letters: Sequence[DeadLetter]) -> None: ...
    async def place(self) -> Place | None: ...
    async def came(self, place: Place | None) -> None: ...


class _Again(Exception):
    """This try came to nothing; the text says why."""


class _Refused(Exception):
    """The receiver does not want it; the text says how it said so."""


@dataclass(slots=True)
class HookView:
    """How a hook does."""

    name: str
    events: tuple[str, ...]
    waiting: int = 0
    delivered: int = 0
    failed_tries: int = 0
    dead: int = 0
    """Given up since the server began."""
    problem: str = ""
    """Why the latest try came to nothing; empty when it did not."""


class _Line:
    """One hook: what waits for it."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.view = HookView(hook.name, hook.events)
        self.waiting: deque[Delivery] = deque()
        self.sending: Delivery | None = None
        self.some = asyncio.Event()
        self.done = -1
        """Of the events up to this one nothing waits here."""

    def behind(self, seen: int) -> int:
        """`done`, by now; `seen`: the latest event."""
        if self.sending is None and not self.waiting:
            self.done = max(self.done, seen)
        return self.done

    def put(self, delivery: Delivery) -> Delivery | None:
        """The delivery that had to go for it, if any: the oldest."""
        gone = self.waiting.popleft() if len(self.waiting) >= QUEUE else None
        self.waiting.append(delivery)
        self.view.waiting = len(self.waiting)
        self.some.set()
        return gone


class _Nowhere:
    """Keeps nothing."""

    async def all(self) -> Sequence[DeadLetter]:
        return ()

    async def save(self, letters: Sequence[DeadLetter]) -> None:
        """There are none."""

    async def place(self) -> Place | None:
        return None

    async def came(self, place: Place | None) -> None:
        """It is of no use."""


async def _nobody(_url: str, _body: bytes, _headers: Mapping[str, str]) -> int:
    raise OSError("there is no hook")


class Webhooks:
    """Made for the hooks of the configuration; without any it does nothing."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        post: Post,
        letters: Letters,
        clock: Clock,
        *,
        attempts: int = ATTEMPTS,
        wait: wait_base = WAIT,
    ) -> None:
        self._lines = {hook.name: _Line(hook) for hook in hooks}
        self._post = post
        self._letters = letters
        self._clock = clock
        self._attempts = attempts
        self._wait = wait
        self._names = Namer()
        self._dead: list[DeadLetter] = []
        self._again: dict[str, DeadLetter] = {}
        """Those that are sent again just now; kept until they arrive."""
        self._unsaved = False
        self._saving = asyncio.Lock()
        self._seen = 0
        """The latest event that was looked at."""
        self._from: int | None = None
        """The event after which an earlier controller left off."""
        self._named: deque[tuple[int, tuple[str, ...]]] = deque([(0, ())])
        """What the namer knew after which event, from the place on."""
        self._place: Place | None = None
        """As it is written down."""

    @property
    def any(self) -> bool:
        """Whether there are hooks."""
        return bool(self._lines)

    @property
    def hooks(self) -> Sequence[HookView]:
        return [line.view for line in self._lines.values()]

    @property
    def dead(self) -> Sequence[DeadLetter]:
        """Oldest first."""
        return tuple(self._dead)

    @classmethod
    def none(cls) -> "Webhooks":
        """Without a hook."""
        return cls((), _nobody, _Nowhere(), RealClock())

    async def load(self) -> None:
        """Take up the dead letters of an earlier run; once, before `run`. What only had no time is sent now."""
        for letter in await self._letters.all():
            line = self._lines.get(letter.delivery.hook)
            if line is not None and letter.reason == ENDED:
                self._again[letter.delivery.id] = letter
                line.put(letter.delivery)
            else:
                self._dead.append(letter)
        place = await self._letters.place()
        if place is not None and not self._lines:
            await self._letters.came(None)  # who is given a hook one day does not want all that was before
        elif place is not None:
            self._from = self._seen = place.seq
            self._names = Namer(place.failing)
            self._named = deque([(place.seq, place.failing)])
            for name, line in self._lines.items():
                line.done = place.done.get(name, max(place.done.values(), default=place.seq))

    async def run(self, journal: Journal) -> None:
        """Until it is cancelled; what waits then becomes dead letters."""
        if self._from is None:  # no hook ever had an event
            self._from = self._seen = journal.last_seq
            self._named = deque([(self._seen, ())])
            for line in self._lines.values():
                line.done = self._seen
        workers = [asyncio.create_task(self._work(line), name=f"webhook {name}") for name, line in self._lines.items()]
        workers.append(asyncio.create_task(self._write_down(), name="webhooks: how far they came"))
        try:
            while True:
                try:
                    async with journal.subscribe(after=self._seen) as events:
                        async for event in events:
                            self.take(event)
                    return  # the journal is closed
                except MMError as error:  # what is caught up is read from the database
                    log.warning("events for webhooks cannot be read now: %s", error)
                    await self._clock.sleep(EVERY)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            left = [
                (line, delivery)
                for line in self._lines.values()
                for delivery in (*(() if line.sending is None else (line.sending,)), *line.waiting)
            ]
            self._again.clear()
            for line, delivery in left:
                self._bury(line, delivery, ENDED, 0)
            if not left or await self._save():
                for line, _ in left:
                    line.waiting.clear()
                    line.sending = None
                await self._came()

    def take(self, event: Event) -> None:
        """Queue it for the hooks that want it. Immediate."""
        if event.kind == LAGGED:
            log.warning("webhooks were too slow for the events: %s were not looked at", event.data.get("lost"))
            return
        names = self._names(event)
        if self._names.failing != self._named[-1][1]:
            self._named.append((event.seq, self._names.failing))
        for line in self._lines.values():
            name = line.hook.wants(event, names) if event.seq > line.done else None
            if name is None:
                continue
            told = number(line.hook.name, event)
            if told in self._again or any(letter.delivery.id == told for letter in self._dead):
                continue  # as far as that came before a crash
            made = Delivery(told, line.hook.name, name, event.seq, body(told, name, event), self._clock.wall())
            self._queue(line, made)
        self._seen = max(self._seen, event.seq)

    def _queue(self, line: _Line, delivery: Delivery) -> None:
        gone = line.put(delivery)
        if gone is not None:
            self._bury(line, gone, f"more than {QUEUE} deliveries waited", 0)

    async def retry(self, delivery: str) -> None:
        """Send a dead letter again. Raises NotFound."""
        letter = next((d for d in self._dead if d.delivery.id == delivery), None)
        if letter is None:
            raise NotFound(f"There is no dead letter {delivery}. GET /api/webhooks/dead lists them.")
        line = self._lines.get(letter.delivery.hook)
        if line is None:
            raise NotFound(f"There is no hook {letter.delivery.hook} any more: the configuration has another one now.")
        self._dead.remove(letter)
        self._send_again(line, letter)
        await self._save()

    async def retry_all(self) -> int:
        """Those whose hook is still there; how many."""
        again = [d for d in self._dead if d.delivery.hook in self._lines]
        self._dead = [d for d in self._dead if d not in again]
        for letter in again:
            self._send_again(self._lines[letter.delivery.hook], letter)
        if again:
            await self._save()
        return len(again)

    def _send_again(self, line: _Line, letter: DeadLetter) -> None:
        self._again[letter.delivery.id] = replace(letter, reason=ENDED)
        self._queue(line, letter.delivery)

    async def _work(self, line: _Line) -> None:
        while True:
            await line.some.wait()
            line.some.clear()
            while line.waiting:
                line.sending = line.waiting.popleft()
                await self._deliver(line, line.sending)
                line.done = max(line.done, line.sending.seq)
                line.sending = None
                line.view.waiting = len(line.waiting)

    async def _deliver(self, line: _Line, delivery: Delivery) -> None:
        """Try until it is taken, refused, or tried often enough."""
        tries = 0

        async def attempt() -> None:
            nonlocal tries
            tries += 1
            await self._try(line, delivery)

        def told(state: RetryCallState) -> None:
            line.view.failed_tries += 1
            line.view.problem = "" if state.outcome is None else str(state.outcome.exception())

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._attempts), wait=self._wait, retry=retry_if_exception_type(_Again),
            sleep=self._clock.sleep, before_sleep=told,
        )  # fmt: skip
        try:
            await retrying(attempt)
        except RetryError as error:
            told_last = error.last_attempt.exception()
            line.view.failed_tries += 1
            line.view.problem = reason = str(told_last)
            await self._give_up(line, delivery, reason, tries)
        except _Refused as error:
            line.view.failed_tries += 1
            line.view.problem = str(error)
            await self._give_up(line, delivery, str(error), tries)
        except Exception as error:  # a fault of ours must not end the line
            log.exception("webhook %s: %s cannot be sent", line.hook.name, delivery.id)
            await self._give_up(line, delivery, f"it could not be sent: {error!r}", tries)
        else:
            if self._again.pop(delivery.id, None) is not None:
                await self._save()
            line.view.delivered += 1
            line.view.problem = ""

    async def _try(self, line: _Line, delivery: Delivery) -> None:
        text, now = delivery.body.encode(), int(self._clock.wall())
        try:
            status = await self._post(line.hook.url, text, headers(delivery, line.hook.secret, now))
        except OSError as error:
            raise _Again(str(error)) from error
        if 200 <= status < 300:
            return
        if final(status):
            raise _Refused(f"it answered {status}")
        raise _Again(f"it answered {status}")

    async def _give_up(self, line: _Line, delivery: Delivery, reason: str, tries: int) -> None:
        self._bury(line, delivery, reason, tries)
        await self._save()

    def _bury(self, line: _Line, delivery: Delivery, reason: str, tries: int) -> None:
        line.view.dead += 1
        log.warning("webhook %s: %s was given up: %s", line.hook.name, delivery.id, reason)
        self._again.pop(delivery.id, None)
        self._unsaved = True
        self._dead.append(DeadLetter(delivery, reason[:500], tries, self._clock.wall()))
        del self._dead[:-DEAD]

    async def _save(self) -> bool:
        async with self._saving:
            self._unsaved = False
            try:
                await self._letters.save([*self._dead, *self._again.values()])
            except MMError as error:  # they are still here, and are saved with the next one
                self._unsaved = True
                log.warning("dead letters of webhooks cannot be kept now: %s", error)
                return False
        return True

    async def _write_down(self) -> None:
        while True:
            await self._clock.sleep(EVERY)
            await self._came()

    async def _came(self) -> None:
        """Write down how far the events were delivered, if that is further; what was given up has to be kept before."""
        if not self._lines or (self._unsaved and not await self._save()):
            return
        done = {name: line.behind(self._seen) for name, line in self._lines.items()}
        seq = min(done.values(), default=self._seen)
        while len(self._named) > 1 and self._named[1][0] <= seq:
            self._named.popleft()
        place = Place(seq, done, self._named[0][1])
        if place == self._place:
            return
        try:
            await self._letters.came(place)
        except MMError as error:  # then more is sent twice
            log.warning("how far the events for webhooks were delivered cannot be kept now: %s", error)
        else:
            self._place = place
