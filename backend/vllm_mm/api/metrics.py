"""What Prometheus sees of the controller: counters fed by the ledger and the journal, gauges read at each scrape."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_mm.api.tally import MODELS, OTHER, RequestTally
from vllm_mm.domain.events import Event
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.series import TTFT_BOUNDS
from vllm_mm.engine.launchers.warm import WarmView
from vllm_mm.engine.manager import ProcessManager
from vllm_mm.engine.queue import InferenceQueue
from vllm_mm.store.journal import Journal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4)


class Metrics:
    """One registry per controller, none global: several in one process do not mix.

    `observe_request` is to be called with each ledger row, `observe_event` with each event; both are quick.
    """

    def __init__(
        self,
        manager: ProcessManager,
        queue: InferenceQueue,
        version: str,
        launchers: Callable[[], WarmView] = WarmView,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._tally = RequestTally(TTFT_BOUNDS)
        self.registry.register(self._tally)
        self.observe_request = self._tally.add
        """A request has ended."""
        self.totals = self._tally.totals
        self._swaps = Counter(
            "vllm_mm_swaps", "Loads (start, wake) and evictions (evict), by the scheduler's reason.",
            ("model", "kind", "reason"), registry=self.registry,
        )  # fmt: skip
        self._loads = Histogram(
            "vllm_mm_load_seconds", "How long loads took that ended READY.", ("kind", "reason"),
            buckets=_SLOW, registry=self.registry,
        )  # fmt: skip
        self._eta_errors = Histogram(
            "vllm_mm_eta_error_seconds",
            "By how much models became READY earlier or later than was expected, by when that was told.",
            ("told", "side"), buckets=_SLOW, registry=self.registry,
        )  # fmt: skip
        self._eta_ratios = Histogram(
            "vllm_mm_eta_ratio", "Seconds until READY over what was expected, by when that was told.",
            ("told",), buckets=_RATIOS, registry=self.registry,
        )  # fmt: skip
        self._preemptions = Counter(
            "vllm_mm_preemptions", "Requests that were frozen in their engine so that it could sleep.", ("model",),
            registry=self.registry,
        )  # fmt: skip
        self._frozen = Histogram(
            "vllm_mm_frozen_seconds", "How long frozen requests stood still that went on, by freeze.", ("model",),
            buckets=_SLOW, registry=self.registry,
        )  # fmt: skip
        self._load_failures = Counter("vllm_mm_load_failures", "Loads that failed.", ("model",), registry=self.registry)
        self._sleeps = Counter(
            "vllm_mm_sleeps", "Sleeps by how they went: ok, refused, lied (the memory did not come back) or died.",
            ("model", "outcome"), registry=self.registry,
        )  # fmt: skip
        self._wakes = Counter(
            "vllm_mm_wakes", "Wakes by how they went: ok, refused, lied (it answered differently afterwards) or died.",
            ("model", "outcome"), registry=self.registry,
        )  # fmt: skip
        self._orphans = Counter(
            "vllm_mm_orphans_swept", "Processes of a launch that outlived its leader and were killed.", ("model",),
            registry=self.registry,
        )  # fmt: skip
        self._alerts = Counter("vllm_mm_alerts", "Alerts by kind.", ("kind",), registry=self.registry)
        self._models: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self.registry.register(_Gauges(manager, queue, version))
        self.registry.register(_Launches(launchers))

    def observe_event(self, event: Event) -> None:
        """Something happened."""
        model = self._label(event.model or "")
        match event.kind:
            case "swap.planned":
                reason = str(event.data.get("reason", "")).partition(":")[0]
                self._reasons[model] = reason
                for victim in event.data.get("victims", ()):
                    self._swaps.labels(self._label(str(victim)), "evict", reason).inc()
            case "device_lease.held":
                for victim in event.data.get("evicted", ()):
                    self._swaps.labels(self._label(str(victim)), "evict", "lease").inc()
            case "instance.starting" | "instance.waking":
                kind = "start" if event.kind == "instance.starting" else "wake"
                self._kinds[model] = kind
                self._swaps.labels(model, kind, self._reasons.get(model, "")).inc()
            case "instance.ready":
                kind, took = self._kinds.pop(model, None), event.data.get("took_s")
                reason = self._reasons.pop(model, "")
                if kind is not None and took is not None:
                    self._loads.labels(kind, reason).observe(float(took))
                if kind == "wake":
                    self._wakes.labels(model, "ok").inc()
            case "instance.sleeping" if not event.data.get("adopted"):
                self._sleeps.labels(model, "ok").inc()
            case "sleep.failed":
                self._sleeps.labels(model, str(event.data.get("outcome", ""))).inc()
            case "wake.failed":
                self._wakes.labels(model, str(event.data.get("outcome", ""))).inc()
            case "swap.done":
                for forecast in event.data.get("forecasts", ()):
                    self._compare(forecast["at"], forecast["expected_s"], forecast["took_s"])
            case "instance.stopping":
                if self._kinds.pop(model, None) is not None and event.data.get("then") not in {
                    "stopped",
                    "cold",  # called off; or a wake whose load goes on as a start
                }:
                    self._load_failures.labels(model).inc()
            case "lease.frozen":
                self._preemptions.labels(model).inc(float(event.data.get("count", 0)))
            case "lease.thawed":
                self._frozen.labels(model).observe(float(event.data.get("frozen_s", 0.0)))
            case "orphan.swept":
                self._orphans.labels(model).inc()
            case _ if event.kind.startswith("alert."):
                self._alerts.labels(event.kind.removeprefix("alert.")).inc()
            case _:
                pass

    def _label(self, model: str) -> str:
        """As for requests, models beyond a bound are one."""
        if model not in self._models:
            if len(self._models) >= MODELS:
                return OTHER
            self._models.add(model)
        return model

    def _compare(self, told: str, expected: float, took: float) -> None:
        self._eta_errors.labels(told, "late" if took > expected else "early").observe(abs(took - expected))
        if expected > 0:
            self._eta_ratios.labels(told).observe(took / expected)

    async def follow(self, journal: Journal) -> None:
        """Observe every event until the journal is closed; for a task of its own."""
        async with journal.subscribe() as events:
            async for event in events:
                self.observe_event(event)

    def text(self) -> str:
        """The exposition of our own metrics."""
        return generate_latest(self.registry).decode()


def _tasks() -> int:
    """That are not done; none where no loop runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


