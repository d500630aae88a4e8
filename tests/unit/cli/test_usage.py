"""How `vllm-mm usage` tells a row."""

from typing import Any

from vllm_mm.cli.usage import _row

ROW: dict[str, Any] = {
    "key": "key_1", "key_name": "ada", "model": "a", "day": None, "hour": None, "requests": 3, "outcomes": {"ok": 2, "cut": 1},
    "prompt_tokens": 1234567, "cached_tokens": 0, "completion_tokens": 5, "queued_s": 0.5, "device_s": 75.2, "cost": 1.234, "energy_j": 1.8e6,
}  # fmt: skip


def test_a_row() -> None:
    """The key by its name, what failed, numbers that can be read; a cost only where there are prices."""
    assert _row(ROW, ["key", "model"], priced=True) == [
        "ada",
        "a",
        3,
        1,
        "1,234,567",
        "0",
        "5",
        "0.5s",
        "1m15s",
        "1.23",
    ]
    assert _row({**ROW, "key_name": None}, ["key"], priced=False)[:3] == ["key_1", 3, 1]
    assert _row({**ROW, "cost": None}, [], priced=True)[-1] is None
    assert _row(ROW, [], priced=False, metered=True)[-1] == "0.500 kWh"


def test_the_total() -> None:
    """In the place of the first group."""
    assert _row({**ROW, "key_name": None, "key": None, "model": None}, ["key", "model"], priced=False, first="total")[
        :2
    ] == ["total", None]
