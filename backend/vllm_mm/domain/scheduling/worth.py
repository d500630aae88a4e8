"""Whether a swap pays, and who would be missed least. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.residency import Resident
from vllm_mm.domain.scheduling.expectations import Backlog
from vllm_mm.domain.scheduling.words import Lane, Rules, View


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits for loads, taken together."""

    backlog: Backlog
    away: float
    """Seconds in which all of them could be loaded and served once, one after the other."""


def demand(lanes: Sequence[Lane], view: View) -> Demand:
    """`lanes`: those that wait and are not on their way yet."""
    backlog, away = Backlog(), 0.0
    for lane in lanes:
        known = view.of(lane.model)
        backlog += lane.waiting
        away += known.swap(asleep=lane.state is State.SLEEPING) + known.work
    return Demand(backlog, away)


def missed(resident: Resident, view: View, wanted: Demand, queued: int) -> float:
    """Seconds that its clients will wait altogether if it goes now: those who wait for loads come first, then it comes back, and
    then, if it is asked for again, its prefix cache is filled anew. `queued`: those who wait for one of its slots.
    """
    known = view.of(resident.model)
    away = known.back + wanted.away
    return known.rate * away**2 / 2 + queued * away + known.cache * known.returns


def worth_it(resident: Resident, view: View, wanted: Demand) -> bool:
    """Whether at least as many wait as, over time, wait for the resident itself (its rate x the mean wait of its requests:
    Little's law). While fewer wait, staying costs less than leaving does in the long run. When little comes that number is
    small, and the first who waits has a swap at once."""
    known = view.of(resident.model)
    return wanted.backlog.count >= known.rate * known.wait


def may_go_at(resident: Resident, view: View, wanted: Demand, rules: Rules, *, overdue: bool) -> float:
    """From when on it may be a victim; infinity when time alone does not bring that.

    A busy one is not told to drain before somebody is overdue: waiting for a moment without requests costs about as much as
    the drain, and its own clients are served meanwhile. Even then it may use up its quantum first. So may one that is idle because
    those for whom it was loaded were told to come again, and are about to: else it would be loaded for them in vain, again and again.
    """
    if resident.pinned or resident.state not in {State.READY, State.SLEEPING}:
        return inf
    if resident.frozen and resident.state is State.SLEEPING:
        return inf
    if resident.state is State.SLEEPING or resident.ready_since is None:
        return -inf if overdue or not resident.leases else inf
    dwelt = resident.ready_since + rules.min_dwell
    stayed = max(dwelt, resident.ready_since + rules.stay)
    if not resident.leases and worth_it(resident, view, wanted):
        return stayed if resident.expected else dwelt
    return stayed if overdue else inf
