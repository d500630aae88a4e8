"""What errors carry besides their words."""

from vllm_mm.domain.errors import UpgradeRefused


def test_a_refused_upgrade_knows_what_was_answered() -> None:
    """The gateway tells by it whether the engine has such a route at all."""
    refused = UpgradeRefused("no", status=403, body=b"x")
    assert (refused.message, refused.status, refused.body, refused.retryable) == ("no", 403, b"x", False)
