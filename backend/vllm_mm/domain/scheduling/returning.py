"""Those who were told to come again before their model was loaded: until they do, it is as if they waited. Pure.

A client that waits for three seconds, is told to come again in twenty, and comes, has waited for twenty-three. Would each time
count alone, a model whose clients are impatient could be passed over for ever.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Returning:
    """Of one model. Monotonic seconds."""

    since: float
    """When the first of them came who has had nothing yet."""
    until: float
    """So long they are expected; who comes later begins anew."""

    def at(self, now: float) -> float | None:
        """`since`, for somebody who comes at `now`; None when nobody is expected any more."""
        return self.since if now <= self.until else None


def sent_away(since: float | None, arrived: float, now: float, keep: float) -> Returning:
    """Somebody who came at `arrived` goes unserved, to come again. `since`: of the lane that it leaves, if there were others before
    it; `keep`: seconds for which it is expected."""
    return Returning(arrived if since is None else min(since, arrived), now + keep)
