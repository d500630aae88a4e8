"""Finding the model agrees with `json.loads`, whatever the bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.errors import BadRequest
from vllm_mm.gateway.sniff import sniff

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
keys = st.text() | st.sampled_from(["model", "stream", "Model", "model ", "messages"])


def expected(body: bytes) -> tuple[str, bool] | None:
    """What an engine that uses `json.loads` would make of it; None where we say 400."""
    try:
        value = json.loads(body.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    model, stream = value.get("model"), value.get("stream")
    if not isinstance(model, str) or not model or not (stream is None or isinstance(stream, bool)):
        return None
    try:
        model.encode()
    except UnicodeEncodeError:
        return None
    return model, stream is True


def ours(body: bytes | bytearray) -> tuple[str, bool] | None:
    try:
        return sniff(body)[:2]
    except BadRequest as error:
        return None if len(error.message) > 15 else ("a refusal says why", False)


def written(pairs: list[tuple[str, object]], ascii_only: bool, space: str) -> bytes:
    """An object with its keys in this order, repeated ones too."""
    inner = f",{space}".join(
        f"{json.dumps(k, ensure_ascii=ascii_only)}{space}:{space}{json.dumps(v, ensure_ascii=ascii_only)}"
        for k, v in pairs
    )
    return f"{space}{{{space}{inner}{space}}}{space}".encode("utf-8", "surrogatepass")


@settings(max_examples=400)
@given(
    st.lists(st.tuples(keys, values | st.text(min_size=1) | st.booleans()), max_size=6),
    st.booleans(),
    st.sampled_from(["", " ", "\n\t "]),
)
def test_agrees_with_json_loads_on_objects(pairs: list[tuple[str, object]], ascii_only: bool, space: str) -> None:
    """Any key order, repeated keys (the last counts), escapes, nesting, NaN."""
    body = written(pairs, ascii_only, space)
    assert ours(body) == expected(body)
    assert ours(bytearray(body)) == expected(body)


@settings(max_examples=400)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ \nmodelstru1e-+.é', max_size=60).map(str.encode))
def test_agrees_with_json_loads_on_anything(body: bytes) -> None:
    """Bytes that are no JSON are refused, and never crash."""
    assert ours(body) == expected(body)


@settings(max_examples=200)
@given(values, st.data())
def test_one_wrong_byte_is_judged_as_json_does(value: object, data: st.DataObject) -> None:
    """A damaged body is accepted exactly when it is still JSON."""
    body = bytearray(written([("a", value), ("model", "m"), ("b", value)], True, ""))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert ours(bytes(body)) == expected(bytes(body))


CASES = {
    b'{"model":"a","model":"b"}': ("b", False),
    b'{"mod\\u0065l":"\\u0061"}': ("a", False),
    b'{"x":{"model":"inner"},"model":"a","y":[{"model":"z"}]}': ("a", False),
    b'{"stream":true,"model":"a"}': ("a", True),
    b'{"model":"a","stream":null}': ("a", False),
    b'{"messages":[{"content":"\\ud83d"}],"model":"a"}': ("a", False),
    b'{"temperature":NaN,"model":"a"}': ("a", False),
    '{"x":"é","model":"ü/1"}'.encode(): ("ü/1", False),
}


@pytest.mark.parametrize("body", CASES)
def test_found(body: bytes) -> None:
    """Top level only, any position, the last of several; also where the fast parser is stricter than the engine's."""
    assert sniff(body)[:2] == CASES[body]


REFUSED = {
    b"": ("no body", None),
    b"{}": ("names no model", "model"),
    b'{"model":null}': ("names no model", "model"),
    b'{"model":""}': ("names no model", "model"),
    b'{"model":7}': ("`model` has to be a string, not a number", "model"),
    b'{"model":["a"]}': ("`model` has to be a string, not an array", "model"),
    b'{"model":"a","stream":"yes"}': ("`stream` has to be true or false, not a string", "stream"),
    b'{"model":"a","stream":1}': ("`stream` has to be true or false, not a number", "stream"),
    b'{"model":true}': ("not a boolean", "model"),
    b'{"model":{}}': ("not an object", "model"),
    b'{"model":"\\ud800"}': ("half of a surrogate pair", "model"),
    b"[1]": ("has to be a JSON object, not an array", None),
    b"null": ("not null", None),
    b'{"model":"a",\n "x":}': ("line 2, column 6 (character 19)", None),
    b'{"model":"a"} x': ("(character 14)", None),
    b'{"model":"a","x":"\xc3("}': ("first bad byte is number 18", None),
    b'{"model":"a","x":"' + b"y" * 70000 + b'\xff"}': ("first bad byte is number 70018", None),
    b'{"model":"a","x":"' + b"y" * (65536 - 19) + b'\xc3"}': ("UTF-8", None),
    b'{"model":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}": ("cannot be read", None),
    b'{"model":"a","x":' + b"9" * 10_000 + b"e}": ("JSON", None),
}


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_with_the_place(number: int) -> None:
    """Each refusal names the position, or the parameter."""
    body, (words, param) = list(REFUSED.items())[number]
    with pytest.raises(BadRequest) as caught:
        sniff(body)
    if words != "cannot be read":
        assert words in caught.value.message
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'{"model":"m"}', False),
        (b'{"model":"m","a":{"stream_options":1},"b":"stream_options"}', False),
        (b'{"model":"m","stream_options":null}', True),
        (b'{"stream\\u005foptions":{},"model":"m"}', True),
        (b'{"model":"m","x":NaN,"stream_options":{}}', True),
        (b'{"model":"m","x":NaN}', False),
    ],
)
def test_whether_there_are_stream_options(body: bytes, options: bool) -> None:
    """At the top level, in any spelling, whichever parser reads the body."""
    assert sniff(body).options is options
