"""What Prometheus sees of webhooks."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_mm.control.webhooks import Webhooks


class WebhookMetrics(Collector):
    """Read at each scrape. The label is the hook's name; there are as many as the configuration has."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def collect(self) -> Iterator[Metric]:
        ended = CounterMetricFamily(
            "vllm_mm_webhook_deliveries", "Deliveries by how they ended: delivered, or given up (dead).",
            labels=("hook", "outcome"),
        )  # fmt: skip
        tries = CounterMetricFamily("vllm_mm_webhook_failed_tries", "Tries that came to nothing.", labels=("hook",))
        waiting = GaugeMetricFamily("vllm_mm_webhook_waiting", "Deliveries that wait.", labels=("hook",))
        for view in self._webhooks.hooks:
            ended.add_metric((view.name, "delivered"), view.delivered)
            ended.add_metric((view.name, "dead"), view.dead)
            tries.add_metric((view.name,), view.failed_tries)
            waiting.add_metric((view.name,), view.waiting)
        yield from (ended, tries, waiting)
