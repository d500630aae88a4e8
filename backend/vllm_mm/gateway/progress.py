"""Comments in the event stream of a client that asked for them (X-VLLM-MM-Progress): while it waits for its model, and while
its request is frozen in a sleeping engine."""

from collections.abc import Callable
from typing import Final

from vllm_mm.clock import Clock, Timer
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.gateway.ports import Leases, LeaseView, WaitView
from vllm_mm.gateway.relay import Relay
from vllm_mm.gateway.routes import Form

FIRST: Final = 0.05
"""Seconds after which a wait is one; a quicker lease leaves the engine's own head untouched."""
STILL: Final = 0.3
"""Seconds after which a freeze is told: until then the engine may still send what it had made before it stood still."""


class Comments:
    """From the first comment on the client's status is out, so an error can only be told as an event."""

    def __init__(self, leases: Leases, clock: Clock, relay: Relay, ticket: Ticket, every: float) -> None:
        self._leases = leases
        self._clock = clock
        self._relay = relay
        self._ticket = ticket
        self._every = every
        self._resumed: Callable[[], None] | None = None
        self._timer: Timer | None = None
        leases.follow(ticket, on=True)
        self._arm(FIRST, self._waits)

    def leased(self, lease: LeaseView) -> None:
        """The wait is over; from now on a freeze is told, and until the first token that it lives."""
        lease.on_freeze = self._on_freeze
        self._arm(self._every, self._lives)

    def waits_again(self) -> None:
        """Its engine died, and it waits for another one."""
        self._arm(FIRST, self._waits)

    def stop(self) -> None:
        """The request is over."""
        self._disarm()
        self._leases.follow(self._ticket, on=False)

    def _on_freeze(self, frozen: bool) -> None:
        if frozen:
            self._arm(STILL, self._stands_still)
            return
        self._disarm()
        if self._resumed is not None:
            self._resumed()
            self._resumed = None
        self._arm(self._every, self._lives)

    def _waits(self) -> None:
        if not self._relay.head_sent:
            self._relay.early_head()
        self._relay.comment(self._text(comment))
        self._arm(self._every, self._waits)

    def _lives(self) -> None:
        """The engine takes the prompt in: so that nobody on the way takes the connection for dead."""
        relay = self._relay
        began = relay.first_at is not None and relay.call.route.form is Form.OPENAI  # others say hello before
        if began or relay.meter.token_at is not None:
            return
        if relay.between_events:
            if not relay.head_sent:
                relay.early_head()
            relay.comment(b"keep-alive")
        self._arm(self._every, self._lives)

    def _stands_still(self) -> None:
        """Only between whole events. The `resumed` that belongs to it is written by whatever goes on first."""
        relay = self._relay
        if relay.between_events:
            if not relay.head_sent:
                relay.early_head()
            relay.comment(self._text(frozen))
            if self._resumed is None:
                self._resumed = relay.comment_before_next(b"resumed")
        self._arm(self._every, self._stands_still)

    def _text(self, form: "Callable[[str, WaitView | None], str]") -> bytes:
        model = self._ticket.model
        try:
            return form(model, self._leases.wait_info(self._ticket)).encode()
        except MMError:
            return form(model, None).encode()

    def _arm(self, seconds: float, tell: Callable[[], None]) -> None:
        self._disarm()

        def due() -> None:
            if self._timer is timer and not self._relay.client.gone and not self._relay.over:
                tell()

        self._timer = timer = self._clock.call_at(self._clock.now() + seconds, due)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def comment(model: str, wait: WaitView | None) -> str:
    """`queued position=2 model=x phase=weights 45% eta=12s`, on one line whatever the parts hold."""
    if wait is None:
        return _line(f"queued model={model}")
    parts = [f"queued position={wait.position} model={model}"]
    if wait.phase:
        parts.append(f"phase={wait.phase}")
    if wait.percent is not None:
        parts.append(f"{wait.percent:.0f}%")
    return _line(*parts, *_eta(wait))


def frozen(model: str, wait: WaitView | None) -> str:
    """`frozen model=x position=1 eta=5s`: the frozen requests of a model go on together, before those in its lane."""
    return _line(f"frozen model={model} position=1", *(() if wait is None else _eta(wait)))


def _eta(wait: WaitView) -> tuple[str, ...]:
    return () if wait.eta_s is None else (f"eta={wait.eta_s:.0f}s",)


def _line(*parts: str) -> str:
    return " ".join(" ".join(parts).split())
