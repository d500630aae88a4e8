"""Settings reach what they are about."""

from dataclasses import fields
from pathlib import Path

from vllm_mm.gateway.ports import Rules
from vllm_mm.main.assembly import gateway_rules
from vllm_mm.settings import load

SAID = {
    "queue.max_wait": "31s", "queue.request_timeout": "601s", "limits.body": 1001, "limits.upload": 1002, "limits.upload_held": 1003,
    "limits.header": 1004, "limits.header_timeout": "11s", "limits.body_timeout": "12s", "limits.body_rate": 1005,
    "limits.send_timeout": "13s", "server.keep_alive": "14s", "limits.connections": 15, "cors.origins": ["https://a.example"],
    "limits.responses": 16, "limits.responses_age": "17s", "cors.max_age": "18s",
    "realtime.max_message": 1006, "realtime.idle_timeout": "19s", "realtime.max_session": "20s", "realtime.model_timeout": "21s",
    "swap.drain_timeout": "22s", "auth.subprotocol_keys": False, "auth.revoke_running": False, "server.timings": True, "timeouts.stream_stall": "23s",
}  # fmt: skip


def test_the_data_planes_settings_are_used(tmp_path: Path) -> None:
    """Each one that is set changes what the gateway goes by; what has no setting is named here."""
    rules, usual = gateway_rules(load(overrides=SAID, cwd=tmp_path)), Rules()
    same = {field.name for field in fields(Rules) if getattr(rules, field.name) == getattr(usual, field.name)}
    assert same == {"progress"}
    assert (rules.preflight, rules.body_rate, rules.origins) == (18.0, 1005, frozenset({b"https://a.example"}))
