"""llama-swap's own routes: what runs, unloading, logs. `/upstream/{model}/...` is in `upstream`."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Match
from starlette.types import Scope

from vllm_mm.api.auditing import ActingRoute, AuditedRoute
from vllm_mm.api.compat.access import ForPrograms, OperatorByGet, instance, unload, unload_all, usable
from vllm_mm.api.dependencies import MayEvict, MayReadLogs, Reader, Services, The, operation_id, resolve
from vllm_mm.api.live import SSE, stream_lines
from vllm_mm.api.log_reader import LogReader
from vllm_mm.domain.keys import Key
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import EngineKind, ModelSpec

router = APIRouter(generate_unique_id_function=operation_id, include_in_schema=False, route_class=ForPrograms)

STATES: Final[Mapping[State, str]] = {
    State.STARTING: "starting",
    State.WAKING: "starting",
    State.READY: "ready",
    State.DRAINING: "stopping",
    State.SUSPENDING: "stopping",
    State.STOPPING: "stopping",
}
"""In its words; a model in any other state does not run."""
TAIL: Final = 200
"""Lines of each model's log."""
_DONE: Final = "OK"


@router.get("/running", name="llama_swap_running")
async def running(the: The, key: Reader) -> dict[str, Any]:
    """The models that have an engine, and how that is doing."""
    found = ((spec, instance(the, spec)) for spec in usable(the, key))
    return {"running": [_entry(spec, i.state) for spec, i in found if i is not None and i.state in STATES]}


def _entry(spec: ModelSpec, state: State) -> dict[str, Any]:
    command = spec.command
    if spec.engine is EngineKind.VLLM:
        command = (spec.executable, "serve", spec.model or spec.id)
    return {
        "model": spec.id,
        "state": STATES[state],
        "cmd": shlex.join(command),
        "proxy": f"/upstream/{spec.id}",
        "ttl": int(spec.idle.stop_after or 0),
        "name": "",
        "description": "",
    }


async def unload_every(the: The, key: OperatorByGet) -> Response:
    """Let requests finish, then stop every engine."""
    await unload_all(the, key)
    return PlainTextResponse(_DONE)


router.add_api_route("/unload", unload_every, name="llama_swap_unload_all", route_class_override=ActingRoute)


class _BelowModels(AuditedRoute):
    """`/api/models/{id}` is this server's own: a model whose name begins so keeps its acts."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found = super().matches(scope)
        if found[0] is Match.NONE:
            return found
        names = scope["app"].state.services.manager.catalog.names()
        return (Match.NONE, {}) if any(n == "unload" or n.startswith("unload/") for n in names) else found


async def unload_one(the: The, key: MayEvict, model: str) -> Response:
    """Let its requests finish, then stop its engine."""
    await unload(the, model, key)
    return PlainTextResponse(_DONE)


async def unload_these(the: The, key: MayEvict) -> Response:
    """As `GET /unload`."""
    await unload_all(the, key)
    return PlainTextResponse(_DONE)


for _path, _endpoint in (("", unload_these), ("/{model:path}", unload_one)):
    router.add_api_route(
        f"/api/models/unload{_path}", _endpoint, methods=["POST"], name=f"llama_swap_{_endpoint.__name__}",
        route_class_override=_BelowModels,
    )  # fmt: skip


@router.get("/logs", name="llama_swap_logs")
async def logs(the: The, key: MayReadLogs) -> Response:
    """The last lines of every engine's log, the model in front of each."""
    reader = _reader(the, key, "")
    try:
        return PlainTextResponse("".join(f"{line.text}\n" for line in reader.taken()))
    finally:
        reader.close()


@router.get("/logs/stream", name="llama_swap_logs_stream")
@router.get("/logs/stream/{model:path}", name="llama_swap_logs_stream_of")
@router.get("/logs/streamSSE", name="llama_swap_logs_events")
async def logs_stream(the: The, key: MayReadLogs, request: Request, model: str = "") -> Response:
    """The same, and then what comes: of all models (`upstream` means that too), or of one."""
    events = request.url.path.endswith("SSE")
    reader = _reader(the, key, "" if model == "upstream" else model)
    kind = "text/event-stream" if events else "text/plain; charset=utf-8"
    return StreamingResponse(stream_lines(the, request, reader, as_events=events), headers=SSE, media_type=kind)


def _reader(the: Services, key: Key, model: str) -> LogReader:
    if model:
        spec = resolve(the, model)
        return LogReader(lambda: [the.manager.require(spec.id)], tail=TAIL)
    return LogReader(lambda: [i for i in the.manager.instances() if key.may_use(i.spec.id)], tail=TAIL, named=True)
