"""What the bodies of requests to the admin API have to be; what it answers is in `schemas`."""

from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, WithJsonSchema

from vllm_mm.domain.keys import ALL_RIGHTS, MOST, Right, Scope
from vllm_mm.settings import ModelConfig
from vllm_mm.settings.described import Described
from vllm_mm.settings.units import Duration, Size


class DeviceLeaseIn(Described):
    """What is asked for."""

    model_config = ConfigDict(extra="forbid")

    free: Size
    """Bytes, or text such as "10GiB"."""
    seconds: Duration = Field(alias="for")
    """From the moment at which the memory is free: seconds, or text such as "2h"; at most 7 days."""
    note: str = Field(default="", max_length=200)
    """What it is for; for people."""


class LimitsIn(Described):
    """How much a key may use. Null does not limit; docs/security.md says how each is counted."""

    model_config = ConfigDict(extra="forbid")

    concurrency: int | None = Field(default=None, ge=1, le=MOST["concurrency"])
    """Requests at the same time, those that wait for a model too."""
    requests_per_minute: int | None = Field(default=None, ge=1, le=MOST["requests_per_minute"])
    tokens_per_minute: int | None = Field(default=None, ge=1, le=MOST["tokens_per_minute"])
    """Prompt and completion together."""
    tokens_per_day: int | None = Field(default=None, ge=1, le=MOST["tokens_per_day"])
    """Days and months begin at midnight UTC."""
    tokens_per_month: int | None = Field(default=None, ge=1, le=MOST["tokens_per_month"])
    device_seconds_per_day: float | None = Field(default=None, gt=0, le=MOST["device_seconds_per_day"])
    """Seconds on a model, times its devices."""
    device_seconds_per_month: float | None = Field(default=None, gt=0, le=MOST["device_seconds_per_month"])


class KeyFields(Described):
    """What can be said of a key when it is made, and changed later."""

    model_config = ConfigDict(extra="forbid")

    scopes: list[Scope] = Field(default=[Scope.INFER], min_length=1)
    models: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(default=None, max_length=1000)
    """Models that it may use: ids, aliases (which are resolved now), or patterns with `*`, `?` and `[...]`; null means all."""
    acts: list[Right] = sorted(ALL_RIGHTS)
    """What its requests may cause, and what it may look at: `load` (start or wake a model), `evict` (have another model make room),
    `logs`, `capture`."""
    weight: float = Field(default=1.0, ge=0.001, le=1000)
    """Its share of a model's slots beside other keys that wait for the same model."""
    progress: bool = False
    """Its streams get progress comments while they wait, as with `X-VLLM-MM-Progress: 1`."""
    limits: LimitsIn = LimitsIn()


class KeyIn(KeyFields):
    name: str = Field(min_length=1, max_length=200)
    """Its label: whose it is, or what for."""
    expires_in: float | None = Field(default=None, gt=0, le=10**10)
    """Seconds until it ends by itself; null means never."""


class CopyIn(Described):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=200)
    """The id of the new model."""


class KeyPatch(KeyFields):
    """What is left out stays as it is. `limits` are merged: null takes one away."""

    name: str = Field(default="", min_length=1, max_length=200)
    expires_in: float | None = Field(default=None, gt=0, le=10**10)
    """Seconds from now; null: it does not end by itself."""


class RotateIn(Described):
    model_config = ConfigDict(extra="forbid")

    overlap: Duration = Field(default=0.0, ge=0, le=30 * 86400.0)
    """For how long the secret of before is good as well: seconds, or text such as "1h"; at most 30 days."""


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
