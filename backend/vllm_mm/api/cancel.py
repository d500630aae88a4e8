"""`/api/requests/{id}/cancel`: an operator ends a request that waits or runs."""

from fastapi import APIRouter

from vllm_mm.api.auditing import AuditedRoute, about
from vllm_mm.api.dependencies import Operator, The, cause, operation_id
from vllm_mm.api.schemas import REFUSALS, Out
from vllm_mm.domain.errors import Conflict, NotFound

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/requests",
    tags=["requests"],
    responses=REFUSALS,
)


class CancelledOut(Out):
    id: str
    cancelled: bool
    """Always true: whatever else became of it is a refusal."""


@router.post("/{id:path}/cancel", name="cancel_request")
async def cancel_request(the: The, key: Operator, id: str) -> CancelledOut:  # noqa: A002  # the path's name
    """End a request or a realtime session that waits or runs, by its id or its `X-Request-Id`. Its client gets an error of its API with
    the code `cancelled`: 410, or an event where the stream has begun. 409 when it is over, 404 when it is not known."""
    if not await the.cancel(id, "an operator"):
        await the.written()
        row = await the.ledger.find(id)
        if row is None:
            raise NotFound(
                f"There is no request {id!r} that waits or runs, and none in the ledger. GET /api/requests lists it."
            )
        raise Conflict(f"The request {id} is over already: {row.outcome.value}, after {row.total_s:.1f} s.")
    the.journal.emit("request.cancelled", cause=cause(key), data={"id": id})
    about(id, before={"state": "running"}, after={"state": "cancelled"})
    return CancelledOut(id=id, cancelled=True)
