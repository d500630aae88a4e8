"""What the bodies of requests to the admin API have to be; what it answers is in `schemas`."""

from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from vllm_mm.domain.keys import Scope
from vllm_mm.settings import ModelConfig
from vllm_mm.settings.units import Duration, Size


class DeviceLeaseIn(BaseModel):
    """What is asked for."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    free: Size
    """Bytes, or text such as "10GiB"."""
    seconds: Duration = Field(alias="for")
    """From the moment at which the memory is free: seconds, or text such as "2h"; at most 7 days."""
    note: str = Field(default="", max_length=200)
    """What it is for; for people."""


class KeyIn(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str = Field(min_length=1, max_length=200)
    scopes: list[Scope] = Field(default=[Scope.INFER], min_length=1)
    models: list[str] | None = None
    """Ids of the models that it may use; null means all."""
    expires_in: float | None = Field(default=None, gt=0)
    """Seconds until it ends by itself; null means never."""


class CopyIn(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    id: str = Field(min_length=1, max_length=200)
    """The id of the new model."""


def _declaration_schema() -> dict[str, Any]:
    """ModelConfig's schema in one piece: OpenAPI keeps its definitions elsewhere."""
    document = ModelConfig.model_json_schema()
    definitions: dict[str, Any] = document.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            known = cast("dict[str, Any]", node)
            reference = known.get("$ref")
            if isinstance(reference, str):
                rest = {k: v for k, v in known.items() if k != "$ref"}
                return inline(definitions[reference.rsplit("/", 1)[-1]] | rest)
            return {name: inline(value) for name, value in known.items()}
        if isinstance(node, list):
            return [inline(item) for item in cast("list[Any]", node)]
        return node

    return inline(document)


_DECLARATION = _declaration_schema()

Declaration = Annotated[dict[str, Any], WithJsonSchema(_DECLARATION)]
"""A model as in the configuration file. Checked by `settings.parse_model`, which names the nearest key."""
NewModel = Annotated[
    dict[str, Any],
    WithJsonSchema(
        _DECLARATION
        | {
            "title": "NewModel",
            "properties": {
                "id": {"type": "string", "description": "The name that clients will use."},
                **_DECLARATION["properties"],
            },
            "required": ["id"],
        }
    ),
]
"""A declaration with its `id`."""
