"""The paths of the data plane. What is not here never reaches an engine: engines have open administrative routes."""

from dataclasses import dataclass
from enum import Enum, auto


class Form(Enum):
    """Whose API a route speaks, for errors."""

    OPENAI = auto()
    RESPONSES = auto()
    ANTHROPIC = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A path whose JSON body names the model."""

    path: bytes
    form: Form = Form.OPENAI
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.path.decode())


ROUTES: dict[bytes, Route] = {
    route.path: route
    for route in (
        Route(b"/v1/chat/completions"),
        Route(b"/v1/completions"),
        Route(b"/v1/embeddings"),
        Route(b"/v1/responses", Form.RESPONSES),
        Route(b"/v1/messages", Form.ANTHROPIC),
        Route(b"/v1/messages/count_tokens", Form.ANTHROPIC),
        Route(b"/v1/rerank"),
        Route(b"/rerank"),
        Route(b"/v2/rerank"),
        Route(b"/v1/score"),
        Route(b"/score"),
        Route(b"/classify"),
        Route(b"/pooling"),
        Route(b"/tokenize"),
        Route(b"/detokenize"),
    )
}
"""By exact path, as sent: an encoded or otherwise different spelling is a different path, and unknown."""
