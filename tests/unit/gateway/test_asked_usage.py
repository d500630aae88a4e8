"""Engines are asked for what clients did not ask for, by a few bytes; and the client gets the stream that it would have got."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstreams import chunk
from vllm_mm.domain.body_edits import splice
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.gateway.asked_usage import EVENT, IN_TURN, UsageTaker, ask, may_ask
from vllm_mm.gateway.sniff import sniff

ON = {"include_usage": True}


async def asked(body: bytes) -> bytes:
    edits = await ask(body, options=sniff(body).options)
    return b"".join(splice(body, edits))


def pairs(body: bytes) -> list[tuple[str, Any]]:
    """Members in order, with those that stand there twice."""
    return json.loads(body, object_pairs_hook=lambda found: found)


@pytest.mark.parametrize(
    ("body", "added"),
    [
        (b'{"model":"m","stream":true}', b'"stream_options":{"include_usage":true},'),
        (b' \n{ "stream" : true , "model":"m" } ', b'"stream_options":{"include_usage":true},'),
        (b'{"model":"m","x":{"stream_options":{"include_usage":true}}}', b'"stream_options":{"include_usage":true},'),
        (b'{"model":"m","x":"\\"stream_options\\":{"}', b'"stream_options":{"include_usage":true},'),
        (b'{"model":"m","stream_options":{}}', b'"include_usage":true'),
        (b'{"model":"m","stream_options":{ "other": [{}] }}', b'"include_usage":true,'),
        (b'{"model":"m","stream_options":{"continuous_usage_stats":false}}', b'"include_usage":true,'),
    ],
)
async def test_what_is_added(body: bytes, added: bytes) -> None:
    """Exactly one place gets a member; every other byte is as it came, and parsers see what is meant."""
    new = await asked(body)
    assert len(new) == len(body) + len(added)
    at = new.index(added)
    assert new[:at] + new[at + len(added) :] == body or new.replace(added, b"", 1) == body
    seen, before = json.loads(new), json.loads(body)
    assert seen.pop("stream_options") == {**before.pop("stream_options", {}), **ON}
    assert seen == before


@pytest.mark.parametrize(
    ("body", "new"),
    [
        (b'{"model":"m","stream_options":null}', b'{"model":"m","stream_options":{"include_usage":true}}'),
        (b'{"model":"m","stream_options":{"include_usage":false}}', b'{"model":"m","stream_options":{"include_usage":true}}'),
        (b'{"model":"m","stream_options":{"include_usage": null , "a":1}}', b'{"model":"m","stream_options":{"include_usage": true , "a":1}}'),
        (b'{"stream_options":{"include_usage":true},"model":"m","stream_options":null}', b'{"stream_options":{"include_usage":true},"model":"m","stream_options":{"include_usage":true}}'),
        (b'{"model":"m","stream\\u005foptions":{"include_usage":false}}', b'{"model":"m","stream\\u005foptions":{"include_usage":true}}'),
        (b'{"model":"m","stream_options":{"include_usage":true,"include_usage":false}}', b'{"model":"m","stream_options":{"include_usage":true,"include_usage":true}}'),
    ],
)  # fmt: skip
async def test_what_is_changed(body: bytes, new: bytes) -> None:
    """A no becomes a yes: of several members with one name the last, as for parsers, in any spelling."""
    assert await asked(body) == new


@pytest.mark.parametrize(
    "options",
    [
        '{"include_usage":true}', '{"continuous_usage_stats":true}', '{"include_usage":false,"continuous_usage_stats":true}',
        '{"include_usage":1}', '{"include_usage":"yes"}', '{"include_usage":false,"include_usage":true}', "[]", '"x"', "7", "false",
    ],
)  # fmt: skip
async def test_what_stays(options: str) -> None:
    """Who asked for anything gets what they asked for; what is wrong is the engine's to refuse."""
    body = f'{{"model":"m","stream":true,"stream_options":{options}}}'.encode()
    assert await asked(body) == body


