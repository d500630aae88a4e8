"""A connection that ends what takes too long: a head, a body, an answer that nobody takes, and idleness. One timer for each
connection, whatever comes on it."""

import abc
import asyncio
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from vllm_mm.api.pace import BodyPace, Uptake
from vllm_mm.domain.errors import RequestCut, RequestTooSlow
from vllm_mm.gateway.ports import Rules

SLACK: Final = 5.0
"""Seconds for which the connection leaves it to the application to say that its client is too slow."""


class TimedProtocol(HttpToolsProtocol, abc.ABC):
    """The times of a connection. Who subclasses it keeps what is said here of the request under way, and acts on it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None,
        *,
        rules: Rules,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._rules = rules
        self._asgi: RequestResponseCycle | None = None
        """The request of the application whose turn it is."""
        self._dropping = False
        """What comes is not read any more: the connection is about to close."""
        self._in_head = False
        self._head_since = 0.0
        self._pace: BodyPace | None = None
        """Of the request whose turn it is, while its body comes."""
        self._uptake = Uptake()
        self._free_since = 0.0
        """Since when no request is under way."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._free_since = self.loop.time()
        self._timer = self.loop.call_later(self._interval, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    # For who subclasses it

    @property
    @abc.abstractmethod
    def _body_size(self) -> int:
        """Bytes of the body that is coming."""

    @abc.abstractmethod
    def _too_slow(self, error: RequestTooSlow) -> None:
        """The body of the request under way does not come; nothing of its answer went out."""

    @abc.abstractmethod
    def _not_taken(self, error: RequestCut) -> None:
        """The client takes nothing of what is sent to it."""

    @abc.abstractmethod
    def _refuse_connection(self, status: int, message: str) -> None:
        """What came is no request: say so if it is its turn, and close."""

    # The timer

    @property
    def _interval(self) -> float:
        """Seconds between two looks."""
        rules = self._rules
        return min(rules.keep_alive, rules.header_timeout, rules.body_timeout, rules.send_timeout)

    def _check(self) -> None:
        rules, now, again = self._rules, self.loop.time(), self._interval
        cycle: Any = self.cycle
        unsent = self.transport.get_write_buffer_size()
        if self._uptake.stalled_for(self.transport.get_extra_info("socket"), unsent, now) >= rules.send_timeout:
            self._not_taken(
                RequestCut(f"The client took nothing of its answer for {rules.send_timeout:g} s (limits.send_timeout).")
            )
        elif self.transport.is_closing():
            if unsent == 0:
                return
        elif self._dropping:
            pass
        elif self._pace is not None:
            again = min(again, self._check_pace(self._pace, now))
        elif cycle is not None and not cycle.response_complete:
            pass  # it is being answered
        elif self._in_head:
            again = min(again, self._head_since + rules.header_timeout - now)
            if again <= 0:
                self._refuse_connection(
                    408, f"The request's head took longer than {rules.header_timeout:g} s (limits.header_timeout)."
                )
        else:
            idle = rules.header_timeout if cycle is None else rules.keep_alive
            again = min(again, self._free_since + idle - now)
            if again <= 0:
                self.transport.close()
        self._timer = self.loop.call_later(max(0.01, again), self._check)

    def _check_pace(self, pace: BodyPace, now: float) -> float:
        """When to look again, in seconds."""
        cycle = self._asgi
        if cycle is None:
            left = pace.left(now, self._body_size)
            if left <= 0:
                self._too_slow(pace.too_slow())
            return left
        if not cycle.more_body or cycle.response_complete:
            self._pace = None
            return self._interval
        if self.flow.read_paused:  # it is not the client who is slow
            self._pace = BodyPace(self._rules, now)
            return self._interval
        left = pace.left(now, self._body_size) + SLACK
        if left <= 0:
            self._pace = None
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
            else:
                self._too_slow(pace.too_slow())
        return left
