"""The paths of the data plane. What is not here never reaches an engine: engines have open administrative routes."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final
from urllib.parse import unquote

from vllm_mm.domain.specs import Task


class Form(Enum):
    """Whose API a route speaks, for errors."""

    OPENAI = auto()
    RESPONSES = auto()
    ANTHROPIC = auto()


ANY: Final = frozenset(Task)
GENERATES: Final = frozenset({Task.GENERATE})
EMBEDS: Final = frozenset({Task.EMBED})
SCORES: Final = frozenset({Task.SCORE})
CLASSIFIES: Final = frozenset({Task.SCORE, Task.CLASSIFY})
"""A scoring model has one label, and can be asked for it."""
TRANSCRIBES: Final = frozenset({Task.TRANSCRIBE})
LISTENS: Final = frozenset({Task.REALTIME})
COMPARES: Final = EMBEDS | SCORES
"""Embedding models score by the similarity of what they make of two texts (vLLM, docs/models/pooling_models)."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A path whose JSON body names the model."""

    path: bytes
    tasks: frozenset[Task] = ANY
    """A model with one of these can serve it; vLLM has a route only where the model's task asks for it."""
    form: Form = Form.OPENAI
    method: bytes = b"POST"
    name: str = ""
    token: bytes = b'"delta"'
    """What an event of its streams has in it if it has tokens."""
    asks_usage: bool = False
    """Its streams tell what they used only to those who ask."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.path.decode())


ROUTES: dict[bytes, Route] = {
    route.path: route
    for route in (
        Route(b"/v1/chat/completions", GENERATES, asks_usage=True),
        Route(b"/v1/completions", GENERATES, token=b'"text"', asks_usage=True),
        Route(b"/v1/embeddings", EMBEDS),
        Route(b"/v1/responses", GENERATES, Form.RESPONSES, token=b'.delta"'),
        Route(b"/v1/messages", GENERATES, Form.ANTHROPIC, token=b"content_block_delta"),
        Route(b"/v1/messages/count_tokens", GENERATES, Form.ANTHROPIC),
        Route(b"/v1/rerank", COMPARES),
        Route(b"/rerank", COMPARES),
        Route(b"/v2/rerank", COMPARES),
        Route(b"/v1/score", COMPARES),
        Route(b"/score", COMPARES),
        Route(b"/classify", CLASSIFIES),
        Route(b"/pooling", COMPARES | CLASSIFIES),
        Route(b"/tokenize"),
        Route(b"/detokenize"),
    )
}
"""By exact path, as sent: an encoded or otherwise different spelling is a different path, and unknown (but for a slash at the end:
`route_of`)."""
UPLOADS: dict[bytes, Route] = {
    route.path: route
    for route in (Route(b"/v1/audio/transcriptions", TRANSCRIBES), Route(b"/v1/audio/translations", TRANSCRIBES))
}
"""Those whose body is a form with a file in it; the model is one of its fields."""
REALTIME: Final = Route(b"/v1/realtime", LISTENS, method=b"GET")
"""A WebSocket; the model is named in its address or in its first events."""
GETS: Final[dict[bytes, Route]] = {
    path: Route(path, method=b"GET") for path in (b"/health", b"/ping", b"/version", b"/load", b"/props", b"/v1/models")
}
"""What may be asked of an engine by its model's name alone (`/upstream/{model}/...`): they change nothing, and tell nothing of
other clients' requests."""
_WITH_SLASH: Final = {path + b"/": route for path, route in (*ROUTES.items(), *UPLOADS.items())}
RESPONSES: Final = ROUTES[b"/v1/responses"]
RETRIEVE: Final = Route(b"/v1/responses/{id}", GENERATES, Form.RESPONSES, b"GET", token=b'.delta"')
CANCEL: Final = Route(b"/v1/responses/{id}/cancel", GENERATES, Form.RESPONSES)


def route_of(path: bytes) -> Route | None:
    """The route of a path as sent; a slash at its end is no other path."""
    return ROUTES.get(path) or UPLOADS.get(path) or _WITH_SLASH.get(path)


def about_response(path: bytes) -> tuple[Route, str] | None:
    """The route of a path as sent that names a stored response, and the response's id."""
    head, slash, rest = path.removesuffix(b"/").partition(RESPONSES.path + b"/")
    if head or not slash:
        return None
    name, *more = rest.split(b"/")
    route = RETRIEVE if not more else CANCEL if more == [b"cancel"] else None
    return (route, unquote(name.decode("latin-1"))) if route is not None and name else None
