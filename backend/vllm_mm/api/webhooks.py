"""`/api/webhooks`: how the hooks of the configuration do, and what could not be delivered."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.dependencies import Operator, Reader, The, operation_id
from vllm_mm.api.schemas import REFUSALS, Out

router = APIRouter(
    generate_unique_id_function=operation_id, prefix="/api/webhooks", tags=["webhooks"], responses=REFUSALS,
    route_class=AuditedRoute,
)  # fmt: skip


class WebhookOut(Out):
    name: str
    events: list[str]
    waiting: int
    delivered: int
    failed_tries: int
    dead: int
    """Given up since the server began."""
    problem: str
    """Why the latest try came to nothing; empty when it did not."""


class DeadLetterOut(Out):
    id: str
    """Of the delivery, as in `X-VLLM-MM-Delivery`."""
    hook: str
    event: str
    seq: int
    """The number of the event."""
    body: str
    """What was to be sent."""
    reason: str
    attempts: int
    at: float
    """Unix time at which it was given up."""


class RetriedOut(Out):
    retried: int


@router.get("", name="list_webhooks")
async def list_webhooks(the: The, _key: Reader) -> list[WebhookOut]:
    """The hooks of the configuration, without their addresses, and how they do."""
    return [WebhookOut(**_listed(asdict(view))) for view in the.webhooks.hooks]


def _listed(view: dict[str, Any]) -> dict[str, Any]:
    return {**view, "events": list(view["events"])}


@router.get("/dead", name="list_dead_letters")
async def list_dead(the: The, _key: Reader) -> list[DeadLetterOut]:
    """What was given up, newest first; the oldest of more than 200 are forgotten."""
    return [
        DeadLetterOut(
            id=d.delivery.id, hook=d.delivery.hook, event=d.delivery.event, seq=d.delivery.seq, body=d.delivery.body,
            reason=d.reason, attempts=d.attempts, at=d.at,
        )
        for d in reversed(the.webhooks.dead)
    ]  # fmt: skip


@router.post("/dead/retry", name="retry_dead_letters")
async def retry_all(the: The, _key: Operator) -> RetriedOut:
    """Send all of them again, whose hook is still configured."""
    return RetriedOut(retried=await the.webhooks.retry_all())


@router.post("/dead/{id}/retry", name="retry_dead_letter")
async def retry_one(the: The, _key: Operator, id: str) -> RetriedOut:  # noqa: A002  # the path's name
    """Send it again, with the same id and a new signature."""
    await the.webhooks.retry(id)
    return RetriedOut(retried=1)
