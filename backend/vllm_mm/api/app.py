"""The admin API as one FastAPI application. The data plane does not pass through it (docs/adr/004-data-plane.md)."""

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from vllm_mm.api import (
    admin,
    audit,
    auditing,
    cancel,
    captures,
    config,
    dashboard,
    device_leases,
    health,
    keys,
    launchers,
    live,
    models,
    profiles,
    pulls,
    replay,
    series,
    session,
    usage,
    webhooks,
)
from vllm_mm.api.bodies import JsonBodies, sent_as
from vllm_mm.api.compat import llama_cpp, llama_swap, ollama
from vllm_mm.api.dependencies import Services
from vllm_mm.api.documentation import say_how_keys_are_sent
from vllm_mm.api.openai import nearest
from vllm_mm.api.problems import MethodNotAllowed, explain_admin
from vllm_mm.domain.errors import BadRequest, MMError, UnknownRoute
from vllm_mm.gateway.bodies import error_body
from vllm_mm.gateway.ports import Problem
from vllm_mm.gateway.routes import Form

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_INVALID: Final = BadRequest.code
DESCRIPTION = """
Operate the models of this server. Send a key as `Authorization: Bearer mm-...` (or `x-api-key`); its scopes are `read`,
`operate` and `admin`, each of which includes those before it. Refusals are `{"error": {"message", "type", "param",
"code"}}`, and the message says what to do.
"""


def create_app(services: Services) -> FastAPI:
    """Everything under `/api`, with `/health`, `/ready`, `/metrics` and `/docs`."""
    app = FastAPI(
        title="vllm-mm", version=services.version, description=DESCRIPTION,
        redirect_slashes=False,
        docs_url=None, redoc_url=None,  # FastAPI's own pages load their scripts from another host; see `dashboard`
    )  # fmt: skip
    say_how_keys_are_sent(app)
    app.state.services = services
    # The order matters: routes under {id:path} with a last word of their own come before the bare ones.
    for part in (
        health,
        live,
        launchers,
        llama_swap,
        models,
        device_leases,
        admin,
        captures,
        keys,
        audit,
        cancel,
        replay,
        usage,
        series,
        webhooks,
        session,
        llama_cpp,
        ollama,
        config,
        profiles,
        pulls,
    ):
        # Not include_router: that builds each route a second time, at its first request and on the event loop (half a second).
        app.router.routes.extend(part.router.routes)
    dashboard.attach(app)
    auditing.check(app.router.routes)
    app.add_exception_handler(MMError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(JsonBodies)
    app.add_middleware(Slashes)
    app.add_middleware(RequestIds)
    return app


def _answer(request: Request, problem: Problem) -> Response:
    theirs = ollama.says_errors(request.url.path)
    body = json.dumps({"error": problem.message}).encode() if theirs else error_body(problem, Form.OPENAI, "")
    answer = Response(body, problem.status, media_type="application/json")
    for name, value in problem.headers.items():
        answer.headers[name.decode()] = value.decode()
    if problem.retry_after is not None:
        answer.headers["Retry-After"] = str(problem.retry_after)
    return answer


async def _refused(request: Request, error: Exception) -> Response:
    return _answer(request, explain_admin(error))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # it is registered for that
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid" or tuple(first["loc"]) == ("body",):
        # Not a matter of one field: what was sent as a whole is not what is taken here.
        why = _no_json(first) if first["type"] == "json_invalid" else f"the body is wrong: {first['msg']}"
        kind = sent_as(request.scope)
        advice = "" if kind is None else f" It was sent as {kind}: send JSON, with Content-Type: application/json."
        return _answer(
            request, Problem(422, f"The request is wrong: {why}.{advice} /docs says what is expected.", _INVALID)
        )
    place = ".".join(str(part) for part in first["loc"][1:])
    known = _known_keys(request)
    told = "; ".join(f"{'.'.join(str(p) for p in e['loc'][1:]) or e['loc'][0]}: {_why(e, known)}" for e in errors)
    return _answer(
        request,
        Problem(422, f"The request is wrong: {told}. /docs says what is expected.", _INVALID, param=place or None),
    )


def _known_keys(request: Request) -> list[str]:
    """Those that the body of this route may have, as they are written."""
    route = request.scope.get("route")
    kinds = [p.field_info.annotation for p in route.dependant.body_params] if isinstance(route, APIRoute) else []
    models = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _why(error: Mapping[str, Any], known: Sequence[str]) -> str:
    if error["type"] == "extra_forbidden" and len(error["loc"]) == 2:
        near = get_close_matches(str(error["loc"][1]).lower().replace("-", "_"), known, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(known))}"
        return f"unknown key; {hint}"
    return str(error["msg"]).removeprefix("Value error, ")


def _no_json(error: dict[str, Any]) -> str:
    why = str(error["ctx"]["error"]).rstrip(".")
    return f"its body is not valid JSON: {why} (character {error['loc'][-1]})"


async def _http(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself, in our words."""
    assert isinstance(error, HTTPException)  # noqa: S101  # it is registered for that
    path = request.url.path
    if error.status_code == 405:
        told: MMError | None = MethodNotAllowed(f"{request.method} is not possible on {path}. /docs lists what is.")
    elif error.status_code == 404 and error.detail == "Not Found":
        near = nearest(path)
        told = UnknownRoute(f"There is no {path}. {f'Did you mean {near}?' if near else '/docs lists what there is.'}")
    else:
        told = None
    code = "not_found" if error.status_code == 404 else "error"
    problem = Problem(error.status_code, str(error.detail), code) if told is None else explain_admin(told)
    answer = _answer(request, problem)
    answer.headers.update(error.headers or {})
    return answer


async def _failed(request: Request, error: Exception) -> Response:
    """Tells nothing of the error itself, which the server logs."""
    return _answer(request, explain_admin(error))


class Slashes:
    """A slash at the end of a path of the admin API is no other path."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/api/") and scope["path"].endswith("/"):
            raw: bytes = scope.get("raw_path") or b""
            scope = {**scope, "path": scope["path"].rstrip("/"), "raw_path": raw.rstrip(b"/")}
        await self._app(scope, receive, send)


class RequestIds:
    """`X-Request-Id` on every answer: the caller's own if it sent one that is fit to be logged, else a new one."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        fit = 0 < len(sent) <= 128 and all(0x21 <= c <= 0x7E for c in sent)
        number = sent if fit else b"req_" + secrets.token_hex(12).encode()

        scope["vllm_mm.request_id"] = number.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if not any(name.lower() == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", number))
                message = {**message, "headers": headers}
            await send(message)

        # What is logged meanwhile, and by what is begun meanwhile, has the id too.
        with structlog.contextvars.bound_contextvars(request_id=number.decode()):
            await self._app(scope, receive, send_with_id)
