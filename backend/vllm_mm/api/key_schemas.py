"""Keys as the admin API tells them, and as they are exported."""

from dataclasses import asdict
from typing import Literal

from pydantic import ConfigDict, Field

from vllm_mm.api.inputs import LimitsIn
from vllm_mm.api.schemas import Out
from vllm_mm.domain.keys import Key, Limits, Right, Scope
from vllm_mm.settings.described import Described

FORM: Literal["vllm-mm keys 1"] = "vllm-mm keys 1"


class LimitsOut(Out):
    """Null does not limit."""

    concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens_per_day: int | None
    tokens_per_month: int | None
    device_seconds_per_day: float | None
    device_seconds_per_month: float | None


class StandingOut(Out):
    """What a key with limits uses now."""

    concurrency: int
    """Requests under way."""
    requests_per_minute: int
    """Let in within the last 60 seconds."""
    tokens_per_minute: int
    """Used within the last 60 seconds, and reserved by what is under way."""
    tokens_per_day: int
    tokens_per_month: int
    device_seconds_per_day: float
    device_seconds_per_month: float


class KeyOut(Out):
    id: str
    name: str
    prefix: str
    """The beginning of its secret, to recognise it by."""
    scopes: list[Scope]
    models: list[str] | None
    """Model ids and patterns that it may use; null means all."""
    acts: list[Right]
    weight: float
    progress: bool
    limits: LimitsOut
    used: StandingOut | None
    """Null where nothing limits it."""
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    rotated_until: float | None
    """Until when the secret of before the last rotation is good as well."""
    active: bool


class NewKeyOut(KeyOut):
    secret: str
    """Shown this once; only its hash is kept."""


class ExportedKey(Described):
    """A key with its hash and without its secret."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    name: str = Field(min_length=1, max_length=200)
    prefix: str = Field(max_length=16)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
    scopes: list[Scope]
    models: list[str] | None = None
    acts: list[Right]
    weight: float = Field(ge=0.001, le=1000)
    progress: bool
    limits: LimitsIn
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class KeysFile(Described):
    """What `keys export` writes and `keys import` reads."""

    model_config = ConfigDict(extra="forbid")

    form: Literal["vllm-mm keys 1"]
    secret: str = Field(max_length=64)
    """Which server's secret the hashes were made with; tells nothing of it."""
    keys: list[ExportedKey] = Field(max_length=100_000)


class ImportedOut(Out):
    imported: int


def limits_of(asked: LimitsIn) -> Limits | None:
    """None where nothing is limited."""
    limits = Limits(**asked.model_dump())
    return limits if limits.any else None


def exported(key: Key) -> ExportedKey:
    """Without the secret of before a rotation: that has its end where it is."""
    return ExportedKey(
        id=key.id, name=key.name, prefix=key.prefix, hash=key.digest, scopes=sorted(key.scopes),
        models=None if key.models is None else sorted(key.models), acts=sorted(key.acts), weight=key.weight,
        progress=key.progress, limits=LimitsIn(**asdict(key.limits or Limits())), created_at=key.created_at,
        expires_at=key.expires_at, revoked_at=key.revoked_at,
    )  # fmt: skip


def imported(key: ExportedKey) -> Key:
    """As it goes into the database."""
    return Key(
        id=key.id, name=key.name, prefix=key.prefix, digest=key.hash, scopes=frozenset(key.scopes),
        models=None if key.models is None else frozenset(key.models), acts=frozenset(key.acts), weight=key.weight,
        progress=key.progress, limits=limits_of(key.limits), created_at=key.created_at, expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )  # fmt: skip
