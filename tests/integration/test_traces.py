"""Traces of requests: one tree from the client to the engine, in both forms of the data plane; and nothing where they are off."""

import asyncio
import gzip
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from websockets.asyncio.client import connect

from admin_rig import ROW
from hard_cases import running, sim
from plane import FORMS, Plane, ask, plane, post
from speech import COMMIT, FINAL, append, audio, hear, say, until_done
from upstreams import Upstream, answers, upstream
from vllm_mm.clock import RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.main import traces
from vllm_mm.settings import TracesConfig

CHAT = "/v1/chat/completions"
BODY = b'{"model": "m", "messages": []}'
ANSWER = b'{"id":"c-1","model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
SPECS = (ModelSpec("m"),)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    made = InMemorySpanExporter()
    yield made
    made.shutdown()


@asynccontextmanager
async def traced(
    form: str, where: Path, exporter: InMemorySpanExporter, *, sample: float = 1.0
) -> AsyncIterator[tuple[Plane, Upstream]]:
    provider = traces.bare_provider(TracesConfig(sample=sample), "1.2.3")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with upstream(answers(PLAIN), where) as engine, plane(form, engine.address, specs=SPECS) as server:
        server.gateway.traces = traces.Tracer(provider, RealClock())
        yield server, engine
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def identity(span: ReadableSpan) -> Any:
    return span.get_span_context()


