"""Deterministic answers."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.sim.text import Answer, count_tokens, cut_at_stop, detokenize, embedding, score, tokenize


def test_an_answer_depends_on_model_prompt_and_index_only() -> None:
    """Two runs can be compared; this text is pinned."""
    assert Answer("m", "p").text(0, 6) == Answer("m", "p").text(0, 6) == "Water at work these words it"
    assert Answer("m", "q").text(0, 6) != Answer("m", "p").text(0, 6) != Answer("n", "p").text(0, 6)


@settings(max_examples=30)
@given(st.text(), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_pieces_make_the_whole(prompt: str, cuts: list[int]) -> None:
    """However the tokens are batched, the text is the same."""
    answer = Answer("m", prompt)
    bounds = sorted({0, 30, *cuts})
    pieces = [answer.text(a, b) for a, b in itertools.pairwise(bounds)]
    assert "".join(pieces) == answer.text(0, 30)
    assert 16 <= answer.natural_length <= 143


def test_garbled_text_is_gibberish() -> None:
    """What a model says whose weights are not what they should be."""
    assert Answer("m", "p", garbled=True).text(0, 3) == "!!!"


def test_a_stop_text_cuts_before_itself() -> None:
    """Also when it spans tokens; the first one counts."""
    answer = Answer("m", "p")
    whole = answer.text(0, 20)
    stop = whole[12:17]
    tokens, cut, by = cut_at_stop(answer, 20, ["@@", stop])
    assert (cut, by) == (whole.index(stop), stop)
    assert len(answer.text(0, tokens - 1)) < whole.index(stop) + len(stop) <= len(answer.text(0, tokens))
    assert cut_at_stop(answer, 20, ["@@"]) == (20, None, None)
    assert cut_at_stop(answer, 20, []) == (20, None, None)


@given(st.text(), st.integers(1, 64))
def test_embeddings_are_unit_vectors(text: str, dimensions: int) -> None:
    """Of the length that was asked for, the same each time."""
    vector = embedding("m", text, dimensions)
    assert len(vector) == dimensions
    assert math.fsum(x * x for x in vector) == pytest.approx(1.0)
    assert vector == embedding("m", text, dimensions)
    assert vector != embedding("m", text, dimensions, garbled=True) or dimensions == 1


@given(st.text(), st.text())
def test_scores_are_between_0_and_1(query: str, document: str) -> None:
    """And the same each time."""
    assert 0.0 <= score("m", query, document) == score("m", query, document) <= 1.0
    assert 0.0 <= score("m", query, document, garbled=True) <= 1.0


def test_shared_words_score_higher() -> None:
    """Enough to make a ranking look right."""
    assert score("m", "red cat", "a red cat") > score("m", "red cat", "tax law")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tokens_and_back(text: str) -> None:
    """The tokenizer is reversible."""
    tokens = tokenize(text)
    assert detokenize(tokens) == text
    assert len(tokens) == count_tokens(text)


def test_foreign_tokens() -> None:
    """Numbers that are no token of ours do not fail."""
    assert detokenize([0, 2**40, 5]) == "???"
