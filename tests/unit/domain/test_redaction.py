"""What is taken out of captured text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.redaction import redact

NAMES = ("user", "Secret")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"user":"anna","x":1}', '{"user":"***","x":1}'),
        ('{"USER": {"a":[1,{"b":"}"}]}, "x": 1}', '{"USER": "***", "x": 1}'),
        ('{"a":{"b":[{"secret": 12}]},"user":null}', '{"a":{"b":[{"secret": "***"}]},"user":"***"}'),
        ('{"us\\u0065r":"anna"}', '{"us\\u0065r":"***"}'),
        ('{"x":"user","y":["user","secret"]}', '{"x":"user","y":["user","secret"]}'),
        ('{"x":"\\"user\\":1"}', '{"x":"\\"user\\":1"}'),
        ('{"user":"cut off in the mid', '{"user":"***"'),
        ('{"user":{"a":[1,', '{"user":"***"'),
        ('{"user":', '{"user":'),
        ('{"user', '{"user'),
        ('data: {"user":"anna"}\n\ndata: {"user":"bo"}\n\n', 'data: {"user":"***"}\n\ndata: {"user":"***"}\n\n'),
        ('{"user":{"secret":"a"},"secret":"b"}', '{"user":"***","secret":"***"}'),
        ('{"\\uZZZZ":1,"user":2}', '{"\\uZZZZ":1,"user":"***"}'),
        ("no json at all", "no json at all"),
        ("", ""),
    ],
)
def test_values_are_taken_out(text: str, shown: str) -> None:
    """Of members with one of the names, at any depth, whole or cut off; nothing else changes."""
    assert redact(text, NAMES) == shown


def test_nothing_is_taken_out_without_names() -> None:
    """The text is what it was."""
    assert redact('{"user":1}', ()) == '{"user":1}'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("user"), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_any_json_stays_json(value: object, ascii_only: bool) -> None:  # hypothesis gives it
    """And says the same but for the values that were taken out."""

    def without(part: object) -> object:
        if isinstance(part, dict):
            return {k: "***" if k.lower() == "user" else without(v) for k, v in part.items()}
        return [without(inner) for inner in part] if isinstance(part, list) else part

    assert json.loads(redact(json.dumps(value, ensure_ascii=ascii_only), ["user"])) == without(value)
