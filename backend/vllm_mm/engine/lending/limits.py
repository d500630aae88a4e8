"""Limits of keys over several processes: a worker asks the controller about each request of a key that has limits, so that they hold for all
processes together as they hold for one. A key without limits is asked about nowhere."""

import asyncio
from itertools import count
from typing import Any, Final, Protocol

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import Unavailable
from vllm_mm.domain.limits import Refusal, Standing
from vllm_mm.engine.lending import messages as say

PATIENCE: Final = 10.0
"""Seconds that a worker waits for the controller's word."""


class Wire(Protocol):
    """A `Link`."""

    def send(self, message: Any) -> None: ...


class Told(Protocol):
    """What is said of a request (`gateway.ports.Entered`)."""

    @property
    def refusal(self) -> Refusal | None: ...
    @property
    def standing(self) -> Standing | None: ...


class Limiting(Protocol):
    """The controller's book (`gateway.limits.LimitBook`)."""

    def enter_now(self, place: str, key: str, tokens: int) -> Told: ...
    def leave(self, place: str, tokens: int | None, device_seconds: float) -> None: ...
    def runs(self, place: str, key: str) -> None: ...
    def standing(self, key: str) -> Standing | None: ...


class Places:
    """What one worker has let in, at the controller. Names of requests are unique over all processes."""

    def __init__(self, wire: Wire, book: Limiting | None) -> None:
        """`book`: None where nothing is ever limited."""
        self._wire = wire
        self._book = book
        self._held: set[str] = set()

    def enter(self, message: say.Enter) -> None:
        told = self._book.enter_now(message.place, message.key, message.tokens) if self._book is not None else None
        if told is not None and told.refusal is None:
            self._held.add(message.place)
        self._wire.send(
            say.Entered(
                message.place, told.refusal if told is not None else None, told.standing if told is not None else None
            )
        )

    def runs(self, message: say.Runs) -> None:
        if self._book is not None:
            self._held.add(message.place)
            self._book.runs(message.place, message.key)

    def look(self, message: say.Look) -> None:
        standing = self._book.standing(message.key) if self._book is not None else None
        self._wire.send(say.Entered(message.place, None, standing))

    def leave(self, message: say.Leave) -> None:
        if message.place in self._held and self._book is not None:
            self._held.discard(message.place)
            self._book.leave(message.place, message.tokens, message.device_seconds)

    def end(self) -> None:
        """The worker is gone, and its requests with it: what they used is not known."""
        held, self._held = self._held, set()
        for place in held:
            if self._book is not None:
                self._book.leave(place, None, 0.0)


class Asking:
    """A worker's end (`gateway.ports.Gate`)."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._clock = clock
        self._asked: dict[str, asyncio.Future[say.Entered]] = {}
        self._looks = count()

    async def enter(self, place: str, key: str, tokens: int) -> say.Entered:
        """Raises Unavailable when the controller does not answer."""
        return await self._ask(place, say.Enter(place, key, tokens))

    async def look(self, key: str) -> Standing | None:
        """Raises as `enter`."""
        place = f"look {next(self._looks)}"  # no request is called so
        return (await self._ask(place, say.Look(place, key))).standing

    def runs(self, place: str, key: str) -> None:
        self._wire.send(say.Runs(place, key))

    async def _ask(self, place: str, question: say.Enter | say.Look) -> say.Entered:
        answer: asyncio.Future[say.Entered] = asyncio.get_running_loop().create_future()
        self._asked[place] = answer
        late = self._clock.call_at(self._clock.now() + PATIENCE, lambda: _give_up(answer))
        self._wire.send(question)
        try:
            return await answer
        finally:
            late.cancel()
            self._asked.pop(place, None)

    def leave(self, place: str, tokens: int | None, device_seconds: float) -> None:
        self._wire.send(say.Leave(place, tokens, device_seconds))

    def heard(self, message: say.Entered) -> None:
        """The controller's word."""
        answer = self._asked.get(message.place)
        if answer is not None and not answer.done():
            answer.set_result(message)


def _give_up(answer: asyncio.Future[say.Entered]) -> None:
    if not answer.done():
        answer.set_exception(Unavailable("The controller does not answer. Try again.", retry_after=5.0))
