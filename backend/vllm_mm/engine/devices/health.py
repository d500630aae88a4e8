"""Whether a device is fit for use: a verdict over its readings, slow to change where one reading proves little. Pure."""

from dataclasses import dataclass

BAD = 3
"""Readings in a row that could not be made, after which a device is out of use: drivers hiccup."""
APART = 1.0
"""Seconds between two of them that both count."""
GOOD = 3
"""Good readings in a row, and"""
CALM = 10.0
"""seconds since the first of them, after which it is used again: a device that comes and goes is no place for an engine."""


@dataclass(frozen=True, slots=True)
class Health:
    """What the readings of one device have shown so far. `problem` as in `Device.problem`."""

    problem: str = ""
    bad: int = 0
    last_bad: float = 0.0
    good: int = 0
    first_good: float = 0.0

    def saw(self, fault: str, now: float) -> "Health":
        """A reading told how it is: with a `fault`, out of use at once; well (empty), in use again once that has lasted.
        `now` in monotonic seconds."""
        if fault:
            return Health(fault)
        if not self.problem:
            return Health()
        good, first = self.good + 1, self.first_good if self.good else now
        if good >= GOOD and now - first >= CALM:
            return Health()
        return Health(self.problem, good=good, first_good=first)

    def missed(self, why: str, now: float) -> "Health":
        """A reading could not be made, which may be chance: out of use when that goes on."""
        if self.bad and now - self.last_bad < APART:
            return self
        bad = self.bad + 1
        problem = f"it cannot be read: {why} ({BAD} readings in a row)" if bad >= BAD else self.problem
        return Health(problem, bad=min(bad, BAD), last_bad=now)
