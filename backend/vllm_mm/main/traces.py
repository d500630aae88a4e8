"""OpenTelemetry traces of requests: one tree of spans from the client to the engine (`traces`, docs/observability.md).

The spans are made with the times that the gateway keeps anyway, mostly when a request is over, so that nothing is measured
for them. They leave in a thread of the exporter, which drops what it has no room for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final

from vllm_mm.clock import Clock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.usage import Outcome, RequestRecord
from vllm_mm.gateway.ports import Headers
from vllm_mm.gateway.realtime_session import RealtimeSession
from vllm_mm.gateway.routes import REALTIME
from vllm_mm.gateway.traces import Traced
from vllm_mm.settings import TracesConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_CONTEXT: Final = frozenset({b"traceparent", b"tracestate"})
_MISSING: Final = "`traces.endpoint` needs OpenTelemetry, which is not installed here: pip install 'vllm-mm[otel]'"


@dataclass(slots=True)
class _Open:
    """A request that was sent."""

    root: "Span"
    ns: Callable[[float], int]
    """One for all of its spans: two readings of the clocks differ by a little."""
    tries: list["Span"] = field(default_factory=list["Span"])


def provider_of(config: TracesConfig, version: str) -> "TracerProvider | None":
    """None where there are no traces. Raises ConfigError where OpenTelemetry is not installed."""
    if config.endpoint is None:
        return None
    try:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(_MISSING) from error
    made = bare_provider(config, version)
    made.add_span_processor(BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=config.endpoint)))
    return made


def bare_provider(config: TracesConfig, version: str) -> "TracerProvider":
    """Without an exporter. A client's decision to sample or not is followed; of the rest `traces.sample` is."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # as above
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415  # as above

    resource = Resource.create({"service.name": config.service, "service.version": version})
    return TracerProvider(
        resource=resource, sampler=ParentBased(TraceIdRatioBased(config.sample)), shutdown_on_exit=False
    )


class Tracer:
    """`gateway.traces.Traces`, with OpenTelemetry."""

    def __init__(self, provider: "TracerProvider", clock: Clock) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415  # an extra

        self._tracer = provider.get_tracer("vllm_mm")
        self._provider = provider
        self._clock = clock
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[Traced, _Open] = {}

    def sent(self, relay: Traced, headers: Headers) -> Headers:
        from opentelemetry import trace  # noqa: PLC0415  # an extra

        request = self._open.get(relay)
        if request is None:
            request = self._open[relay] = self._begun(relay)
        now = request.ns(self._clock.now())
        if request.tries:
            request.tries[-1].end(now)  # it is sent once more
        inside = trace.set_span_in_context(request.root)
        span = self._tracer.start_span(
            "upstream", context=inside, kind=trace.SpanKind.CLIENT, start_time=now,
            attributes={"vllm_mm.generation": relay.generation or 0},
        )  # fmt: skip
        request.tries.append(span)
        told: dict[str, str] = {}
        self._propagator.inject(told, context=trace.set_span_in_context(span, inside))
        kept = [field for field in headers if field[0] not in _CONTEXT]
        return [*kept, *((name.encode(), value.encode()) for name, value in told.items())]

    def done(self, relay: Traced, row: RequestRecord) -> None:
        from opentelemetry import trace  # noqa: PLC0415  # an extra

        request = self._open.pop(relay, None) or self._begun(relay)
        root, ns, now = request.root, request.ns, self._clock.now()
        if request.tries:
            if not isinstance(relay, RealtimeSession) and relay.first_at is not None:
                request.tries[-1].add_event("first token", timestamp=ns(relay.meter.token_at or relay.first_at))
            request.tries[-1].end(ns(now))
        if _waited(relay):
            self._waits(relay, root, ns, now)
        for name, value in _attributes(row).items():
            if value is not None:
                root.set_attribute(name, value)
        if row.outcome is not Outcome.OK:
            root.set_status(trace.StatusCode.ERROR, row.error or row.outcome.value)
        root.end(ns(now))

    def close(self) -> None:
        """Send what is left. Blocking."""
        self._provider.shutdown()

    def _begun(self, relay: Traced) -> _Open:
        ns = self._to_ns()
        return _Open(self._root(relay, ns), ns)

    def _root(self, relay: Traced, ns: Callable[[float], int]) -> "Span":
        from opentelemetry import trace  # noqa: PLC0415  # an extra

        if isinstance(relay, RealtimeSession):
            headers, method, route = relay.headers, "GET", REALTIME.name
        else:
            headers, method, route = relay.call.headers, relay.call.route.method.decode(), relay.call.route.name
        given = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers if n in _CONTEXT}
        parent = self._propagator.extract(given)
        return self._tracer.start_span(
            f"{method} {route}", context=parent, kind=trace.SpanKind.SERVER, start_time=ns(_arrived(relay)),
            attributes={"http.request.method": method, "http.route": route},
        )  # fmt: skip

    def _waits(self, relay: Traced, root: "Span", ns: Callable[[float], int], now: float) -> None:
        """The time in the queue, and in it that of the load that it waited for."""
        from opentelemetry import trace  # noqa: PLC0415  # an extra

        arrived, leased = _arrived(relay), relay.leased_at if relay.leased_at is not None else now
        inside = trace.set_span_in_context(root)
        reason = {"vllm_mm.reason": relay.reason} if relay.reason else {}
        queue = self._tracer.start_span("queue", context=inside, start_time=ns(arrived), attributes=reason)
        if arrived < relay.ready_at <= leased:
            load = self._tracer.start_span(
                "load", context=trace.set_span_in_context(queue, inside), start_time=ns(arrived)
            )
            load.end(ns(relay.ready_at))
        queue.end(ns(leased))

    def _to_ns(self) -> Callable[[float], int]:
        """From the clock's monotonic seconds to Unix nanoseconds."""
        offset = self._clock.wall() - self._clock.now()
        return lambda moment: int((moment + offset) * 1e9)


def _arrived(relay: Traced) -> float:
    return relay.arrived if isinstance(relay, RealtimeSession) else relay.call.arrived


def _waited(relay: Traced) -> bool:
    """It stood in the queue; a session does so from its handshake on, for the model that it names."""
    return relay.spec is not None if isinstance(relay, RealtimeSession) else relay.queued


def _attributes(row: RequestRecord) -> dict[str, str | int | float | bool | None]:
    return {
        "http.response.status_code": row.status,
        "vllm_mm.request_id": row.request_id,
        "vllm_mm.outcome": row.outcome.value,
        "vllm_mm.key": row.key,
        "vllm_mm.model": row.model,
        "vllm_mm.retried": row.retried,
        "vllm_mm.frozen_s": row.frozen_s or None,
        "gen_ai.request.model": row.asked,
        "gen_ai.usage.input_tokens": row.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": row.usage.completion_tokens,
    }
