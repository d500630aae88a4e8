"""The shape of the configuration: every section, its defaults and their meaning. Frozen, and no key but these.

Field docstrings are the descriptions in the published JSON Schema; docs/configuration.md is checked against them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from vllm_mm.settings.layers import Layer
from vllm_mm.settings.units import Duration, Size
from vllm_mm.vocabulary.profile import KEYS

ArgValue: TypeAlias = Any
"""What an engine argument may be; rendering it is the engine layer's business."""

RESERVED_LAST = frozenset(
    {"start", "stop", "restart", "sleep", "wake", "drain", "undrain", "pin", "unpin", "reset", "logs", "history"}
)
"""Last path segments of the admin API's routes under /api/models/{id}."""


_LAYERS = "layers"
"""How `Settings.from_layers` hands the sources to `settings_customise_sources`; no setting has this name."""


def check_model_id(value: str) -> str:
    """A model id as it may be used in paths. Raises ValueError."""
    if not value:
        raise ValueError("a model id cannot be empty")
    if len(value) > 200:
        raise ValueError(f"a model id may have 200 characters, this one has {len(value)}")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise ValueError("a model id cannot contain control characters")
    if value != value.strip():
        raise ValueError("a model id cannot begin or end with a space")
    segments = value.split("/")
    if any(segment in {"", ".", ".."} for segment in segments):
        raise ValueError("a model id cannot begin or end with `/`, nor have an empty, `.` or `..` part")
    if len(segments) > 1 and segments[-1] in RESERVED_LAST:
        raise ValueError(f"a model id cannot end with `/{segments[-1]}`: the admin API has a route of that name")
    return value


def _text(value: object) -> object:
    """Numbers where text is wanted (environment variables, device ids) are taken as they are written."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _folder(value: object) -> object:
    """Else the empty text would mean the working directory."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty; name a folder, or leave it out")
    return value


def _auto(value: object) -> object:
    return None if value == "auto" else value


def _kind(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "word"


def _state_dir() -> Path:
    return default_data_dir(os.environ)


def _cache_dir() -> Path:
    return default_cache_dir(os.environ)


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/vllm-mm` (XDG Base Directory Specification: an empty or relative value counts as unset)."""
    return _xdg(environ, "XDG_STATE_HOME", ".local/state")


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/vllm-mm`."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def default_config_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/vllm-mm`."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def _xdg(environ: Mapping[str, str], name: str, fallback: str) -> Path:
    value = environ.get(name, "")
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return (Path(value) if Path(value).is_absolute() else home / fallback) / "vllm-mm"


Text = Annotated[str, BeforeValidator(_text)]
ModelId = Annotated[str, AfterValidator(check_model_id)]
AutoSize = Annotated[
    Size | None,
    BeforeValidator(_auto),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "auto"},
                {"type": "null"},
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtT]i?[bB]?|[bB])?\s*$"},
            ],
        }
    ),
]
"""Bytes; None stands for `auto`."""
EngineName: TypeAlias = Literal["vllm", "command", "sim"]
LauncherName: TypeAlias = Literal["auto", "warm", "local"]


class Section(BaseModel):
    """Frozen, and closed: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        """A section with nothing behind its colon is made of defaults."""
        return {} if value is None else value


class ServerConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. With `0.0.0.0` everybody who reaches this machine reaches the server: keep `auth.mode: keys`."""
    port: int = Field(default=8000, ge=0, le=65535)
    """TCP port; 0 takes a free one."""
    shutdown_grace: Duration = 30.0
    """After SIGTERM, how long requests in flight may go on."""
    keep_alive: Duration = 75.0
    """How long an idle client connection is kept open."""


class LimitsConfig(Section):
    body: Size = 64 * 1024**2
    """Largest request body; a bigger one is answered with 413."""
    header: Size = 64 * 1024
    """Largest request head, all headers together."""
    header_timeout: Duration = 10.0
    """How long a client may take to send the head of a request."""
    connections: int = Field(default=10_000, ge=1)
    """Client connections open at the same time."""


