"""What one start tells: the phases it went through, what it said of itself in its log, and why it failed."""

from collections.abc import Sequence

from vllm_mm.clock import Clock
from vllm_mm.domain.lifecycle import Progress
from vllm_mm.engine import progress
from vllm_mm.engine.watch import Death


class StartLog:
    """Of one launch, from its beginning on."""

    def __init__(self, clock: Clock) -> None:
        self.began_at = clock.wall()
        """Unix time."""
        self.phases: dict[str, float] = {}
        """Seconds spent in each phase so far."""
        self.facts: dict[str, progress.Fact] = {}
        """Weights, KV cache, version (see `progress`)."""
        self.failure: progress.KnownFailure | None = None
        """What its log names as the cause; a permanent one is not covered up by what follows from it."""
        self._clock = clock
        self._phase_began = clock.now()

    def read(self, line: str) -> Progress | None:
        """Take in a line of the log; the phase that it shows, if it does."""
        info = progress.parse(line)
        if info is None:
            return None
        if info.failure is not None and (self.failure is None or info.failure.permanent):
            self.failure = info.failure
        self.facts.update(info.facts)
        return Progress(info.phase, info.percent) if info.phase else None

    def end_phase(self, phase: str, *, warm: bool) -> None:
        """`phase` is over; empty for the first, which is the making of the process."""
        now = self._clock.now()
        name = phase or ("fork" if warm else "spawn")
        self.phases[name] = round(self.phases.get(name, 0.0) + now - self._phase_began, 3)
        self._phase_began = now

    def why(self, end: Death, last: Sequence[str], *, loading: bool) -> str:
        """The reason that people are told. `last`: the last lines of the log."""
        if not loading:
            return end.what
        if self.failure is not None:
            return f"{self.failure.message} ({end.status}). {self.failure.advice}"
        lines = " | ".join(line.strip() for line in last[-3:])
        return f"{end.what}; last lines: {lines}" if lines else end.what
