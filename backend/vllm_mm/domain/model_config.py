"""Reading a model's config.json as vLLM does, as far as its memory depends on it. Pure; nothing in the file is trusted.

Facts: vLLM 0.32 (`transformers_utils/model_arch_config_convertor.py`, `config/model.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

Config: TypeAlias = Mapping[str, Any]

DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1,
}  # fmt: skip
_TEXT = ("text_config", "llm_config", "language_config")
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_SCALED_ALREADY = frozenset({
    "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope",
})  # fmt: skip
DEFAULT_LENGTH = 2048
"""What vLLM takes when the file says nothing of a length."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine is started, as far as its memory depends on it; sizes in bytes, None for what vLLM decides itself."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    dtype: str = "auto"
    kv_dtype: str = "auto"
    quantization: str = ""
    """Asked for at the start, for a checkpoint that is not quantised (`fp8`, `bitsandbytes`, ...)."""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    block: int | None = None
    windows: bool = True
    """False: with `disable-hybrid-kv-cache-manager` layers with a window keep everything, where others have none."""
    eager: bool = False
    gpu: bool = True
    pooling: bool = False
    offload: int = 0
    """Weights on each device that stay in host memory."""
    kv_cache: int | None = None
    """KV cache on each device, where somebody said how much."""

    @property
    def ranks(self) -> int:
        """Processes that the weights are spread over."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def batched_tokens(self) -> int:
        """Tokens in one step: what was asked for, or vLLM's default for its server on most devices."""
        return self.max_batched_tokens or 2048 * (1 if self.gpu else self.ranks)

    @property
    def sequences(self) -> int:
        """Requests in one step, likewise."""
        return self.max_num_seqs or (256 if self.gpu else 128 * self.ranks)


def number(config: Config, *names: str) -> int:
    """The first of `names` that is a positive whole number; 0 when none is."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def section(config: Config, name: str) -> Config:
    """A mapping inside the file; empty when it is none."""
    value = config.get(name)
    return cast("Config", value) if isinstance(value, dict) else {}


def strings(config: Config, name: str) -> tuple[str, ...]:
    """A list of words; empty when it is none."""
    value: object = config.get(name)
    items: list[object] = list(cast("list[object]", value)) if isinstance(value, list) else []
    return tuple(str(item) for item in items) if all(isinstance(item, str) for item in items) else ()


def text(config: Config) -> Config:
    """The part that describes the language model; multimodal models keep it in a section of its own."""
    if thinker := section(config, "thinker_config"):
        return text(thinker)
    return next((inner for name in _TEXT if (inner := section(config, name))), config)


def dtype(config: Config, setup: Setup) -> str:
    """In which type vLLM loads and computes: `bfloat16`, `float16` or `float32`."""
    if setup.dtype != "auto":
        return {"half": "float16", "float": "float32"}.get(setup.dtype, setup.dtype)
    inner = text(config)
    declared = next(
        (v for c in (config, inner) for k in ("dtype", "torch_dtype") if isinstance(v := c.get(k), str)), "float32"
    ).removeprefix("torch.")
    if declared == "float32" or declared not in DTYPE_BYTES:
        return "float16" if setup.pooling else "bfloat16"  # float32 is not kept unless asked for
    return declared


def quantization(config: Config) -> str:
    """How the checkpoint is quantised (`awq`, `gptq`, `fp8`, `compressed-tensors`, ...); empty when it is not."""
    for c in (config, text(config)):
        for name in ("quantization_config", "compression_config"):
            found = section(c, name)
            method = found.get("quant_method")
            if isinstance(method, str) and method:
                return method.lower()
            if found:
                return "quantised"
    return ""


def max_model_len(config: Config, setup: Setup) -> int:
    """Tokens of one request, prompt and answer together."""
    if setup.max_model_len is not None:
        return setup.max_model_len
    inner = text(config)
    lengths = [length for name in _LENGTHS if (length := number(inner, name))]
    if not lengths:
        return DEFAULT_LENGTH
    longest = number(inner, "model_max_length") or min(lengths)
    rope = section(inner, "rope_scaling") or section(inner, "rope_parameters")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "longrope":
        return number(inner, "original_max_position_embeddings") or longest
    factor = rope.get("factor")
    if kind in _SCALED_ALREADY or "gemma3" in str(config.get("model_type", "")) or not isinstance(factor, int | float):
        return longest
    return int(longest * max(1.0, factor))
