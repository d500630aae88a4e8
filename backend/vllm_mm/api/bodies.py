"""JSON bodies that are not called so. Many clients send JSON with no content type, and curl with that of a form."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from vllm_mm.api.problems import explain_admin
from vllm_mm.domain.errors import UnsupportedEncoding
from vllm_mm.gateway.bodies import error_body
from vllm_mm.gateway.routes import Form

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")
_SENT_AS: Final = "vllm_mm.sent_as"


class JsonBodies:
    """The admin API takes JSON and nothing else, so every body is read as JSON, whatever it is called.

    A page of another origin gains nothing by it: such a page has no key, and where there are no keys the `Origin` that
    browsers send with every such request is checked (`gateway.identity`).
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in {"POST", "PUT", "PATCH"}:
            headers = list[tuple[bytes, bytes]](scope["headers"])
            coding = next((value for name, value in headers if name == b"content-encoding"), b"identity").lower()
            if coding != b"identity":
                await _compressed(send)
                return
            kind = next((value for name, value in headers if name == b"content-type"), b"")
            if not _is_json(kind):
                headers = [field for field in headers if field[0] != b"content-type"]
                scope = {**scope, "headers": [*headers, _JSON], _SENT_AS: kind.decode("latin-1") or "no content type"}
        await self._app(scope, receive, send)


async def _compressed(send: Send) -> None:
    """What is sent here is small: it is not worth reading in another form."""
    problem = explain_admin(
        UnsupportedEncoding("The admin API reads plain bodies only: send it without Content-Encoding.")
    )
    body = error_body(problem, Form.OPENAI, "")
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"accept-encoding", b"identity"),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def _is_json(kind: bytes) -> bool:
    name = kind.partition(b";")[0].strip().lower()
    return name == b"application/json" or (name.startswith(b"application/") and name.endswith(b"+json"))


def sent_as(scope: Message) -> str | None:
    """What a body was called that was taken for JSON all the same; None for one that was called JSON."""
    found: str | None = scope.get(_SENT_AS)
    return found
