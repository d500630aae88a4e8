"""Rewriting the model's name: exactly there, and the same however the bytes are split."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mm.domain.body_edits import splice
from vllm_mm.gateway import rename
from vllm_mm.gateway.rename import EventRewriter, JsonRewriter, model_edit, model_span

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["model", '"model":"x"', "a\\", "{", "data: "])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("model"), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text() | st.sampled_from(["model", "message", "response", "x"]), values, max_size=5)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


def run(rewriter: EventRewriter | JsonRewriter, pieces: list[bytes]) -> bytes:
    return b"".join([*(rewriter.feed(piece) for piece in pieces), rewriter.flush()])


@settings(max_examples=300)
@given(objects, st.booleans())
def test_span_is_where_the_model_is(value: dict[str, object], ascii_only: bool) -> None:
    """The first string `model` at the top level, or directly in `message` or `response`, in the order of the text."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    wanted = None
    for key, inner in value.items():
        if key == "model" and isinstance(inner, str):
            wanted = inner
            break
        if key in {"message", "response"} and isinstance(inner, dict) and isinstance(inner.get("model"), str):
            wanted = inner["model"]
            break
    span = model_span(text)
    assert (span is None) == (wanted is None)
    if span is not None:
        assert json.loads(text[span[0] : span[1]].decode("utf-8", "surrogatepass")) == wanted


@settings(max_examples=300)
@given(
    st.lists(objects | st.just("[DONE]") | st.text(alphabet="ab\r: ", max_size=5), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.booleans(),
)
def test_events_do_not_depend_on_the_split(parts: list[object], places: list[int], windows: bool) -> None:
    """Any split of a stream gives the bytes that the whole gives; and those are the stream with other names."""
    end = b"\r\n" if windows else b"\n"
    lines = [(json.dumps(p) if isinstance(p, dict) else str(p)).encode() for p in parts]
    data = b"".join(b"data: " + line + end + end for line in lines)
    whole = run(EventRewriter("new/né"), [data])
    assert run(EventRewriter("new/né"), cut(data, places)) == whole
    assert run(EventRewriter("new/né"), [data[i : i + 1] for i in range(len(data))]) == whole
    expected = []
    for part, line in zip(parts, lines, strict=True):
        span = model_span(line) if isinstance(part, dict) else None
        expected.append(line if span is None else line[: span[0]] + '"new/né"'.encode() + line[span[1] :])
    assert whole == b"".join(b"data: " + line + end + end for line in expected)


@settings(max_examples=200)
@given(objects, st.lists(st.integers(0, 10_000), max_size=8))
def test_plain_answers_do_not_depend_on_the_split(value: dict[str, object], places: list[int]) -> None:
    """The same for a plain answer; its growth is told exactly."""
    data = json.dumps(value).encode()
    rewriter = JsonRewriter("new")
    out = run(rewriter, cut(data, places))
    assert out == run(JsonRewriter("new"), [data])
    assert rewriter.decided
    assert rewriter.delta == len(out) - len(data)
    span = model_span(data)
    assert out == (data if span is None else data[: span[0]] + b'"new"' + data[span[1] :])


@pytest.mark.parametrize("size", [1000, 70_000])
def test_a_late_model_in_a_plain_answer(size: int) -> None:
    """Beyond the bound it passes as it is, in every split; what is held never exceeds the bound and a packet."""
    data = b'{"x":"' + b"y" * size + b'","model":"old"}'
    expected = data.replace(b'"old"', b'"new"') if size == 1000 else data
    for step in (1, 997, 65536, len(data)):
        rewriter = JsonRewriter("new")
        pieces = [data[i : i + step] for i in range(0, len(data), step)]
        held = out = 0
        for piece in pieces:
            out += len(rewriter.feed(piece))
            held = max(held, len(rewriter._held))
        assert held <= rename.HOLD
        assert run(JsonRewriter("new"), pieces) == expected


def test_a_line_beyond_the_bound_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every split, and the next line is rewritten again."""
    monkeypatch.setattr(rename, "LINE", 100)
    for length in (98, 99, 100, 101, 102, 300):
        head = b'data: {"model":"old","x":"'
        long = head + b"y" * (length - len(head) - 3) + b'"}\n'
        assert len(long) == length
        data = long + b'data: {"model":"old"}\n\n'
        expected = (long.replace(b"old", b"new") if length <= 100 else long) + b'data: {"model":"new"}\n\n'
        for step in (1, 7, 99, 100, 101, 1000):
            assert run(EventRewriter("new"), [data[i : i + step] for i in range(0, len(data), step)]) == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"alias","x":1}', b'{"x":{"model":"inner"},"model" : "alias" }', b'{"model":"first","model":"alias"}',
        b'{"mod\\u0065l":"alias"}\n', b'{"model":"alias","y":[1,{"model":"z"}]}', b'{"model":"a\\"b","message":{"model":"i"}}',
    ],
)  # fmt: skip
def test_request_with_another_model(body: bytes) -> None:
    """What a JSON parser reads afterwards is the same request with the other name."""
    sent = b"".join(bytes(part) for part in splice(body, [model_edit(body, "engine")]))
    assert json.loads(sent) == {**json.loads(body), "model": "engine"}


@given(objects.map(lambda o: {**o, "model": "alias"}))
def test_any_request_with_another_model(value: dict[str, object]) -> None:
    """For any request."""
    body = json.dumps(value).encode()
    sent = b"".join(bytes(part) for part in splice(body, [model_edit(body, "engine")]))
    assert json.loads(sent) == {**value, "model": "engine"}
