"""`/health`, `/ready` and `/metrics`: for probes and Prometheus. None of them touches, uses or wakes a model."""

from fastapi import APIRouter, Request, Response

from vllm_mm.api import engine_metrics
from vllm_mm.api.alerts import problems
from vllm_mm.api.dependencies import The, caller, operation_id, require
from vllm_mm.api.metrics import CONTENT_TYPE
from vllm_mm.api.schemas import HealthOut, ReadyOut
from vllm_mm.domain.errors import UnknownRoute
from vllm_mm.domain.keys import Scope
from vllm_mm.settings import is_loopback

router = APIRouter(generate_unique_id_function=operation_id, tags=["operations"])


@router.get("/health", name="health")
async def health() -> HealthOut:
    """The process is alive and its event loop turns."""
    return HealthOut(status="ok")


@router.get("/ready", name="ready", responses={503: {"model": ReadyOut}})
async def ready(the: The, response: Response) -> ReadyOut:
    """Whether requests will be served; 503 with the reasons when they may not be."""
    reasons = problems(the)
    if reasons:
        response.status_code = 503
    return ReadyOut(ready=not reasons, reasons=reasons)


@router.get("/metrics", name="metrics", response_class=Response)
async def metrics(the: The, request: Request) -> Response:
    """Prometheus text: ours, and the engines' own with a `model` label. Other machines need a key that may read,
    unless `metrics.public` is set."""
    settings = the.settings.metrics
    if not settings.enabled:
        raise UnknownRoute("Metrics are turned off (`metrics.enabled: false`).")
    client = request.client.host if request.client is not None else ""
    # A unix socket has no client address, and whoever is on it is on this machine.
    if not settings.public and client and not is_loopback(client):
        require(caller(request), Scope.READ)
    text = the.metrics.text()
    if settings.engines:
        text += engine_metrics.merge(await engine_metrics.scrape(the.manager.instances()))
    return Response(text, media_type=CONTENT_TYPE)


for _path, _endpoint in (("/health", health), ("/ready", ready), ("/metrics", metrics)):
    # Load balancers and monitors ask so. Not in the document: it would be a second operation of the same name.
    router.add_api_route(_path, _endpoint, methods=["HEAD"], include_in_schema=False)
