"""Reasons: a code for programs, a sentence for people."""

from pathlib import Path

import pytest

from vllm_mm.domain.reasons import Reason, of_event, split


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


@pytest.mark.parametrize(
    ("kind", "cause", "reason", "code"),
    [
        ("swap.planned", "request r1", "max_wait: evicts a", Reason.MAX_WAIT),
        ("instance.draining", "evicted: room for b (idle: evicts a)", "", Reason.EVICTED),
        ("instance.starting", "request r1", "", Reason.REQUEST),
        ("instance.stopping", "crash", "the engine exited with code 1 unasked", Reason.CRASH),
        ("instance.stopping", "operator ada", "operator ada", Reason.OPERATOR),
        ("instance.stopping", "stopped by operator ada", "stopped by operator ada", Reason.OPERATOR),
        ("instance.stopped", "backoff over", "", Reason.BACKOFF),
        ("instance.ready", "adopted at boot", "", Reason.ADOPTED),
        ("lease.revoked", "", "the engine died", Reason.CUT),
        ("swap.given_up", "no room on its devices after 60 s", "", Reason.GIVEN_UP),
        ("zygote.ready", "", "", None),
    ],
)  # fmt: skip
def test_the_code_of_an_event(kind: str, cause: str, reason: str, code: Reason | None) -> None:
    """Its reason says it, else its cause, else its kind; where no decision is behind it there is none."""
    assert of_event(kind, cause, reason) is code


def test_the_documentation_explains_every_code() -> None:
    """docs/scheduling.md has each code with its meaning, in the order of the enumeration, and none that does not exist."""
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text()
    table = page.partition("| code | meaning |")[2].splitlines()[2:]
    assert [row for row in table if row] == [f"| `{reason.value}` | {reason.meaning} |" for reason in Reason]


def test_an_engine_that_ended_in_its_own_words_has_crashed() -> None:
    """When nobody wants it again before it is reaped, the event's cause is what was told of its death."""
    assert of_event("instance.stopped", "the engine exited with code 1 unasked", "") is Reason.CRASH
    assert of_event("instance.stopped", "operator: told to", "") is Reason.OPERATOR


def test_the_policy_is_explained_in_one_page() -> None:
    """docs/scheduling.md before its table of codes: what is printed on one page, with its picture. Cases belong to docs/waiting.md."""
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text().partition("## Reason codes")[0]
    assert "](scheduling.svg)" in page
    assert len(page.split()) < 750
