"""How much memory a model takes per device: declared, learned, or estimated, in that order."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec
from vllm_mm.settings import parse_size

OVERHEAD = GIB
"""Runtime, activations and buffers beside weights and KV cache; vLLM's own documents speak of 1 to 3 GiB."""
CPU_KV_CACHE = 4 * GIB
"""VLLM_CPU_KVCACHE_SPACE when neither the environment nor the spec says otherwise."""
GPU_FRACTION = 0.92
"""vLLM's default `--gpu-memory-utilization`: a fraction of the device's total, whatever the model needs."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes per device and where the figure comes from (`declared`, `learned` or `estimated`)."""

    per_device: int
    source: str


def footprint(spec: ModelSpec, devices: Mapping[str, Device], learned: Mapping[tuple[str, str], int]) -> Footprint:
    """What to reserve for `spec` on each of its devices."""
    if spec.memory is not None:
        return Footprint(spec.memory, "declared")
    if spec.engine is EngineKind.SIM:
        return Footprint(_sim(spec), "declared")
    known = [size for (fingerprint, _), size in learned.items() if fingerprint == spec.fingerprint]
    if known:
        return Footprint(max(known), "learned")
    kinds = {d.kind for d in devices.values() if not spec.devices.ids or d.id in spec.devices.ids}
    if kinds == {"gpu"} and spec.engine is EngineKind.VLLM:
        share = float(str(spec.args.get("gpu-memory-utilization", GPU_FRACTION)))
        return Footprint(int(share * min(d.capacity for d in devices.values() if d.kind == "gpu")), "estimated")
    weights = weights_size(spec.model or spec.id)
    kv_cache = _cpu_kv_cache(spec) if spec.engine is EngineKind.VLLM else 0
    return Footprint(weights // max(1, spec.devices.count) + kv_cache + OVERHEAD, "estimated")


def weights_size(model: str) -> int:
    """Bytes of the weight files when `model` is a local folder or file; 0 when that cannot be known from here."""
    path = Path(model)
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        return 0
    return sum(f.stat().st_size for pattern in ("*.safetensors", "*.bin", "*.gguf") for f in path.glob(pattern))


def _sim(spec: ModelSpec) -> int:
    """A size that is none counts as nothing: the engine refuses to start with it, and says how sizes are written."""
    weights, kv_cache = (_size(spec.sim.get(name, "1GiB")) for name in ("weights", "kv_cache"))
    return weights // max(1, spec.devices.count) + kv_cache


def _size(value: object) -> int:
    try:
        return parse_size(str(value))
    except ValueError:
        return 0


def _cpu_kv_cache(spec: ModelSpec) -> int:
    declared = spec.env.get("VLLM_CPU_KVCACHE_SPACE")
    return int(float(declared) * GIB) if declared else CPU_KV_CACHE
