"""What a model is: the declared, immutable description that every start is made from."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeAlias

from vllm_mm.domain.request_rules import RuleSet
from vllm_mm.domain.usage import Price

ArgValue: TypeAlias = str | int | float | bool | list[Any] | dict[str, Any] | None

GIB = 1024**3
_SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "q": "quantization"}


class EngineKind(StrEnum):
    """How the engine process is made."""

    VLLM = "vllm"
    COMMAND = "command"
    SIM = "sim"


class LauncherKind(StrEnum):
    """How the process comes into being; the engine that runs in the end is the same."""

    AUTO = "auto"
    """Warm where that is possible and safe, else local."""
    WARM = "warm"
    """Forked from a process that has the engine's code in memory already."""
    LOCAL = "local"
    """A new process for each start."""


class Task(StrEnum):
    """What the engine is asked for; it decides which probe proves readiness."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"
    CLASSIFY = "classify"
    TRANSCRIBE = "transcribe"
    REALTIME = "realtime"
    """Transcribes speech while it is spoken, over a WebSocket."""


class Source(StrEnum):
    """Where a model was declared: the configuration file, or the admin API."""

    FILE = "file"
    API = "api"


@dataclass(frozen=True, slots=True)
class StartLimits:
    """How long a start may take, in seconds."""

    stall: float = 300.0
    """No new log line, phase or percentage for this long means that the start hangs."""
    deadline: float = 1800.0
    """The whole start, however lively it looks."""
    probe: float = 30.0
    """One health request or one-token probe."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What happens after a crash or a failed start."""

    backoff: float = 2.0
    """Seconds before the first retry; doubled at each further failure."""
    backoff_max: float = 60.0
    max_failures: int = 4
    """At this many failures in a row the instance is FAILED until an operator resets it."""
    stable_after: float = 60.0
    """READY for this long clears the failure count (invariant 7)."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Seconds without a lease after which a READY instance sleeps or stops; None means never."""

    sleep_after: float | None = 300.0
    stop_after: float | None = 3600.0


class SleepMode(StrEnum):
    """Whether an engine is put to sleep."""

    AUTO = "auto"
    """Where it is known to have vLLM's sleep mode (`domain.tiers.why_no_sleep`)."""
    ALWAYS = "always"
    """It has vLLM's routes, whatever is known of it."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class SleepSpec:
    """How a model sleeps."""

    mode: SleepMode = SleepMode.AUTO
    level: int = 1
    """1: weights in host memory. 2: weights dropped, and read again from disk at the wake."""
    keeps: int | None = None
    """Bytes that stay in use on each device during sleep; None means estimated, then measured."""


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """Which devices a model wants: explicit ids, or any `count` (its tensor-parallel size)."""

    count: int = 1
    ids: tuple[str, ...] = ()


def option_name(key: str) -> str:
    """How vLLM itself calls an argument that people may write in other ways. Words after a dot are keys of a JSON option."""
    head, dot, rest = key.lstrip("-").partition(".")
    head = head.replace("_", "-")
    return _SHORT.get(head, head) + dot + rest


@dataclass(frozen=True)
class ModelSpec:
    """Everything needed to start one model. Two specs with the same `fingerprint` start the same engine."""

    id: str
    engine: EngineKind = EngineKind.VLLM
    model: str | None = None
    """What the engine loads (`vllm serve MODEL`); the id itself when None."""
    executable: str = "vllm"
    launcher: LauncherKind = LauncherKind.AUTO
    args: Mapping[str, ArgValue] = field(default_factory=dict[str, ArgValue])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    command: tuple[str, ...] = ()
    """For `command` engines: the argument list with `{host}`, `{port}`, `{socket}` and `{model}` placeholders."""
    sim: Mapping[str, ArgValue] = field(default_factory=dict[str, ArgValue])
    """For `sim` engines: the profile, in the configuration file's own words (sizes and durations as text)."""
    task: Task = Task.GENERATE
    aliases: tuple[str, ...] = ()
    devices: DeviceWish = field(default_factory=DeviceWish)
    memory: int | None = None
    """Bytes per device that the engine takes; None means estimated, then learned."""
    kv_cache: int | None = None
    """Bytes of KV cache that it is given on each device; None means what its requests need, or all that is left."""
    pinned: bool = False
    preload: bool = False
    schedule: tuple[str, ...] = ()
    """Times of the week in which it is kept ready (`domain.schedules`)."""
    priority: int = 0
    concurrency: int = 256
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    start: StartLimits = field(default_factory=StartLimits)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    sleep: SleepSpec = field(default_factory=SleepSpec)
    request_defaults: Mapping[str, ArgValue] = field(default_factory=dict[str, ArgValue])
    request_overrides: Mapping[str, ArgValue] = field(default_factory=dict[str, ArgValue])
    request_limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the model itself says; what holds is in `request_rules`."""
    request_rules: Mapping[str, RuleSet] = field(default_factory=dict[str, RuleSet])
    """The rules of all levels, merged, by the name that is asked for; names without any are not there."""
    lora: Mapping[str, str] = field(default_factory=dict[str, str])
    progress: bool = False
    """Clients of its streams see comments while they wait, also those that did not ask."""
    stream_usage: bool = True
    """Its engine is asked for the token counts of streams whose clients did not ask."""
    price: Price | None = None
    """What its tokens cost; None: nothing is reckoned."""
    source: Source = Source.FILE
    nicknames: tuple[str, ...] = ()
    """More names that clients may use, given by a profile for as long as it is active; the engine knows nothing of them."""

    @property
    def served_names(self) -> tuple[str, ...]:
        """The id first: vLLM answers with the first name whatever alias was asked for."""
        return (self.id, *self.aliases)

    @cached_property
    def arguments(self) -> Mapping[str, ArgValue]:
        """`args` by vLLM's own option names, without dashes in front. Words after a dot are keys of a JSON option."""
        return {option_name(key): value for key, value in self.args.items()}

    @cached_property  # asked for in every round of the scheduler; kept in the __dict__, hence no slots
    def fingerprint(self) -> str:
        """16 hex digits over what the process depends on; pins, aliases' order, idle times and the
        launcher do not count."""
        process = {
            k: v
            for k, v in asdict(self).items()
            if k
            in {
                "id",
                "engine",
                "model",
                "executable",
                "args",
                "env",
                "command",
                "sim",
                "task",
                "devices",
                "memory",
                "kv_cache",
                "lora",
            }
        }
        process["aliases"] = sorted(self.aliases)
        process["sleep"] = (
            self.sleep.mode
        )  # it decides about `enable-sleep-mode`; level and keeps are no start's business
        return hashlib.sha256(json.dumps(process, sort_keys=True, default=str).encode()).hexdigest()[:16]
