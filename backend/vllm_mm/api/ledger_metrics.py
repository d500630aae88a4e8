"""What Prometheus sees of the ledger's way into the database."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_mm.store.behind import WriteBehind


class LedgerMetrics(Collector):
    """Read at each scrape."""

    def __init__(self, rows: WriteBehind[Any]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "vllm_mm_ledger_waiting", "Ledger rows that are not in the database yet.", value=self._rows.backlog
        )
        yield CounterMetricFamily(
            "vllm_mm_ledger_dropped", "Ledger rows that were given up: they did not fit the spool, or could never be written.",
            value=self._rows.dropped,
        )  # fmt: skip
