"""The envelope of everything that happens: numbered, so that a listener that was away can catch up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `seq` grows by one and never repeats, also across restarts of the controller."""

    seq: int
    at: float
    """Unix time in seconds."""
    kind: str
    """Dotted and stable: `instance.ready`, `instance.failed`, `swap.planned`, `orphan.swept`, ..."""
    model: str | None = None
    cause: str = ""
    """Who or what wanted it: `request req_1`, `operator ada`, `policy idle`, `crash`, ..."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
