"""The engines that chaos is brought over: simulated ones, hundreds of rounds in minutes, and real vLLM, forked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import real_vllm
from real_vllm import TINY, Installation

WARM = {"launcher": "warm"}
LOCAL = {"launcher": "local"}
FAST = {"load_bandwidth": "100GiB/s", "startup": "50ms", "tokens_per_second": 400, "kv_cache": "1GiB"}
TOKENS = 40


@dataclass(frozen=True)
class Kind:
    """What one run is made of. Times in seconds."""

    name: str
    rounds: int
    config: Mapping[str, Any]
    broken: frozenset[str]
    """Models that never become ready."""
    waits: tuple[int, ...]
    """How long requests say that they wait, drawn from these."""
    patience: float
    """After which a request counts as hanging: its wait, a drain and a generation are less."""
    start: float
    """In which one start is over, whatever else goes on."""
    pause: float
    """The longest between two rounds."""
    body: Mapping[str, Any]
    """Of every request, beside model and stream."""
    freezes: tuple[str, ...] = ()
    """A model whose streams take longer than a drain, and one that has no room beside it. Empty where engines cannot keep requests."""

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.config["models"])

    @property
    def healthy(self) -> tuple[str, ...]:
        return tuple(m for m in self.models if m not in self.broken)


def simulated(rounds: int) -> Kind:
    config: dict[str, Any] = {
        "devices": [{"id": "sim0", "memory": "24GiB", "simulated": True}, {"id": "sim1", "memory": "24GiB", "simulated": True}],
        "queue": {"max_size": 60},
        "swap": {"max_wait": "1s", "min_dwell": "200ms", "quantum": "500ms", "drain_timeout": "500ms", "on_drain_timeout": "preempt"},
        "host_memory": {"sleep_budget": "60GiB"},
        "server": {"shutdown_grace": "2s"},
        "timeouts": {"stop": "5s", "stop_grace": "2s"},
        "defaults": {
            "idle": {"sleep_after": "3s", "stop_after": "20s"},
            "retry": {"backoff": "200ms", "backoff_max": "1s", "max_failures": 1000},
            "start": {"stall": "5s", "deadline": "15s", "probe": "2s"},
            "env": {"VLLM_SERVER_DEV_MODE": "1"},
        },
        "models": {
            "small": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "4GiB"}},
            "org/medium": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "12GiB"}, "aliases": ["medium"]},
            "slow": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "14GiB", "tokens_per_second": 8}},
            "large": {**LOCAL, "engine": "sim", "sim": {**FAST, "weights": "20GiB"}},
            "pair": {**LOCAL, "engine": "sim", "sim": {**FAST, "weights": "24GiB"}, "devices": {"count": 2}},
            "stubborn": {**WARM, "engine": "sim", "sim": {**FAST, "weights": "10GiB", "fault": "ignore_term,leave_session"}},
            "broken": {**LOCAL, "engine": "sim", "sim": {**FAST, "weights": "2GiB", "fault": "die_at:weights"}},
        },
    }  # fmt: skip
    return Kind(
        "sim", rounds, config, frozenset({"broken"}), waits=(0, 2, 12, 12), patience=40.0, start=30.0, pause=0.25,
        body={"prompt": "Tell me", "max_tokens": TOKENS}, freezes=("slow", "pair"),
    )  # fmt: skip


def real(rounds: int, vllm: Installation) -> Kind:
    """Three models that serve, memory for two, and one whose context is longer than it can be."""
    tiny = {**vllm.declare(TINY), **WARM, "memory": "3GiB"}
    broken = {**tiny, "args": {**tiny["args"], "max-model-len": 100_000_000}}
    config: dict[str, Any] = {
        "devices": [{"id": "cpu", "memory": "6.5GiB", "headroom": 0}],
        "queue": {"max_size": 60},
        "swap": {"max_wait": "5s", "min_dwell": "1s", "drain_timeout": "5s"},
        "server": {"shutdown_grace": "5s"},
        "timeouts": {"stop": "20s", "stop_grace": "10s"},
        "defaults": {
            "idle": {"sleep_after": None, "stop_after": "30s"},
            "retry": {"backoff": "500ms", "backoff_max": "2s", "max_failures": 1000},
            "start": {"stall": "180s", "deadline": "240s", "probe": "60s"},
        },
        "models": {"one": tiny, "org/two": {**tiny, "aliases": ["two"]}, "three": tiny, "broken": broken},
    }  # fmt: skip
    return Kind(
        "vllm", rounds, config, frozenset({"broken"}), waits=(5, 60, 60, 60), patience=150.0, start=real_vllm.START,
        pause=5.0, body={"prompt": "Tell me", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True},
    )  # fmt: skip
