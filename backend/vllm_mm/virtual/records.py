"""What is written down during a run."""

from dataclasses import dataclass, field

from vllm_mm.domain.scheduling import Rules


@dataclass(slots=True, eq=False)
class Served:
    """A request that got a lease. Times are seconds of the trace."""

    model: str
    arrived: float
    leased: float
    output: int = 0
    first_token: float | None = None
    """None when it was cut before."""
    finished: float = 0.0
    cut: bool = False
    """Its drain took too long."""
    prompt: int = 0
    frozen: float = 0.0
    """Seconds that it was frozen in its sleeping engine."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """A request that was refused, or gave up."""

    model: str
    arrived: float
    at: float
    why: str


@dataclass(slots=True, eq=False)
class LoadRecord:
    """A start or a wake."""

    model: str
    kind: str
    """`start` or `wake`."""
    victims: tuple[str, ...]
    reason: str
    decided: float
    freed: float = 0.0
    """When the last victim had nothing to do any more; when it was decided, if there is none."""
    begun: float | None = None
    """When its memory was there."""
    ready: float | None = None

    @property
    def lost(self) -> float:
        """Seconds in which its memory served nobody: from the end of the drain until it was ready."""
        return self.ready - max(self.freed, self.decided) if self.ready is not None else 0.0


@dataclass(slots=True)
class Outcome:
    """One run, as it went."""

    policy: str
    rules: Rules
    served: list[Served] = field(default_factory=list[Served])
    refused: list[Unserved] = field(default_factory=list[Unserved])
    timed_out: list[Unserved] = field(default_factory=list[Unserved])
    loads: list[LoadRecord] = field(default_factory=list[LoadRecord])
    stays: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """When it was READY or DRAINING, by model: begins and ends."""
    draining: float = 0.0
    """Seconds spent waiting for victims to finish, over all of them."""
    freezes: int = 0
    """Drains that ended with requests frozen."""
    ended: float = 0.0
    rounds: int = 0
    """Decisions that were taken."""
    reached: set[str] = field(default_factory=set[str])
    worst: dict[int, float] = field(default_factory=dict[int, float])
    """The longest wait until a model was being loaded, by how many models waited for that at once."""

    def resident(self, model: str) -> float:
        """Seconds READY or DRAINING."""
        return sum(end - begin for begin, end in self.stays.get(model, ()))

    def note_reached(self, waited: float, rivals: int) -> None:
        """A request saw its model ready or on its way after `waited` seconds."""
        if waited > self.worst.get(rivals, -1.0):
            self.worst[rivals] = waited