class CorsConfig(Section):
    origins: tuple[str, ...] = ()
    """Web origins (`https://chat.example.org`, or `*`) whose pages may call the API from a browser."""
    max_age: Duration = 600.0
    """How long a browser may remember the answer to a preflight."""


class AuthConfig(Section):
    mode: Literal["keys", "none"] = "keys"
    """`keys`: every request needs a key. `none`: everybody is an administrator; only on loopback."""
    force: bool = False
    """Allow `mode: none` on an address that other machines reach."""


class DatabaseConfig(Section):
    url: str = "sqlite+aiosqlite:///state.db"
    """SQLAlchemy URL with an async driver. A relative SQLite path is inside `paths.data_dir`."""
    backup: bool = True
    """Copy a SQLite database into `paths.data_dir` before its schema changes."""


class RetentionConfig(Section):
    events: Duration | None = 30 * 86400.0
    """Age at which events are deleted; null keeps them."""
    max_events: int | None = Field(default=1_000_000, ge=1)
    """The oldest events beyond this many are deleted; null sets no bound."""
    requests: Duration | None = 30 * 86400.0
    """Age at which rows of the request ledger are deleted; null keeps them."""
    max_requests: int | None = Field(default=5_000_000, ge=1)
    """The oldest ledger rows beyond this many are deleted; null sets no bound."""


class PathsConfig(Section):
    data_dir: Annotated[Path, BeforeValidator(_folder)] = Field(default_factory=_state_dir)
    """State: database, logs of the engines, sockets. Made with mode 0700. Default `$XDG_STATE_HOME/vllm-mm`."""
    cache_dir: Annotated[Path, BeforeValidator(_folder)] = Field(default_factory=_cache_dir)
    """What may be deleted at any time, such as compile caches. Default `$XDG_CACHE_HOME/vllm-mm`."""


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["text", "json"] = "text"
    """`json` writes one object per line, for log collectors."""


class MetricsConfig(Section):
    enabled: bool = True
    """Serve `/metrics`."""
    public: bool = False
    """Serve it without a key also to other machines. Loopback never needs one."""
    engines: bool = True
    """Add the engines' own metrics, with a `model` label."""


class DeviceConfig(Section):
    id: Text
    """Index or UUID of a GPU, `cpu`, or any name for a simulated device."""
    memory: AutoSize = None
    """Capacity; auto is what the device has. Simulated devices need one."""
    headroom: Size | None = None
    """Never given out; null means `device_headroom` (0 for simulated devices)."""
    simulated: bool = False
    """A device that exists only for `sim` engines."""


def _device_list(value: object) -> object:
    """A list may name real devices by id alone: `[0, 1]`."""
    if isinstance(value, list | tuple):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]  # isinstance cannot tell of what
        return [{"id": v} if isinstance(v, str | int) and not isinstance(v, bool) else v for v in items]
    return value


Devices = Annotated[
    Annotated[Literal["auto", "cpu"], Tag("word")] | Annotated[tuple[DeviceConfig, ...], Tag("list")],
    Discriminator(_kind),
    BeforeValidator(_device_list),
]


class HostMemoryConfig(Section):
    sleep_budget: AutoSize = None
    """Host RAM that sleeping engines may hold together; auto is half of the machine's memory, 0 turns sleep off."""


class QueueConfig(Section):
    max_size: int = Field(default=1000, ge=1)
    """Requests that may wait at the same time, over all models; the next one gets 503 with Retry-After."""
    max_wait: Duration = 30.0
    """How long a request waits for its model when it does not say so itself (`X-VLLM-MM-Wait`)."""
    request_timeout: Duration = 600.0
    """The longest that a request may take from arrival to its last byte."""
    on_teardown: Literal["retry", "wait"] = "retry"
    """A stream whose engine is being torn down: `retry` answers 503 with Retry-After, `wait` holds it for the next start."""
    workers: int = Field(default=4, ge=1, le=64)
    """Async workers that turn waiting tickets into leases."""
    cancel_unwanted_loads: bool = False
    """Stop a load when everybody who waited for it has gone."""


