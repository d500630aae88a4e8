"""The settings of the engine layer, as it wants them: seconds, bytes, enums."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from vllm_mm.domain.lifecycle import OnTimeout, Timeouts
from vllm_mm.domain.scheduling import Rules


class OnTeardown(StrEnum):
    """What a stream gets whose engine is being torn down."""

    RETRY = "retry"
    """503 + Retry-After, before its first byte."""
    WAIT = "wait"
    """It waits like any other request."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the manager and the queue behave."""

    rules: Rules = field(default_factory=Rules)
    drain_timeout: float = 60.0
    on_drain_timeout: OnTimeout = OnTimeout.CUT
    on_teardown: OnTeardown = OnTeardown.RETRY
    max_queue: int = 1000
    """Requests that may wait at a time, over all lanes."""
    max_wait: float = 30.0
    """Seconds that a request waits for its model when the caller does not say."""
    workers: int = 4
    timeouts: Timeouts = field(default_factory=Timeouts)
    cancel_unwanted_loads: bool = False
    """Call a load off when everybody who waited for it has left."""
    outlive_controller: bool = True
    sleep_budget: int | None = None
    """Bytes of host memory for all sleepers together; 0 turns sleep off, None sets no bound."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on disk."""

    owner: str
    """The id of this installation, in the environment of every engine process."""
    run: Path
    """Short and 0700: sockets and temporary directories of launches."""
    logs: Path
    cache: Path
    """Shared by all launches: downloads and compile caches."""
    sim_ledger: Path
    python: str
    """Runs simulated engines."""
    environment: Mapping[str, str]
    """What engines inherit, before `command.build` takes out what is not for them."""
