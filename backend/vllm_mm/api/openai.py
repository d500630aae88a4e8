"""The data plane as a raw ASGI application: the model list, refusals, and the same gateway as the protocol class for
whoever serves it with another HTTP implementation. No framework objects on the way."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from difflib import get_close_matches
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import msgspec

from vllm_mm.api.asgi import AsgiClient, Receive, Send, begin_upload, in_time, take_in, watch
from vllm_mm.api.compat.upstream import PREFIX, check_form, name_model, upstream_of
from vllm_mm.api.framing import ENDS_WITH_CONNECTION
from vllm_mm.api.pace import BodyPace
from vllm_mm.api.problems import MethodNotAllowed, UpgradeRequired, explain
from vllm_mm.domain.errors import MMError, PayloadTooLarge, RequestTooSlow, UnknownModel, UnknownRoute
from vllm_mm.domain.keys import Key, Scope
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.gateway.bodies import error_body
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.head import read_head
from vllm_mm.gateway.identity import require
from vllm_mm.gateway.limits import told
from vllm_mm.gateway.origins import allowed, may_read, preflight
from vllm_mm.gateway.ports import Headers
from vllm_mm.gateway.relay import Call
from vllm_mm.gateway.routes import REALTIME, ROUTES, UPLOADS, Form, Route, about_response, route_of

Scope_: TypeAlias = MutableMapping[str, Any]
App: TypeAlias = Callable[[Scope_, Receive, Send], Awaitable[None]]

_PREFIXES: Final = ("/v1/", "/v2/")
_MODELS: Final = "/v1/models"
MODELS: Final = _MODELS.encode()
"""The path of the list of models."""
PEER: Final = "vllm_mm.peer"
"""Where the scope says who holds the other end of the connection, whatever headers say of it (uvicorn's `proxy_headers`)."""
_KNOWN: Final = (_MODELS, *(route.name for route in (*ROUTES.values(), *UPLOADS.values(), REALTIME)))


class OpenAIApp:
    """Answers `/v1/*` (and the few data-plane paths outside it); everything else goes to `fallback`."""

    def __init__(self, gateway: Gateway, fallback: App | None = None) -> None:
        self._gateway = gateway
        self._fallback = fallback
        self._since = int(time.time())

    async def __call__(self, scope: Scope_, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault(PEER, scope.get("client"))
            path: str = scope["path"]
            if path.startswith(PREFIX):
                await self._upstream(scope, receive, send)
                return
            route = route_of(scope.get("raw_path") or path.encode())
            ours = (
                path.startswith(_PREFIXES) or path in {"/v1", "/v2"} or (path[:2] == "//" and _near(path) is not None)
            )
            if route is not None or ours or self._fallback is None:
                await self._answer(scope, receive, send, route)
                return
        if self._fallback is not None:
            await self._fallback(scope, receive, send)

    async def _upstream(self, scope: Scope_, receive: Receive, send: Send) -> None:
        """A model's own server, as far as that is the data plane's."""
        headers: Headers = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        try:
            key = self._reader(headers)
            path = bytes(scope.get("raw_path") or scope["path"].encode())
            found = upstream_of(path, scope["method"], self._gateway.leases.catalog, key)
        except MMError as error:
            await self._answer(scope, receive, send, None, refused=error)
            return
        await self._serve(scope, receive, send, found.route, found.subject, found.model)

    async def _answer(
        self, scope: Scope_, receive: Receive, send: Send, route: Route | None, *, refused: MMError | None = None
    ) -> None:
        method: str = scope["method"]
        raw_path = bytes(scope.get("raw_path") or scope["path"].encode())
        about = about_response(raw_path)
        subject = ""
        if about is not None:
            route, subject = about
        if route is not None and method == route.method.decode():
            await self._serve(scope, receive, send, route, subject)
            return
        headers: Headers = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        request_id = self._gateway.new_id(headers)
        extra: Headers = []
        path: str = scope["path"]
        raw = raw_path.decode("latin-1")
        models = raw == _MODELS or raw.startswith(_MODELS + "/")
        if method == "OPTIONS" and (models or route is not None):
            methods = route.method if route is not None else b"GET, HEAD"
            asked = preflight(headers, methods, self._gateway.rules)
            if asked is not None:
                await send({"type": "http.response.start", "status": 204, "headers": asked})
                await send({"type": "http.response.body", "body": b""})
                return
        try:
            if refused is not None:
                raise refused
            if models:
                if method not in {"GET", "HEAD"}:
                    extra = [(b"allow", b"GET")]
                    raise MethodNotAllowed(f"{method} is not for {_MODELS}; use GET.")
                key = self._reader(headers)
                body = (
                    self._model(unquote(raw[len(_MODELS) + 1 :]), key)
                    if len(raw) > len(_MODELS) + 1
                    else self._models(key)
                )
                status = 200
            elif route is not None:
                extra = [(b"allow", route.method)]
                raise MethodNotAllowed(f"{method} is not for {route.name}; use {route.method.decode()}.")
            elif raw_path == REALTIME.path:
                extra = [(b"upgrade", b"websocket")]
                raise UpgradeRequired(
                    f"{path} is a WebSocket: connect with a client for one (ws://, docs/realtime.md)."
                )
            else:
                near = nearest(path)
                advice = "GET /docs lists what there is." if near is None else f"Did you mean {near}?"
                raise UnknownRoute(f"There is no {method} {raw} here. {advice}")
        except MMError as error:
            problem = explain(error)
            form = route.form if route is not None else Form.OPENAI
            status, body = problem.status, error_body(problem, form, request_id)
            extra += problem.headers.items()
        extra += await self._told(headers)
        origin = read_head(headers).origin
        if origin is not None and allowed(origin, self._gateway.rules):
            extra += may_read(origin)
        extra += ((b"x-request-id", request_id.encode()), (b"content-type", b"application/json"))
        extra.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": extra})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    async def _told(self, headers: Headers) -> Headers:
        """How the key of a request stands that is answered here, whether it may ask for that or not."""
        head = read_head(headers)
        try:
            key = self._gateway.keys.identify(head.authorization, head.api_key, head.host, head.origin)
            standing = await self._gateway.limits.look(key.id) if key.limits is not None else None
        except MMError:
            return []
        return [] if standing is None else told(standing)

    # The model list: from memory; wakes nothing.

    def _reader(self, headers: Headers) -> Key:
        head = read_head(headers)
        key = self._gateway.keys.identify(head.authorization, head.api_key, head.host, head.origin)
        if not key.allows(Scope.READ):
            require(key, Scope.INFER)
        return key

    def _models(self, key: Key) -> bytes:
        items = [
            self._item(name, spec)
            for name, spec in self._gateway.leases.catalog.names().items()
            if key.may_use(spec.id)
        ]
        return msgspec.json.encode({"object": "list", "data": items})

    def _model(self, name: str, key: Key) -> bytes:
        catalog = self._gateway.leases.catalog
        if name.endswith("/") and catalog.get(name[:-1]) is not None:
            name = name[:-1]
        spec = catalog.resolve(name)
        if not key.may_use(spec.id):
            raise UnknownModel(f"The model `{name}` does not exist, or this key may not use it.")
        return msgspec.json.encode(self._item(name, spec))

    def _item(self, name: str, spec: ModelSpec) -> dict[str, object]:
        """vLLM's own fields, and what it does and the state it is in."""
        length = spec.args.get("max-model-len", spec.args.get("max_model_len"))
        return {
            "id": name,
            "object": "model",
            "created": self._since,
            "owned_by": "vllm",
            "root": spec.lora.get(name, spec.model or spec.id),
            "parent": spec.id if name in spec.lora else None,
            "max_model_len": length if isinstance(length, int) else None,
            "permission": [],
            "task": spec.task.value,
            "status": self._gateway.leases.describe(spec.id).state.value,
        }

    # A model's request

    async def _serve(
        self, scope: Scope_, receive: Receive, send: Send, route: Route, subject: str, model: str | None = None
    ) -> None:
        """`model`: the one that its path names, whatever its body does."""
        gateway = self._gateway
        headers: Headers = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        call = Call(route, scope["query_string"], headers, gateway.clock.now())
        call.subject = subject
        client = AsgiClient(whole=scope.get("http_version") == "1.0" and not scope.get(ENDS_WITH_CONNECTION, False))
        loop = asyncio.get_running_loop()
        if route.path in UPLOADS:
            begin_upload(call, gateway)
            if model is not None:
                check_form(call, model, gateway.leases.catalog)
            client.task = serving = loop.create_task(gateway.serve(call, client))
            watching = loop.create_task(take_in(receive, call.upload, client, serving, gateway))
        else:
            call.body, call.refused, client.gone = await self._body(headers, receive)
            if model is not None:
                await name_model(call, model, gateway.rules.body)
            client.task = serving = loop.create_task(gateway.serve(call, client))
            watching = loop.create_task(watch(receive, client, serving))
        try:
            await client.pump(send, serving)
        except BaseException:
            # The server ends this application (its shutdown), or cannot send: the request ends, and says so if it can.
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            await client.pump(send, serving)
            raise
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            if call.upload is not None:
                call.upload.close()

    async def _body(self, headers: Headers, receive: Receive) -> tuple[bytes | bytearray, MMError | None, bool]:
        """The whole body; or why it is not taken; or that the client left."""
        limit = self._gateway.rules.body
        declared = next((int(v) for k, v in headers if k == b"content-length"), 0)
        clock = self._gateway.clock
        pace = BodyPace(self._gateway.rules, clock.now())
        if declared > limit:
            return b"", too_large(limit), False
        if declared > (1 << 16) and not self._gateway.admits(headers):
            return b"", None, False  # the gateway refuses it by its key
        body = bytearray()
        while True:
            try:
                message = await in_time(receive, pace, clock.now(), len(body))
            except RequestTooSlow as error:
                return b"", error, False
            pace.came(clock.now())
            if message["type"] == "http.disconnect":
                return b"", None, True
            body += message.get("body", b"")
            if len(body) > limit:
                return b"", too_large(limit), False
            if not message.get("more_body", False):
                return body, None, False


def _near(path: str) -> str | None:
    """The path that was meant, when it was sent in another spelling."""
    meant = _plainly(path)
    return meant if meant in _KNOWN else None


def nearest(path: str) -> str | None:
    """The path that was probably meant by one of those that are not there: with other slashes, without `/v1`, or with a typo."""
    if len(path) > 200:
        return None
    meant = _plainly(path)
    for known in (meant, "/v1" + meant):
        if known in _KNOWN:
            return known
    near = get_close_matches(meant, _KNOWN, n=1, cutoff=0.8)
    return near[0] if near else None


def _plainly(path: str) -> str:
    return re.sub("/+", "/", path).lower().rstrip("/")


def too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {limit} bytes (limits.body). Send less, or raise the limit.")
