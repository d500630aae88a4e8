"""What the controller tells a worker about itself."""

from dataclasses import dataclass
from pathlib import Path

from vllm_mm.gateway.ports import Rules
from vllm_mm.settings import CapturesConfig, TracesConfig
from vllm_mm.store.routes import MissingRoute


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is made of; goes to it pickled."""

    rules: Rules
    pepper: bytes
    """The server's secret, with which keys are hashed."""
    open_to_all: bool
    any_host: bool
    keep_alive: float
    grace: float
    log_level: str
    log_form: str
    missing: tuple[MissingRoute, ...]
    captures: CapturesConfig
    captured: Path
    """The folder of captures, which the controller made."""
    traces: TracesConfig
