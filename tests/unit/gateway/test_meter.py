"""Tokens are found at the end of an answer, whatever the API, the framing and the packets; and little is kept."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upstreams import chunk
from vllm_mm.domain.usage import Usage
from vllm_mm.gateway.gaps import FULL
from vllm_mm.gateway.meter import KEEP, PIECES, Meter


def metered(*pieces: bytes) -> Meter:
    meter = Meter()
    for piece in pieces:
        meter.piece(piece)
    return meter


CHAT = json.dumps(
    {
        "id": "x", "choices": [{"message": {"content": 'a "usage": {"prompt_tokens": 999} b'}}],
        "usage": {"prompt_tokens": 12, "total_tokens": 44, "completion_tokens": 32, "prompt_tokens_details": {"cached_tokens": 8}},
        "prompt_logprobs": None,
    }
).encode()  # fmt: skip
MESSAGE = json.dumps(
    {"type": "message", "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 2}}
).encode()
RESPONSE = json.dumps(
    {
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 1},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 2},
        }
    }
).encode()


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (CHAT, Usage(12, 32, 8)),
        (MESSAGE, Usage(7, 7, 2)),  # what was cached stands beside `input_tokens`
        (RESPONSE, Usage(3, 4, 1, 2)),
        (b'{"usage":null}', Usage()),
        (b"{}", Usage()),
    ],
)
@pytest.mark.parametrize("step", [1, 5, 300, 10_000])
def test_plain_answers(answer: bytes, usage: Usage, step: int) -> None:
    """In any split; text that looks like usage is not mistaken for it."""
    meter = metered(*(answer[i : i + step] for i in range(0, len(answer), step)))
    assert meter.usage() == usage
    assert meter.size == len(answer)


def test_stream_with_usage_event() -> None:
    """The last event with numbers counts; `usage: null` in others does not."""
    event = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
    last = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    assert metered(*[chunk(event)] * 50, chunk(last), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n").usage() == Usage(
        1, 2, None
    )
    running = [chunk(b'data: {"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\n' % n) for n in range(30)]
    assert metered(*running, chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n").usage() == Usage(1, 29, None)


def test_messages_stream() -> None:
    """Anthropic's form tells the prompt first and the answer last."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":11,"output_tokens":0,"cache_read_input_tokens":3}}}\n\n'
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n'
    end = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}\n\n'
    assert metered(chunk(start), *[chunk(delta)] * 40, chunk(end), b"0\r\n\r\n").usage() == Usage(14, 9, 3)


def test_messages_stream_of_vllm() -> None:
    """It tells the whole prompt at the beginning, and at the end what was cached and what was not."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":14,"output_tokens":0}}}\n\n'
    end = b'event: message_delta\ndata: {"type":"message_delta","usage":{"input_tokens":6,"output_tokens":9,"cache_read_input_tokens":8}}\n\n'
    assert metered(chunk(start), chunk(end)).usage() == Usage(14, 9, 8)


def test_reasoning_of_chats() -> None:
    """Counted within the completion, where an engine counts it."""
    answer = b'{"usage":{"prompt_tokens":1,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":3}}}'
    assert metered(answer).usage() == Usage(1, 5, None, 3)


@pytest.mark.parametrize("step", [100, 70_000, 1_000_000])
def test_usage_at_the_beginning(step: int) -> None:
    """Rerank answers tell what they used before their results, which may be long; a stream's beginning tells no end."""
    answer = b'{"id":"r","model":"m","usage":{"prompt_tokens":77,"total_tokens":77},"results":["%b"]}' % (
        b"x" * 200_000
    )
    pieces = [answer[i : i + step] for i in range(0, len(answer), step)]
    assert metered(*pieces).usage() == Usage(77, None, None)
    stream = Meter()
    stream.time(b"delta", lambda: 0.0)
    for piece in (b'{"usage":{"input_tokens":5,"output_tokens":0}}', *[b"x" * 20_000] * 20):
        stream.piece(piece)
    assert stream.usage() == Usage()


