"""What the ledger calls the end of a request, by the error that ended it."""

from collections.abc import Sequence
from typing import Final

from vllm_mm.domain.errors import (
    BadRequest,
    Forbidden,
    MMError,
    NoRoom,
    QueueFull,
    RateLimited,
    RequestCut,
    ResponseGone,
    ResponseOutOfReach,
    ShuttingDown,
    StartFailed,
    StillLoading,
    TornDown,
    Unauthorized,
    UnknownModel,
    UnknownRoute,
    UpgradeRefused,
    UpstreamDied,
    UpstreamTimeout,
)
from vllm_mm.domain.usage import Outcome

_OUTCOMES: Final[Sequence[tuple[type[MMError], Outcome]]] = (
    (BadRequest, Outcome.BAD_REQUEST),
    (Unauthorized, Outcome.REFUSED),
    (Forbidden, Outcome.REFUSED),
    (UnknownModel, Outcome.REFUSED),
    (UnknownRoute, Outcome.REFUSED),
    (ResponseGone, Outcome.REFUSED),
    (ResponseOutOfReach, Outcome.REFUSED),
    (RateLimited, Outcome.REFUSED),
    (QueueFull, Outcome.QUEUE_FULL),
    (StillLoading, Outcome.WAIT_EXPIRED),
    (StartFailed, Outcome.START_FAILED),
    (NoRoom, Outcome.START_FAILED),
    (TornDown, Outcome.TORN_DOWN),
    (ShuttingDown, Outcome.SHUTDOWN),
    (UpstreamDied, Outcome.UPSTREAM_DIED),
    (UpgradeRefused, Outcome.UPSTREAM_ERROR),
    (UpstreamTimeout, Outcome.TIMEOUT),
    (RequestCut, Outcome.CUT),
)


def outcome_of(error: BaseException) -> Outcome:
    """Of a request that ended with it."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), Outcome.INTERNAL)
