"""Webhooks: events go to whoever the configuration names, and nobody waits for them.

Each hook has a bounded queue and a task of its own, so that a receiver that is slow or away holds up neither the server nor
another hook. What is refused for good, tried in vain or finds its queue full becomes a dead letter, which an operator can have
sent again.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base, wait_exponential, wait_random

from vllm_mm.clock import Clock, RealClock
from vllm_mm.domain.errors import MMError, NotFound
from vllm_mm.domain.events import Event
from vllm_mm.domain.webhooks import DeadLetter, Delivery, Hook, Namer, body, final, headers
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
WAIT: Final = wait_exponential(multiplier=0.5, max=60.0) + wait_random(0, 0.5)
"""Between two tries: half a second, doubled each time, and a little more so that hooks do not try all at once."""


class Letters(Protocol):
    """Where dead letters are kept (`store.dead_letters`)."""

    async def all(self) -> Sequence[DeadLetter]: ...
    async def save(self, letters: Sequence[DeadLetter]) -> None: ...


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
        self._saving = asyncio.Lock()

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
                line.put(letter.delivery)
            else:
                self._dead.append(letter)

    async def run(self, journal: Journal) -> None:
        """Until it is cancelled; what waits then becomes dead letters."""
        workers = [asyncio.create_task(self._work(line), name=f"webhook {name}") for name, line in self._lines.items()]
        try:
            async with journal.subscribe() as events:
                async for event in events:
                    self.take(event)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            left = [
                (line, delivery)
                for line in self._lines.values()
                for delivery in (*(() if line.sending is None else (line.sending,)), *line.waiting)
            ]
            for line, delivery in left:
                self._bury(line, delivery, ENDED, 0)
            if left:
                await self._save()

    def take(self, event: Event) -> None:
        """Queue it for the hooks that want it. Immediate."""
        if event.kind == LAGGED:
            log.warning("webhooks were too slow for the events: %s were not looked at", event.data.get("lost"))
            return
        names = self._names(event)
        for line in self._lines.values():
            name = line.hook.wants(event, names)
            if name is None:
                continue
            number = f"dlv_{secrets.token_hex(8)}"
            made = Delivery(number, line.hook.name, name, event.seq, body(number, name, event), self._clock.wall())
            self._queue(line, made)

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
        self._queue(line, letter.delivery)
        await self._save()

    async def retry_all(self) -> int:
        """Those whose hook is still there; how many."""
        again = [d for d in self._dead if d.delivery.hook in self._lines]
        self._dead = [d for d in self._dead if d not in again]
        for letter in again:
            self._queue(self._lines[letter.delivery.hook], letter.delivery)
        if again:
            await self._save()
        return len(again)

    async def _work(self, line: _Line) -> None:
        while True:
            await line.some.wait()
            line.some.clear()
            while line.waiting:
                line.sending = line.waiting.popleft()
                await self._deliver(line, line.sending)
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
        self._dead.append(DeadLetter(delivery, reason[:500], tries, self._clock.wall()))
        del self._dead[:-DEAD]

    async def _save(self) -> None:
        async with self._saving:
            try:
                await self._letters.save(self._dead)
            except MMError as error:  # they are still here, and are saved with the next one
                log.warning("dead letters of webhooks cannot be kept now: %s", error)
