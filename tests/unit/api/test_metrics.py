"""`/metrics`: our own numbers, and the engines' with a `model` label."""

import asyncio
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from admin_rig import ROW, Admin
from vllm_mm.api import metrics, tally
from vllm_mm.api.engine_metrics import merge
from vllm_mm.api.ledger_metrics import LedgerMetrics
from vllm_mm.api.webhook_metrics import WebhookMetrics
from vllm_mm.api.worker_metrics import WorkerMetrics
from vllm_mm.control.webhooks import Webhooks
from vllm_mm.domain.events import Event
from vllm_mm.store.behind import WriteBehind

ENGINE = """\
# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="x"} 2.0
# HELP vllm:ttft_seconds Time to first token.
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{le="0.1",model_name="x"} 1.0
vllm:ttft_seconds_bucket{le="+Inf",model_name="x"} 3.0
vllm:ttft_seconds_count{model_name="x"} 3.0
vllm:ttft_seconds_sum{model_name="x"} 0.5
# TYPE python_gc_objects_collected counter
python_gc_objects_collected_total{generation="0"} 1.0
# TYPE bare untyped
bare 7
own{model="inner"} 1
empty{} 4
"""


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_engines_are_merged_family_by_family() -> None:
    """Each family stands once with the samples of all engines, each with its model; the text can be parsed."""
    text = merge({"a": ENGINE, 'we"ird\\': ENGINE})
    found = samples(text)
    assert found["vllm:num_requests_running", frozenset({("model", "a"), ("engine", "0"), ("model_name", "x")})] == 2.0
    assert found["vllm:ttft_seconds_sum", frozenset({("model", 'we"ird\\'), ("model_name", "x")})] == 0.5
    assert found["bare", frozenset({("model", "a")})] == 7.0
    assert found["empty", frozenset({("model", "a")})] == 4.0
    assert text.count("# TYPE vllm:ttft_seconds histogram") == 1
    blocks = [
        name
        for name, _ in itertools.groupby(
            re.match(r"(vllm:ttft|[\w:]+)", s)[0] for s in text.splitlines() if s[0] != "#"
        )
    ]
    assert len(blocks) == len(set(blocks)), "a family is in one block"


def test_a_label_of_the_engine_named_model_is_kept_under_another_name() -> None:
    """As Prometheus itself does it."""
    assert samples(merge({"a": 'own{x="1",model="inner"} 1\n'})) == {
        ("own", frozenset({("model", "a"), ("x", "1"), ("exported_model", "inner")})): 1.0
    }


def test_what_every_process_has_is_left_out() -> None:
    """Of those a scrape of one target has one, ours or none."""
    assert "python_gc" not in merge({"a": ENGINE})


async def test_our_own_metrics(api: Admin) -> None:
    """Requests, times, swaps, states, memory and the queue."""
    metrics = api.services.metrics
    metrics.observe_request(ROW)
    metrics.observe_request(ROW)
    await api.world.ready("a")
    await api.world.clock.advance(10.0)
    await api.world.ready("Qwen/Qwen2.5-7B")
    api.services.journal.emit("orphan.swept", model="a")
    api.services.journal.emit("alert.survivors", model="a")
    await asyncio.sleep(0.01)  # the follower of the journal is a task
    answer = await api.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("vllm_mm_requests_total", model="a", key="key_x", outcome="ok") == 2
    assert value("vllm_mm_tokens_total", model="a", kind="completion") == 8
    assert value("vllm_mm_ttft_seconds_count", model="a") == 2
    assert value("vllm_mm_swaps_total", model="a", kind="start", reason="fits") == 1
    assert value("vllm_mm_swaps_total", model="a", kind="evict", reason="operator") == 1
    assert value("vllm_mm_load_seconds_count", kind="start", reason="operator") == 1
    assert value("vllm_mm_instance_state", model="Qwen/Qwen2.5-7B", state="ready") == 1
    assert value("vllm_mm_instance_state", model="a", state="stopped") == 1
    assert value("vllm_mm_device_memory_bytes", device="gpu0", kind="free") == 4 * 1024**3
    assert value("vllm_mm_queue_length") == 0
    assert value("vllm_mm_orphans_swept_total", model="a") == 1
    assert value("vllm_mm_alerts_total", kind="survivors") == 1
    assert value("vllm_mm_info", version="1.2.3") == 1


