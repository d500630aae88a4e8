"""The dashboard and the alert rules in deploy/ are about metrics, labels and outcomes that there are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from admin_rig import ROW, admin
from fakes_engine import model
from vllm_mm.api.webhook_metrics import WebhookMetrics
from vllm_mm.api.worker_metrics import WorkerMetrics
from vllm_mm.control.webhooks import Webhooks
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.usage import Outcome

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD: Any = json.loads((DEPLOY / "grafana" / "vllm-mm.json").read_text())
ALERTS: Any = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query")


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


EXPRESSIONS = [*dashboard_expressions(), *(rule["expr"] for rule in rules())]


@pytest.fixture
async def scraped(tmp_path: Path) -> str:
    """What a server answers whose model ran, with the metrics that are there with workers and hooks only."""
    async with admin(tmp_path, model("a", 20)) as api:
        await api.world.ready("a")
        api.services.metrics.observe_request(ROW)
        text = (await api.client.get("/metrics")).text
    more = CollectorRegistry()
    office: Any = SimpleNamespace(serving=1, counts=SimpleNamespace(asked=1, credit=1, lost=0), out={"a": 1})
    more.register(WorkerMetrics(office))
    more.register(WebhookMetrics(Webhooks.none()))
    return text + generate_latest(more).decode()


async def test_every_metric_is_one_that_is_scraped(scraped: str) -> None:
    """By its whole name: a counter's `_total`, a histogram's `_bucket`."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", scraped, re.MULTILINE))
    there = {name for name, kind in kinds.items() if kind in {"gauge", "counter"}}
    there |= {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    named = {name for text in EXPRESSIONS for name in re.findall(r"\bvllm_mm_\w+", text)}
    assert len(named) > 20
    assert named <= there, named - there


def test_labels_have_values_that_there_are() -> None:
    """States, outcomes and kinds are spelled as the server does."""
    known = {
        "state": set(State),
        "outcome": {*Outcome, "dead"},
        "kind": {"in_use", "foreign", "free", "start", "wake", "survivors"},
    }
    found = {
        (label, value)
        for text in EXPRESSIONS
        for label, values in re.findall(r'\b(state|outcome|kind)=~?"([^"$]+)"', text)
        for value in values.split("|")
    }
    assert found
    assert [(label, value) for label, value in found if value not in known[label]] == []


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    """With a severity; names are given once."""
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} <= set(rule["annotations"]), rule["alert"]


def test_every_panel_says_what_it_shows_and_none_covers_another() -> None:
    """Grafana shows the description behind a mark."""
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] == "row" or panel["description"], panel["title"]
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & places, panel["title"]
        places |= mine
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
