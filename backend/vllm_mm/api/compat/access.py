"""Who may use routes that stand in for those of other servers, and what these have in common."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.types import Scope as Asked

from vllm_mm.api.auditing import AuditedRoute, about
from vllm_mm.api.dependencies import Services, caller, cause, require, require_act, resolve
from vllm_mm.domain.errors import Forbidden
from vllm_mm.domain.keys import Key, Right, Scope
from vllm_mm.domain.lifecycle import LIVE, State
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.instance import ModelInstance


async def _lister(request: Request) -> Key:
    key = caller(request)
    return key if key.allows(Scope.INFER) else require(key, Scope.READ)


async def _operator_by_get(request: Request) -> Key:
    """A GET that changes something: a page of another site could have a browser send it without asking anybody, and where
    there are no keys that would be enough."""
    key = require_act(require(caller(request), Scope.OPERATE), Right.EVICT)
    if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        raise Forbidden("A web page of another origin may not do this. Use POST /api/models/{id}/stop with a key.")
    return key


Lister = Annotated[Key, Depends(_lister)]
"""As for `/v1/models`: a key for requests, or one that may read."""
OperatorByGet = Annotated[Key, Depends(_operator_by_get)]


class ForPrograms(AuditedRoute):
    """A path at the top level. A browser that opens it gets a page of the dashboard, as for any other address."""

    def matches(self, scope: Asked) -> tuple[Match, Asked]:
        opened = (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and "text/html" in Headers(scope=scope).get("accept", "")
        )
        return (Match.NONE, {}) if opened else super().matches(scope)


def usable(the: Services, key: Key) -> Iterator[ModelSpec]:
    """The models that are there for this key."""
    return (spec for spec in the.manager.catalog if key.may_use(spec.id))


def instance(the: Services, spec: ModelSpec) -> ModelInstance | None:
    """Its instance; None where it never ran."""
    return next((i for i in the.manager.instances() if i.spec.id == spec.id), None)


def state(the: Services, spec: ModelSpec) -> State:
    """What it does; one that never ran is stopped."""
    found = instance(the, spec)
    return State.STOPPED if found is None else found.state


async def load(the: Services, name: str, key: Key) -> ModelSpec:
    """As `POST /api/models/{id}/start`. Raises UnknownModel."""
    spec = resolve(the, name)
    before = state(the, spec)
    await the.manager.start(spec.id, cause(key))
    about(spec.id, before={"state": before.value}, after={"state": state(the, spec).value})
    return spec


async def unload(the: Services, name: str, key: Key) -> ModelSpec:
    """As `POST /api/models/{id}/stop`. Raises UnknownModel."""
    spec = resolve(the, name)
    before = state(the, spec)
    await the.manager.stop(spec.id, cause(key))
    about(spec.id, before={"state": before.value}, after={"state": state(the, spec).value})
    return spec


async def unload_all(the: Services, key: Key) -> None:
    """Every model that has an engine, or is about to."""
    gone: list[str] = []
    for found in tuple(the.manager.instances()):
        model = found.spec.id
        if model in the.manager.catalog and (found.state in LIVE or the.manager.loading(model) is not None):
            await the.manager.stop(model, cause(key))
            gone.append(model)
    about("*", after={"stopped": gone})