async def test_large_bodies_are_not_copied() -> None:
    """Their parts are sent as they are; also where the options are behind megabytes."""
    blob = b"x" * (4 * IN_TURN)
    for body in (b'{"model":"m","a":"%b"}' % blob, b'{"a":"%b","model":"m","stream_options":{}}' % blob):
        parts = splice(body, await ask(body, options=sniff(body).options))
        assert json.loads(b"".join(parts))["stream_options"] == ON
        assert all(isinstance(part, memoryview) and part.obj is body for part in parts if len(part) > IN_TURN)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "stream_options", "include_usage"]), JSON), max_size=5),
    st.sampled_from([(",", ":"), (" , ", " : "), (",\n\t", ": ")]),
)
async def test_any_body(members: Sequence[tuple[str, Any]], separators: tuple[str, str]) -> None:
    """Whatever it holds, however it is written: one top-level member is there or changed, or nothing is."""
    comma, colon = separators
    text = comma.join(
        json.dumps(k) + colon + json.dumps(v, separators=separators) for k, v in [*members, ("model", "m")]
    )
    body = b"{" + text.encode() + b"}"
    new = await asked(body)
    if new != body:
        assert json.loads(new)["stream_options"]["include_usage"] is True
        others = [pair for pair in pairs(body) if pair[0] != "stream_options"]
        assert [pair for pair in pairs(new) if pair[0] != "stream_options"] == others
    else:
        last = [value for name, value in members if name == "stream_options"][-1]
        assert last is not None


def test_whose_engines_are_asked() -> None:
    """Not where the model says that it is not wanted, nor where the engine gives usage to everybody anyway."""
    assert may_ask(ModelSpec("a"))
    assert not may_ask(ModelSpec("a", stream_usage=False))
    assert not may_ask(ModelSpec("a", args={"enable_force_include_usage": True}))
    assert may_ask(ModelSpec("a", engine=EngineKind.COMMAND, args={}))


# Taking it out again


ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
LAST = b'data: {"id":"c","choices":[{"index":%d,"delta":{"content":"z"},"finish_reason":"stop"}]%b}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}%b}\n\n'
MARK = b',"system_fingerprint":"vllm-1"'
DONE = b"data: [DONE]\n\n"


def text(n: int) -> bytes:
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"t%d \xc3\xa9"},"finish_reason":null}]}\n\n' % n


def passed(pieces: Sequence[bytes], *, framed: bool, fingerprint: bytes | None = None) -> tuple[bytes, list[bytes]]:
    """What came out, and what was learned."""
    learned: list[bytes] = []
    taker = UsageTaker(framed=framed, fingerprint=fingerprint, learn=learned.append)
    return b"".join([*(taker.feed(piece) for piece in pieces), taker.flush()]), learned


def unchunked(framed: bytes) -> bytes:
    found, at = b"", 0
    while True:
        line = framed.index(b"\r\n", at)
        size = int(framed[at:line].partition(b";")[0], 16)
        if not size:
            assert framed[line:] == b"\r\n\r\n"
            return found
        found += framed[line + 2 : line + 2 + size]
        assert framed[line + 2 + size : line + 4 + size] == b"\r\n"
        at = line + 4 + size


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True) if a < b]


STREAMS = st.tuples(
    st.integers(0, 4),  # texts
    st.sampled_from([b"", MARK]),
    st.sampled_from(
        [b"", b": ping\n\n", b'data: {"choices":[{"delta":{"content":"say \\"usage\\":{}"}}],"usage":null}\n\n']
    ),
    st.sampled_from([1, 2]),  # choices
)


@given(STREAMS, st.lists(st.integers(0, 5000)), st.lists(st.integers(0, 5000)), st.sampled_from([None, b'"vllm-1"']))
def test_only_that_event_goes(
    shape: tuple[int, bytes, bytes, int], frames: Sequence[int], cuts: Sequence[int], known: bytes | None
) -> None:
    """However the engine puts its events into chunks, and however these are read: what comes out is the stream of a client that
    did not ask, with the fingerprint where that client would have had it."""
    count, mark, other, choices = shape
    if known is not None and not mark:
        known = b""
    begin = ROLE + b"".join(map(text, range(count))) + other
    ends = [LAST % (n, b"") for n in range(choices)]
    engine = begin + b"".join(ends) + USAGE % mark + DONE
    # the fingerprint of an earlier choice's end is known only from the second stream on
    wanted = (
        begin
        + b"".join(LAST % (n, mark if known is not None or n == choices - 1 else b"") for n in range(choices))
        + DONE
    )
    out, learned = passed(split(engine, cuts), framed=False, fingerprint=known)
    assert out == wanted
    assert learned == ([] if known is not None else [mark.partition(b":")[2]])
    framed = b"".join(map(chunk, split(engine, frames))) + b"0\r\n\r\n"
    out, _ = passed(split(framed, cuts), framed=True, fingerprint=known)
    assert unchunked(out) == wanted


