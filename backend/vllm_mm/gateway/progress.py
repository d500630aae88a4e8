"""Comments in the event stream of a client that asked for them (X-VLLM-MM-Progress) while it waits for its model."""

from typing import Final

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.gateway.ports import Leases, WaitView
from vllm_mm.gateway.relay import Relay

FIRST: Final = 0.05
"""Seconds after which a wait is one; a quicker lease leaves the engine's own head untouched."""


class Comments:
    """From the first comment on the client's status is out, so an error can only be told as an event."""

    def __init__(self, leases: Leases, clock: Clock, relay: Relay, ticket: Ticket, every: float) -> None:
        self._leases = leases
        self._clock = clock
        self._relay = relay
        self._ticket = ticket
        self._every = every
        self._timer: Timer | None = clock.call_at(clock.now() + FIRST, self._tell)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        if self._timer is None or self._relay.client.gone:
            return
        if not self._relay.head_sent:
            self._relay.early_head()
        try:
            text = comment(self._ticket.model, self._leases.wait_info(self._ticket))
        except MMError:
            text = f"queued model={self._ticket.model}"
        self._relay.comment(text.encode())
        self._timer = self._clock.call_at(self._clock.now() + self._every, self._tell)


def comment(model: str, wait: WaitView) -> str:
    """`queued position=2 model=x phase=weights 45% eta=12s`, on one line whatever the parts hold."""
    parts = [f"queued position={wait.position} model={model}"]
    if wait.phase:
        parts.append(f"phase={wait.phase}")
    if wait.percent is not None:
        parts.append(f"{wait.percent:.0f}%")
    if wait.eta_s is not None:
        parts.append(f"eta={wait.eta_s:.0f}s")
    return " ".join(" ".join(parts).split())
