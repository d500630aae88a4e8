"""Ollama's routes that show which models there are and which are loaded, for clients that ask for that.

Its own way to chat is not spoken here: clients such as Open WebUI talk to `/v1` beside it. What they send to load a model or
to unload it is understood (a request without a prompt, `keep_alive: 0`).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict

from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.compat.access import Lister, instance, load, unload, usable
from vllm_mm.api.dependencies import Operator, Reader, Services, The, operation_id, require_act, resolve
from vllm_mm.domain.errors import BadRequest, UnknownModel
from vllm_mm.domain.keys import Right
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import ModelSpec, Task

_NEVER: Final = "9999-12-31T23:59:59Z"
"""When a model goes that nothing makes go."""
_LOADED: Final = frozenset({State.READY, State.DRAINING})
_ABILITIES: Final[Mapping[Task, list[str]]] = {Task.GENERATE: ["completion"], Task.EMBED: ["embedding"]}


class ModelIn(BaseModel):
    """Which one; older clients call it `name`."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    name: str = ""

    @property
    def asked(self) -> str:
        if not (self.model or self.name):
            raise BadRequest("Say which model: `model`.", param="model")
        return self.model or self.name


class AskIn(ModelIn):
    """A request for a text or a chat."""

    prompt: str = ""
    messages: list[Any] = []
    keep_alive: str | float | None = None


async def version(the: The, _key: Lister) -> dict[str, str]:
    """Of this server."""
    return {"version": the.version}


async def tags(the: The, key: Lister) -> dict[str, Any]:
    """Every model, under every name."""
    return {"models": [_card(the, spec, name) for spec in usable(the, key) for name in spec.served_names]}


async def loaded(the: The, key: Reader) -> dict[str, Any]:
    """The models that can answer at once."""
    found = ((spec, instance(the, spec)) for spec in usable(the, key))
    return {"models": [_running(the, spec) for spec, i in found if i is not None and i.state in _LOADED]}


async def show(the: The, key: Lister, body: ModelIn) -> dict[str, Any]:
    """What is known of one."""
    spec = resolve(the, body.asked)
    if not key.may_use(spec.id):
        raise UnknownModel(f"The model `{body.asked}` does not exist, or this key may not use it.")
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": _moment(the.started_at),
        "details": _details(spec),
        "model_info": {"general.architecture": spec.engine.value, "general.basename": spec.model or spec.id},
        "capabilities": _ABILITIES.get(spec.task, []),
    }


async def ask(the: The, key: Operator, body: AskIn) -> dict[str, Any]:
    """Without a prompt: load the model, or unload it if it is to be kept for no time."""
    if body.prompt or body.messages:
        raise BadRequest(
            "This server does not speak Ollama's own API for texts and chats. Use /v1/chat/completions (in Open WebUI: a "
            "connection of the kind OpenAI, with the address of this server and /v1)."
        )
    away = str(body.keep_alive).strip() in {"0", "0.0", "0s", "0m", "0h"}
    require_act(key, *((Right.EVICT,) if away else (Right.LOAD, Right.EVICT)))
    await (unload(the, body.asked, key) if away else load(the, body.asked, key))
    return {
        "model": body.asked,
        "created_at": _moment(the.clock.wall()),
        "response": "",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "unload" if away else "load",
    }


def _card(the: Services, spec: ModelSpec, name: str) -> dict[str, Any]:
    footprint = the.manager.footprint(spec)
    return {
        "name": name,
        "model": name,
        "modified_at": _moment(the.started_at),
        "size": footprint.parts.weights or footprint.per_device * spec.devices.count,
        "digest": sha256(spec.fingerprint.encode()).hexdigest(),
        "details": _details(spec),
    }


def _details(spec: ModelSpec) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": spec.engine.value,
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": str(spec.arguments.get("quantization") or ""),
    }


def _running(the: Services, spec: ModelSpec) -> dict[str, Any]:
    view = the.manager.describe(spec.id)
    devices = the.manager.ledger.devices
    on_host = sum(size for d, size in view.reserved.items() if d in devices and devices[d].kind == "cpu")
    length = spec.arguments.get("max-model-len")
    stop, now = spec.idle.stop_after, the.clock.wall()
    stays = stop is None or view.pinned
    return {
        **_card(the, spec, spec.id),
        "size": sum(view.reserved.values()),
        "size_vram": sum(view.reserved.values()) - on_host,
        "expires_at": _NEVER if stays or stop is None else _moment(now - (view.idle_s or 0.0) + stop),
        "context_length": length if isinstance(length, int) else 0,
    }


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def says_errors(path: str) -> bool:
    """Whether errors on that path are told in Ollama's form, `{"error": "text"}`: its clients show what is there as it is."""
    return path in _PATHS


def _routes() -> APIRouter:
    router = APIRouter(generate_unique_id_function=operation_id, include_in_schema=False)
    for prefix, before in (("/api", "ollama"), ("/ollama/api", "ollama_below")):
        # Some clients are given the address of a whole Open WebUI, or of a proxy, where Ollama is below /ollama.
        for path, endpoint, method in (
            ("version", version, "GET"),
            ("tags", tags, "GET"),
            ("ps", loaded, "GET"),
            ("show", show, "POST"),
            ("generate", ask, "POST"),
            ("chat", ask, "POST"),
        ):
            kind = AuditedRoute if endpoint is ask else APIRoute
            router.add_api_route(
                f"{prefix}/{path}", endpoint, methods=[method], name=f"{before}_{path}", route_class_override=kind
            )
    return router


router = _routes()
_PATHS: Final = frozenset(route.path for route in router.routes if isinstance(route, APIRoute))
