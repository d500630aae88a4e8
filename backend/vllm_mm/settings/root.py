"""The whole configuration: every section, its defaults and their meaning. Frozen, and no key but these.

Field docstrings are the descriptions in the published JSON Schema; docs/configuration.md is checked against them.
"""

from collections.abc import Mapping
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from vllm_mm.settings.fields import ModelId, Section, Switch
from vllm_mm.settings.fleet import Devices, HostMemoryConfig, QueueConfig, SwapConfig, TimeoutsConfig, WarmConfig
from vllm_mm.settings.layers import Layer
from vllm_mm.settings.models import DefaultsConfig, ModelConfig
from vllm_mm.settings.profiles import ProfileConfig, ProfileName, ReloadConfig
from vllm_mm.settings.server import (
    AuthConfig,
    CapturesConfig,
    CorsConfig,
    DatabaseConfig,
    LimitsConfig,
    LogConfig,
    MetricsConfig,
    PathsConfig,
    RealtimeConfig,
    RetentionConfig,
    SeriesConfig,
    ServerConfig,
    TracesConfig,
    WebhookConfig,
)
from vllm_mm.settings.units import Size

_LAYERS = "layers"
"""How `Settings.from_layers` hands the sources to `settings_customise_sources`; no setting has this name."""


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:  # unknown; no name at all; a directory of the database
        raise ValueError(f"{value!r} is no time zone that is known here; write it like Europe/Berlin") from error
    return value


def _empty(value: object) -> object:
    return {} if value is None else value


class Settings(Section, BaseSettings):
    """The whole configuration. `vllm_mm.settings.load` makes it from flags, environment and file; the constructor by
    itself reads none of them."""

    model_config = SettingsConfigDict(validate_default=False)

    server: ServerConfig = ServerConfig()
    limits: LimitsConfig = LimitsConfig()
    realtime: RealtimeConfig = RealtimeConfig()
    cors: CorsConfig = CorsConfig()
    auth: AuthConfig = AuthConfig()
    database: DatabaseConfig = DatabaseConfig()
    retention: RetentionConfig = RetentionConfig()
    series: SeriesConfig = SeriesConfig()
    captures: CapturesConfig = CapturesConfig()
    paths: PathsConfig = Field(default_factory=PathsConfig)
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()
    traces: TracesConfig = TracesConfig()
    webhooks: tuple[WebhookConfig, ...] = ()
    """Where events are sent to."""
    devices: Devices = "auto"
    """`auto`: the GPUs, or the CPU where there is none. `cpu`: the host's memory as one device. Or a list."""
    device_headroom: Size = 512 * 1024**2
    """Memory of each real device that is never given out."""
    host_memory: HostMemoryConfig = HostMemoryConfig()
    queue: QueueConfig = QueueConfig()
    swap: SwapConfig = SwapConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    """Time zone of `models.*.schedule` and `profiles.*.schedule`, such as `Europe/Berlin`; null is that of the machine."""
    engines_outlive_controller: Switch = True
    """After a crash of the controller the engines go on, and the next one adopts them; false ends them with it."""
    warm: WarmConfig = WarmConfig()
    config: ReloadConfig = ReloadConfig()
    profiles: Annotated[dict[ProfileName, ProfileConfig], BeforeValidator(_empty)] = {}
    """Named sets of pins, preloads and aliases, by name; `vllm-mm profile use NAME` makes one active."""
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
