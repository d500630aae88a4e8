"""The keys of a simulated engine's profile: `--sim KEY=VALUE` on its command line, a model's `sim:` in the configuration."""

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from vllm_mm.vocabulary.faults import parse_faults
from vllm_mm.vocabulary.quantities import (
    parse_bandwidth,
    parse_count,
    parse_duration,
    parse_fraction,
    parse_rate,
    parse_size,
)

GIB = 1024**3
TASKS = ("generate", "embed", "score", "classify", "transcribe", "realtime")
IMPORTS_VARIABLE = "MM_SIM_IMPORTS"
"""Environment variable with the seconds of the key `imports`: the cost has to be known before the arguments are read."""


def _task(value: object) -> str:
    if value not in TASKS:
        raise ValueError(f"{value!r} is not a task; there are {', '.join(TASKS)}")
    return str(value)


def _tools(value: object) -> bool:
    if value not in ("called", "refused"):
        raise ValueError(f"{value!r} does not say what becomes of tools; write called or refused")
    return value == "called"


def _devices(value: object) -> tuple[str, ...]:
    names = tuple(name.strip() for text in texts(value) for name in text.split(",") if name.strip())
    if not names or any("/" in name or name.startswith(".") for name in names):
        raise ValueError(f"{value!r} is not a list of device names; write it like sim0 or sim0,sim1")
    return names


def _length(value: object) -> int:
    return 0 if str(value).strip() == "0" else parse_count(value)


def _directory(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a directory")
    return value


def texts(value: object) -> list[str]:
    """A list of words as it is, anything else as a list of one."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any text will do
    return [str(value)]


KEYS: Mapping[str, tuple[Callable[[object], Any], str]] = {
    "weights": (parse_size, "bytes of weights, over all ranks (1GiB)"),
    "load_bandwidth": (parse_bandwidth, "how fast weights are read, such as 2GiB/s (unlimited)"),
    "imports": (parse_duration, "Python imports, paid once by a process and those forked from it (0s)"),
    "startup": (parse_duration, "set-up before the weights (0s)"),
    "compile": (parse_duration, "torch.compile (0s)"),
    "graphs": (parse_duration, "capture of CUDA graphs (0s)"),
    "tokens_per_second": (parse_rate, "decode speed of one sequence (100)"),
    "batch_slowdown": (parse_fraction, "share by which each further sequence lengthens a step (0.01)"),
    "prefill_tokens_per_second": (parse_rate, "prefill speed (10000)"),
    "max_num_seqs": (parse_count, "sequences that run at once (256)"),
    "max_num_batched_tokens": (parse_count, "prompt tokens taken in by one step (2048)"),
    "kv_cache": (parse_size, "bytes of KV cache, over all ranks (1GiB)"),
    "kv_bytes_per_token": (parse_size, "KV cache of one token (23040B)"),
    "overhead": (parse_size, "further bytes on each device (0)"),
    "sleep_bandwidth": (parse_bandwidth, "how fast weights go to host memory and back (unlimited)"),
    "sleep_residual": (parse_size, "bytes that stay on each device during sleep (0)"),
    "length": (_length, "natural length of an answer in tokens; 0: the prompt decides (0)"),
    "dimensions": (parse_count, "of an embedding (32)"),
    "shards": (parse_count, "checkpoint files, for the progress (4)"),
    "task": (_task, "generate, embed, score or classify (generate)"),
    "tools": (_tools, "called, as by a vLLM with --enable-auto-tool-choice, or refused (refused)"),
    "watchdog": (parse_duration, "between looks at a dead core (5s)"),
    "worker_linger": (parse_duration, "a worker outlives a killed core by (3s)"),
    "device": (_devices, "device of each rank, such as sim0,sim1 (sim0)"),
    "device_memory": (parse_size, "capacity of each device (24GiB)"),
    "ledger": (_directory, "directory of the shared memory ledger (none: memory is not modelled)"),
    "fault": (lambda value: parse_faults(texts(value)), "what goes wrong, such as exit_0; see the faults (nothing)"),
}
"""Every key: its parser (which raises ValueError), and its meaning with the default in brackets."""


SIZES: Mapping[str, int] = {
    "weights": GIB, "kv_cache": GIB, "overhead": 0, "kv_bytes_per_token": 23_040, "sleep_residual": 0,
}  # fmt: skip
"""Bytes of these keys where a profile does not say."""


def size_of(profile: Mapping[str, object], key: str) -> int:
    """Bytes of a key of `SIZES`, for those who plan with an engine before it runs. A size that is none counts as nothing: the
    engine refuses to start with it, and says how sizes are written."""
    return _size(str(profile[key])) if key in profile else SIZES[key]


@lru_cache(maxsize=4096)  # asked for in each round of the scheduler
def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        return 0


def value_of(profile: Mapping[str, object], key: str, default: Any) -> Any:
    """The value of a key, parsed; `default` where the profile does not say. Raises ValueError."""
    return KEYS[key][0](profile[key]) if key in profile else default


def load_seconds(profile: Mapping[str, object], *, imports: bool = True) -> float:
    """Seconds from the start of a simulated engine's process to ready, by its profile. Raises ValueError."""
    steps = ("imports", "startup", "compile", "graphs") if imports else ("startup", "compile", "graphs")
    reading = value_of(profile, "weights", SIZES["weights"]) / value_of(profile, "load_bandwidth", math.inf)
    return sum(value_of(profile, key, 0.0) for key in steps) + reading


def move_seconds(profile: Mapping[str, object], ranks: int = 1) -> float:
    """Seconds that its weights take to host memory, or back. Raises ValueError."""
    return value_of(profile, "weights", SIZES["weights"]) / value_of(profile, "sleep_bandwidth", math.inf) / ranks


def problems(profile: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What an engine would refuse in `profile`: (key, what is wrong with it and what would be right)."""
    for key, value in profile.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key.lower().replace("-", "_"), KEYS, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(KEYS))}"
            yield key, f"unknown key; {hint}"
        elif value is None or isinstance(value, bool):
            yield key, f"{json.dumps(value)} is no value for it; it is {KEYS[key][1]}"
        else:
            try:
                KEYS[key][0](value)
            except ValueError as error:
                yield key, str(error)