async def test_one_tree_from_the_client_to_the_engine(
    form: str, tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    """Below the client's own span; the engine is told of the span that it is in, and what the client sent of that is replaced."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "x=y"}
    async with traced(form, tmp_path, exporter) as (server, engine):
        await ask(server, post(CHAT, BODY, headers=headers))
        await server.settled(1)
        heard = engine.heard[0]
    spans = by_name(exporter)
    assert set(spans) == {f"POST {CHAT}", "queue", "upstream"}
    root, upstream_span = spans[f"POST {CHAT}"], spans["upstream"]
    assert {f"{identity(span).trace_id:032x}" for span in spans.values()} == {TRACE}
    assert f"{parent(root):016x}" == PARENT
    assert parent(upstream_span) == parent(spans["queue"]) == identity(root).span_id
    assert heard.header("traceparent") == f"00-{TRACE}-{identity(upstream_span).span_id:016x}-01"
    assert heard.header("tracestate") == "x=y"
    attributes = dict(root.attributes or {})
    assert (attributes["vllm_mm.model"], attributes["vllm_mm.outcome"], attributes["http.response.status_code"]) == (
        "m",
        "ok",
        200,
    )
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (3, 4)
    assert [event.name for event in upstream_span.events] == ["first token"]
    assert root.start_time is not None
    assert root.end_time is not None
    for span in spans.values():
        assert root.start_time <= (span.start_time or 0) <= (span.end_time or 0) <= root.end_time
    assert (root.resource.attributes["service.name"], root.resource.attributes["service.version"]) == (
        "vllm-mm",
        "1.2.3",
    )


async def test_a_refusal_is_a_span_of_its_own(form: str, tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    """With the error as its status; nothing was sent."""
    async with traced(form, tmp_path, exporter) as (server, _):
        await ask(server, post(CHAT, b'{"model": "nope"}'))
        await server.settled(1)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert "nope" in (span.status.description or "")
    assert span.parent is None


async def test_a_client_decides_whether_its_request_is_traced(
    form: str, tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    """Else the share that is set does. The engine is told either way."""
    async with traced(form, tmp_path, exporter, sample=0.0) as (server, engine):
        await ask(server, post(CHAT, BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}))
        await ask(server, post(CHAT, BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}))
        await ask(server, post(CHAT, BODY))
        await server.settled(3)
        flags = [int(str(heard.header("traceparent")).rsplit("-", 1)[1], 16) for heard in engine.heard]
        assert [bool(flag & 1) for flag in flags] == [True, False, False]
    assert sum(span.name == f"POST {CHAT}" for span in exporter.get_finished_spans()) == 1


async def test_without_traces_the_engine_gets_the_clients_own(form: str, tmp_path: Path) -> None:
    """As it came: its engine's spans are then below the client's."""
    sent = f"00-{TRACE}-{PARENT}-01"
    async with upstream(answers(PLAIN), tmp_path) as engine, plane(form, engine.address, specs=SPECS) as server:
        assert server.gateway.traces is None
        await ask(server, post(CHAT, BODY, headers={"traceparent": sent}))
        await server.settled(1)
        assert engine.heard[0].header("traceparent") == sent


def test_off_imports_nothing() -> None:
    """No provider; where the extra is missing, what to install is told."""
    assert traces.provider_of(TracesConfig(), "1") is None


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that helps."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'vllm-mm\[otel\]'"):
        traces.provider_of(TracesConfig(endpoint="http://127.0.0.1:4318/v1/traces"), "1")


class Request(SimpleNamespace):
    """What a tracer looks at of one under way."""

    __hash__ = object.__hash__


def test_the_load_that_was_waited_for_is_inside_the_queue(exporter: InMemorySpanExporter) -> None:
    """And the last of several tries has the first token."""
    provider = traces.bare_provider(TracesConfig(), "1")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    clock = RealClock()
    tracer = traces.Tracer(provider, clock)
    now = clock.now()
    call = SimpleNamespace(route=SimpleNamespace(method=b"POST", name=CHAT), headers=[], arrived=now - 3)
    relay: Any = Request(
        call=call, queued=True, leased_at=now - 1, ready_at=now - 2, generation=2, reason="loading", first_at=now,
        meter=SimpleNamespace(token_at=None),
    )  # fmt: skip
    for _ in range(2):
        tracer.sent(relay, [])
    tracer.done(relay, ROW)
    provider.shutdown()
    spans = by_name(exporter)
    assert parent(spans["load"]) == identity(spans["queue"]).span_id
    assert spans["queue"].attributes == {"vllm_mm.reason": "loading"}
    tries = [span for span in exporter.get_finished_spans() if span.name == "upstream"]
    assert [len(span.events) for span in tries] == [0, 1]


class Collector:
    """What an OpenTelemetry collector hears, over OTLP and HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                assert line.startswith(b"POST /v1/traces "), line
                headers: dict[str, str] = {}
                while (line := (await reader.readline()).decode().strip()) != "":
                    name, _, value = line.lower().partition(": ")
                    headers[name] = value
                assert headers["content-type"] == "application/x-protobuf"
                body = await reader.readexactly(int(headers["content-length"]))
                self._take(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        finally:
            writer.close()

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(attributes["service.name"])
            self.spans += (span for scope in resource.scope_spans for span in scope.spans)


async def test_a_collector_hears_of_requests_of_workers_and_of_sessions() -> None:
    """Over OTLP, whole trees; all of them are there when the server has ended."""
    collector = Collector()
    there = await asyncio.start_server(collector, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{there.sockets[0].getsockname()[1]}/v1/traces"
    models = {"m": sim(), "ears": sim(model={"task": "realtime"}, tokens_per_second=2000)}
    config: dict[str, Any] = {"server": {"workers": 2}, "traces": {"endpoint": endpoint, "service": "mine"}}
    async with there, running(models, own_devices=True, **config) as case:
        await case.ready("m", "ears")
        for _ in range(3):
            assert (await case.complete("m")).status_code == 200
        address = case.url.replace("http://", "ws://") + "/v1/realtime?model=ears"
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        async with connect(address, compression=None, additional_headers=headers) as ws:
            assert (await hear(ws, 30))["type"] == "session.created"
            await say(ws, COMMIT, append(audio(1)), FINAL)
            await until_done(ws, 30)
        assert await case.outcomes(4) == {"ok": 4}
        assert await case.serving.stop() == 0, case.serving.log[-3000:]
    assert collector.services == {"mine"}
    roots = [span for span in collector.spans if span.name in {"POST /v1/completions", "GET /v1/realtime"}]
    assert sorted(span.name for span in roots) == ["GET /v1/realtime", *["POST /v1/completions"] * 3]
    for root in roots:
        below = sorted(s.name for s in collector.spans if s.parent_span_id == root.span_id)
        assert below == ["queue", "upstream"]
        assert all(s.trace_id == root.trace_id for s in collector.spans if s.parent_span_id == root.span_id)
    (session,) = (span for span in roots if span.name == "GET /v1/realtime")
    assert (session.trace_id.hex(), session.parent_span_id.hex()) == (TRACE, PARENT)
    told = {a.key: a.value for a in session.attributes}
    assert (told["vllm_mm.model"].string_value, told["http.response.status_code"].int_value) == ("ears", 101)
