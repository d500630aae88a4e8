"""How waits go that somebody in a worker is told of."""

from typing import Any, Final, Protocol

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.manager import ProcessManager

TELL_EVERY: Final = 0.5
"""Seconds between two words about a wait."""


class Wire(Protocol):
    """A `Link`."""

    def send(self, message: Any) -> None: ...


class Followed:
    """The tickets of one worker that are followed."""

    def __init__(self, wire: Wire, manager: ProcessManager, clock: Clock) -> None:
        self._wire = wire
        self._manager = manager
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}
        self._teller: Timer | None = None

    def follow(self, message: say.Follow) -> None:
        """From now on; or not any more."""
        if message.on:
            self._tickets[message.ticket] = Ticket(message.ticket, message.model, 0.0, 0.0)
            self._tell()
        else:
            self._tickets.pop(message.ticket, None)

    def end(self) -> None:
        """The worker is gone."""
        if self._teller is not None:
            self._teller.cancel()

    def _tell(self) -> None:
        """Now, and again while anybody asks."""
        if self._teller is not None:
            self._teller.cancel()
            self._teller = None
        for ticket in tuple(self._tickets.values()):
            try:
                wait = self._manager.wait_info(ticket)
            except MMError:
                del self._tickets[ticket.id]
                continue
            self._wire.send(say.Wait(ticket.id, wait.position, wait.phase, wait.percent, wait.eta_s))
        if self._tickets:
            self._teller = self._clock.call_at(self._clock.now() + TELL_EVERY, self._tell)
