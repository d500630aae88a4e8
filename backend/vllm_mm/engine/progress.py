"""What a line of vLLM's log tells: how far a load is, what was learned, and (see `failures`) why it failed. Pure.

The texts are those of vLLM 0.32, run on its CPU build and the GPU ones read in its source. Lines carry prefixes of several
forms (none, `(EngineCore pid=N) INFO ...`, JSON), and two processes may write into one line: so everything is searched for.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from vllm_mm.engine.failures import KnownFailure, recognise

PHASES = (
    "version", "architecture", "engine", "download", "weights", "compile", "kv_cache", "graphs", "warmup", "tasks",
    "startup_complete",
)  # fmt: skip
"""In order. `engine` is the start of the engine core, `warmup` the end of its work, `startup_complete` when /health answers."""
PROFILED_FROM = frozenset({"kv_cache", "graphs", "warmup", "tasks", "startup_complete"})
"""In these the engine has measured its memory: a neighbour on the device cannot disturb it any more."""

Fact: TypeAlias = str | int | float | list[str]


@dataclass(frozen=True, slots=True)
class LineInfo:
    """Everything that one line tells. `percent` is of the phase."""

    phase: str | None = None
    percent: float | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    """Of `version`, `architecture`, `max_model_len`, `weights_gib`, `load_s` (weights alone: `weights_s`), `compile_s`,
    `kv_cache_gib`, `kv_tokens`, `max_concurrency`, `graphs_s`, `init_s`, `tasks`."""
    failure: KnownFailure | None = None


def parse(line: str) -> LineInfo | None:
    """None for a line that tells nothing; most do not, and cost one search."""
    if not any(piece in line for piece in _TELLING):
        return None
    for pattern, phase, learn in _MILESTONES:
        match = pattern.search(line)
        if match is not None:
            percent, facts = learn(match)
            return LineInfo(phase=phase, percent=percent, facts=facts)
    failure = recognise(line)
    return None if failure is None else LineInfo(failure=failure)


_Learned: TypeAlias = tuple[float | None, Mapping[str, Fact]]


def _nothing(_: re.Match[str]) -> _Learned:
    return None, {}


def _percent(match: re.Match[str]) -> _Learned:
    return float(match["percent"]), {}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _fact(*names: str) -> Callable[[re.Match[str]], _Learned]:
    """The groups of the match, in order, as facts ("" for none): `kv_tokens` a whole number, names a text, the others numbers."""

    def learn(match: re.Match[str]) -> _Learned:
        facts: dict[str, Fact] = {}
        for name, value in zip(names, match.groups(), strict=True):
            if value is None or not name:
                continue
            if name in ("version", "architecture"):
                facts[name] = value
            elif name in ("kv_tokens", "max_model_len"):
                facts[name] = int(_number(value))
            else:
                facts[name] = _number(value)
        return None, facts

    return learn


def _tasks(match: re.Match[str]) -> _Learned:
    return None, {"tasks": re.findall(r"[\w-]+", match[1])}


_PERCENT = r"(?P<percent>\d{1,3})%"
_N = r"(-?[\d.,]*\d)"

_MILESTONES: tuple[tuple[re.Pattern[str], str | None, Callable[[re.Match[str]], _Learned]], ...] = tuple(
    (re.compile(pattern), phase, learn)
    for pattern, phase, learn in (
        (r"(?:vLLM API server|vLLM server|█\s+) ?version (\d[\w.+]*)", "version", _fact("version")),
        (r"Resolved architectures?: \[?'?(\w+)", "architecture", _fact("architecture")),
        (r"Using max model len (\d+)", "architecture", _fact("max_model_len")),
        (r"Initializing a V1 LLM engine \(v([\w.+]+)\)", "engine", _fact("version")),
        (r"(?:Fetching \d+ files|\S+\.(?:safetensors|bin|pt|gguf)):\s+" + _PERCENT, "download", _percent),
        (r"Loading (?:\S+ checkpoint shards|safetensors using [\w ]+):\s+" + _PERCENT, "weights", _percent),
        (r"Starting to load model|Loading model from scratch", "weights", _nothing),
        (rf"Loading weights took {_N} seconds", "weights", _fact("weights_s")),
        (rf"Model loading took {_N} GiB(?: memory)? and {_N} seconds", "weights", _fact("weights_gib", "load_s")),
        (rf"torch\.compile took {_N} s in total", "compile", _fact("compile_s")),
        (r"Starting torch\.compile|for vLLM's torch\.compile|Warming up model for the compilation", "compile", _nothing),
        (rf"Available KV cache memory: {_N} GiB", "kv_cache", _fact("kv_cache_gib")),
        (rf"(?:Explicitly|Auto) set \({_N}/{_N}\) GiB for KV cache", "kv_cache", _fact("kv_cache_gib", "")),
        (
            rf"KV cache size: {_N} tokens(?:, Maximum concurrency for [\d,]+ tokens per request: {_N}x)?",
            "kv_cache",
            _fact("kv_tokens", "max_concurrency"),
        ),
        (r"Capturing CUDA graphs?(?: \(.*?\))?:\s+" + _PERCENT, "graphs", _percent),
        (rf"Graph capturing finished in {_N} secs", "graphs", _fact("graphs_s")),
        (rf"init engine .*took {_N} s", "warmup", _fact("init_s")),
        (r"Supported tasks: (\[.*?\])", "tasks", _tasks),
        (r"Application startup complete", "startup_complete", _nothing),
    )
)  # fmt: skip


_TELLING = (
    "%|", "% Completed", "version ", "Resolved arch", "Using max model", "Initializing a V1", "Starting to load", "Loading ",
    "torch.compile", "for the compilation", "KV cache size", "KV cache memory", "for KV cache", "Graph capturing",
    "init engine", "Supported tasks", "startup complete", "Model loading", "rror", "on startup is", "kv cache allocation",
    "To serve at least", "No available memory", "out of memory", "ALLOC_FAILED", "Sleep mode", "max_model_len", "gated",
    "restricted", "Invalid repository", "Can't load", "does not appear", "couldn't connect", "ddress already", "AF_UNIX",
    "No space left", "Found no NVIDIA", "No CUDA", "CUDA driver", "Failed to infer", "not compiled with", "no kernel image",
    "not supported", "only supported", "does not support", "shared object",
)  # fmt: skip
"""A piece of each text: all that the many lines that tell nothing have to be searched for (some microseconds)."""
