"""The sections about models: their defaults, and what one of them says itself."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from vllm_mm.settings.fields import ArgValue, AutoSize, EngineName, LauncherName, ModelId, Section, Switch, Text
from vllm_mm.settings.nodes import KeyPath
from vllm_mm.settings.units import Duration
from vllm_mm.vocabulary.profile import KEYS
from vllm_mm.vocabulary.week import parse


def _time_of_the_week(value: str) -> str:
    parse(value)
    return value


TimeOfTheWeek = Annotated[str, AfterValidator(_time_of_the_week)]
"""Such as `mon-fri 09:00-18:00`."""


class IdleConfig(Section):
    sleep_after: Duration | None = 300.0
    """Time without a request after which a model is put to sleep; null means never."""
    stop_after: Duration | None = 3600.0
    """Time without a request after which a model is stopped; null means never."""


class StartConfig(Section):
    stall: Duration = 300.0
    """A start without a new log line, phase or percentage for this long is ended."""
    deadline: Duration = 1800.0
    """The longest that a start may take, however lively it looks."""
    probe: Duration = 30.0
    """The longest that one health request or one-token probe may take."""


class RetryConfig(Section):
    backoff: Duration = 2.0
    """Wait before the first retry of a failed start or after a crash; doubled each time."""
    backoff_max: Duration = 60.0
    """The longest such wait."""
    max_failures: int = Field(default=4, ge=1)
    """After this many failures in a row a model is left alone until somebody resets it."""
    stable_after: Duration = 60.0
    """A model that was ready for this long starts counting failures from zero again."""


class SleepConfig(Section):
    """Sleep mode: weights in host memory or dropped, the process kept, most of the device's memory given back."""

    mode: Literal["auto", "always", "never"] = "auto"
    """`auto`: where the engine is known to have one (`vllm-mm show` says why not). `always`: this engine sleeps, whatever
    is known of it: it has vLLM's routes. `never`: it is stopped instead."""
    level: int = Field(default=1, ge=1, le=2)
    """1 keeps the weights in host memory; 2 drops them and reads them again from disk at the wake, which needs no host memory
    and has more known defects in vLLM."""
    keeps: AutoSize = None
    """Bytes that stay in use on each device during sleep; auto is estimated at first and then measured."""


def _kind(value: object) -> str:
    """A word alone, or a mapping with more to say."""
    return "mapping" if isinstance(value, Mapping | Section) else "single"


class RequestLimitsConfig(Section):
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of an answer at most, whatever the API calls the field: a larger number becomes this one. Null is no limit."""
    max_tokens_if_missing: Switch = False
    """Requests that name no number get `max_tokens` too."""


class RequestRulesConfig(Section):
    """What becomes of the fields of requests. Nearer levels are laid over farther ones: `defaults`, the model, the name that
    was asked for."""

    request_defaults: dict[str, ArgValue] = Field(default={})
    """Request fields that are set where the client sets none; null sets none."""
    request_overrides: dict[str, ArgValue] = Field(default={})
    """Request fields that are set whatever the client says; null removes one."""
    request_limits: RequestLimitsConfig = RequestLimitsConfig()


class AliasConfig(RequestRulesConfig):
    """An alias with rules of its own."""

    name: ModelId
    """The name that clients may use."""


class LoraConfig(RequestRulesConfig):
    """A LoRA adapter with rules of its own."""

    path: str
    """Folder or Hugging Face id of the adapter."""


Alias = Annotated[
    Annotated[ModelId, Tag("single")] | Annotated[AliasConfig, Tag("mapping")],
    Discriminator(_kind),
]
Lora = Annotated[Annotated[str, Tag("single")] | Annotated[LoraConfig, Tag("mapping")], Discriminator(_kind)]


class DefaultsConfig(RequestRulesConfig):
    """What models get that do not say otherwise."""

    engine: EngineName = "vllm"
    """Kind of engine."""
    executable: str = "vllm"
    """Program that is started for `vllm` engines."""
    launcher: LauncherName = "auto"
    """How engines are started. `warm`: forked from a process that has the engine's code in memory already. `local`: a new
    process each time. `auto`: warm where that is possible and safe, else local."""
    args: dict[str, ArgValue] = Field(default={})
    """Arguments of all `vllm` engines; a model's own `args` are laid over them."""
    env: dict[str, Text] = Field(default={})
    """Environment variables of all engines; a model's own `env` is laid over them."""
    concurrency: int = Field(default=256, ge=1)
    """Requests that one instance is given at the same time."""
    progress: Switch = False
    """Send comments to clients that wait for a stream (`X-VLLM-MM-Progress`), also to those that do not ask; they can refuse with
    `X-VLLM-MM-Progress: 0`. The status of an answer is sent with the first comment, before it is known how it ends."""
    stream_usage: Switch = True
    """Ask engines for the token counts of streams whose clients did not ask (`stream_options.include_usage`), and take out
    again what that adds to the stream. Without it such streams have no tokens in the ledger."""
    idle: IdleConfig = IdleConfig()
    start: StartConfig = StartConfig()
    retry: RetryConfig = RetryConfig()
    sleep: SleepConfig = SleepConfig()


