"""API keys as the product knows them: a hash, what it may do, and never the secret."""

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "mm-"
"""Every secret begins with this, so that scanners and people recognise one that leaked."""


class Scope(StrEnum):
    """What a key may do. ADMIN implies OPERATE, OPERATE implies READ; INFER is the data plane."""

    INFER = "infer"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


_IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.INFER: frozenset({Scope.INFER}),
    Scope.READ: frozenset({Scope.READ}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.READ}),
    Scope.ADMIN: frozenset({Scope.ADMIN, Scope.OPERATE, Scope.READ}),
}


@dataclass(frozen=True, slots=True)
class Key:
    """An issued key. Times are Unix seconds."""

    id: str
    name: str
    digest: str
    """`digest(secret)`. Secrets carry 256 random bits, so one fast hash is enough: there is nothing to guess."""
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    """Model ids that it may use; None means all."""
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    progress: bool = False
    """Its streams get progress comments while they wait, as if each had asked for them."""

    def active(self, wall: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or wall < self.expires_at)

    def allows(self, scope: Scope) -> bool:
        return any(scope in _IMPLIED[s] for s in self.scopes)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


ANONYMOUS = Key(id="anonymous", name="anonymous", digest="", scopes=frozenset(Scope))
"""Who everybody is under `auth.mode: none`."""


def digest(secret: str) -> str:
    """The stored form of a secret: SHA-256, in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(a: str, b: str) -> bool:
    """Compare two digests in constant time."""
    return hmac.compare_digest(a, b)
