"""What can be compared: each policy is a `decide` with the signature of `domain.scheduling.decide`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vllm_mm.domain.scheduling import Decision, Rules, View
from vllm_mm.domain.scheduling import decide as brain
from vllm_mm.virtual.baselines import fifo, lru
from vllm_mm.virtual.candidate import candidate

Decide = Callable[[View, Rules, float], tuple[Decision, ...]]
"""One decision per lane that has somebody waiting, in the order in which they are to be carried out."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy by name."""

    name: str
    decide: Decide
    passes: bool = True
    """A request for a READY model with a free slot is served at once, without a decision (as the server does it)."""
    heads: bool = True
    """Of those who wait for a model it looks at the oldest only (and at as many as it may grant), not at their number."""
    outlook: bool = False
    """It is given an `Outlook` instead of a plain `View`."""
    summary: str = ""
    """In a few words."""


POLICIES: Mapping[str, Policy] = {
    p.name: p
    for p in (
        Policy("brain", brain, summary="the server's own"),
        Policy("fifo", fifo, passes=False, summary="strictly in order of arrival over all models"),
        Policy("lru", lru, summary="swap on arrival, evict the least recently used, let it finish"),
        Policy("candidate", candidate, heads=False, outlook=True, summary="weighs what a swap costs and saves"),
    )
}


def pick(names: str) -> Sequence[Policy]:
    """`brain,lru` as policies. Raises ValueError for one that there is not."""
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in POLICIES]
    if unknown or not wanted:
        raise ValueError(f"{', '.join(unknown) or 'nothing'} is no policy; there are {', '.join(POLICIES)}")
    return [POLICIES[name] for name in wanted]
