"""How `vllm-mm audit` tells a change."""

from typing import Any

import pytest

from vllm_mm.cli.audit import WIDTH, _change


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"pinned": False}, {"pinned": True}, "pinned: false -> true"),
        ({"a": 1}, {"b": "x"}, 'a: 1 -> null, b: null -> "x"'),
        (None, {"id": "x"}, "new"),
        ({"id": "x"}, None, "removed"),
        ({}, {}, ""),
        (None, None, ""),
    ],
)
def test_a_change_is_told_in_a_line(before: Any, after: Any, told: str) -> None:
    """What was made, what is gone, what is different."""
    assert _change(before, after) == told


def test_a_long_change_is_cut() -> None:
    """`--json` has it whole."""
    assert len(_change({"a": "x" * 500}, {"a": "y"})) == WIDTH
