"""The memory of an engine before it ever ran, from the files of its model: a sum, line by line. Pure.

Weights and KV cache follow vLLM's own arithmetic. The overhead is a rule of thumb; the first launch replaces it.
"""

from dataclasses import dataclass, replace

from vllm_mm.domain.footprint import MIB, Footprint, Parts
from vllm_mm.domain.kv_cache import KvCache, kv_cache
from vllm_mm.domain.model_config import Config, Setup, number, text
from vllm_mm.domain.specs import GIB
from vllm_mm.domain.weights import Checkpoint, Weights, weights

GPU_RUNTIME = 600 * MIB
"""Context, libraries and collectives of one rank on a GPU; graphs and activations come on top. Not measured by us: vLLM's
own documents speak of 1 to 3 GiB for all of it."""
GPU_GRAPHS = 512 * MIB
CPU_RUNTIME = 1500 * MIB
"""Resident memory of the four processes of an engine on the CPU build beside weights and KV cache: 1.5 to 1.9 GB were measured
with three small models (docs/real-vllm.md)."""
CPU_RANK = 500 * MIB
"""Of each further rank there."""
REQUESTS = 4
TOKENS = 32_768
"""The KV cache that a model is given when nobody says how much, where there is room: enough for 4 requests of the greatest
length, or for this many tokens if that is more, and never more than `max-num-seqs` requests need."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on each device. Unknown parts are None, and a note says so."""

    weights: Weights | None
    cache: KvCache | None
    overhead: int
    setup: Setup
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the weights could be found: without them a sum says nothing."""
        return self.weights is not None

    @property
    def fixed(self) -> int:
        return (self.weights.size if self.weights is not None else 0) + self.overhead

    @property
    def least_kv(self) -> int:
        """KV cache without which it does not start."""
        return self.cache.least if self.cache is not None else 0

    def wanted_kv(self) -> int:
        """KV cache that it is given where there is room."""
        if self.setup.kv_cache is not None:
            return self.setup.kv_cache
        if self.cache is None:
            return GIB
        most = self.cache.want(self.setup.sequences, 0)
        return min(most, self.cache.want(REQUESTS, TOKENS))

    def footprint(self, kv: int) -> Footprint:
        """With that KV cache."""
        parts = Parts(self.weights.size if self.weights is not None else 0, kv, self.overhead)
        return describe(Footprint(parts.total, "estimated", parts=parts, notes=self.notes), self.cache)


def describe(footprint: Footprint, cache: KvCache | None) -> Footprint:
    """With what its KV cache holds."""
    if cache is None or not cache.layers:
        return footprint
    return replace(footprint, kv_tokens=cache.tokens(footprint.parts.kv_cache), kv_token_bytes=cache.token_bytes)


def estimate(
    config: Config | None, checkpoint: Checkpoint | None, setup: Setup, notes: tuple[str, ...] = ()
) -> Estimate:
    """`config`: the model's config.json, None without one; `checkpoint`: None when it is not on this machine."""
    known: Config = config if config is not None else {}
    loaded = weights(known, checkpoint, setup) if checkpoint is not None else None
    cache = kv_cache(known, setup) if config is not None else None
    if loaded is not None:
        notes += loaded.notes
    if cache is not None:
        notes += cache.notes
    elif loaded is not None:
        notes += ("its KV cache per token is not known (no config.json that tells); 1 GiB is assumed",)
    return Estimate(loaded, cache, overhead(known, setup), setup, notes)


def overhead(config: Config, setup: Setup) -> int:
    """Runtime, graphs, and the activations of one full step: hidden states, the widest layer, and the logits in float32."""
    inner = text(config)
    hidden = number(inner, "hidden_size", "n_embd", "d_model")
    wide = number(inner, "intermediate_size", "ffn_dim", "n_inner") or 4 * hidden
    tokens = setup.batched_tokens
    activations = tokens * (6 * hidden + 3 * wide // setup.tensor_parallel) * 2
    logits = min(setup.sequences, tokens) * number(inner, "vocab_size") * 8
    if not setup.gpu:
        return CPU_RUNTIME + (setup.ranks - 1) * CPU_RANK + activations + logits
    return GPU_RUNTIME + (0 if setup.eager else GPU_GRAPHS) + activations + logits
