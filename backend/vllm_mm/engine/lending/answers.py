"""What the controller asks of a worker and waits for: each question has a number, and the answer bears it."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from vllm_mm.clock import Clock

T = TypeVar("T")


class Wire(Protocol):
    """A `Link`."""

    def send(self, message: Any) -> None: ...


class Answers:
    """Those of one worker. `patience`: seconds after which one that does not come is given up."""

    def __init__(self, wire: Wire, clock: Clock, patience: float) -> None:
        self._wire: Final = wire
        self._clock: Final = clock
        self._patience: Final = patience
        self._asked: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._number = 0

    async def to(self, question: Callable[[int], Any], *, otherwise: T) -> T:
        """The answer to what `question` makes of a number; `otherwise` where none comes in time, or the worker is gone."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer, otherwise
        late = self._clock.call_at(self._clock.now() + self._patience, lambda: self.heard(number, otherwise))
        self._wire.send(question(number))
        try:
            return await answer
        finally:
            late.cancel()
            self._asked.pop(number, None)

    def heard(self, number: int, answer: Any) -> None:
        """It came; one that nobody waits for any more is dropped."""
        asked = self._asked.pop(number, None)
        if asked is not None and not asked[0].done():
            asked[0].set_result(answer)

    def end(self) -> None:
        """The worker is gone, and says nothing more."""
        for number, (_, otherwise) in tuple(self._asked.items()):
            self.heard(number, otherwise)
