"""What is remembered of a launch, shared by those who make launches and those who store them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: a unix socket (preferred: nobody else can take it), or TCP on loopback."""

    socket: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    key: str = field(default="", repr=False)
    """What the engine asks its callers for, if it asks. Made anew from the launch's token when needed, never stored."""

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """What is remembered of a launch so that another controller can adopt it or kill it, and never somebody else.

    Identity is `pid` and `start_ticks` (field 22 of /proc/PID/stat, with `boot_id`) and the token in the environment.
    """

    model: str
    generation: int
    token: str
    pid: int
    """0 from the intent until the process exists."""
    start_ticks: int
    boot_id: str
    address: Address
    workdir: Path
    log: Path
    fingerprint: str
    device_bytes: Mapping[str, int]
    started_at: float
    """Unix time."""
    launcher: str = ""
    """`local` or `warm`: how its process came into being."""
    answer: str = ""
    """What it answered to the probe before it was put to sleep; empty when it never was."""


@dataclass(frozen=True, slots=True)
class StartRecord:
    """How one start went. Times are Unix seconds."""

    model: str
    generation: int
    started_at: float
    ready_at: float | None
    """None when it did not become ready."""
    phases: Mapping[str, float]
    """Seconds that each phase took."""
    outcome: str
    """`ready`, `failed`, `cancelled`; `adopted` when a controller took over what an earlier one had started."""
    reason: str
    launcher: str = ""
    """`local` or `warm`; empty when there never was a process."""
