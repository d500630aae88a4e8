"""What the weights of a model take on one device once they are loaded. Pure.

A checkpoint's tensors stay as they are stored, except that plain floating-point ones become the type that the engine computes in,
and that a quantisation asked for at the start shrinks the linear layers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from vllm_mm.domain.model_config import DTYPE_BYTES, Config, Setup, dtype, quantization, text

STORED_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "I64": 64, "I32": 32,
    "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Bits of a value by the type names of safetensors."""
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
_SHRUNK_BITS = {"fp8": 8.0, "int8": 8.0, "bitsandbytes": 4.5, "experts_int8": 8.0, "mxfp4": 4.25, "torchao": 8.0}
"""Of a weight of a linear layer, with its scales; bitsandbytes has a 4-byte scale for 64 values."""
_ENDS = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings")
_HEAD = ("lm_head", "embed_out")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: its name, its type as safetensors names it, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        found = 1
        for size in self.shape:
            found *= size
        return found


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weight files of a model: their tensors where they can be read, else their size in bytes."""

    tensors: tuple[Tensor, ...] = ()
    opaque: int = 0
    """Bytes in files whose tensors are not known: PyTorch's, GGUF, or parts that are only in the index."""
    form: str = "safetensors"
    """Or `bin` or `gguf`."""


@dataclass(frozen=True, slots=True)
class Weights:
    """On the device that has most of them, in bytes."""

    size: int
    tensors: int
    stored: str
    """The types in the files, the most frequent first, such as `BF16` or `I32, F16`."""
    loaded: str
    """As what plain ones are loaded."""
    notes: tuple[str, ...] = ()


def weights(config: Config, checkpoint: Checkpoint, setup: Setup) -> Weights:
    """The largest share that one device has. Every rank of a stage has the same; the first stage of a pipeline has the
    embeddings besides its layers, the last one the head."""
    target = dtype(config, setup)
    asked = setup.quantization if not quantization(config) else ""
    bits = _SHRUNK_BITS.get(asked, 0.0)
    tied = config.get("tie_word_embeddings", text(config).get("tie_word_embeddings")) is True
    notes: list[str] = []
    if asked and not bits and asked not in {"gguf", "auto"}:
        notes.append(f"quantization {asked} at the start is not counted: the weights are taken as they are stored")
    layers, first, last = 0.0, 0.0, 0.0
    for tensor in checkpoint.tensors:
        words = tensor.name.split(".")
        if any(word in _HEAD for word in words):
            last += 0 if tied else _loaded(tensor, target, 0.0)
        elif any(word in _ENDS for word in words):
            first += _loaded(tensor, target, 0.0)
        else:
            layers += _loaded(tensor, target, bits)
    if tied and setup.pipeline_parallel > 1:
        last = first
    layers += _opaque(config, checkpoint, target)
    share = (
        layers / setup.pipeline_parallel + (first + last if setup.pipeline_parallel == 1 else max(first, last))
    ) / (setup.tensor_parallel)
    return Weights(
        max(0, ceil(share) - setup.offload), len(checkpoint.tensors), _stored(checkpoint), target, tuple(notes)
    )


def _loaded(tensor: Tensor, target: str, bits: float) -> float:
    """Bytes of it in the engine."""
    if tensor.dtype not in _PLAIN or tensor.name.endswith(("scale", "scale_inv", "scales", "zero_point")):
        return tensor.values * STORED_BITS.get(tensor.dtype, 8) / 8
    if bits and len(tensor.shape) > 1 and tensor.name.endswith("weight"):
        return tensor.values * bits / 8
    return tensor.values * DTYPE_BYTES.get(target, 2)


def _opaque(config: Config, checkpoint: Checkpoint, target: str) -> float:
    """Files without known tensors: scaled from the type that config.json says they are in, unless they are quantised."""
    if checkpoint.form == "gguf" or quantization(config):
        return checkpoint.opaque
    declared = dtype(config, Setup(dtype=_declared(config)))
    return checkpoint.opaque * DTYPE_BYTES.get(target, 2) / DTYPE_BYTES.get(declared, 2)


def _declared(config: Config) -> str:
    found = config.get("torch_dtype", config.get("dtype"))
    return found.removeprefix("torch.") if isinstance(found, str) else "auto"


def _stored(checkpoint: Checkpoint) -> str:
    if not checkpoint.tensors:
        return checkpoint.form
    counted = _by_type(checkpoint.tensors)
    return ", ".join(sorted(counted, key=lambda name: -counted[name])[:3])


def _by_type(tensors: Iterable[Tensor]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tensor in tensors:
        found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.values
    return found
