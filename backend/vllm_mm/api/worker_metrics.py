"""What Prometheus sees of the workers."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_mm.engine.lending.office import Office


class WorkerMetrics(Collector):
    """Read at each scrape. Requests are counted where their rows come together, whoever served them."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def collect(self) -> Iterator[Metric]:
        office = self._office
        serving = GaugeMetricFamily("vllm_mm_workers", "Worker processes that accept connections.")
        serving.add_metric((), office.serving)
        yield serving
        leases = CounterMetricFamily(
            "vllm_mm_worker_leases", "Leases that requests of workers got, by how: asked (a round trip) or credit (none).",
            labels=("how",),
        )  # fmt: skip
        leases.add_metric(("asked",), office.counts.asked)
        leases.add_metric(("credit",), office.counts.credit)
        yield leases
        lent = GaugeMetricFamily("vllm_mm_worker_lent", "Leases that workers hold, in use or not.", labels=("model",))
        for model, count in office.out.items():
            lent.add_metric((model,), count)
        yield lent
        yield CounterMetricFamily(
            "vllm_mm_worker_rows_lost", "Ledger rows that workers had no room for.", value=office.counts.lost
        )
