"""The profile: how long a simulated engine takes for what, and how much memory it holds."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_mm.sim.faults import Faults, parse_faults
from vllm_mm.sim.quantities import (
    parse_bandwidth,
    parse_count,
    parse_duration,
    parse_fraction,
    parse_rate,
    parse_size,
)

GIB = 2**30
TASKS = ("generate", "embed", "score", "classify")


@dataclass(frozen=True, slots=True)
class Profile:
    """Frozen numbers, in bytes, seconds, and events a second (infinity: takes no time)."""

    weights: int = GIB
    """Bytes of weights over all ranks."""
    load_bandwidth: float = math.inf
    startup: float = 0.0
    """Seconds of imports and set-up before the weights."""
    compile: float = 0.0
    graphs: float = 0.0
    tokens_per_second: float = 100.0
    """Decode speed of a single sequence."""
    batch_slowdown: float = 0.01
    """How much longer a step takes for each further sequence in it (0.01: 1 %)."""
    prefill_tokens_per_second: float = 10_000.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    """Prompt tokens that one step takes in at most (chunked prefill)."""
    kv_cache: int = GIB
    """Bytes of KV cache over all ranks."""
    kv_bytes_per_token: int = 23_040
    overhead: int = 0
    """Bytes on each device beside weights and cache."""
    sleep_bandwidth: float = math.inf
    sleep_residual: int = 0
    """Bytes that stay on each device during sleep."""
    length: int = 0
    """Natural length of an answer in tokens; 0 lets the prompt decide (16 to 143)."""
    dimensions: int = 32
    """Of an embedding."""
    shards: int = 4
    """Checkpoint files, for the progress lines."""
    task: str = "generate"
    watchdog: float = 5.0
    """Seconds between the API server's looks at a dead core (vLLM: 5)."""
    worker_linger: float = 3.0
    """Seconds that a worker outlives a core that was killed (vLLM: about 3)."""
    device: tuple[str, ...] = ("sim0",)
    device_memory: int = 24 * GIB
    """Capacity of each device in bytes."""
    ledger: str | None = None
    """Directory of the shared memory ledger; None means that memory is not modelled."""
    fault: Faults = field(default_factory=Faults)


def _task(text: str) -> str:
    if text not in TASKS:
        raise ValueError(f"{text!r} is not a task; there are {', '.join(TASKS)}")
    return text


def _devices(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or any("/" in name or name.startswith(".") for name in names):
        raise ValueError(f"{text!r} is not a list of device names; write for example sim0 or sim0,sim1")
    return names


_COUNT_OR_ZERO: Callable[[str], int] = lambda text: 0 if text.strip() == "0" else parse_count(text)  # noqa: E731 - a table entry

KEYS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "weights": (parse_size, "bytes of weights, over all ranks (1GiB)"),
    "load_bandwidth": (parse_bandwidth, "how fast weights are read, such as 2GiB/s (unlimited)"),
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
    "length": (_COUNT_OR_ZERO, "natural length of an answer in tokens; 0: the prompt decides (0)"),
    "dimensions": (parse_count, "of an embedding (32)"),
    "shards": (parse_count, "checkpoint files, for the progress (4)"),
    "task": (_task, "generate, embed, score or classify (generate)"),
    "watchdog": (parse_duration, "between looks at a dead core (5s)"),
    "worker_linger": (parse_duration, "a worker outlives a killed core by (3s)"),
    "device": (_devices, "device of each rank, such as sim0,sim1 (sim0)"),
    "device_memory": (parse_size, "capacity of each device (24GiB)"),
    "ledger": (str, "directory of the shared memory ledger (none: memory is not modelled)"),
}
"""Every key of `--sim KEY=VALUE` and of a model's `sim:` block (`fault` besides): its parser and its meaning."""


def parse(mapping: Mapping[str, object]) -> Profile:
    """A profile from the words of the configuration file; numbers count as bytes or seconds.

    `fault` may be a text or a list of texts. Raises ValueError, which names the key (and the nearest one, if unknown).
    """
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        name = key.replace("-", "_")
        try:
            if name == "fault":
                values[name] = parse_faults(_texts(value))
            elif name in KEYS:
                values[name] = KEYS[name][0](_text(value))
            else:
                near = difflib.get_close_matches(name, [*KEYS, "fault"], n=1)
                raise ValueError("no such key" + (f"; did you mean {near[0]}?" if near else ""))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return Profile(**values)


def parse_pairs(pairs: Iterable[str]) -> Profile:
    """A profile from `KEY=VALUE` texts, as `--sim` takes them. Raises ValueError."""
    mapping: dict[str, object] = {}
    faults: list[str] = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not KEY=VALUE")
        if key.strip() == "fault":
            faults.append(value)
        else:
            mapping[key.strip()] = value
    return parse({**mapping, "fault": faults})


def argv(
    model: str,
    *,
    python: str,
    served_names: Iterable[str] = (),
    socket: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    profile: Mapping[str, object] | None = None,
    args: Iterable[str] = (),
) -> tuple[str, ...]:
    """The command line of a simulated engine:

    `PYTHON -m vllm_mm.sim MODEL --uds SOCKET --served-model-name NAME ... --sim KEY=VALUE ... ARGS`
    """
    address = ("--uds", socket) if socket else ("--host", host, "--port", str(port))
    names = tuple(served_names)
    pairs = [
        f"{key}={_text(value)}"
        for key, values in (profile or {}).items()
        for value in (_texts(values) if key == "fault" else (values,))
    ]
    return (
        python, "-m", "vllm_mm.sim", model, *address,
        *(("--served-model-name", *names) if names else ()),
        *(word for pair in pairs for word in ("--sim", pair)),
        *args,
    )  # fmt: skip


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r} is neither text nor a number")
    if isinstance(value, (list, tuple)):
        return ",".join(_texts(value))  # pyright: ignore[reportUnknownArgumentType] - the elements are checked there
    return str(value)


def _texts(value: object) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any text will do
    return [str(value)]
