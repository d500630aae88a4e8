"""Leases on device memory: room on a device for something that is not an engine of ours, for a while. Pure.

Such a lease goes ASKED -> HELD -> ENDED. Its room is a reservation in the device ledger under `name`, which no model can
have; who had to go for it is remembered, so that it can come back.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

LONGEST = 7 * 86_400.0
"""Seconds: whoever needs a device for longer takes it out of the configuration."""
PATIENCE = 600.0
"""Seconds that one that was asked for waits for its room."""


MEMORY = "waits until the memory is free"


class Stage(StrEnum):
    ASKED = "asked"
    """Waits for its room: those in the way are told to go."""
    HELD = "held"
    """The room is there."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Evicted:
    """A model that had to go."""

    model: str
    wanted: bool
    """It was ready, or is to be loaded at the start of the server: it comes back when the lease ends."""


@dataclass(frozen=True, slots=True)
class DeviceLease:
    """Sizes in bytes, `seconds` from the moment at which the room is there, times in Unix seconds."""

    id: str
    device: str
    size: int
    seconds: float
    note: str
    by: str
    """Who asked, as events name them."""
    asked_at: float
    stage: Stage = Stage.ASKED
    reason: str = ""
    """What it waits for, or why it ended."""
    held_at: float | None = None
    ended_at: float | None = None
    foreign: int = 0
    """Use of the device by strangers that is not that of its holder."""
    evicted: tuple[Evicted, ...] = ()

    @property
    def name(self) -> str:
        """In the device ledger. Ids of models do not begin so."""
        return f"lease:{self.id}"

    @property
    def ends_at(self) -> float | None:
        """None while it waits."""
        return None if self.held_at is None else self.held_at + self.seconds

    @property
    def gives_up_at(self) -> float:
        return self.asked_at + PATIENCE

    def waits(self, reason: str) -> "DeviceLease":
        return replace(self, reason=reason)

    def evicts(self, evicted: tuple[Evicted, ...]) -> "DeviceLease":
        """They were told to go."""
        return replace(self, evicted=(*self.evicted, *evicted), reason=MEMORY)

    def holds(self, now: float, foreign: int) -> "DeviceLease":
        """The room is there."""
        return replace(self, stage=Stage.HELD, held_at=now, foreign=foreign, reason="")

    def ends(self, now: float, reason: str) -> "DeviceLease":
        return replace(self, stage=Stage.ENDED, ended_at=now, reason=reason)

    def due(self, now: float) -> str:
        """Why it ends by itself at `now`; empty when it does not."""
        if self.stage is Stage.HELD and self.ends_at is not None and now >= self.ends_at:
            return "its time is over"
        if self.stage is Stage.ASKED and now >= self.gives_up_at:
            return f"there was no room for it in {PATIENCE:.0f} s: {self.reason or 'nobody looked'}"
        return ""

    @property
    def to_restore(self) -> tuple[str, ...]:
        """Models that come back when it has ended, in order: the last that was evicted, the dearest, first."""
        return tuple(e.model for e in reversed(self.evicted) if e.wanted)
