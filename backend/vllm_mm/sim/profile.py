"""The profile: how long a simulated engine takes for what, and how much memory it holds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from vllm_mm.vocabulary.faults import Faults
from vllm_mm.vocabulary.profile import GIB, KEYS, SIZES, problems, texts


@dataclass(frozen=True, slots=True)
class Profile:
    """Frozen numbers, in bytes, seconds, and events a second (infinity: takes no time)."""

    weights: int = SIZES["weights"]
    """Bytes of weights over all ranks."""
    load_bandwidth: float = math.inf
    imports: float = 0.0
    """Seconds of Python imports, which a fork of a process that has done them is spared."""
    startup: float = 0.0
    """Seconds of set-up before the weights."""
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
    kv_cache: int = SIZES["kv_cache"]
    """Bytes of KV cache over all ranks."""
    kv_bytes_per_token: int = SIZES["kv_bytes_per_token"]
    overhead: int = SIZES["overhead"]
    """Bytes on each device beside weights and cache."""
    sleep_bandwidth: float = math.inf
    sleep_residual: int = SIZES["sleep_residual"]
    """Bytes that stay on each device during sleep."""
    length: int = 0
    """Natural length of an answer in tokens; 0 lets the prompt decide (16 to 143)."""
    dimensions: int = 32
    """Of an embedding."""
    shards: int = 4
    """Checkpoint files, for the progress lines."""
    task: str = "generate"
    tools: bool = False
    """Tools may be called, as with `--enable-auto-tool-choice`."""
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


def parse(mapping: Mapping[str, object]) -> Profile:
    """A profile from the words of the configuration file; numbers count as bytes or seconds.

    `fault` may be a text or a list of texts. Raises ValueError, which names the key (and the nearest one, if unknown).
    """
    named = {key.replace("-", "_"): value for key, value in mapping.items()}
    for key, message in problems(named):
        raise ValueError(f"{key}: {message}")
    return Profile(**{key: KEYS[key][0](value) for key, value in named.items()})


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
        for value in (texts(values) if key == "fault" else (values,))
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
        return ",".join(texts(cast("list[object] | tuple[object, ...]", value)))
    return str(value)
