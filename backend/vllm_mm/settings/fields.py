"""What settings are made of: the base of every section, and the types of fields that several sections share."""

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, WithJsonSchema, model_validator

from vllm_mm.settings.described import Described
from vllm_mm.settings.units import Size

ArgValue: TypeAlias = Any
"""What an engine argument may be; rendering it is the engine layer's business."""

RESERVED_LAST = frozenset(
    {
        "start",
        "stop",
        "restart",
        "sleep",
        "wake",
        "drain",
        "undrain",
        "pin",
        "unpin",
        "reset",
        "copy",
        "logs",
        "history",
    }
)
"""Last path segments of the admin API's routes under /api/models/{id}."""


def check_model_id(value: str) -> str:
    """A model id as it may be used in paths. Raises ValueError."""
    if not value:
        raise ValueError("a model id cannot be empty")
    if len(value) > 200:
        raise ValueError(f"a model id may have 200 characters, this one has {len(value)}")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise ValueError("a model id cannot contain control characters")
    if value != value.strip():
        raise ValueError("a model id cannot begin or end with a space")
    if value.startswith("lease:"):
        raise ValueError("a model id cannot begin with `lease:`: leases on device memory are called so")
    segments = value.split("/")
    if any(segment in {"", ".", ".."} for segment in segments):
        raise ValueError("a model id cannot begin or end with `/`, nor have an empty, `.` or `..` part")
    if len(segments) > 1 and segments[-1] in RESERVED_LAST:
        raise ValueError(f"a model id cannot end with `/{segments[-1]}`: the admin API has a route of that name")
    return value


def _text(value: object) -> object:
    """Numbers where text is wanted (environment variables, device ids) are taken as they are written."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _auto(value: object) -> object:
    return None if value == "auto" else value


def _switch(value: object) -> object:
    """Text comes from quotes around `${env.X}`. Raises ValueError."""
    meant = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(meant, bool):
        raise ValueError(f"expected true or false, not {value!r}")  # noqa: TRY004  # pydantic's way
    return meant


Switch = Annotated[bool, BeforeValidator(_switch)]
"""`yes`, `on` and 1 are no booleans in YAML 1.2; taken for true they would mean what their writer did not see."""
Text = Annotated[str, BeforeValidator(_text)]
ModelId = Annotated[str, AfterValidator(check_model_id)]
AutoSize = Annotated[
    Size | None,
    BeforeValidator(_auto),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "auto"},
                {"type": "null"},
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]i?[bB]?|[bB])?\s*$"},
            ],
        }
    ),
]
"""Bytes; None stands for `auto`."""
EngineName: TypeAlias = Literal["vllm", "command", "sim"]
LauncherName: TypeAlias = Literal["auto", "warm", "local"]


class Section(Described):
    """Frozen, and closed: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        """A section with nothing behind its colon is made of defaults."""
        return {} if value is None else value
