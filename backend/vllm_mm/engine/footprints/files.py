"""Reads what a model's folder tells of its size: config.json, and the heads of its weight files. Blocking, and quick: no
tensor is read. A file that cannot be read is no error here; vLLM will say so itself."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vllm_mm.domain.model_config import Config, section
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.domain.weights import STORED_BITS, Checkpoint, Tensor
from vllm_mm.engine.weights import hub, model_folder, safetensors_in

_LARGEST_HEAD = 100 * 1024**2
"""The safetensors library itself refuses a longer head."""
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """None for what is not on this machine."""

    config: Config | None = None
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()


def read(spec: ModelSpec, environment: Mapping[str, str]) -> ModelFiles:
    """`environment`: that of the engine, for the place of the cache of Hugging Face."""
    name = spec.model or spec.id
    path = Path(name)
    if path.is_file():
        return ModelFiles(_json(path.parent / "config.json"), Checkpoint(opaque=path.stat().st_size, form=_form(path)))
    folder = model_folder(spec, {**environment, **spec.env})
    if folder is None:
        if spec.engine is EngineKind.COMMAND:
            return ModelFiles()
        where = hub(spec, {**environment, **spec.env})
        return ModelFiles(
            notes=(f"{name} is neither a folder nor in {where}: its size is not known before its download",)
        )
    checkpoint = read_weights(folder)
    notes = (
        (f"there are no weights in {folder}: its size is not known before its download",) if checkpoint is None else ()
    )
    return ModelFiles(_json(folder / "config.json"), checkpoint, notes)


def read_weights(folder: Path) -> Checkpoint | None:
    """As vLLM chooses among the files: safetensors, else PyTorch's, else GGUF."""
    index = section(_json(folder / _INDEX) or {}, "weight_map"), section(_json(folder / _INDEX) or {}, "metadata")
    wanted = {str(name) for name in index[0].values()}
    files = [f for f in safetensors_in(folder) if not wanted or f.name in wanted]
    if files or wanted:
        return _safetensors(files, missing=bool(wanted - {f.name for f in files}), total=index[1].get("total_size"))
    for form in ("bin", "gguf"):
        sizes = [
            f.stat().st_size for f in folder.glob(f"*.{form}") if f.is_file() and not f.name.startswith("training")
        ]
        if sizes:
            return Checkpoint(opaque=sum(sizes), form=form)
    return None


def _safetensors(files: list[Path], *, missing: bool, total: object) -> Checkpoint:
    tensors: list[Tensor] = []
    opaque = 0
    for file in files:
        found = read_head(file)
        tensors += found
        opaque += 0 if found else file.stat().st_size
    if missing and isinstance(total, int):  # a download that is not complete; the index tells the sum
        opaque += max(0, total - opaque - sum(t.values * STORED_BITS.get(t.dtype, 8) // 8 for t in tensors))
    return Checkpoint(tuple(tensors), opaque)


def read_head(file: Path) -> list[Tensor]:
    """The tensors of a .safetensors file: 8 bytes with the length of a JSON object, then that object
    (github.com/huggingface/safetensors, "Format"). Empty for a file that is none."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            head = _object(opened.read(length)) if length <= _LARGEST_HEAD else {}
    except (OSError, struct.error):
        return []
    return [tensor for name, value in head.items() if (tensor := _tensor(name, value)) is not None]


def _tensor(name: str, value: object) -> Tensor | None:
    if name == "__metadata__" or not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value)
    shape: object = found.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in cast("list[object]", shape)):
        return None
    return Tensor(name, str(found.get("dtype")), tuple(cast("list[int]", shape)))


def _json(file: Path) -> Config | None:
    try:
        return _object(file.read_bytes()) or None
    except OSError:
        return None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value: object = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _form(path: Path) -> str:
    return "gguf" if path.suffix == ".gguf" else "bin"
