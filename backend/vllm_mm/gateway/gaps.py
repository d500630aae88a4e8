"""Times between the tokens of a stream: a timestamp for each piece while it runs, percentiles when it is over."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from vllm_mm.domain.usage import GAP_BOUNDS, Gaps

FULL: Final = 4096
"""Timestamps kept as they are; of a longer stream the earlier ones are counted by size..."""
FINE: Final = 100
"""...in steps of one part in so many."""


class Stamps:
    """When each piece of a stream came. At most FULL numbers are held, if `fold` is called when there are so many."""

    __slots__ = ("_folded", "times")

    def __init__(self) -> None:
        self.times = array("d")
        """Seconds on a clock that does not go back. Whoever has a piece appends to it: nothing else happens per piece."""
        self._folded: Counter[int] | None = None

    @property
    def pieces(self) -> int:
        """How many came."""
        return len(self.times) + (self._folded.total() if self._folded is not None else 0)

    def gaps(self) -> Gaps | None:
        """None when there were not two pieces."""
        if self._folded is None:
            return summary(sorted(b - a for a, b in pairwise(self.times)))
        self.fold()
        sizes = sorted(self._folded)
        return _summary([math.exp(size / FINE) for size in sizes], [self._folded[size] for size in sizes])

    def fold(self) -> None:
        """Make room."""
        times, folded = self.times, self._folded
        if folded is None:
            folded = self._folded = Counter[int]()
        folded.update(round(math.log(max(b - a, 1e-6)) * FINE) for a, b in pairwise(times))
        self.times = times[-1:]


def summary(gaps: Sequence[float]) -> Gaps | None:
    """Of gaps in ascending order."""
    return _summary(gaps, [1] * len(gaps)) if gaps else None


def _summary(gaps: Sequence[float], times: Sequence[int]) -> Gaps:
    """Of gaps in ascending order, each of which was there so many `times`."""
    upto = list(accumulate(times))
    ends = [bisect_right(gaps, bound) for bound in GAP_BOUNDS]
    below = [0, *(upto[end - 1] if end else 0 for end in ends), upto[-1]]
    p50, p95, p99 = (gaps[bisect_left(upto, math.ceil(share * upto[-1]))] for share in (0.5, 0.95, 0.99))
    total = math.fsum(gap * n for gap, n in zip(gaps, times, strict=True))
    return Gaps(p50, p95, p99, total, tuple(b - a for a, b in pairwise(below)))
