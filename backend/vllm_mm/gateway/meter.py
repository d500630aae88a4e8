"""What a request used: times and bytes as they pass, tokens from a bounded tail when it is over."""

import re
from collections import deque
from typing import Final

import msgspec

from vllm_mm.domain.usage import Usage

KEEP: Final = 16384
"""Of a large piece only this many last bytes are kept."""
PIECES: Final = 12
"""So many last pieces are kept: a stream's last event, usage and end marker come in pieces of their own."""
SMALL: Final = 128
"""Pieces up to this size are put together, so that many tiny ones do not push the end out..."""
MERGED: Final = 4096
"""...up to this size."""

_CHUNK_LINE = re.compile(rb"\r\n[0-9A-Fa-f]{1,8}(?:;[^\r\n]*)?\r\n")
_EVENT_ERROR = re.compile(rb'(?:^|\n)(?:event: error\r?\n)?data: \{(?:"type": ?"error", ?)?"error"')


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    """The usage object of any of the APIs: completions, Responses and Messages."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


_decode = msgspec.json.Decoder(_Counts).decode


class Meter:
    """Sees the answer's pieces by reference; `piece` is all that happens per piece."""

    size = 0
    """Bytes so far."""
    first = b""
    """The beginning, which holds the prompt's tokens in Messages streams; most plain answers are this one piece."""
    pieces: deque[bytes] | None = None
    """The last ones, from the second piece on."""

    def piece(self, chunk: bytes) -> None:
        size = len(chunk)
        pieces = self.pieces
        if pieces is None:
            if not self.size:
                self.first = chunk if size <= KEEP else chunk[-KEEP:]
                self.size = size
                return
            self.pieces = pieces = deque((self.first,), PIECES)
        if size > SMALL:
            pieces.append(chunk if size <= KEEP else chunk[-KEEP:])
        elif len(pieces[-1]) < MERGED:
            pieces[-1] += chunk
            if len(pieces) == 1:
                self.first = pieces[0]
        else:
            pieces.append(chunk)
        self.size += size

    def tail(self) -> bytes:
        """The end of what was relayed."""
        return self.first if self.pieces is None else b"".join(self.pieces)

    def usage(self) -> Usage:
        """Tokens as the engine counted them, from the last place where it says; None where it does not."""
        counts = _last_counts(self.tail())
        if counts is None:
            return _NOTHING
        prompt = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
        completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
        cached = counts.cache_read_input_tokens
        for details in (counts.prompt_tokens_details, counts.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                cached = details.cached_tokens
        if completion is not None and (prompt is None or (cached is None and counts.output_tokens is not None)):
            # Messages streams tell the prompt's tokens at the beginning and the answer's at the end.
            begun = _usage_at(self.first, self.first.find(b'"usage"'))
            if begun is not None:
                prompt = begun.input_tokens if prompt is None else prompt
                cached = begun.cache_read_input_tokens if cached is None else cached
        return Usage(prompt, completion, cached)

    def ends_event(self) -> bool:
        """What was relayed so far ends where a new event may begin."""
        return not self.size or self.tail().endswith((b"\n\n", b"\n\n\r\n"))

    def error_event(self) -> bool:
        """The end of an event stream says that the engine failed (vLLM does so with status 200)."""
        tail = self.tail()
        return b'"error"' in tail and _EVENT_ERROR.search(tail) is not None


_NOTHING: Final = Usage()


def _last_counts(text: bytes) -> _Counts | None:
    """`"usage":` cannot stand inside a JSON string (its quotes would be escaped), so the last match is the real one."""
    found = _last_usage(text)
    if found is None and _CHUNK_LINE.search(text) is not None:
        # An engine that splits its events over chunks: take the sizes out and look again.
        found = _last_usage(_CHUNK_LINE.sub(b"", text))
    return found


def _last_usage(text: bytes) -> _Counts | None:
    at = text.rfind(b'"usage"')
    while at >= 0:
        found = _usage_at(text, at)
        if found is not None:
            return found
        at = text.rfind(b'"usage"', 0, at)
    return None


def _usage_at(text: bytes, at: int) -> _Counts | None:
    value = _object_after(text, at + 7) if at >= 0 else None
    if value is None:
        return None
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return None


def _object_after(text: bytes, at: int) -> bytes | None:
    """The JSON object that is the value of the key which ends at `at`; None when the value is something else."""
    start = text.find(b"{", at, at + 16)
    if start < 0 or text[at:start].strip(b" \t\r\n") != b":":
        return None
    end = start
    for _ in range(8):
        end = text.find(b"}", end) + 1
        if not end:
            return None
        if text.count(b"{", start, end) == text.count(b"}", start, end):
            return text[start:end]
    return None