async def test_sleeps_and_wakes_are_counted_by_how_they_went(api: Admin) -> None:
    """A wake that failed and became a start is a wake that failed, and no load that failed."""
    emit = api.services.journal.emit
    emit("instance.sleeping", model="a", data={"took_s": 1.0})
    emit("instance.sleeping", model="a", data={"adopted": True})
    emit("sleep.failed", model="a", data={"outcome": "lied"})
    for kind, data in (
        ("instance.waking", {}), ("instance.ready", {"took_s": 0.5}),
        ("instance.waking", {}), ("instance.stopping", {"then": "cold"}), ("wake.failed", {"outcome": "refused"}),
        ("instance.starting", {}), ("instance.ready", {"took_s": 5.0}),
    ):  # fmt: skip
        emit(kind, model="a", data=data)
    await asyncio.sleep(0.01)
    found = samples((await api.client.get("/metrics")).text)
    counted = {
        (name.removeprefix("vllm_mm_"), dict(labels)["outcome"]): n
        for (name, labels), n in found.items()
        if name in {"vllm_mm_sleeps_total", "vllm_mm_wakes_total"}
    }
    assert counted == {
        ("sleeps_total", "ok"): 1, ("sleeps_total", "lied"): 1, ("wakes_total", "ok"): 1, ("wakes_total", "refused"): 1,
    }  # fmt: skip
    assert not [name for name, _ in found if name == "vllm_mm_load_failures_total"]
    assert found["vllm_mm_host_memory_bytes", frozenset({("kind", "held")})] == 0


async def test_a_scrape_neither_uses_nor_wakes(api: Admin) -> None:
    """The idle clock goes on, and a stopped model stays so."""
    await api.world.ready("a")
    await api.world.clock.advance(50.0)
    await api.client.get("/metrics")
    shown = (await api.client.get("/api/models/a")).json()["instance"]
    assert shown["idle_s"] >= 50.0
    assert api.world.running == {"a"}


async def test_a_failing_engine_does_not_spoil_the_scrape(api: Admin) -> None:
    """It is left out; the others and ours are there."""
    await api.world.ready("a")

    async def broken() -> str:
        raise OSError("gone")

    api.world.manager.require("a").metrics = broken  # type: ignore[method-assign]
    assert "vllm_mm_info" in (await api.client.get("/metrics")).text


def test_keys_and_models_beyond_a_bound_are_one_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come first keep their own; nothing is lost from the sums, and what is kept does not grow."""
    monkeypatch.setattr(tally, "KEYS", 3)
    monkeypatch.setattr(tally, "MODELS", 2)
    made = tally.RequestTally((1.0,))
    for _ in range(2):
        for n in range(10):
            made.add(replace(ROW, key=f"key_{n}", model=f"m{n}"))
    requests = next(f for f in made.collect() if f.name == "vllm_mm_requests")
    counts = {(s.labels["model"], s.labels["key"]): s.value for s in requests.samples}
    assert counts == {
        ("m0", "key_0"): 2, ("m1", "key_1"): 2, ("other", "key_2"): 2, ("other", "other"): 14,
    }  # fmt: skip
    times = next(f for f in made.collect() if f.name == "vllm_mm_request_seconds")
    seen = {s.labels["model"]: s.value for s in times.samples if s.name.endswith("_count")}
    assert seen == {"m0": 2, "m1": 2, "other": 16}


async def test_models_of_events_are_bounded_too(api: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are made and removed over the API leave no labels without end."""
    monkeypatch.setattr(metrics, "MODELS", 2)
    for n in range(5):
        api.services.metrics.observe_event(Event(n, 0.0, "orphan.swept", f"m{n}"))
    text = api.services.metrics.text()
    assert 'vllm_mm_orphans_swept_total{model="other"} 3.0' in text
    assert 'model="m4"' not in text


async def test_the_documentation_names_every_metric(api: Admin) -> None:
    """docs/admin-api.md has them all, those that are there with workers only too, and none that does not exist."""
    office = SimpleNamespace(serving=1, counts=SimpleNamespace(asked=1, credit=1, lost=0), out={"a": 1})
    of_workers = WorkerMetrics(office).collect()  # type: ignore[arg-type]
    of_hooks = WebhookMetrics(Webhooks.none()).collect()
    of_ledger = LedgerMetrics(WriteBehind(api.services.ledger.add, api.services.clock, name="x")).collect()
    families = {f.name for f in (*api.services.metrics.registry.collect(), *of_workers, *of_ledger, *of_hooks)}
    page = (Path(__file__).parents[3] / "docs" / "admin-api.md").read_text()
    named = {name.removesuffix("_total") for name in re.findall(r"`(vllm_mm_\w+)`", page)}
    assert named == {name.removesuffix("_total") for name in families}
