"""What is said of a download that cannot be."""

from pathlib import Path

import pytest

from vllm_mm.control.pulls import _no_id, _sentence


def test_a_folder_is_told_from_what_is_no_id(tmp_path: Path) -> None:
    """Only what is there is called a folder or a file; else it is said how an id looks."""
    assert "it is a folder or a file of this machine" in _no_id(str(tmp_path))
    told = _no_id("not a repo!")
    assert told.startswith("'not a repo!' is no id")
    assert "such as Qwen/Qwen3-0.6B" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("there is no model", "There is no model"),
        ("https://hub.example cannot be reached", "https://hub.example cannot be reached"),
        ("the hub at https://hub.example is away", "The hub at https://hub.example is away"),
        ("", ""),
    ],
)
def test_a_sentence_has_a_capital_and_an_address_has_none(text: str, told: str) -> None:
    """An address with another first letter is another text to copy."""
    assert _sentence(text) == told
