"""Errors that carry more than their message."""

from vllm_mm.domain.errors import NotFound, ResponseGone


def test_a_response_that_is_gone_names_the_parameter() -> None:
    """Whether it was asked for, or was to be gone on from."""
    error = ResponseGone("why", param="previous_response_id")
    assert isinstance(error, NotFound)
    assert (error.code, error.param, ResponseGone("why").param) == ("response_not_found", "previous_response_id", None)
