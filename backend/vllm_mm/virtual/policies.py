"""What can be compared: each policy is a `decide` with the signature of `domain.scheduling.decide`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vllm_mm.domain.scheduling import Decision, Rules, View
from vllm_mm.domain.scheduling import decide as brain
from vllm_mm.virtual.baselines import arrival, fifo, lru
from vllm_mm.virtual.first import first

Decide = Callable[[View, Rules, float], tuple[Decision, ...]]
"""One decision per lane that has somebody waiting, in the order in which they are to be carried out."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy by name."""

    name: str
    decide: Decide
    passes: bool = True
    """A request for a READY model with a free slot for which nobody waits is served at once, without a decision (as the
    server does it)."""
    ordered: bool = False
    """Nobody in the lanes overtakes, so that a free slot may matter to all of them."""
    weighs: bool = False
    """It looks at how many wait and at what is expected, and not only at the oldest (and at as many as it may grant)."""
    summary: str = ""
    """In a few words."""


POLICIES: Mapping[str, Policy] = {
    p.name: p
    for p in (
        Policy("brain", brain, weighs=True, summary="the server's own: weighs what a swap costs and saves"),
        Policy("first", first, summary="the server's former one: oldest first, with a fixed dwell"),
        Policy("lru", lru, summary="swap for who waits longest, evict the least recently used, let it finish, serve all who wait"),
        Policy("arrival", arrival, ordered=True, summary="swap on arrival, evict the least recently used, let it finish, collect nothing"),
        Policy("fifo", fifo, passes=False, ordered=True, summary="strictly in order of arrival over all models"),
    )
}  # fmt: skip


def pick(names: str) -> Sequence[Policy]:
    """`brain,lru` as policies. Raises ValueError for one that there is not."""
    wanted = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in POLICIES]
    if unknown or not wanted:
        raise ValueError(f"{', '.join(unknown) or 'nothing'} is no policy; there are {', '.join(POLICIES)}")
    return [POLICIES[name] for name in wanted]
