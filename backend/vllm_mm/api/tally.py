"""Counts of requests for `/metrics`, kept so that adding one costs a microsecond.

prometheus_client's own children take a lock and walk their buckets for each observation, which was a tenth of what a
request costs here; this counts in plain numbers on the event loop and makes metric families of them at each scrape.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from vllm_mm.domain.series import Totals
from vllm_mm.domain.usage import GAP_BOUNDS, RequestRecord

KEYS: Final = 100
"""Keys that have a label of their own in a run of the server: those that come first."""
MODELS: Final = 500
"""The same of models."""
OTHER: Final = "other"
"""The label of all the others."""


class _Spread:
    """A histogram: how many observations fell at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, counts: Sequence[int], total: float) -> None:
        """Observations that were counted by the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        below, found = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            below += count
            found.append((bound, below))
        return found


class _Model:
    """What is counted for one model."""

    __slots__ = ("cached", "completion", "gaps", "prompt", "queued", "reasoning", "total", "ttft")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.total = _Spread(bounds)
        self.ttft = _Spread(bounds)
        self.queued = _Spread(bounds)
        self.gaps = _Spread(GAP_BOUNDS)
        self.prompt = self.completion = self.cached = self.reasoning = 0


class RequestTally(Collector):
    """Counts ledger rows by model, key and outcome, their times and their tokens."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: upper bounds of the histograms' buckets in seconds, ascending."""
        self._bounds = tuple(bounds)
        self._requests: dict[tuple[str, str, str], int] = {}
        self._models: dict[str, _Model] = {}
        self._keys: set[str] = set()
        """Those that have a label of their own."""

    def add(self, record: RequestRecord) -> None:
        """A request has ended."""
        name = record.model or ""
        who = (name, record.key or "", record.outcome)
        count = self._requests.get(who)
        if count is None:
            who = self._bounded(*who)
            count = self._requests.get(who, 0)
        self._requests[who] = count + 1
        model = self._models.get(name)
        if model is None:
            name = who[0]
            model = self._models.get(name) or _Model(self._bounds)
            self._models[name] = model
        model.total.add(record.total_s)
        if record.ttft_s is not None:
            model.ttft.add(record.ttft_s)
        if record.queued_s is not None:
            model.queued.add(record.queued_s)
        usage = record.usage
        if usage.prompt_tokens:
            model.prompt += usage.prompt_tokens
        if usage.completion_tokens:
            model.completion += usage.completion_tokens
        if usage.cached_tokens:
            model.cached += usage.cached_tokens
        if usage.reasoning_tokens:
            model.reasoning += usage.reasoning_tokens
        if record.gaps is not None:
            model.gaps.add_all(record.gaps.counts, record.gaps.total)

    def _bounded(self, model: str, key: str, outcome: str) -> tuple[str, str, str]:
        """The labels of a request whose own are new: models and keys beyond the bounds are `other`, for ever, so that what is
        kept here and what Prometheus keeps does not grow with the keys that are made and revoked."""
        if model not in self._models and len(self._models) >= MODELS:
            model = OTHER
        if key not in self._keys:
            if len(self._keys) >= KEYS:
                key = OTHER
            else:
                self._keys.add(key)
        return model, key, outcome

    def totals(self) -> dict[str, Totals]:
        """By model, of those that had a request: for the time series."""
        return {
            name: Totals(sum(m.total.counts), m.completion, tuple(m.ttft.counts), tuple(m.gaps.counts))
            for name, m in self._models.items()
            if name
        }

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "vllm_mm_requests", "Requests by model, key and outcome.", labels=("model", "key", "outcome")
        )
        for who, count in self._requests.items():
            requests.add_metric(who, count)
        yield requests
        tokens = CounterMetricFamily("vllm_mm_tokens", "Tokens by model and kind.", labels=("model", "kind"))
        for name, model in self._models.items():
            for kind in ("prompt", "completion", "cached", "reasoning"):
                if count := getattr(model, kind):
                    tokens.add_metric((name, kind), count)
        yield tokens
        for attribute, metric, text in (
            (
                "ttft",
                "vllm_mm_ttft_seconds",
                "Arrival to the first token of a stream, else to the first byte of the body.",
            ),
            ("gaps", "vllm_mm_inter_token_seconds", "Between two pieces of a stream with tokens in them."),
            ("total", "vllm_mm_request_seconds", "Arrival to the end."),
            ("queued", "vllm_mm_queue_wait_seconds", "Arrival to the lease."),
        ):
            family = HistogramMetricFamily(metric, text, labels=("model",))
            for name, model in self._models.items():
                spread: _Spread = getattr(model, attribute)
                family.add_metric((name,), spread.buckets(), spread.total)
            yield family
