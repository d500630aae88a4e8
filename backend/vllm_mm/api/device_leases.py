"""`/api/devices/leases`: device memory for something else than engines, such as a training job or a game."""

from fastapi import APIRouter, Response

from vllm_mm.api import present
from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.dependencies import MayEvict, Operator, Reader, The, Wait, cause, operation_id
from vllm_mm.api.inputs import DeviceLeaseIn
from vllm_mm.api.schemas import REFUSALS, DeviceLeaseOut
from vllm_mm.domain.device_leases import Stage
from vllm_mm.domain.errors import Conflict

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/devices",
    tags=["status"],
    responses=REFUSALS,
)


@router.get("/leases", name="list_device_leases")
async def list_device_leases(the: The, _key: Reader) -> list[DeviceLeaseOut]:
    """Those that wait for their room, that are held, and that ended but whose models are still coming back."""
    return [present.device_lease(lease) for lease in the.device_leases.all()]


@router.get("/leases/{lease}", name="get_device_lease")
async def get_device_lease(the: The, _key: Reader, lease: str) -> DeviceLeaseOut:
    """One of them."""
    return present.device_lease(the.device_leases.get(lease))


@router.post(
    "/{device}/leases", name="ask_for_device_lease", status_code=202,
    responses={200: {"model": DeviceLeaseOut, "description": "The memory is free, with `wait`."}},
)  # fmt: skip
async def ask_for_device_lease(
    the: The, key: MayEvict, response: Response, device: str, body: DeviceLeaseIn, wait: Wait = None
) -> DeviceLeaseOut:
    """Drain, sleep or stop the cheapest models until that much of the device is free, and keep it free for a while; then
    what went and was wanted is started again. 409 with the reason where it can never be."""
    lease = await the.device_leases.ask(device, body.free, body.seconds, body.note, cause(key))
    if wait:
        lease = await the.device_leases.settled(lease, wait)
    if lease.stage is Stage.ENDED:
        raise Conflict(f"The memory was not freed: {lease.reason}")
    if wait is not None and lease.stage is Stage.HELD:
        response.status_code = 200
    return present.device_lease(lease)


@router.delete("/leases/{lease}", name="end_device_lease")
async def end_device_lease(the: The, key: Operator, lease: str) -> DeviceLeaseOut:
    """End it now: the memory is the models' again."""
    return present.device_lease(await the.device_leases.end(lease, cause(key)))
