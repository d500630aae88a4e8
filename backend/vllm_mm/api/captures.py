"""`/api/requests/{id}/capture`: a whole request and its answer, where they were captured."""

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from vllm_mm.api.auditing import ActingRoute
from vllm_mm.api.dependencies import MayReadCaptures, The, cause, operation_id
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.gateway.capture_text import curl

router = APIRouter(
    route_class=ActingRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/requests",
    tags=["requests"],
    responses=REFUSALS,
)


class BodyOut(Out):
    """A body, or its beginning."""

    text: str | None = None
    base64: str | None = None
    """What is no text."""
    size: int
    """Bytes of the whole."""
    cut: bool
    """Only the beginning was kept (`captures.body`)."""
    redacted: bool
    """Values of `captures.redact` were taken out."""


class CapturedRequestOut(Out):
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: BodyOut
    """Empty for a form, of which nothing is kept."""


class CapturedAnswerOut(Out):
    status: int
    headers: list[tuple[str, str]]
    body: BodyOut


class CaptureOut(Out):
    """A request and its answer as they passed, without secrets."""

    id: str
    row: dict[str, Any]
    """Its row of the ledger: model, key, outcome, times, tokens."""
    request: CapturedRequestOut
    answer: CapturedAnswerOut


class Shape(StrEnum):
    """How it is told."""

    JSON = "json"
    CURL = "curl"


@router.get(
    "/{id:path}/capture", name="get_capture", response_model=CaptureOut,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)  # fmt: skip
async def get_capture(
    the: The,
    key: MayReadCaptures,
    request: Request,
    id: str,  # noqa: A002  # the path's name
    shape: Annotated[
        Shape,
        Query(alias="as", description="`curl`: a command that sends the request again, with the key in VLLM_MM_TOKEN."),
    ] = Shape.JSON,
) -> Any:
    """A request and its answer as they passed, by the request's id or `X-Request-Id`, without secrets. Whoever looks is in the events."""
    found = await the.captures.get(id)
    the.journal.emit("capture.read", cause=cause(key), data={"id": found["id"]})
    if shape is Shape.CURL:
        return Response(curl(found, str(request.base_url)), media_type="text/plain")
    return found
