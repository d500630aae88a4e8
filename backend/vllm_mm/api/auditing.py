"""The one place through which every act of an administrator passes: a route that changes something writes it into the audit.

Such a route is an `AuditedRoute`, or the application refuses to be made (`check`). Who, what, where from and how it ended are
taken from the request and its answer; the object before and after from `LOOKS`, from what the route says by `about`, or from
its answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from vllm_mm.api import present
from vllm_mm.api.dependencies import Services, caller, resolve, services
from vllm_mm.api.problems import explain_admin
from vllm_mm.domain.errors import MMError

UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NO_ACTS: Final[Mapping[str, str]] = {
    "/api/show": "Ollama's clients ask so what is known of a model",
    "/ollama/api/show": "the same question at another place",
}
"""Paths with unsafe methods that are no acts of administration, each with the reason."""
GONE: Final = 499
"""The status of an act whose client left before its end (nginx's convention)."""
REFUSALS_A_MINUTE: Final = 120
"""Refused acts beyond this many are not written down, so that a key that may do nothing cannot fill the audit."""

Look: TypeAlias = Callable[[Services, str], Awaitable[tuple[str, Any] | None]]
"""An object's full name and what it is now, as JSON; None when there is none."""


@dataclass(slots=True)
class _Note:
    object: str | None = None
    before: Any = None
    after: Any = None


_note: ContextVar[_Note | None] = ContextVar("audit", default=None)


def about(name: str, *, before: Any = None, after: Any = None) -> None:
    """Called by a route that knows better what it acts on: the object's name, and what it was before and is after (JSON; secrets
    are taken out here). Does nothing outside of an audited route."""
    note = _note.get()
    if note is not None:
        note.object, note.before, note.after = name, before, after


def audited() -> bool:
    """Whether the act under way is written down by itself."""
    return _note.get() is not None


async def _model(the: Services, name: str) -> tuple[str, Any] | None:
    """What was declared, and the state of the engine; not the figures, which change by themselves."""
    try:
        spec = resolve(the, name)
    except MMError:
        return None
    shown = present.model(the.manager, spec, None, secrets=True).model_dump(mode="json", exclude=_FIGURES)
    instance = the.manager.describe(spec.id)
    return spec.id, {**shown, "state": instance.state.value, "generation": instance.generation}


_FIGURES: Final = {"instance", "footprint", "schedule_now"}


async def _key(the: Services, name: str) -> tuple[str, Any] | None:
    found = next((key for key in await the.keys.all() if key.id == name), None)
    if found is None:
        return None
    return name, msgspec.to_builtins(found, order="sorted")


LOOKS: Final[dict[str, Look]] = {"models": _model, "keys": _key}
"""By the first word behind `/api`."""


class AuditedRoute(APIRoute):
    """For `APIRouter(route_class=...)`. Safe methods pass as they are."""

    acts: ClassVar[bool] = False
    """Whatever its method, it is an act."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if not (self.acts or UNSAFE & set(self.methods or ())):
            return handle
        act, kind = self.name, _kind(self.path)

        async def audited(request: Request) -> Response:
            return await _audited(request, handle, act, kind)

        return audited


class ActingRoute(AuditedRoute):
    """One that is an act although its method is GET: others' tools unload models so, and a capture is what somebody said."""

    acts = True


def check(routes: Iterable[BaseRoute]) -> None:
    """Raises TypeError for a route that could change something behind the audit's back."""
    for route in routes:
        unsafe = UNSAFE & set(getattr(route, "methods", None) or ())
        path = getattr(route, "path", "")
        if unsafe and not isinstance(route, AuditedRoute) and path not in NO_ACTS:
            raise TypeError(
                f"{'/'.join(sorted(unsafe))} {path} is not audited: make its router with route_class=AuditedRoute, "
                "or say in api.auditing.NO_ACTS why it is no act"
            )


def _kind(path: str) -> str:
    words = [word for word in path.split("/") if word]
    return (words[1] if len(words) > 1 and words[0] == "api" else words[0]).partition("{")[0] or "api"


async def _audited(request: Request, handle: Callable[[Request], Awaitable[Response]], act: str, kind: str) -> Response:
    the = services(request)
    try:
        key = caller(request)
    except MMError:
        return await handle(request)  # which refuses it: nobody did anything
    look = LOOKS.get(kind)
    name = "/".join(str(value) for value in request.path_params.values())
    seen = await _look(look, the, name)
    before, status, answer = (None if seen is None else seen[1]), 500, None
    if seen is not None:
        name = seen[0]
    note = _Note()
    token = _note.set(note)
    try:
        answer = await handle(request)
        status = answer.status_code
        return answer
    except MMError as error:
        status = explain_admin(error).status
        raise
    except HTTPException as error:
        status = error.status_code
        raise
    except RequestValidationError:
        status = 422
        raise
    except asyncio.CancelledError:
        status = GONE
        raise
    finally:
        _note.reset(token)
        if status < 400 or _refusal(the):
            said = _said(answer)
            after = None
            if note.object is not None:
                name, before, after = note.object, note.before, note.after
            else:
                name = name or _id(said)
                after = said
                if look is not None and status != GONE:
                    now = await _look(look, the, name)
                    after = None if now is None else now[1]
            the.audit.record(
                act, actor=key.id, name=key.name, source=_source(request), kind=kind, object=name, before=before, after=after,
                status=status, request=_request_id(request),
            )  # fmt: skip
            if status != GONE:
                await the.audit.secure()


async def _look(look: Look | None, the: Services, name: str) -> tuple[str, Any] | None:
    """Never raises: an act is not held up by what cannot be seen."""
    if look is None or not name:
        return None
    try:
        return await look(the, name)
    except MMError:
        return None


def _refusal(the: Services) -> bool:
    """Whether one more refused act is written down now."""
    now = the.clock.now()
    recent = the.refusals
    while recent and recent[0] < now - 60.0:
        recent.popleft()
    if len(recent) >= REFUSALS_A_MINUTE:
        return False
    recent.append(now)
    return True


def _said(answer: Response | None) -> Any:
    """The answer, where it is JSON that says something of the object."""
    if answer is None or not answer.headers.get("content-type", "").startswith("application/json"):
        return None
    try:
        return json.loads(bytes(answer.body))
    except (AttributeError, ValueError):  # a stream
        return None


def _id(said: Any) -> str:
    found = said.get("id", "") if isinstance(said, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return str(found)  # pyright: ignore[reportUnknownArgumentType]


def _source(request: Request) -> str:
    return request.client.host if request.client is not None and request.client.host else "unix socket"


def _request_id(request: Request) -> str:
    found: str = request.scope.get("vllm_mm.request_id", "")
    return found
