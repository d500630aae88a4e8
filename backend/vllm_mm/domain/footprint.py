"""How much memory a model takes on each of its devices: what is declared, what was learned from launches, and what the
model's files make one expect, in that order. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, TypeAlias

from vllm_mm.domain.specs import GIB

Basis: TypeAlias = Literal["declared", "learned", "estimated"]
MIB = 1024**2
TOLERANCE = 64 * MIB
TOLERANCE_SHARE = 0.03
"""What an engine may use beyond its reservation before that counts as more: readings are seconds apart and breathe."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a footprint is made of, in bytes on each device."""

    weights: int = 0
    kv_cache: int = 0
    overhead: int = 0
    """Everything else: runtime, activations, graphs, buffers."""

    @property
    def fixed(self) -> int:
        """What the engine takes whatever KV cache it is given."""
        return self.weights + self.overhead

    @property
    def total(self) -> int:
        return self.fixed + self.kv_cache


@dataclass(frozen=True, slots=True)
class Footprint:
    """What to reserve on each device, in bytes, and how that is known."""

    per_device: int
    source: Basis
    spread: int = 0
    """Standard deviation of what launches took, in bytes; 0 for a figure that was not learned."""
    parts: Parts = Parts()
    """As far as they are known; all zero when they are not."""
    samples: int = 0
    """Launches that it was learned from."""
    learned_at: float | None = None
    """Unix time of the last of them."""
    kv_tokens: int | None = None
    """Tokens that the KV cache holds; None when that is not known."""
    kv_token_bytes: int | None = None
    """Bytes that one token takes in it on each device."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what is not counted; a sentence each."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What the launches of one spec took on one set of devices: bytes on each device, without the KV cache, which is given
    to an engine and not a need of its own. Welford's running mean and sum of squares."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    largest: int = 0
    weights: int = 0
    """Of the latest launch that told; 0 when none did."""
    kv_cache: int = 0
    """What the latest launch was given."""
    at: float = 0.0
    """Unix time of the latest."""

    @property
    def spread(self) -> float:
        """Standard deviation in bytes; 0 with less than two launches."""
        return sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def launched(self, fixed: int, at: float, *, weights: int = 0, kv_cache: int = 0) -> "Learned":
        """One more launch, that took `fixed` bytes beside its KV cache."""
        count = self.count + 1
        away = fixed - self.mean
        mean = self.mean + away / count
        return Learned(
            count, mean, self.squares + away * (fixed - mean), max(self.largest, fixed), weights or self.weights, kv_cache, at
        )  # fmt: skip

    def grew(self, fixed: int, at: float) -> "Learned":
        """The latest launch took more by and by; the mean stays that of the settled launches."""
        return replace(self, largest=max(self.largest, fixed), at=at)


def exceeds(used: Mapping[str, int], reserved: Mapping[str, int]) -> dict[str, int]:
    """The devices of `reserved` on which an engine uses clearly more than that, with what it uses."""
    return {
        device: used[device]
        for device, size in reserved.items()
        if used.get(device, 0) > size + max(TOLERANCE, int(size * TOLERANCE_SHARE))
    }


def per_gib(token_bytes: int, block: int) -> int:
    """Tokens that 1 GiB of KV cache holds, in whole blocks of `block` tokens."""
    return GIB // (token_bytes * block) * block
