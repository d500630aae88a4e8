"""`/api/requests/{id}/replay`: a request that was captured is sent once more, through the same code as any other."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import unquote

from fastapi import APIRouter, Response

from vllm_mm.api.auditing import AuditedRoute, about
from vllm_mm.api.dependencies import MayReplay, Message, Receive, Send, The, cause, operation_id
from vllm_mm.api.schemas import REFUSALS
from vllm_mm.domain.errors import Conflict
from vllm_mm.gateway.capture_text import Again, again

router = APIRouter(
    route_class=AuditedRoute,
    generate_unique_id_function=operation_id,
    prefix="/api/requests",
    tags=["requests"],
    responses=REFUSALS,
)
_ITS_OWN: Final = frozenset({b"authorization", b"x-api-key", b"host", b"origin", b"x-request-id"})
"""Headers of whoever replays: who that is decides what may be asked for."""
REPLAYS: Final = b"x-vllm-mm-replays"
"""Of the answer: the id of the request that was sent again."""


@router.post("/{id:path}/replay", name="replay_request", response_class=Response)
async def replay_request(the: The, key: MayReplay, id: str) -> Response:  # noqa: A002  # the path's name
    """Send a captured request again, by its id or `X-Request-Id`: with the key of whoever asks for it, which has to have the scope
    `infer` too, and to the model that has its name now. The answer is the model's, streamed where the request asked for that. 409
    where not all of its body was kept."""
    found = await the.captures.get(id)
    repeated = again(found)
    if the.data_plane is None:
        raise Conflict("This server has no data plane to send it through.")
    the.journal.emit("capture.replayed", cause=cause(key), data={"id": found["id"]})
    about(found["id"])
    return _Replayed(the.data_plane, repeated, found["id"])


class _Replayed(Response):
    """The answer of the data plane to another request than the one that came."""

    def __init__(
        self, app: Callable[[Message, Receive, Send], Awaitable[None]], repeated: Again, identity: str
    ) -> None:
        super().__init__()
        self._app = app
        self._repeated = repeated
        self._identity = identity.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        repeated, sent = self._repeated, False
        path, _, query = repeated.target.partition("?")
        own: Sequence[tuple[bytes, bytes]] = [f for f in scope["headers"] if f[0] in _ITS_OWN]
        headers = [*repeated.headers, *own, (b"content-length", b"%d" % len(repeated.body))]
        asked = {
            **scope, "method": repeated.method, "path": unquote(path), "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"), "headers": headers,
        }  # fmt: skip

        async def body() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # tells when the client leaves
            sent = True
            return {"type": "http.request", "body": repeated.body, "more_body": False}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (REPLAYS, self._identity)]}
            await send(message)

        await self._app(asked, body, answer)