class SwapConfig(Section):
    max_wait: Duration = 20.0
    """When the oldest waiter of a model that is not loaded is this old, room is made for it even from busy models."""
    min_dwell: Duration = 5.0
    """A model that became ready is not swapped out earlier than this."""
    drain_timeout: Duration = 60.0
    """How long a model that has to go may finish its requests."""
    on_drain_timeout: Literal["preempt", "cut", "wait"] = "preempt"
    """Then: `preempt` freezes the streams and resumes them later where the engine can (else cuts), `cut` ends them with
    an error, `wait` goes on waiting."""


class TimeoutsConfig(Section):
    suspend: Duration = 120.0
    """An engine may take this long to fall asleep before it is stopped."""
    wake: Duration = 120.0
    """An engine may take this long to wake before it is stopped."""
    stop: Duration = 30.0
    """From the first signal until the whole process tree is gone; afterwards it is killed again and an alert is raised."""
    stop_grace: Duration = 10.0
    """From SIGTERM to SIGKILL."""
    health: Duration = 5.0
    """Between two health requests to a ready engine; after three without an answer it is restarted."""
    stuck: Duration = 60.0
    """With requests out and nothing coming from the engine for this long, one token is asked for; if that fails too, the
    engine hangs and is restarted."""


class WarmConfig(Section):
    """The processes that the `warm` launcher forks engines from."""

    idle_after: Duration | None = 1800.0
    """Time without a start after which such a process is ended and its memory given back; null means never."""
    preload: bool = True
    """Make them when the server starts, so that the first start of a model is quick too; false makes them when first needed."""
    read_ahead: Size = 0
    """Bytes of the weights of models that are likely to be next which may be read into the system's page cache; 0 reads none."""


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


class DefaultsConfig(Section):
    """What models get that do not say otherwise."""

    engine: EngineName = "vllm"
    """Kind of engine."""
    executable: str = "vllm"
    """Program that is started for `vllm` engines."""
    launcher: LauncherName = "auto"
    """How engines are started. `warm`: forked from a process that has the engine's code in memory already. `local`: a new
    process each time. `auto`: warm where that is possible and safe, else local."""
    args: dict[str, ArgValue] = {}
    """Arguments of all `vllm` engines; a model's own `args` are laid over them."""
    env: dict[str, Text] = {}
    """Environment variables of all engines; a model's own `env` is laid over them."""
    concurrency: int = Field(default=256, ge=1)
    """Requests that one instance is given at the same time."""
    idle: IdleConfig = IdleConfig()
    start: StartConfig = StartConfig()
    retry: RetryConfig = RetryConfig()


class DeviceWishConfig(Section):
    count: int | None = Field(default=None, ge=1)
    """How many devices the model is spread over (the tensor-parallel size); the number of `ids`, or 1, when null."""
    ids: tuple[Text, ...] = ()
    """Exactly these devices."""


