"""Reasons: a code for programs, a sentence for people."""

import pytest

from vllm_mm.domain.reasons import Reason, split


def test_every_code_is_explained_in_a_sentence() -> None:
    """Codes are words of a URL or a label; each has its own meaning."""
    assert len({r.meaning for r in Reason}) == len(Reason)
    for reason in Reason:
        assert reason.value.replace("_", "").isalpha()
        assert reason.value.islower()
        assert reason.meaning.endswith(".")


def test_a_reason_is_text_that_can_be_taken_apart() -> None:
    """Also where the sentence has a colon of its own."""
    text = Reason.MAX_WAIT.because("evicts a: it is idle")
    assert text == "max_wait: evicts a: it is idle"
    assert split(text) == (Reason.MAX_WAIT, "evicts a: it is idle")


@pytest.mark.parametrize("text", ["", "the engine crashed: out of memory", "Wake"])
def test_text_without_a_code_is_left_as_it_is(text: str) -> None:
    """The reason of a failure, say, comes from elsewhere."""
    assert split(text) == (None, text)


def test_a_bare_code_is_told_by_its_meaning() -> None:
    """`loading` alone says enough for a program, not for a person."""
    assert split("loading") == (Reason.LOADING, Reason.LOADING.meaning)
