"""What errors carry besides their words."""

from vllm_mm.domain.errors import ResponseGone, UpgradeRefused


def test_a_refused_upgrade_knows_what_was_answered() -> None:
    """The gateway tells by it whether the engine has such a route at all."""
    refused = UpgradeRefused("no", status=403, body=b"x")
    assert (refused.message, refused.status, refused.body, refused.retryable) == ("no", 403, b"x", False)


def test_a_response_that_is_gone_names_the_parameter() -> None:
    """As OpenAI's own answer does."""
    assert ResponseGone("gone", param="response_id").param == "response_id"
