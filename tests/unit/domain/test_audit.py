"""What the audit keeps of an object: what changed, and no secret."""

from typing import Any

import pytest

from vllm_mm.domain.audit import DEEPEST, LARGEST, difference, without_secrets


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, ({"b": 2}, {"b": 3, "c": 4})),
        ({"a": 1, "b": 2}, {"b": 2}, ({"a": 1}, {})),
        (None, {"a": 1}, (None, {"a": 1})),
        ({"a": 1}, None, ({"a": 1}, None)),
        ({"a": None}, {}, ({"a": None}, {})),
        ([1], [1], ([1], [1])),
        ({"token": "one"}, {"token": "two"}, ({"token": "***"}, {"token": "***"})),
    ],
)
def test_what_stayed_is_left_out(before: Any, after: Any, shown: tuple[Any, Any]) -> None:
    """A secret that changed is seen to have changed."""
    assert difference(before, after) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"env": {"HF_TOKEN": "hf", "PLAIN": "x", "S3_SECRET": ""}}, {"env": {"HF_TOKEN": "***", "PLAIN": "x", "S3_SECRET": ""}}),
        ({"api_key": "a", "api-key": "b", "key": "c", "digest": "d", "password": "e"}, dict.fromkeys(("api_key", "api-key", "key", "digest", "password"), "***")),
        ({"max_tokens": 5, "tokenizer": "x", "key_id": "key_1", "keys": ["a"]}, {"max_tokens": 5, "tokenizer": "x", "key_id": "key_1", "keys": ["a"]}),
        (["x", "--api-key", "abc", "--port", "1"], ["x", "--api-key", "***", "--port", "1"]),
        (["--api-key=abc", "--hf-token=", "b", "--api-key"], ["--api-key=***", "--hf-token=***", "b", "--api-key"]),
        (["--api-key", ["abc"], ("a",)], ["--api-key", ["abc"], ["a"]]),
        ("postgresql://me:pw@host/x", "postgresql://me:***@host/x"),
        ("send mm-abcdefghijklmnop now", "send mm-*** now"),
        (1.5, 1.5),
    ],
)  # fmt: skip
def test_secrets_are_hidden(value: Any, shown: Any) -> None:
    """By name, by option, in URLs, and by how issued keys look; what only sounds like one stays."""
    assert without_secrets(value) == shown


def test_nothing_is_too_deep_or_too_large() -> None:
    """Nesting without end is cut off, and so is a novel."""
    deep: Any = "x"
    for _ in range(DEEPEST + 5):
        deep = [deep]
    assert "***" in str(without_secrets(deep))
    before, after = difference(None, {"text": "x" * (LARGEST + 1)})
    assert before is None
    assert (len(after["cut"]), after["characters"] > LARGEST) == (LARGEST, True)
