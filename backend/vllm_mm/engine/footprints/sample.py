"""What one launch teaches of its model's footprint: from what its log told, and from what its processes hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mm.domain.specs import GIB
from vllm_mm.engine.progress import Fact


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes on one device. `fixed`: everything but the KV cache. 0 for what was not told."""

    fixed: int
    weights: int
    kv_cache: int


def sample(facts: Mapping[str, Fact], used: int) -> Sample:
    """`used`: what the processes of the launch hold on the device that holds most. An encoder names a size for a KV cache that
    it then does not make; only who tells its tokens has one. vLLM fills it with zeros, so that it counts as used at once."""
    weights = _bytes(facts, "weights_gib")
    kv_cache = _bytes(facts, "kv_cache_gib") if "kv_tokens" in facts else 0
    return Sample(max(used - kv_cache, weights), weights, kv_cache)


def profiled(facts: Mapping[str, Fact], reserved: int) -> Sample | None:
    """Of a launch whose processes cannot be looked into, or that failed: an engine that sizes its KV cache itself gives it
    what is left of its share, so the rest is what it needs. None when its log does not tell."""
    if "kv_cache_gib" not in facts:
        return None
    kv_cache = int(float(str(facts["kv_cache_gib"])) * GIB)  # negative, when not even the rest had room
    return Sample(max(0, reserved - kv_cache), _bytes(facts, "weights_gib"), max(0, kv_cache))


def _bytes(facts: Mapping[str, Fact], name: str) -> int:
    value = facts.get(name)
    return max(0, int(value * GIB)) if isinstance(value, int | float) else 0
