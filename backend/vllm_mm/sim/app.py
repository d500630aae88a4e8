"""The routes, and what comes before and after each: keys, methods, request ids, errors, the access log."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from vllm_mm.sim import audio, basics, chat, dev, messages, pooling, responses
from vllm_mm.sim.client import EngineCallError, EngineDeadError
from vllm_mm.sim.errors import ApiError, internal
from vllm_mm.sim.options import Options
from vllm_mm.sim.service import Call, Service
from vllm_mm.sim.web import WEBSOCKET, Request, Writer

Route = Callable[[Call], Awaitable[None]]
Routes = Mapping[str, Mapping[str, Route]]
"""Path to method to handler; a last segment of `*` stands for any one segment."""

_ALWAYS: Routes = {
    "/health": {"GET": basics.health},
    "/ping": {"GET": basics.health, "POST": basics.health},
    "/version": {"GET": basics.version},
    "/load": {"GET": basics.load},
    "/metrics": {"GET": basics.metrics},
    "/v1/models": {"GET": basics.models},
    "/tokenize": {"POST": basics.tokenize_route},
    "/detokenize": {"POST": basics.detokenize_route},
}
_GENERATE: Routes = {
    "/v1/chat/completions": {"POST": chat.chat_completions},
    "/v1/completions": {"POST": chat.completions},
    "/v1/responses": {"POST": responses.create},
    "/v1/responses/*": {"GET": responses.retrieve},
    "/v1/responses/*/cancel": {"POST": responses.cancel},
    "/v1/messages": {"POST": messages.messages},
    "/v1/messages/count_tokens": {"POST": messages.count_tokens_route},
}
_POOLING: Routes = {"/pooling": {"POST": pooling.pooling}}
_EMBED: Routes = {"/v1/embeddings": {"POST": pooling.embeddings}}
_CLASSIFY: Routes = {"/classify": {"POST": pooling.classify}}
_SCORE: Routes = {
    "/score": {"POST": pooling.scores},
    "/v1/score": {"POST": pooling.scores},
    "/rerank": {"POST": pooling.rerank},
    "/v1/rerank": {"POST": pooling.rerank},
    "/v2/rerank": {"POST": pooling.rerank},
}
_TRANSCRIBE: Routes = {
    "/v1/audio/transcriptions": {"POST": audio.transcriptions},
    "/v1/audio/translations": {"POST": audio.translations},
}
_DEV: Routes = {
    "/sleep": {"POST": dev.sleep},
    "/wake_up": {"POST": dev.wake_up},
    "/is_sleeping": {"GET": dev.is_sleeping},
    "/collective_rpc": {"POST": dev.collective_rpc},
    "/reset_prefix_cache": {"POST": dev.reset_prefix_cache},
    "/pause": {"POST": dev.pause},
    "/resume": {"POST": dev.resume},
    "/is_paused": {"GET": dev.is_paused},
    "/abort_requests": {"POST": dev.abort_requests},
    "/server_info": {"GET": dev.server_info},
    "/sim/requests": {"GET": dev.requests},
    "/sim/fault": {"POST": dev.set_fault, "DELETE": dev.set_fault},
}
_OF_TASK: Mapping[str, Routes] = {
    "generate": _GENERATE,
    "embed": {**_POOLING, **_EMBED, **_SCORE},
    "score": {**_POOLING, **_SCORE, **_CLASSIFY},
    "classify": {**_POOLING, **_CLASSIFY},
    "transcribe": _TRANSCRIBE,
    "realtime": {**_GENERATE, **_TRANSCRIBE},
}
_REALTIME = "/v1/realtime"
_GUARDED = ("/v1", "/v2", "/inference")


def routes_of(options: Options) -> Routes:
    """The routes that an engine for this task has."""
    routes = dict(_ALWAYS)
    routes |= _OF_TASK[options.profile.task]
    if options.dev_mode:
        routes |= _DEV
    return routes


class App:
    """The handler of the web server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._routes = routes_of(service.options)

    def describe(self) -> list[str]:
        """A line for each route, as vLLM logs them."""
        return [
            f"Route: {path.replace('*', '{response_id}')}, Methods: {method}"
            for path, methods in self._routes.items()
            for method in methods
        ]

    async def __call__(self, request: Request, writer: Writer) -> None:
        options = self._service.options
        if options.request_id_headers and (identity := request.headers.get("x-request-id")):
            writer.header("x-request-id", identity)
        seen = self._service.seen(request)
        try:
            await self._dispatch(request, writer)
            seen.end("answered")
        except asyncio.CancelledError:
            seen.end("left")  # everything of it has been ended: the core was told
            raise
        finally:
            if seen.ended is None:
                seen.end("failed")
            if options.access_log and writer.started:
                self._service.log.server(f'"{request.method} {request.path} HTTP/1.1" {writer.status}')

    async def _dispatch(self, request: Request, writer: Writer) -> None:
        if not self._authorized(request):
            writer.json(401, {"error": "Unauthorized"})
            return
        if request.method == WEBSOCKET:
            await self._converse(request, writer)
            return
        methods = self._find(request.path)
        if methods is None:
            writer.json(404, {"detail": "Not Found"})
            return
        route = methods.get(request.method)
        if route is None:
            writer.header("allow", ", ".join(methods))
            writer.json(405, {"detail": "Method Not Allowed"})
            return
        try:
            await route(Call(self._service, request, writer))
        except ApiError as error:
            writer.json(error.status, error.body)
        except EngineDeadError as error:
            writer.json(500, internal(str(error)).body)
            if self._service.engine.dead:
                self._service.give_up()
        except EngineCallError as error:
            writer.json(500, internal(str(error)).body)
            writer.closes = True  # nobody catches it in vLLM, and uvicorn then closes the connection

    async def _converse(self, request: Request, writer: Writer) -> None:
        """403 is what a server on ASGI says to a handshake for which it has no route."""
        if request.path != _REALTIME or self._service.options.profile.task != "realtime":
            writer.closes = True
            writer.send(403)
            return
        from vllm_mm.sim.realtime import RealtimeSession  # noqa: PLC0415 - most engines never need it

        socket = writer.upgrade(request)
        if socket is not None:
            await RealtimeSession(self._service, socket).run()

    def _find(self, path: str) -> Mapping[str, Route] | None:
        found = self._routes.get(path)
        if found is None and path.startswith("/v1/responses/"):
            tail = path.removeprefix("/v1/responses/").split("/")
            found = self._routes.get("/".join(["/v1/responses", "*", *tail[1:]])) if tail[0] else None
        return found

    def _authorized(self, request: Request) -> bool:
        keys = self._service.options.api_keys
        if not keys or request.method == "OPTIONS" or not request.path.startswith(_GUARDED):
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and token in keys
