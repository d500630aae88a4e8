"""How long an engine takes for what, as a model of time: the same one that the simulated engine runs on, without its steps.

Prompts are taken in one after the other, and nothing is decoded meanwhile; all sequences decode at one pace, which falls
with each further one (`batch_slowdown`).
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vllm_mm.domain.specs import GIB, DeviceWish, IdlePolicy
from vllm_mm.vocabulary.profile import KEYS
from vllm_mm.vocabulary.quantities import (
    parse_duration,
    parse_fraction,
    parse_rate,
    parse_size,
)

FASTEST = 1e9
"""Tokens a second of an engine whose rate is unlimited."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds, tokens a second, bytes."""

    load: float = 20.0
    """From the start of the process to ready."""
    stop: float = 1.0
    """From the last request to the memory seen free."""
    sleep: float = 1.0
    """To fall asleep."""
    wake: float = 2.0
    sleeps: bool = True
    """Whether the engine has a sleep mode."""
    prefill: float = 10_000.0
    """Prompt tokens a second."""
    decode: float = 75.0
    """Tokens a second of a sequence that is alone."""
    batch_slowdown: float = 0.01
    """Share by which each further sequence lengthens a step."""
    asleep: int = 0
    """Bytes that stay on each device during sleep."""
    host: int | None = None
    """Bytes of host memory that it takes asleep; None means as much as on its devices."""


_TIMES = {
    "load": parse_duration, "stop": parse_duration, "sleep": parse_duration, "wake": parse_duration,
    "prefill": parse_rate, "decode": parse_rate, "batch_slowdown": parse_fraction,
    "asleep": parse_size, "host": parse_size,
}  # fmt: skip


def times(given: Mapping[str, Any], base: EngineTimes) -> EngineTimes:
    """`base`, changed by what is given, in words such as `load: 20s`. Raises ValueError, which names the key."""
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key == "sleeps" and isinstance(value, bool):
            changes[key] = value
        elif key in _TIMES:
            try:
                changes[key] = _TIMES[key](value)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error
        else:
            known = ", ".join(f.name for f in fields(EngineTimes))
            what = "is true or false" if key == "sleeps" else f"is unknown; known are {known}"
            raise ValueError(f"{key} {what}")
    return replace(base, **changes)


def from_profile(profile: Mapping[str, Any], base: EngineTimes, ranks: int = 1) -> EngineTimes:
    """The times of a simulated engine, from its profile in the configuration's own words. Raises ValueError."""

    def of(key: str, default: Any) -> Any:
        return KEYS[key][0](profile[key]) if key in profile else default

    weights = of("weights", GIB)
    moved = weights / of("sleep_bandwidth", math.inf) / ranks
    load = sum(of(key, 0.0) for key in ("imports", "startup", "compile", "graphs"))
    return replace(
        base,
        load=load + weights / of("load_bandwidth", math.inf),
        sleep=moved,
        wake=moved,
        prefill=of("prefill_tokens_per_second", 10_000.0),
        decode=of("tokens_per_second", 100.0),
        batch_slowdown=of("batch_slowdown", 0.01),
        asleep=of("sleep_residual", 0),
        host=weights,
    )


@dataclass(frozen=True, slots=True)
class VirtualModel:
    """A model as the fleet knows it."""

    id: str
    memory: int
    """Bytes per device."""
    times: EngineTimes = field(default_factory=EngineTimes)
    wish: DeviceWish = field(default_factory=DeviceWish)
    concurrency: int = 256
    pinned: bool = False
    """Ready from the beginning, and never a victim."""
    preload: bool = False
    """Ready from the beginning, if it fits."""
    priority: int = 0
    idle: IdlePolicy = field(default_factory=lambda: IdlePolicy(None, None))

    @property
    def host_bytes(self) -> int:
        """What it takes of the host's memory asleep."""
        return self.memory * self.wish.count if self.times.host is None else self.times.host


class Decoder:
    """The sequences of one running engine. Times are absolute seconds and never go back."""

    __slots__ = ("_busy_until", "_heap", "_now", "_pace", "_prefill", "_slowdown", "_tokens")

    def __init__(self, times: EngineTimes, now: float) -> None:
        self._pace = min(times.decode, FASTEST)
        self._prefill = min(times.prefill, FASTEST)
        self._slowdown = times.batch_slowdown
        self._now = now
        self._busy_until = now
        """Until then prompts are taken in."""
        self._tokens = 0.0
        """What a sequence that was there from the beginning would have decoded."""
        self._heap: list[tuple[float, int]] = []

    def admit(self, now: float, prompt: int) -> float:
        """Take a prompt in after those that came before; returns when that is done."""
        self._advance(now)
        self._busy_until = max(now, self._busy_until) + prompt / self._prefill
        return self._busy_until

    def step(self) -> float:
        """Seconds for the next token of each sequence."""
        return (1 + self._slowdown * max(0, len(self._heap) - 1)) / self._pace

    def join(self, now: float, sequence: int, output: int) -> None:
        """The prompt of `sequence` is in: it decodes `output` tokens from now on."""
        self._advance(now)
        heapq.heappush(self._heap, (self._tokens + output, sequence))

    def due(self) -> float | None:
        """When the next sequence would be done if nothing came in between."""
        if not self._heap:
            return None
        return max(self._now, self._busy_until) + max(0.0, self._heap[0][0] - self._tokens) * self.step()

    def finished(self, now: float) -> list[int]:
        """The sequences that are done by now."""
        self._advance(now)
        done: list[int] = []
        while self._heap and self._heap[0][0] <= self._tokens + 1e-6:
            done.append(heapq.heappop(self._heap)[1])
        return done

    def freeze(self, now: float) -> None:
        """Nothing goes on until `thaw`."""
        self._advance(now)
        self._busy_until = max(0.0, self._busy_until - now)

    def thaw(self, now: float, recompute: float) -> float:
        """Everything goes on, after `recompute` tokens of prompts and answers were taken in anew: sleep throws their KV
        cache away. Returns the seconds by which prompts that were being taken in are late: add them to what was left."""
        late = recompute / self._prefill
        self._now = now
        self._busy_until += now + late
        return late

    def produced(self, output: int, sequence: int) -> float:
        """Tokens of `output` that a sequence which has joined has decoded; 0 for others."""
        return next((output - (target - self._tokens) for target, n in self._heap if n == sequence), 0.0)

    def _advance(self, now: float) -> None:
        active = now - max(self._now, self._busy_until)
        if active > 0:
            self._tokens += active / self.step()
        self._now = max(self._now, now)