def test_times_between_tokens() -> None:
    """From the first event with text in it; what only names the role, tells the usage or ends the stream has no token."""
    clock = iter([1.0, 1.0, 1.5, 1.75])
    meter = Meter()
    meter.time(b'"delta"', lambda: next(clock))
    meter.piece(b": working\n\n")
    meter.piece(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n')
    for _ in range(3):
        meter.piece(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    meter.piece(b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n')
    meter.piece(b"data: [DONE]\n\n")
    gaps = meter.gaps()
    assert meter.token_at == 1.0
    assert gaps is not None
    assert (gaps.p50, gaps.p99, gaps.total, sum(gaps.counts)) == (0.25, 0.5, 0.75, 2)


def test_a_stream_of_one_token_has_no_gaps() -> None:
    """And an answer that is no stream has none either."""
    meter = Meter()
    meter.time(b'"text"', lambda: 1.0)
    assert meter.gaps() is None
    meter.piece(b'data: {"choices":[{"text":"x"}]}\n\n')
    assert meter.gaps() is None
    assert metered(b"{}").gaps() is None


@given(st.integers(1, 40))
def test_usage_split_over_chunks(size: int) -> None:
    """An engine that splits its events over HTTP chunks is read all the same."""
    last = b'data: {"choices":[],"usage":{"prompt_tokens":123,"completion_tokens":456}}\n\n'
    framed = [chunk(last[i : i + size]) for i in range(0, len(last), size)]
    assert metered(chunk(b"data: {}\n\n"), *framed, b"0\r\n\r\n").usage() == Usage(123, 456, None)


def test_what_is_kept_is_bounded() -> None:
    """However large or many the pieces are."""
    meter = Meter()
    for _ in range(100):
        meter.piece(b"x" * 1_000_000)
    meter.piece(CHAT)
    assert len(meter.tail()) <= PIECES * KEEP
    assert meter.usage() == Usage(12, 32, 8)
    for _ in range(10_000):
        meter.piece(b"y")
    assert meter.pieces is not None
    assert len(meter.pieces) <= PIECES


@pytest.mark.parametrize(
    ("tail", "failed"),
    [
        (b'data: {"error":{"message":"boom"}}\n\n', True),
        (b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n', True),
        (b'data: {"choices":[{"delta":{"content":"\\"error\\""}}]}\n\n', False),
        (b'data: {"choices":[],"error":null}\n\n', False),
    ],
)
def test_error_events(tail: bytes, failed: bool) -> None:
    """An error of the engine in a stream with status 200 is seen."""
    assert (
        metered(chunk(b"data: {}\n\n"), chunk(tail), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n").error_event() is failed
    )


def test_where_an_event_may_begin() -> None:
    """After an empty line, with or without the engine's framing behind it."""
    assert metered().ends_event()
    assert metered(chunk(b"data: 1\n\n")).ends_event()
    assert metered(b"data: 1\n\n").ends_event()
    assert not metered(chunk(b"data: 1\n")).ends_event()


@pytest.mark.parametrize("pieces", [3, FULL + 5])
def test_a_part_of_a_stream_has_a_token_for_each_piece_with_text(pieces: int) -> None:
    meter = Meter()
    meter.time(b'"content"', lambda: 0.0)
    meter.piece(b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n')
    for _ in range(pieces):
        meter.piece(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert meter.usage() == Usage()
    assert meter.usage(part=True) == Usage(completion_tokens=pieces)


def test_what_the_engine_said_is_more_than_what_came() -> None:
    meter = Meter()
    meter.time(b'"content"', lambda: 0.0)
    meter.piece(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    meter.piece(b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}\n\n')
    assert meter.usage(part=True) == Usage(3, 9)
    assert metered(b"{}").usage(part=True) == Usage()
