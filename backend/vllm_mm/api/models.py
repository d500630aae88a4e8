"""`/api/models`: what there is, and what operators do with it.

Ids may contain slashes, so `{id:path}` swallows everything: routes with a last word of their own come before the bare
ones, and the configuration refuses ids that end with such a word.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response

from vllm_mm.api import present
from vllm_mm.api.auditing import AuditedRoute
from vllm_mm.api.change_schemas import DryRunOut
from vllm_mm.api.config import DryRun
from vllm_mm.api.dependencies import (
    Admin,
    MayEvict,
    Operator,
    Reader,
    Services,
    The,
    Wait,
    allowed,
    cause,
    operation_id,
    resolve,
)
from vllm_mm.api.inputs import CopyIn, Declaration, NewModel
from vllm_mm.api.schemas import (
    REFUSALS,
    DeletedOut,
    HistoryOut,
    InstanceOut,
    ModelOut,
    StartOut,
)
from vllm_mm.api.settling import settled
from vllm_mm.control.declarations import Declared, declared_id
from vllm_mm.control.rules import policy
from vllm_mm.domain.changes import version
from vllm_mm.domain.errors import BadRequest, Conflict, UnknownRoute
from vllm_mm.domain.fits import fits
from vllm_mm.domain.keys import Key, Right, Scope
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.engine.manager import ProcessManager

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/models",
    tags=["models"],
    responses=REFUSALS,
)

IfMatch = Annotated[
    str | None,
    Header(description="The ETag of the declaration that was seen; 412 when it is another by now.", max_length=200),
]
Act = Callable[[ProcessManager, str, str], Awaitable[None]]


async def _pin(manager: ProcessManager, model: str, _cause: str) -> None:
    manager.pin(model, pinned=True)


async def _unpin(manager: ProcessManager, model: str, _cause: str) -> None:
    manager.pin(model, pinned=False)


ACTS: dict[str, tuple[Act, str]] = {
    "start": (
        ProcessManager.start,
        "Want it READY. An operator's start makes room at once and forgets earlier failures.",
    ),
    "restart": (ProcessManager.restart, "Drain, stop, start again."),
    "sleep": (ProcessManager.sleep, "Drain, then put to sleep; 409 where the engine has no sleep mode."),
    "wake": (ProcessManager.wake, "Wake it; 409 when it does not sleep."),
    "drain": (ProcessManager.drain, "No new requests; let finish what runs, however long it takes; then stop."),
    "undrain": (ProcessManager.undrain, "Take a drain back; 409 when its memory was promised to another model."),
    "pin": (_pin, "Never swap it out, until `unpin` or a restart of the server."),
    "unpin": (_unpin, "It may be swapped out again."),
    "reset": (ProcessManager.reset, "Forget the failures of a model that is FAILED or in BACKOFF."),
}

RIGHTS: dict[str, tuple[Right, ...]] = {
    **dict.fromkeys(("start", "restart", "wake", "pin"), (Right.LOAD, Right.EVICT)),
    **dict.fromkeys(("stop", "sleep", "drain"), (Right.EVICT,)),
}
"""What a key needs beside its scope: what makes room for itself evicts others, and what goes was evicted."""
LOADS = frozenset({"start", "restart", "wake"})
"""Acts after which it should be READY."""


@router.get("", name="list_models")
async def list_models(the: The, key: Reader) -> list[ModelOut]:
    """Every model, declared in the file or made over the API."""
    return [_shown(the, key, spec.id) for spec in the.manager.catalog]


@router.post(
    "",
    name="create_model",
    status_code=201,
    responses={200: {"model": DryRunOut, "description": "What it would do, with `dry_run`."}},
)
async def create_model(
    the: The, key: Admin, body: NewModel, response: Response, dry_run: DryRun = False
) -> ModelOut | DryRunOut:
    """Make a model. It is kept in the database and can be used at once."""
    model_id, declaration = declared_id(body)
    found = await the.declarations.create(model_id, declaration, cause(key), dry_run=dry_run)
    return _declared(the, key, response, found, dry_run=dry_run)


@router.post(
    "/{id:path}/copy",
    name="copy_model",
    status_code=201,
    responses={200: {"model": DryRunOut, "description": "What it would do, with `dry_run`."}},
)
async def copy_model(
    the: The,
    key: Admin,
    id: str,  # noqa: A002  # the path's name
    body: CopyIn,
    response: Response,
    dry_run: DryRun = False,
) -> ModelOut | DryRunOut:
    """Make a model of another one, of the configuration file or not, that can be changed over the API. It has the same declaration but
    for aliases and LoRA adapters, whose names the other one keeps."""
    found = await the.declarations.copy(id, body.id, cause(key), dry_run=dry_run)
    return _declared(the, key, response, found, dry_run=dry_run)


def _add_act(name: str, act: Act, summary: str) -> None:
    able = Depends(allowed(Scope.OPERATE, *RIGHTS.get(name, ())))

    async def route(the: The, response: Response, id: str, wait: Wait = None, key: Key = able) -> InstanceOut:  # noqa: A002  # the path's name
        spec = resolve(the, id)
        await asyncio.sleep(
            0
        )  # after a rest each part of this takes tens of milliseconds: requests of others come in between
        await act(the.manager, spec.id, cause(key))
        return await _answer(the, response, spec.id, wait, wanted=name in LOADS)

    router.add_api_route(
        f"/{{id:path}}/{name}", route, methods=["POST"], name=f"{name}_model", status_code=202, summary=summary,
        responses={200: {"model": InstanceOut, "description": "The settled state, with `wait`."}},
    )  # fmt: skip


for _name, (_act, _summary) in ACTS.items():
    _add_act(_name, _act, _summary)


@router.post("/{id:path}/stop", name="stop_model", status_code=202)
async def stop_model(
    the: The,
    key: MayEvict,
    response: Response,
    id: str,  # noqa: A002  # the path's name
    wait: Wait = None,
    force: Annotated[bool, Query(description="Cut what runs instead of letting it finish.")] = False,
) -> InstanceOut:
    """Drain and stop; a load is called off."""
    spec = resolve(the, id)
    await the.manager.stop(spec.id, cause(key), force=force)
    return await _answer(the, response, spec.id, wait)


@router.post("/{id:path}", name="unknown_act", include_in_schema=False)
async def unknown_act(the: The, _key: Operator, id: str) -> None:  # noqa: A002  # the path's name
    """What is asked for is none of the acts. Says which there are, and which one may have been meant."""
    acts = sorted([*ACTS, "stop"])
    model, _, act = id.rpartition("/")
    if id in the.manager.catalog.names() or not model:
        resolve(the, id)
        raise UnknownRoute(f"POST needs an act behind the model: /api/models/{id}/ACT with one of {', '.join(acts)}.")
    spec = resolve(the, model)
    near = get_close_matches(act.lower(), acts, n=1, cutoff=0.5)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    raise UnknownRoute(f"There is no act `{act}` for {spec.id}.{hint} The acts are {', '.join(acts)}.")


@router.get("/{id:path}/history", name="model_history")
async def model_history(
    the: The,
    _key: Reader,
    id: str,  # noqa: A002  # the path's name
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> HistoryOut:
    """Its starts, the latest first."""
    spec = resolve(the, id)
    starts = await the.launches.starts(spec.id, limit)
    return HistoryOut(starts=[StartOut.model_validate(start, from_attributes=True) for start in starts])


@router.get("/{id:path}", name="get_model")
async def get_model(the: The, key: Reader, id: str, response: Response) -> ModelOut:  # noqa: A002  # the path's name
    """One model, by id or alias."""
    model, _, word = id.rpartition("/")
    names = the.manager.catalog.names()
    if id not in names and model in names:
        if word in ACTS or word == "stop":
            raise UnknownRoute(f"`{word}` is an act: POST /api/models/{model}/{word}.")
        raise UnknownRoute(f"There is nothing called `{word}` below /api/models/{model}; there are history and logs.")
    spec = resolve(the, id)
    response.headers["ETag"] = _tag(the.in_force.declared.get(spec.id) or spec)
    return _shown(the, key, spec.id)


@dataclass(frozen=True, slots=True)
class _Change:
    """What PUT and PATCH are sent."""

    id: str
    body: dict[str, Any]
    match: str | None
    dry_run: bool


def _sent(
    id: str,  # noqa: A002  # the path's name
    body: Declaration,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
) -> _Change:
    return _Change(id, _body(id, body), _version(if_match), dry_run)


_Sent = Annotated[_Change, Depends(_sent)]


@router.put("/{id:path}", name="replace_model")
async def replace_model(the: The, key: Admin, sent: _Sent, response: Response) -> ModelOut | DryRunOut:
    """Another declaration for a model made over the API; an engine that no longer fits it is drained and started again."""
    change = the.declarations.replace
    found = await change(sent.id, sent.body, cause(key), match=sent.match, dry_run=sent.dry_run)
    return _declared(the, key, response, found, dry_run=sent.dry_run)


@router.patch("/{id:path}", name="change_model")
async def change_model(the: The, key: Admin, sent: _Sent, response: Response) -> ModelOut | DryRunOut:
    """Changes to a model made over the API, merged as RFC 7396 says: null takes a key away."""
    change = the.declarations.patch
    found = await change(sent.id, sent.body, cause(key), match=sent.match, dry_run=sent.dry_run)
    return _declared(the, key, response, found, dry_run=sent.dry_run)


@router.delete("/{id:path}", name="delete_model")
async def delete_model(
    the: The,
    key: Admin,
    id: str,  # noqa: A002  # the path's name
    wait: Wait = None,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
) -> DeletedOut | DryRunOut:
    """Take away a model made over the API: nobody can ask for it any more, and what runs is let finish."""
    found = await the.declarations.remove(id, cause(key), match=_version(if_match), dry_run=dry_run)
    spec = found.spec
    if dry_run:
        return DryRunOut(change=present.change(found.change), footprint=None, fits=[], notes=[])
    if not present.has_run(the.manager, spec.id):
        return DeletedOut(id=spec.id, instance=None)
    if wait:
        await settled(the, spec.id, wait)
    return DeletedOut(id=spec.id, instance=present.instance(the.manager, spec.id))


def _declared(the: Services, key: Key, response: Response, found: Declared, *, dry_run: bool) -> ModelOut | DryRunOut:
    if dry_run:
        response.status_code = 200
        spec, size, view = found.spec, the.manager.footprint(found.spec), the.manager.view(())
        dwell = policy(the.settings).rules.min_dwell
        here = fits(view.ledger, spec.id, spec.devices, size.per_device, view.residents, the.clock.now(), dwell)
        return DryRunOut(
            change=present.change(found.change), footprint=present.footprint(size), fits=list(map(present.fit, here)),
            notes=list(found.notes),
        )  # fmt: skip
    response.headers["ETag"] = _tag(found.spec)
    return _shown(the, key, found.spec.id)


def _tag(spec: ModelSpec) -> str:
    return f'"{version(spec)}"'


def _version(if_match: str | None) -> str | None:
    """The version of an If-Match header; None where any will do (RFC 9110, 13.1.1)."""
    if if_match is None or if_match.strip() == "*":
        return None
    return if_match.strip().removeprefix("W/").strip('"')


def _body(model_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """A body may repeat the id of its path, as GET shows it, but not change it."""
    if body.get("id", model_id) != model_id:
        raise BadRequest(
            f"A model's id cannot change: the path says {model_id!r}, the body {body['id']!r}.", param="id"
        )
    return {name: value for name, value in body.items() if name != "id"}


def _shown(the: Services, key: Key, model_id: str) -> ModelOut:
    spec = resolve(the, model_id)
    return present.model(the.manager, spec, the.schedules.standing(spec), secrets=key.allows(Scope.ADMIN))


async def _answer(
    the: Services, response: Response, model_id: str, wait: float | None, *, wanted: bool = False
) -> InstanceOut:
    """`wanted`: the act was to make it READY, so that anything else is told with its reason."""
    if wait is None or not await settled(the, model_id, wait):
        return present.instance(the.manager, model_id)
    shown = present.instance(the.manager, model_id)
    if wanted and shown.state not in {State.READY, State.BACKOFF, State.FAILED}:
        # A start that failed is in one of the other two, with its reason; here there was none, or somebody ended it.
        why = the.manager.refused_because(model_id) or (
            f"it is {shown.state.value} again ({shown.reason or 'nobody said why'}). "
            f"GET /api/events?tail=20&follow=0&model={model_id} says what came between."
        )
        raise Conflict(f"{model_id} was not loaded: {why}")
    response.status_code = 200
    return shown