class PriceConfig(Section):
    """What tokens cost, in units of any currency for a million."""

    prompt: float = Field(default=0.0, ge=0, le=1e9)
    """A million tokens of prompts."""
    completion: float = Field(default=0.0, ge=0, le=1e9)
    """A million tokens of answers."""
    cached: float | None = Field(default=None, ge=0, le=1e9)
    """Those of the prompt that were in the prefix cache; null: as much as the others."""


class DeviceWishConfig(Section):
    count: int | None = Field(default=None, ge=1)
    """How many devices the model is spread over (the tensor-parallel size); the number of `ids`, or 1, when null."""
    ids: tuple[Text, ...] = ()
    """Exactly these devices."""


class ModelConfig(RequestRulesConfig):
    """One model. What is not set comes from `defaults`."""

    model: str | None = None
    """What the engine loads: a Hugging Face id or a folder; the model's own id when null."""
    engine: EngineName | None = None
    """`vllm`, `command` (any OpenAI-compatible server) or `sim` (the simulated engine); null means `defaults.engine`."""
    executable: str | None = None
    """Program for `vllm` engines, such as one in another environment; null means `defaults.executable`."""
    launcher: LauncherName | None = None
    """`auto`, `warm` or `local`; null means `defaults.launcher`."""
    args: dict[str, ArgValue] = Field(default={})
    """Arguments of `vllm serve`, without the dashes; `true` gives a bare flag, null removes one of `defaults.args`."""
    env: dict[str, Text] = Field(default={})
    """Environment variables of the engine."""
    command: tuple[Text, ...] = ()
    """For `command` engines: the argument list, with `{host}`, `{port}`, `{socket}` and `{model}` filled in, and
    `{api_key}` (here and in `env`): a secret of the launch that this server sends with every request."""
    sim: dict[str, ArgValue] = Field(default={}, json_schema_extra={"propertyNames": {"enum": [*sorted(KEYS)]}})
    """For `sim` engines: the profile (weights, load_bandwidth, startup, tokens_per_second, kv_cache, ...); `vllm-mm sim --help`
    has every key and its default."""
    task: Literal["generate", "embed", "score", "classify", "transcribe", "realtime"] = "generate"
    """What the model does; it decides how readiness is proven."""
    aliases: tuple[Alias, ...] = ()
    """Other names that clients may use; `{name: ..., request_defaults: ...}` for one with rules of its own."""
    devices: DeviceWishConfig = DeviceWishConfig()
    memory: AutoSize = None
    """Bytes that it takes on each device; auto is estimated at first and then learned."""
    kv_cache: AutoSize = None
    """Bytes of KV cache that it is given on each device. auto: all that is left on a GPU that no other model wants, else enough
    for 4 requests of the greatest length or 32,768 tokens, as far as there is room."""
    pinned: Switch = False
    """Never swapped out for another model, never put to sleep or stopped for being idle."""
    preload: Switch = False
    """Loaded when the server starts."""
    schedule: tuple[TimeOfTheWeek, ...] = ()
    """Times of the week in which it is loaded and not put to sleep or stopped for being idle, such as `mon-fri 09:00-18:00`,
    `sat,sun 10:00-14:00` or `22:00-06:00`; in the time zone `timezone`."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Higher is served first and swapped out last; from -1000 to 1000."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests that the instance is given at the same time; null means `defaults.concurrency`."""
    progress: Switch | None = None
    """Comments for clients that wait for a stream of it; null means `defaults.progress`."""
    stream_usage: Switch | None = None
    """Ask its engine for the token counts of streams; false for one that refuses `stream_options`, null means
    `defaults.stream_usage`."""
    idle: IdleConfig = IdleConfig()
    start: StartConfig = StartConfig()
    retry: RetryConfig = RetryConfig()
    sleep: SleepConfig = SleepConfig()
    price: PriceConfig | None = None
    """What its tokens cost, for `vllm-mm usage`; null reckons nothing."""
    lora: dict[ModelId, Lora] = Field(default={})
    """LoRA adapters: served name to folder or Hugging Face id; `{path: ..., request_defaults: ...}` for one with rules of its own."""

    def names(self) -> Iterator[tuple[KeyPath, str, RequestRulesConfig | None]]:
        """The names beside the id: where each stands in the model, and the rules that it has of its own."""
        for i, alias in enumerate(self.aliases):
            own = alias if isinstance(alias, AliasConfig) else None
            yield ("aliases", i), own.name if own is not None else str(alias), own
        for name, adapter in self.lora.items():
            yield ("lora", name), name, adapter if isinstance(adapter, LoraConfig) else None