class _Gauges(Collector):
    """Read at each scrape: nothing to keep in step."""

    def __init__(self, manager: ProcessManager, queue: InferenceQueue, version: str) -> None:
        self._manager = manager
        self._queue = queue
        self._version = version

    def collect(self) -> Iterator[Metric]:
        yield _gauge("vllm_mm_info", "The version, in a label.", ("version",), {(self._version,): 1})
        yield _gauge("vllm_mm_queue_length", "Requests that wait.", (), {(): self._queue.size})
        yield _gauge(
            "vllm_mm_queue_oldest_seconds", "How long the oldest has waited.", (), {(): self._queue.oldest_age()}
        )
        yield _gauge("vllm_mm_tasks", "Tasks of the event loop.", (), {(): _tasks()})
        yield from self._instances()
        yield from self._devices()
        host = self._manager.host_memory
        bounds = {} if host.budget is None else {("budget",): float(host.budget)}
        yield _gauge(
            "vllm_mm_host_memory_bytes", "Host memory for sleeping engines: the budget, and what they hold of it.",
            ("kind",), {("held",): float(host.used), **bounds},
        )  # fmt: skip

    def _instances(self) -> Iterator[Metric]:
        specs, instances = list(self._manager.catalog), {i.spec.id: i for i in self._manager.instances()}
        states = {s.id: instances[s.id].state if s.id in instances else State.STOPPED for s in specs}
        yield _gauge(
            "vllm_mm_instance_state", "1 for the state that the instance is in.", ("model", "state"),
            {(m, s.value): int(s is state) for m, state in states.items() for s in State},
        )  # fmt: skip
        yield _gauge(
            "vllm_mm_in_flight", "Leases that are out.", ("model",),
            {(s.id,): instances[s.id].gate.count if s.id in instances else 0 for s in specs},
        )  # fmt: skip
        yield _gauge(
            "vllm_mm_queued",
            "Requests that wait, by model.",
            ("model",),
            {(s.id,): self._queue.count(s.id) for s in specs},
        )
        yield _gauge(
            "vllm_mm_instance_failures", "Failures in a row.", ("model",),
            {(s.id,): instances[s.id].snapshot.failures if s.id in instances else 0 for s in specs},
        )  # fmt: skip

    def _devices(self) -> Iterator[Metric]:
        ledger = self._manager.ledger
        values: dict[tuple[str, ...], float] = {}
        held: dict[tuple[str, ...], float] = {}
        for device in ledger.devices.values():
            values |= {
                (device.id, "capacity"): device.capacity,
                (device.id, "headroom"): device.headroom,
                (device.id, "foreign"): ledger.foreign(device.id),
                (device.id, "in_use"): ledger.in_use(device.id),
                (device.id, "free"): ledger.free(device.id),
            }
        for reservation in ledger.reservations.values():
            held |= {(d, reservation.model): size for d, size in reservation.device_bytes.items()}
        out = {(d.id,): int(bool(d.problem)) for d in ledger.devices.values()}
        yield _gauge("vllm_mm_device_out_of_use", "1 for a device with a problem.", ("device",), out)
        yield _gauge("vllm_mm_device_memory_bytes", "Memory of a device by kind.", ("device", "kind"), values)
        yield _gauge("vllm_mm_reserved_bytes", "Reserved by models.", ("device", "model"), held)


class _Launches(Collector):
    """How engines came into being."""

    def __init__(self, launchers: Callable[[], WarmView]) -> None:
        self._launchers = launchers

    def collect(self) -> Iterator[Metric]:
        view = self._launchers()
        starts = CounterMetricFamily("vllm_mm_process_starts", "Engine processes, by launcher.", labels=("launcher",))
        for launcher, count in view.starts.items():
            starts.add_metric((launcher,), count)
        yield starts
        yield CounterMetricFamily(
            "vllm_mm_warm_fallbacks",
            "Warm starts that were tried or asked for and became local ones.",
            value=view.fallbacks,
        )
        yield _gauge(
            "vllm_mm_zygote_private_bytes", "Memory that only the zygote uses.", ("zygote",),
            {(z.key,): z.report.private for z in view.zygotes if z.pid is not None},
        )  # fmt: skip


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
