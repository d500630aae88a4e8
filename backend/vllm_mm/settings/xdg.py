"""Where things are kept when the configuration does not say (XDG Base Directory Specification)."""

from collections.abc import Mapping
from pathlib import Path


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
