"""How `vllm-mm usage` tells a row."""

from pathlib import Path
from typing import Any

import pytest

from cli_rig import Cli
from vllm_mm.cli.usage import GROUPS, _row, price
from vllm_mm.store.usage_hours import GroupBy

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


@pytest.mark.parametrize(
    ("cost", "told"), [(0.0, "0.00"), (12.345, "12.35"), (0.01, "0.01"), (0.00043, "0.00043"), (0.0000012, "0.0000012"), (1e-15, "0.000000000000")],
)  # fmt: skip
def test_a_small_price_is_not_nothing(cost: float, told: str) -> None:
    """Two digits that say something, without an exponent."""
    assert price(cost) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--by", "foo"], "--by takes key, model, day, hour"),
        (["--since", "1h", "--from", "2026-01-01"], "--since and --from both say where to begin"),
        (["--csv", "--json"], "two forms of one answer"),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(tmp_path: Path, words: list[str], told: str) -> None:
    """None of the two wins in silence, and no server is asked."""
    ended = Cli(tmp_path).now("usage", *words)
    assert (ended.exit_code, told in ended.stderr) == (2, True), ended.output


def test_the_groups_are_those_of_the_api() -> None:
    """They are named twice, for the command line begins without what the store needs."""
    assert set(GROUPS) == {group.value for group in GroupBy}
