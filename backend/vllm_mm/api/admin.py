"""What anybody with the scope may look at: instances, devices, the queue, plans, status, requests."""

from collections import Counter
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from vllm_mm.api import present
from vllm_mm.api.alerts import alerts
from vllm_mm.api.dependencies import ROW_MAX, Reader, The, operation_id, resolve
from vllm_mm.api.plan_schemas import PlanOut
from vllm_mm.api.rows import RequestOut, RequestsOut, UnderWayOut
from vllm_mm.api.schemas import (
    REFUSALS,
    DeviceOut,
    InstanceOut,
    QueueEntryOut,
    QueueOut,
    QueueSummaryOut,
    StatusOut,
)
from vllm_mm.control.plan import plan
from vllm_mm.control.rules import policy
from vllm_mm.domain.lifecycle import LIVE, State
from vllm_mm.domain.usage import Outcome
from vllm_mm.engine.devices.host import free_memory
from vllm_mm.store.usage import Filter

router = APIRouter(generate_unique_id_function=operation_id, prefix="/api", tags=["status"], responses=REFUSALS)


@router.get("/instances", name="list_instances")
async def list_instances(the: The, _key: Reader) -> list[InstanceOut]:
    """Every instance that ran or is about to."""
    catalog = the.manager.catalog
    models = [i.spec.id for i in the.manager.instances() if i.spec.id in catalog or i.state in LIVE]
    return [present.instance(the.manager, m) for m in models if present.has_run(the.manager, m)]


@router.get("/devices", name="list_devices")
async def list_devices(the: The, _key: Reader) -> list[DeviceOut]:
    """Every device: capacity, what others use, who has reserved what."""
    ledger = the.manager.ledger
    strangers = the.manager.strangers()
    return [present.device(device, ledger, strangers) for device in ledger.devices.values()]


@router.get("/queue", name="get_queue")
async def get_queue(the: The, _key: Reader) -> QueueOut:
    """Who waits for what, and why."""
    return QueueOut(
        length=the.queue.size, max_size=the.settings.queue.max_size, oldest_s=the.queue.oldest_age(),
        entries=[QueueEntryOut(**asdict(entry)) for entry in the.queue.entries()],
    )  # fmt: skip


@router.get("/plan", name="get_plan")
async def get_plan(the: The, _key: Reader, model: Annotated[str, Query(description="Id or alias.")]) -> PlanOut:
    """What a load would do: who would go, where it would run, how long it would take. Changes nothing."""
    rules = policy(the.settings).rules
    return present.plan(plan(the.manager, resolve(the, model), rules, the.clock.now()))


@router.get("/status", name="get_status")
async def get_status(the: The, _key: Reader) -> StatusOut:
    """One look at the whole server."""
    specs, instances = list(the.manager.catalog), {i.spec.id: i for i in the.manager.instances()}
    idle = [s for s in specs if s.id not in instances]
    states = Counter(
        i.state for i in instances.values() if i.spec.id in the.manager.catalog or i.state is not State.STOPPED
    )
    states[State.STOPPED] += len(idle)
    return StatusOut(
        version=the.version, started_at=the.started_at, uptime_s=round(the.clock.wall() - the.started_at, 3),
        models=len(specs), states={s: n for s, n in states.items() if n},
        in_flight=sum(i.gate.count for i in instances.values()),
        queue=QueueSummaryOut(length=the.queue.size, oldest_s=the.queue.oldest_age()),
        forecasts={s: present.accuracy(a) for s, a in the.manager.forecast.accuracy.items()},
        host_memory=present.host_memory(the.manager.host_memory, free_memory()), alerts=alerts(the),
    )  # fmt: skip


@router.get("/requests/running", name="list_running")
async def list_running(
    the: The, _key: Reader, limit: Annotated[int, Query(ge=1, le=1000, description="So many of the oldest.")] = 200
) -> UnderWayOut:
    """Requests and realtime sessions under way, in all processes of the server: how far each is, and since when."""
    return UnderWayOut.of(await the.running(limit))


@router.get("/requests", name="list_requests")
async def list_requests(
    the: The,
    _key: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, le=ROW_MAX, description="`next` of the page before.")] = None,
    model: str | None = None,
    key: Annotated[str | None, Query(description="The key's id.")] = None,
    outcome: Outcome | None = None,
) -> RequestsOut:
    """The request ledger, newest first. Rows are written a moment after their request ended."""
    page = await the.ledger.recent(Filter(model=model, key=key, outcome=outcome), limit=limit, before=before)
    return RequestsOut(requests=[RequestOut.of(r) for r in page.records], next=page.next)