class ModelConfig(Section):
    """One model. What is not set comes from `defaults`."""

    model: str | None = None
    """What the engine loads: a Hugging Face id or a folder; the model's own id when null."""
    engine: EngineName | None = None
    """`vllm`, `command` (any OpenAI-compatible server) or `sim` (the simulated engine); null means `defaults.engine`."""
    executable: str | None = None
    """Program for `vllm` engines, such as one in another environment; null means `defaults.executable`."""
    launcher: LauncherName | None = None
    """`auto`, `warm` or `local`; null means `defaults.launcher`."""
    args: dict[str, ArgValue] = {}
    """Arguments of `vllm serve`, without the dashes; `true` gives a bare flag, null removes one of `defaults.args`."""
    env: dict[str, Text] = {}
    """Environment variables of the engine."""
    command: tuple[Text, ...] = ()
    """For `command` engines: the argument list, with `{host}`, `{port}`, `{socket}` and `{model}` filled in, and
    `{api_key}` (here and in `env`): a secret of the launch that this server sends with every request."""
    sim: dict[str, ArgValue] = Field(default={}, json_schema_extra={"propertyNames": {"enum": [*sorted(KEYS)]}})
    """For `sim` engines: the profile (weights, load_bandwidth, startup, tokens_per_second, kv_cache, ...); `vllm-mm sim --help`
    has every key and its default."""
    task: Literal["generate", "embed", "score"] = "generate"
    """What the model does; it decides how readiness is proven."""
    aliases: tuple[ModelId, ...] = ()
    """Other names that clients may use."""
    devices: DeviceWishConfig = DeviceWishConfig()
    memory: AutoSize = None
    """Bytes that it takes on each device; auto is estimated at first and then learned."""
    pinned: bool = False
    """Never swapped out for another model, never put to sleep or stopped for being idle."""
    preload: bool = False
    """Loaded when the server starts."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Higher is served first and swapped out last."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests that the instance is given at the same time; null means `defaults.concurrency`."""
    idle: IdleConfig = IdleConfig()
    start: StartConfig = StartConfig()
    retry: RetryConfig = RetryConfig()
    request_defaults: dict[str, ArgValue] = {}
    """Request fields that are filled in where the client sets none."""
    request_overrides: dict[str, ArgValue] = {}
    """Request fields that replace what the client sets."""
    lora: dict[ModelId, str] = {}
    """LoRA adapters: served name to folder or Hugging Face id."""


def _empty(value: object) -> object:
    return {} if value is None else value


class Settings(Section, BaseSettings):
    """The whole configuration. `vllm_mm.settings.load` makes it from flags, environment and file; the constructor by
    itself reads none of them."""

    model_config = SettingsConfigDict(validate_default=False)

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    cors: CorsConfig = CorsConfig()
    auth: AuthConfig = AuthConfig()
    database: DatabaseConfig = DatabaseConfig()
    retention: RetentionConfig = RetentionConfig()
    paths: PathsConfig = Field(default_factory=PathsConfig)
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()
    devices: Devices = "auto"
    """`auto`: the GPUs, or the CPU where there is none. `cpu`: the host's memory as one device. Or a list."""
    device_headroom: Size = 512 * 1024**2
    """Memory of each real device that is never given out."""
    host_memory: HostMemoryConfig = HostMemoryConfig()
    queue: QueueConfig = QueueConfig()
    swap: SwapConfig = SwapConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    engines_outlive_controller: bool = True
    """After a crash of the controller the engines go on, and the next one adopts them; false ends them with it."""
    warm: WarmConfig = WarmConfig()
    defaults: DefaultsConfig = DefaultsConfig()
    models: Annotated[dict[ModelId, ModelConfig], BeforeValidator(_empty)] = {}
    """The models, by id. Ids may contain `/` and `.`."""

    @classmethod
    def from_layers(cls, *layers: Mapping[str, Any]) -> "Settings":
        """From several sources, the strongest first, merged key by key. Raises pydantic.ValidationError."""
        return cls.model_validate({_LAYERS: layers})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The layers where there are some, else what the constructor was given. Never the library's own sources: what
        they would do to names and errors is in docs/adr/009-settings.md."""
        _ = env_settings, dotenv_settings, file_secret_settings
        given: dict[str, Any] = init_settings()
        if _LAYERS not in given:
            return (init_settings,)
        return tuple(Layer(settings_cls, layer) for layer in given[_LAYERS])

    @property
    def database_url(self) -> str:
        """`database.url` with a relative SQLite path made absolute inside the data directory."""
        scheme, mark, path = self.database.url.partition(":///")
        if not scheme.startswith("sqlite") or not mark or path.startswith(("/", ":memory:", "file:")) or not path:
            return self.database.url
        return f"{scheme}:///{self.paths.data_dir.absolute() / path}"
