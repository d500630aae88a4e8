"""The configuration: one frozen tree, made from flags, environment, file and defaults by `load`."""

from vllm_mm.settings.checks import is_loopback, without_effect
from vllm_mm.settings.effective import Effective, at_restart, effective
from vllm_mm.settings.fields import Section
from vllm_mm.settings.fleet import (
    DeviceConfig,
    HostMemoryConfig,
    QueueConfig,
    SwapConfig,
    TimeoutsConfig,
    WarmConfig,
)
from vllm_mm.settings.load import Loaded, find_config, key_paths, load, load_with_places, parse_model, schema
from vllm_mm.settings.models import (
    DefaultsConfig,
    DeviceWishConfig,
    IdleConfig,
    ModelConfig,
    RetryConfig,
    SleepConfig,
    StartConfig,
)
from vllm_mm.settings.nodes import Origin, Problem, SettingsError, format_path
from vllm_mm.settings.profiles import ProfileConfig, ReloadConfig
from vllm_mm.settings.redact import redacted
from vllm_mm.settings.root import Settings
from vllm_mm.settings.server import (
    AuthConfig,
    CapturesConfig,
    CorsConfig,
    DatabaseConfig,
    LimitsConfig,
    LogConfig,
    MetricsConfig,
    PathsConfig,
    RetentionConfig,
    ServerConfig,
    TracesConfig,
    WebhookConfig,
)
from vllm_mm.settings.units import Duration, Size, format_duration, format_size, parse_duration, parse_size
from vllm_mm.settings.xdg import default_data_dir

__all__ = [
    "AuthConfig",
    "CapturesConfig",
    "CorsConfig",
    "DatabaseConfig",
    "DefaultsConfig",
    "DeviceConfig",
    "DeviceWishConfig",
    "Duration",
    "Effective",
    "HostMemoryConfig",
    "IdleConfig",
    "LimitsConfig",
    "Loaded",
    "LogConfig",
    "MetricsConfig",
    "ModelConfig",
    "Origin",
    "PathsConfig",
    "Problem",
    "ProfileConfig",
    "QueueConfig",
    "ReloadConfig",
    "RetentionConfig",
    "RetryConfig",
    "Section",
    "ServerConfig",
    "Settings",
    "SettingsError",
    "Size",
    "SleepConfig",
    "StartConfig",
    "SwapConfig",
    "TimeoutsConfig",
    "TracesConfig",
    "WarmConfig",
    "WebhookConfig",
    "at_restart",
    "default_data_dir",
    "effective",
    "find_config",
    "format_duration",
    "format_path",
    "format_size",
    "is_loopback",
    "key_paths",
    "load",
    "load_with_places",
    "parse_duration",
    "parse_model",
    "parse_size",
    "redacted",
    "schema",
    "without_effect",
]
