"""How slow a client may be with its body, and with taking its answer."""

import socket

from vllm_mm.api.framing import taken
from vllm_mm.domain.errors import RequestTooSlow
from vllm_mm.gateway.ports import Rules


class BodyPace:
    """A body may pause for `limits.body_timeout`, and has to come at `limits.body_rate` on the whole, after as much time."""

    __slots__ = ("_rate", "_since", "_timeout", "_touched")

    def __init__(self, rules: Rules, now: float) -> None:
        """From `now` on (monotonic seconds) the client is waited for."""
        self._timeout = rules.body_timeout
        self._rate = rules.body_rate
        self._since = self._touched = now

    def came(self, now: float, waited_for_us: float = 0.0) -> None:
        """Some of it. `waited_for_us`: seconds for which nobody read what it sends."""
        self._touched = now
        self._since += waited_for_us

    def left(self, now: float, size: int) -> float:
        """Seconds that it still has, with `size` bytes so far; none or fewer: it is too slow."""
        return min(self._touched + self._timeout, self._since + self._timeout + size / self._rate) - now

    def too_slow(self) -> RequestTooSlow:
        return RequestTooSlow(
            f"The body did not come in time: it may pause for {self._timeout:g} s (limits.body_timeout), and has to come at "
            f"{self._rate} bytes a second on the whole (limits.body_rate)."
        )


class Uptake:
    """Whether a client takes what is sent to it."""

    __slots__ = ("_since", "_taken")

    def __init__(self) -> None:
        self._taken: int | None = None
        self._since: float | None = None

    def stalled_for(self, sock: socket.socket | None, unsent: int, now: float) -> float:
        """Seconds for which bytes have been waiting here and the client took none. To be asked again and again. `unsent`: bytes
        that the operating system has not taken."""
        if unsent == 0:
            self._since = None
            return 0.0
        acknowledged = taken(sock)
        so_far = -unsent if acknowledged is None else acknowledged
        if self._since is None or self._taken is None or so_far > self._taken:
            self._taken, self._since = so_far, now
        return now - self._since
