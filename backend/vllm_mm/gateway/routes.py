"""The paths of the data plane. What is not here never reaches an engine: engines have open administrative routes."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

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
COMPARES: Final = EMBEDS | SCORES
"""Embedding models score by the similarity of what they make of two texts (vLLM, docs/models/pooling_models)."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A path whose JSON body names the model."""

    path: bytes
    tasks: frozenset[Task] = ANY
    """A model with one of these can serve it; vLLM has a route only where the model's task asks for it."""
    form: Form = Form.OPENAI
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.path.decode())


ROUTES: dict[bytes, Route] = {
    route.path: route
    for route in (
        Route(b"/v1/chat/completions", GENERATES),
        Route(b"/v1/completions", GENERATES),
        Route(b"/v1/embeddings", EMBEDS),
        Route(b"/v1/responses", GENERATES, Form.RESPONSES),
        Route(b"/v1/messages", GENERATES, Form.ANTHROPIC),
        Route(b"/v1/messages/count_tokens", GENERATES, Form.ANTHROPIC),
        Route(b"/v1/rerank", COMPARES),
        Route(b"/rerank", COMPARES),
        Route(b"/v2/rerank", COMPARES),
        Route(b"/v1/score", COMPARES),
        Route(b"/score", COMPARES),
        Route(b"/classify", SCORES),
        Route(b"/pooling", COMPARES),
        Route(b"/tokenize"),
        Route(b"/detokenize"),
    )
}
"""By exact path, as sent: an encoded or otherwise different spelling is a different path, and unknown."""
