"""From a spec to how its engine is started, as far as its memory depends on it."""

import math
from collections.abc import Mapping

from vllm_mm.domain.model_config import Setup
from vllm_mm.domain.specs import GIB, ArgValue, EngineKind, ModelSpec, Task
from vllm_mm.engine.command import CPU_KV_CACHE
from vllm_mm.vocabulary.quantities import parse_size

_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def setup(spec: ModelSpec, environment: Mapping[str, str], *, gpu: bool) -> Setup:
    """`environment`: what the engine inherits. Arguments that vLLM will refuse count as not given."""
    args = spec.arguments
    return Setup(
        tensor_parallel=_count(args, "tensor-parallel-size") or spec.devices.count,
        pipeline_parallel=_count(args, "pipeline-parallel-size") or 1,
        dtype=_word(args, "dtype") or "auto",
        kv_dtype=_word(args, "kv-cache-dtype") or "auto",
        quantization=_word(args, "quantization"),
        max_model_len=_count(args, "max-model-len"),
        max_num_seqs=_count(args, "max-num-seqs"),
        max_batched_tokens=_count(args, "max-num-batched-tokens"),
        block=_count(args, "block-size"),
        windows=args.get("disable-hybrid-kv-cache-manager") is not True,
        eager=args.get("enforce-eager") is True,
        gpu=gpu,
        pooling=spec.task in {Task.EMBED, Task.SCORE, Task.CLASSIFY},
        offload=int((_number(args.get("cpu-offload-gb")) or 0.0) * GIB),
        kv_cache=_kv_cache(spec, args, environment, gpu=gpu),
    )


def _kv_cache(
    spec: ModelSpec, args: Mapping[str, ArgValue], environment: Mapping[str, str], *, gpu: bool
) -> int | None:
    if spec.engine is EngineKind.COMMAND:
        return 0
    if (given := _size(args.get("kv-cache-memory-bytes"))) is not None:
        return given
    if spec.kv_cache is not None or gpu:
        return spec.kv_cache
    # Of the CPU build; what the engine would inherit counts too.
    space = _number(spec.env.get(CPU_KV_CACHE) or environment.get(CPU_KV_CACHE))
    return int(space * GIB) if space else None


def _word(args: Mapping[str, ArgValue], name: str) -> str:
    value = args.get(name)
    return value.lower() if isinstance(value, str) else ""


def _count(args: Mapping[str, ArgValue], name: str) -> int | None:
    """Numbers as vLLM takes them, `8k` and `8K` among them (utils/argparse_utils.py). None for `auto` and its like."""
    value = args.get(name)
    factor = 1
    if isinstance(value, str) and value.strip()[-1:] in _FACTORS:
        factor, value = _FACTORS[value.strip()[-1]], value.strip()[:-1]
    found = _number(value)
    return int(found * factor) if found is not None and found > 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _size(value: object) -> int | None:
    """vLLM's human-readable integers: `10G` are 10 GiB, `10g` ten billion."""
    if isinstance(value, str) and value.strip()[-1:] in _FACTORS:
        found = _number(value.strip()[:-1])
        return int(found * _FACTORS[value.strip()[-1]]) if found is not None else None
    try:
        return parse_size(value) if value is not None else None
    except ValueError:
        return None
