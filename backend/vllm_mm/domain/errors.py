"""One tree of errors. A code is for programs, a message is for people and says what to do; HTTP is somebody else's."""

import re
from typing import ClassVar, Final

from vllm_mm.domain.reasons import Reason

_AGAIN: Final = re.compile(r"\btry(?: it)? again\b[^.;]*$", re.IGNORECASE)


def advised(what: str, advice: str) -> str:
    """`what` as a sentence and `advice` behind it, but for "Try again" where it ends with that itself."""
    what = what.rstrip(".")
    if advice.startswith("Try again") and _AGAIN.search(what) is not None:
        return f"{what}."
    return f"{what}. {advice}"


class MMError(Exception):
    """Base of everything that the product raises on purpose.

    `retry_after` is in seconds and only set where trying again can help.
    """

    code: ClassVar[str] = "internal_error"
    because: ClassVar[Reason | None] = None
    """What it means of the scheduler or of the model's state, where nobody knows better."""
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after: float | None = None, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.reason = reason or self.because
        """What the scheduler or the model's state had to do with it; finer than `code`."""


class BadRequest(MMError):
    """The request cannot be understood."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PayloadTooLarge(BadRequest):
    code = "payload_too_large"


class RequestTooSlow(BadRequest):
    """The client did not send its body, or did not take its answer, in time."""

    code = "request_timeout"


class UnsupportedEncoding(BadRequest):
    """The body came in an encoding that is not read here."""

    code = "unsupported_encoding"


class UnknownModel(MMError):
    """No model, alias or adapter has that name."""

    code = "model_not_found"


class NotFound(MMError):
    """There is no such thing, where the thing is no model; the message says where to look."""

    code = "not_found"


class ResponseGone(NotFound):
    """No engine holds that response (any more), or it is not the key's."""

    code = "response_not_found"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownRoute(MMError):
    code = "unknown_route"


class Unauthorized(MMError):
    """No key, or one that nobody issued."""

    code = "invalid_api_key"


class Forbidden(MMError):
    """A good key that may not do this."""

    code = "permission_denied"


class RateLimited(MMError):
    """A key is at one of its limits."""

    code = "rate_limit_exceeded"
    retryable = True


class BudgetSpent(RateLimited):
    """A key has used up what it may use in a day or a month."""

    code = "insufficient_quota"
    retryable = False


class Conflict(MMError):
    """An act that contradicts what is going on; the message says what is going on."""

    code = "conflict"


class Outdated(MMError):
    """A change of something that somebody else has changed meanwhile; the caller has to look again first."""

    code = "precondition_failed"


class Unavailable(MMError):
    """Base of the refusals that become 503 with Retry-After."""

    code = "unavailable"
    retryable = True


class ResponseOutOfReach(Unavailable):
    """The engine that holds the response is there, and cannot be asked now."""

    code = "response_out_of_reach"


class NoDiskRoom(MMError):
    """The disk has no room for what is to come; the message gives the sums."""

    code = "no_disk_room"


class HubUnreachable(Unavailable):
    """The hub that weights come from does not answer, or not to the end."""

    code = "hub_unreachable"


class QueueFull(Unavailable):
    code = "queue_full"
    because = Reason.QUEUE_FULL


class StillLoading(Unavailable):
    """The caller's wait is over and the model is not there yet."""

    code = "model_loading"
    because = Reason.LOADING


class TornDown(Unavailable):
    """The engine is being drained or stopped and cannot take this request in time."""

    code = "engine_teardown"
    because = Reason.STOPPING


class StartFailed(Unavailable):
    """The engine did not come up; carries the phase and the last lines of its log."""

    code = "model_start_failed"
    because = Reason.FAILED

    def __init__(
        self,
        message: str,
        *,
        phase: str = "",
        log_tail: tuple[str, ...] = (),
        retry_after: float | None = None,
        reason: Reason | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after, reason=reason)
        self.phase = phase
        self.log_tail = log_tail


class NoRoom(Unavailable):
    """The model fits nowhere, now or ever; the message gives the sums."""

    code = "no_room"
    because = Reason.NEVER


class ShuttingDown(Unavailable):
    code = "shutting_down"
    because = Reason.SHUTDOWN


class UpstreamDied(MMError):
    """The engine went away. `sent` tells whether it may have begun to work on the request,
    `started` whether the client has already seen a part of the answer."""

    code = "upstream_died"
    because = Reason.CUT
    retryable = True

    def __init__(self, message: str, *, sent: bool, started: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.started = started


class UpstreamTimeout(MMError):
    code = "upstream_timeout"


class SessionExpired(UpstreamTimeout):
    """A session was silent for too long, or is as old as one may get."""

    code = "session_expired"


class UpgradeRefused(MMError):
    """The engine answered a handshake with something else than a WebSocket."""

    code = "upstream_error"

    def __init__(self, message: str, *, status: int, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class UpstreamStalled(UpstreamTimeout):
    """The engine runs, and sends nothing for a stream that it has begun."""

    code = "upstream_stalled"


class RequestCut(MMError):
    """A running exchange was revoked: a drain ran out of time, or the instance was killed."""

    code = "request_cut"


class RequestCancelled(RequestCut):
    """An operator does not want this request to go on. It is not to be sent again, which clients do by themselves after 409 and 503."""

    code = "cancelled"


class ConfigError(MMError):
    """The configuration cannot be used; the message names file, line and the nearest known key."""

    code = "invalid_config"