@pytest.mark.parametrize("framed", [True, False])
def test_whole_events_pass_at_once_as_they_are(framed: bool) -> None:
    """Nearly all of every stream: the very bytes that came, with the engine's own chunks."""
    taker = UsageTaker(framed=framed, fingerprint=None, learn=lambda _: None)
    for n in range(5):
        piece = chunk(text(n)) + chunk(text(n)) if framed else text(n)
        assert taker.feed(piece) is piece


def test_what_is_not_asked_for_stays() -> None:
    """Other events without choices, usage beside choices, a second usage, broken ones."""
    others = [
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n', b'data: {"choices":[{"a":1}],"usage":{"x":1}}\n\n',
        b'event: x\ndata: {"choices":[],"usage":{}}\n\n', b'data: {"choices":[],"usage":null}\n\n', b'data: {"choices":[],"usage":{\n\n',
        b'data: {"choices":null,"usage":{}}\n\n',
    ]  # fmt: skip
    stream = b"".join(others)
    assert passed([stream], framed=False)[0] == stream
    assert passed([USAGE % b"", USAGE % b""], framed=False)[0] == USAGE % b""


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\r\n"])
def test_other_line_ends(end: bytes) -> None:
    """Servers that end lines as HTTP does."""
    stream = b"".join(event.replace(b"\n\n", end) for event in (text(1), LAST % (0, b""), USAGE % MARK, DONE))
    wanted = b"".join(event.replace(b"\n\n", end) for event in (text(1), LAST % (0, MARK), DONE))
    assert passed([stream[i : i + 1] for i in range(len(stream))], framed=False)[0] == wanted


def test_a_stream_without_the_event() -> None:
    """Engines that do not know the option, or fail: nothing is lost, nothing is held at the end."""
    for stream in (
        text(1) + LAST % (0, b"") + DONE,
        text(1) + LAST % (0, b""),
        text(1) + b'data: {"error":{"m":1}}\n\n' + DONE,
        text(1) + b"data: {",
    ):
        assert passed(split(stream, [3, 50, 99]), framed=False)[0] == stream
        framed = chunk(stream) + b"0\r\n\r\n"
        assert unchunked(passed(split(framed, [3, 50, 99]), framed=True)[0]) == stream


@pytest.mark.parametrize("wrap", [lambda data: data, chunk])
def test_a_long_event_passes_as_it_comes(wrap: Callable[[bytes], bytes]) -> None:
    """So that what is held is bounded."""
    framed = wrap is chunk
    event = b'data: {"choices":[{"delta":{"content":"%b"}}],"usage":{}}\n\n' % (b"x" * (2 * EVENT))
    pieces = split(event, range(0, len(event), 50_000))
    learned: list[bytes] = []
    taker = UsageTaker(framed=framed, fingerprint=None, learn=learned.append)
    out, came = b"", 0
    for piece in [LAST % (0, b""), *pieces, USAGE % MARK, DONE]:
        out += taker.feed(wrap(piece))
        came += len(piece)
        assert came - len(out) <= EVENT + 50_100
    if framed:
        out = unchunked(out + taker.feed(b"0\r\n\r\n"))
    assert out + taker.flush() == LAST % (0, b"") + event + DONE


def test_trailers_pass() -> None:
    """And so does a body whose chunks were not read from the beginning."""
    assert passed([chunk(text(1)), b"0\r\nx-a: 1\r\n\r\n"], framed=True)[0] == chunk(text(1)) + b"0\r\nx-a: 1\r\n\r\n"
    assert passed([b"what is this\r\n", b"5\r\n"], framed=True)[0] == b"what is this\r\n5\r\n"
