"""The one table from the product's errors to HTTP."""

import math
from typing import Final

from vllm_mm.domain.errors import (
    BadRequest,
    ConfigError,
    Conflict,
    Forbidden,
    MMError,
    PayloadTooLarge,
    RateLimited,
    RequestCut,
    Unauthorized,
    Unavailable,
    UnknownModel,
    UnknownRoute,
    UpstreamDied,
    UpstreamTimeout,
)
from vllm_mm.gateway.ports import Problem

STATUS: Final[tuple[tuple[type[MMError], int], ...]] = (
    (PayloadTooLarge, 413),
    (BadRequest, 400),
    (ConfigError, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (UnknownModel, 404),
    (UnknownRoute, 404),
    (Conflict, 409),
    (RateLimited, 429),
    (UpstreamDied, 502),
    (Unavailable, 503),
    (RequestCut, 503),
    (UpstreamTimeout, 504),
)
"""The first that fits counts, so special kinds stand before their base."""

RETRY_AFTER_MAX: Final = 60
"""openai-python gives up at once above 120 s, older versions above 60 s."""
_RETRY_AFTER_DEFAULT: Final = 5


def explain(error: BaseException) -> Problem:
    """What a client is told. An error that is not one of ours shows nothing of itself: it may hold anything."""
    if not isinstance(error, MMError):
        return Problem(500, "The server failed on this request; its log says why.", MMError.code)
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
    retry_after = None
    if status in {429, 503}:
        seconds = _RETRY_AFTER_DEFAULT if error.retry_after is None else error.retry_after
        retry_after = min(RETRY_AFTER_MAX, max(1, math.ceil(seconds)))
    return Problem(
        status,
        error.message,
        error.code,
        param="model" if isinstance(error, UnknownModel) else getattr(error, "param", None),
        retry_after=retry_after,
        headers={b"www-authenticate": b"Bearer"} if status == 401 else {},
    )
