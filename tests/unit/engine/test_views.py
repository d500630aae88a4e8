"""What clients are told of an instance."""

from types import SimpleNamespace

from vllm_mm.domain.lifecycle import Instance, State
from vllm_mm.engine.views import start_failed


def test_a_failed_start_says_once_that_it_may_be_tried_again() -> None:
    """Reasons that give that advice themselves, such as those of a full disk, are not followed by it."""
    instance = SimpleNamespace(
        snapshot=Instance("m", State.STOPPED, reason="The database is full. Free some space, then try again."),
        phases={},
        tail=lambda _: (),
    )
    told = start_failed(instance, "", 0.0)  # type: ignore[arg-type]
    assert told.message == "The model `m` could not be served: The database is full. Free some space, then try again."
    told = start_failed(instance, "no memory.", 0.0)  # type: ignore[arg-type]
    assert told.message == "The model `m` could not be served: no memory. Try again."
