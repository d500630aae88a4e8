"""The one table from the product's errors to HTTP, for the data plane and for the admin API."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from vllm_mm.domain.errors import (
    BadRequest,
    ConfigError,
    Conflict,
    Forbidden,
    MMError,
    NoDiskRoom,
    NotFound,
    Outdated,
    PayloadTooLarge,
    RateLimited,
    RequestCancelled,
    RequestCut,
    RequestTooSlow,
    Unauthorized,
    Unavailable,
    UnknownModel,
    UnknownRoute,
    UnsupportedEncoding,
    UpgradeRefused,
    UpstreamDied,
    UpstreamTimeout,
)
from vllm_mm.gateway.compressed import CODINGS
from vllm_mm.gateway.ports import Problem
from vllm_mm.store.failures import DatabaseFull


class MethodNotAllowed(MMError):
    """A known path with a method that it does not have."""

    code = "method_not_allowed"


class UpgradeRequired(MMError):
    """A path that is a WebSocket, asked for as if it were none."""

    code = "upgrade_required"


class Row(NamedTuple):
    """Which status an error has."""

    kind: type[MMError]
    status: int
    admin: int | None = None
    """In the admin API, where that differs: what is wrong in a declaration is told as what is wrong in any other body
    there, which FastAPI answers with 422; OpenAI's API, and with it the data plane, says 400."""


TABLE: Final[tuple[Row, ...]] = (
    Row(PayloadTooLarge, 413),
    Row(RequestTooSlow, 408),
    Row(UnsupportedEncoding, 415),
    Row(BadRequest, 400, admin=422),
    Row(ConfigError, 400, admin=422),
    Row(Unauthorized, 401),
    Row(Forbidden, 403),
    Row(UnknownModel, 404),
    Row(UnknownRoute, 404),
    Row(NotFound, 404),
    Row(MethodNotAllowed, 405),
    Row(Conflict, 409),
    Row(Outdated, 412),
    Row(UpgradeRequired, 426),
    Row(RateLimited, 429),
    Row(UpstreamDied, 502),
    Row(UpgradeRefused, 502),
    Row(DatabaseFull, 507),
    Row(NoDiskRoom, 507),
    Row(Unavailable, 503),
    Row(RequestCancelled, 410),
    Row(RequestCut, 503),
    Row(UpstreamTimeout, 504),
)
"""The first that fits counts, so special kinds stand before their base."""

_HEADERS: Final[Mapping[int, Mapping[bytes, bytes]]] = {
    401: {b"www-authenticate": b"Bearer"},
    415: {b"accept-encoding": CODINGS},
}
"""What HTTP wants beside a status (RFC 9110, 11.6.1 and 15.5.16)."""
RETRY_AFTER_MAX: Final = 60
"""openai-python gives up at once above 120 s, older versions above 60 s."""
_RETRY_AFTER_DEFAULT: Final = 5


def explain(error: BaseException) -> Problem:
    """What a client of the data plane is told. An error that is not one of ours shows nothing of itself: it may hold
    anything."""
    if not isinstance(error, MMError):
        return Problem(500, "The server failed on this request; its log says why.", MMError.code)
    row = _row(error)
    status = row.status if row is not None else 500
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
        headers=_HEADERS.get(status, {}),
        reason=error.reason.value if error.reason is not None else "",
    )


def explain_admin(error: BaseException) -> Problem:
    """What a client of the admin API is told."""
    problem = explain(error)
    row = _row(error)
    return problem if row is None or row.admin is None else replace(problem, status=row.admin)


def _row(error: BaseException) -> Row | None:
    return next((row for row in TABLE if isinstance(error, row.kind)), None)
