"""Where the weights of a model lie on this machine, without asking the network."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from vllm_mm.domain.specs import EngineKind, ModelSpec

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def weight_files(spec: ModelSpec, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The *.safetensors of a vLLM model in a local folder or in the cache of Hugging Face, in the order in which they are
    loaded; nothing when they are not here (yet). `environment` is that of the engine. Blocking: looks into folders."""
    if spec.engine is not EngineKind.VLLM:
        return ()
    folder = model_folder(spec, {**environment, **spec.env})
    return safetensors_in(folder) if folder is not None else ()


def safetensors_in(folder: Path) -> tuple[Path, ...]:
    """The *.safetensors that vLLM loads from a model's folder, in that order."""
    # vLLM takes the parts alone where there is a consolidated file besides (model_loader/weight_utils.py).
    files = sorted(f for f in folder.glob("*.safetensors") if f.is_file())
    parts = [f for f in files if not f.name.startswith("consolidated")]
    return tuple(parts or files)


def model_folder(spec: ModelSpec, environment: Mapping[str, str]) -> Path | None:
    """Where the files of a model are on this machine; None when they are not. Blocking."""
    name = spec.model or spec.id
    if Path(name).is_dir():
        return Path(name)
    if not _REPOSITORY.fullmatch(name):
        return None
    repository = hub(spec, environment) / f"models--{name.replace('/', '--')}"
    revision = argument(spec, "revision") or "main"
    with contextlib.suppress(OSError):  # a commit's own name, or nothing there
        revision = (repository / "refs" / revision).read_text().strip()
    snapshot = repository / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def hub(spec: ModelSpec, environment: Mapping[str, str]) -> Path:
    """As huggingface_hub finds its cache (huggingface_hub/constants.py), or vLLM's --download-dir."""
    if directory := argument(spec, "download-dir"):
        return Path(directory)
    if directory := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(directory)
    if directory := environment.get("HF_HOME"):
        return Path(directory) / "hub"
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '/nonexistent')}/.cache"
    return Path(cache) / "huggingface" / "hub"


def repository_of(spec: ModelSpec) -> str | None:
    """The id on the hub that its weights come from; None for a folder or a file of this machine. Blocking: looks for those."""
    name = spec.model or spec.id
    return name if _REPOSITORY.fullmatch(name) and not Path(name).exists() else None


def argument(spec: ModelSpec, name: str) -> str:
    """The text of one of its arguments, by vLLM's own name; empty where it has none."""
    for key, value in spec.args.items():
        if key.lstrip("-").replace("_", "-") == name and isinstance(value, str):
            return value
    return ""
