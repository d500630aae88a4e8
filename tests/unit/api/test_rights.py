"""What a key is told that lacks a right."""

import pytest

from vllm_mm.api.dependencies import require_act
from vllm_mm.domain.errors import Forbidden
from vllm_mm.domain.keys import ALL_RIGHTS, Key, Right, Scope


@pytest.mark.parametrize(
    ("lacks", "command"),
    [
        ({Right.LOGS}, "`vllm-mm keys edit key_1 --deny none`"),
        ({Right.LOGS, Right.EVICT, Right.LOAD}, "`vllm-mm keys edit key_1 --deny load --deny evict`"),
    ],
)
def test_the_command_gives_that_right_and_no_other(lacks: set[Right], command: str) -> None:
    """`--deny` names all that a key is not to have, so those that it lacks besides are in it."""
    key = Key("key_1", "ada", "", frozenset({Scope.OPERATE}), acts=ALL_RIGHTS - lacks)
    with pytest.raises(Forbidden, match="it lacks the right `logs`") as refused:
        require_act(key, Right.CAPTURE, Right.LOGS)
    assert command in refused.value.message
