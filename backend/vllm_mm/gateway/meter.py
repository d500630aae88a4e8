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

_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
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

    __slots__ = ("first", "keep", "pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self.first: bytes = b""
        """The beginning, which holds the prompt's tokens in Messages streams."""
        self.pieces: deque[bytes] = deque(maxlen=PIECES)
        self.keep = self.pieces.append

    def piece(self, chunk: bytes) -> None:
        size = len(chunk)
        if size > SMALL or not self.pieces:
            self.keep(chunk if size <= KEEP else chunk[-KEEP:])
        elif len(self.pieces[-1]) < MERGED:
            self.pieces[-1] += chunk
        else:
            self.keep(chunk)
        if len(self.first) < MERGED:
            self.first = chunk[:KEEP] if not self.size else self.first + chunk[:KEEP]
        self.size += size

    def usage(self) -> Usage:
        """Tokens as the engine counted them, from the last place where it says; None where it does not."""
        tail = b"".join(self.pieces)
        counts = _last_counts(tail)
        if counts is None:
            return _NOTHING
        prompt = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
        completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
        cached = counts.cache_read_input_tokens
        for details in (counts.prompt_tokens_details, counts.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                cached = details.cached_tokens
        if prompt is None or cached is None:
            begun = _last_counts(self.first)
            if begun is not None:
                prompt = begun.input_tokens if prompt is None else prompt
                cached = begun.cache_read_input_tokens if cached is None else cached
        return Usage(prompt, completion, cached)

    def ends_event(self) -> bool:
        """What was relayed so far ends where a new event may begin."""
        if not self.pieces:
            return True
        end = b"".join(self.pieces)[-6:]
        return end.endswith((b"\n\n", b"\n\n\r\n"))

    def error_event(self) -> bool:
        """The end of an event stream says that the engine failed (vLLM does so with status 200)."""
        return b'"error"' in b"".join(self.pieces) and _EVENT_ERROR.search(b"".join(self.pieces)) is not None


_NOTHING: Final = Usage()


def _last_counts(text: bytes) -> _Counts | None:
    """`"usage":` cannot stand inside a JSON string (its quotes would be escaped), so the last match is the real one."""
    at = text.rfind(b'"usage"')
    dechunked = False
    while at >= 0:
        match = _USAGE.match(text, at)
        if match is not None:
            try:
                return _decode(match[1])
            except msgspec.MsgspecError:
                match = None
        if not dechunked and _CHUNK_LINE.search(text, at) is not None:
            # An engine that splits its events over chunks: take the sizes out and look again.
            text, dechunked = _CHUNK_LINE.sub(b"", text), True
            at = text.rfind(b'"usage"')
            continue
        at = text.rfind(b'"usage"', 0, at)
    return None
