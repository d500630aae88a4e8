"""Looks at how much an engine did, by its own metrics, to know what its prefix cache is worth (`domain.prefix_cache`)."""

from collections.abc import Awaitable, Callable

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import MMError
from vllm_mm.domain.prefix_cache import PrefixCache, Work

EVERY = 30.0
"""Seconds between two looks at an engine that serves. A look costs it a page of text."""
_ASKED, _FOUND = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
_MADE, _PREFILL = "vllm:generation_tokens_total", "vllm:request_prefill_time_seconds_sum"


class CacheWatch:
    """Of one launch. `metrics`: its Prometheus text; may raise MMError."""

    def __init__(self, clock: Clock, metrics: Callable[[], Awaitable[str]], reads: Callable[[], int]) -> None:
        """`reads` grows whenever the engine sends something to its clients."""
        self._clock = clock
        self._metrics = metrics
        self._reads = reads
        self._known = PrefixCache()
        self._looked: float | None = clock.now()
        """None: it has slept since the last look."""
        self._seen = reads()

    def slept(self) -> None:
        """Nothing is left of its cache: what it has done until the next look does not count."""
        self._looked = None

    async def look(self) -> None:
        """At most every `EVERY` seconds, and not while nobody is served. Never raises."""
        now, reads = self._clock.now(), self._reads()
        if self._looked is not None and (now < self._looked + EVERY or reads == self._seen):
            return
        first, self._looked, self._seen = self._looked is None, now, reads
        try:
            work = work_of(await self._metrics())
        except MMError:
            return
        if work is not None:
            self._known = self._known.note(work)
            if first:
                self._known = self._known.emptied()

    def loss(self, capacity: int | None) -> float:
        """See `PrefixCache.loss`; as of the last look."""
        return self._known.loss(capacity)


def work_of(text: str) -> Work | None:
    """What these metrics say; None for an engine that has no such counters. Several engines behind one address are added up."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in {_ASKED, _FOUND, _MADE, _PREFILL}:
            try:
                sums[name] = sums.get(name, 0.0) + float(line.rsplit(" ", 1)[-1])
            except ValueError:
                continue
    if _ASKED not in sums:
        return None
    found = (int(sums.get(name, 0.0)) for name in (_ASKED, _FOUND, _MADE))
    return Work(*found, prefill=sums.get(_PREFILL, 0.0))
