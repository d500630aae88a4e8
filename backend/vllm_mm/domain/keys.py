"""API keys as the product knows them: a hash, what it may do and how much of it, and never the secret."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from vllm_mm.domain.errors import BadRequest

PREFIX: Final = "mm-"
"""Every secret begins with this, so that scanners and people recognise one that leaked."""
SHOWN: Final = 11
"""Characters of a secret that are kept to be shown: `mm-` and 48 of its 256 random bits."""
_GLOB: Final = frozenset("*?[")


class Scope(StrEnum):
    """What a key may do. ADMIN implies OPERATE, OPERATE implies READ; INFER is the data plane."""

    INFER = "infer"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


class Right(StrEnum):
    """What a key's requests may cause, or what it may look at, beyond its scopes."""

    LOAD = "load"
    """Start or wake a model that is not there."""
    EVICT = "evict"
    """Have another model make room."""
    LOGS = "logs"
    """Read what engines log."""
    CAPTURE = "capture"
    """Read captured requests."""


ALL_RIGHTS: Final = frozenset(Right)

_IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.INFER: frozenset({Scope.INFER}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.READ}),
    Scope.ADMIN: frozenset({Scope.ADMIN, Scope.OPERATE, Scope.READ}),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a key may use; None does not limit. What counts, and how exactly, is said in `domain.limits`."""

    concurrency: int | None = None
    """Requests at the same time, those that wait for a model too."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and completion together."""
    tokens_per_day: int | None = None
    """Days and months begin at midnight UTC."""
    tokens_per_month: int | None = None
    device_seconds_per_day: float | None = None
    """Seconds for which it has leases, times the devices of the model."""
    device_seconds_per_month: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    @property
    def budgets(self) -> bool:
        """Whether one counts days or months."""
        return any(
            value is not None
            for value in (
                self.tokens_per_day, self.tokens_per_month, self.device_seconds_per_day, self.device_seconds_per_month,
            )
        )  # fmt: skip


MOST: Final[Mapping[str, int]] = {
    "concurrency": 1_000_000, "requests_per_minute": 100_000, "tokens_per_minute": 10**12, "tokens_per_day": 10**15,
    "tokens_per_month": 10**15, "device_seconds_per_day": 10**9, "device_seconds_per_month": 10**9,
}  # fmt: skip
"""The largest limit of each kind."""


def limits_of(asked: Mapping[str, float | None]) -> Limits:
    """Limits by their names in `Limits`. Raises BadRequest for one that cannot be."""
    for name, most in MOST.items():
        value = asked.get(name)
        seconds = name.startswith("device_seconds")
        if value is None or (0 < value <= most and (seconds or isinstance(value, int))):
            continue
        kind = "a number above 0" if seconds else "a whole number from 1"
        raise BadRequest(f"the limit {name} is {kind} to {most}, not {value:g}", param=name)
    return Limits(**{name: asked.get(name) for name in MOST})  # pyright: ignore[reportArgumentType]  # whole where that is wanted


@dataclass(frozen=True, slots=True)
class Key:
    """An issued key. Times are Unix seconds."""

    id: str
    name: str
    """Its label: whose it is, or what for."""
    digest: str
    """`digest(secret, ...)` with the server's secret."""
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    """Model ids that it may use, or patterns with `*`, `?` and `[...]`; None means all."""
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    prefix: str = ""
    """The beginning of its secret, to recognise it by."""
    acts: frozenset[Right] = ALL_RIGHTS
    weight: float = 1.0
    """Its share of a model's slots beside other keys that wait for the same model."""
    progress: bool = False
    """Its streams get progress comments while they wait, as if each had asked for them."""
    limits: Limits | None = None
    """None where nothing limits it: that costs nothing on a request's way."""
    old_digest: str | None = None
    """Of the secret before the last rotation..."""
    old_until: float | None = None
    """...which is good until then."""

    def active(self, wall: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or wall < self.expires_at)

    def allows(self, scope: Scope) -> bool:
        return any(scope in _IMPLIED[s] for s in self.scopes)

    def may(self, act: Right) -> bool:
        return act in self.acts

    def may_use(self, model: str) -> bool:
        if self.models is None or model in self.models:
            return True
        return any(fnmatchcase(model, pattern) for pattern in self.models if is_pattern(pattern))


ANONYMOUS = Key(id="anonymous", name="anonymous", digest="", scopes=frozenset(Scope))
"""Who everybody is under `auth.mode: none`."""


def is_pattern(text: str) -> bool:
    """Whether it means several models."""
    return not _GLOB.isdisjoint(text)


def digest(secret: str, pepper: bytes = b"") -> str:
    """The stored form of a secret: HMAC-SHA256 with the server's secret (`pepper`), in hex (docs/adr/023-hashes-of-keys.md)."""
    return hmac.new(pepper, secret.encode(), hashlib.sha256).hexdigest()


def same(a: str, b: str) -> bool:
    """Compare two digests in constant time."""
    return hmac.compare_digest(a, b)


def ended(before: Iterable[Key], after: Iterable[Key], wall: float) -> tuple[str, ...]:
    """Ids of the keys that were good before and are revoked, or gone, now. One whose time is simply over is not among them."""
    now = {key.id: key for key in after}
    return tuple(
        key.id
        for key in before
        if key.active(wall) and ((new := now.get(key.id)) is None or new.revoked_at is not None)
    )
