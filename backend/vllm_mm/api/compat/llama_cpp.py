"""llama.cpp's server with several models (its router): the list with states, loading, unloading."""

from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from vllm_mm.api import present
from vllm_mm.api.compat.access import ForPrograms, Lister, load, state, unload, usable
from vllm_mm.api.dependencies import MayEvict, MayLoad, Services, The, operation_id
from vllm_mm.domain.lifecycle import LIVE, LOADING, State
from vllm_mm.domain.specs import ModelSpec

_LOADED: Final = frozenset({State.READY, State.DRAINING})


router = APIRouter(
    generate_unique_id_function=operation_id, include_in_schema=False, route_class=ForPrograms, prefix="/models"
)


class ModelIn(BaseModel):
    """Which one. What else clients send along is theirs."""

    model_config = ConfigDict(extra="ignore")

    model: str


@router.get("", name="llama_cpp_models")
async def models(the: The, key: Lister) -> dict[str, Any]:
    """Every model with what it does now."""
    return {"object": "list", "data": [_entry(the, spec) for spec in usable(the, key)]}


def _entry(the: Services, spec: ModelSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "aliases": list(spec.aliases),
        "object": "model",
        "owned_by": "vllm-mm",
        "created": int(the.started_at),
        "in_cache": True,
        "path": spec.model or spec.id,
        "status": _status(the, spec),
    }


def _status(the: Services, spec: ModelSpec) -> dict[str, Any]:
    now = state(the, spec)
    status: dict[str, Any] = {"value": "unloaded", "args": list(spec.command)}
    if now in _LOADED:
        status["value"] = "loaded"
    elif _loads(the, spec, now):
        status["value"] = "loading"
    elif now is State.SLEEPING:
        status["value"] = "sleeping"
    elif now in {State.FAILED, State.BACKOFF}:
        status |= {"failed": True, "exit_code": 1}
    return status


def _loads(the: Services, spec: ModelSpec, now: State) -> bool:
    """Also while it is only wanted."""
    if now in LOADING or the.manager.loading(spec.id) is not None:
        return True
    return now not in LIVE | {State.FAILED} and present.pending(the.manager, the.manager.describe(spec.id))


@router.post("/load", name="llama_cpp_load")
async def start(the: The, key: MayLoad, body: ModelIn) -> dict[str, bool]:
    """As `POST /api/models/{id}/start`: returns at once; the list says when it is there."""
    await load(the, body.model, key)
    return {"success": True}


@router.post("/unload", name="llama_cpp_unload")
async def stop(the: The, key: MayEvict, body: ModelIn) -> dict[str, bool]:
    """As `POST /api/models/{id}/stop`: what runs is let finish."""
    await unload(the, body.model, key)
    return {"success": True}
