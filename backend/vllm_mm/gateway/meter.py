"""What a request used: times and bytes as they pass, tokens from a bounded tail when it is over."""

import re
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import structs

from vllm_mm.domain.usage import Gaps, Usage
from vllm_mm.gateway.gaps import FULL, Stamps

KEEP: Final = 16384
"""Of a large piece only this many last bytes are kept."""
PIECES: Final = 12
"""So many last pieces are kept: a stream's last event, usage and end marker come in pieces of their own."""
SMALL: Final = 128
"""Pieces up to this size are put together, so that many tiny ones do not push the end out..."""
MERGED: Final = 4096
"""...up to this size."""

_CHUNK_LINE = re.compile(rb"\r\n[0-9A-Fa-f]{1,8}(?:;[^\r\n]*)?\r\n")
_NUMBER = re.compile(rb'"sequence_number": ?([0-9]{1,9})(?=[,}])')
_EVENT_ERROR = re.compile(rb'(?:^|\n)(?:event: error\r?\n)?data: \{(?:"type": ?"error", ?)?"error"')


HEAD: Final = 1024
"""Of a large first piece so many first bytes are kept too: rerank answers say there what they used."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Counts(msgspec.Struct):
    """The usage object of any of the APIs: completions, Responses and Messages."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None

    @property
    def prompt(self) -> int | None:
        """Messages count what was cached beside `input_tokens`; all others count it in."""
        if self.prompt_tokens is not None or self.input_tokens is None:
            return self.prompt_tokens
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)

    @property
    def cached(self) -> int | None:
        for details in (self.prompt_tokens_details, self.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                return details.cached_tokens
        return self.cache_read_input_tokens

    @property
    def reasoning(self) -> int | None:
        details = self.completion_tokens_details or self.output_tokens_details
        return None if details is None else details.reasoning_tokens


class _Answer(msgspec.Struct):
    usage: _Counts | None = None


_decode = msgspec.json.Decoder(_Counts).decode
_decode_whole = msgspec.json.Decoder(_Answer).decode


class Meter:
    """Sees the answer's pieces by reference; `piece` is all that happens per piece."""

    size = 0
    """Bytes so far."""
    first = b""
    """The beginning, which holds the prompt's tokens in Messages streams; most plain answers are this one piece."""
    start = b""
    """The first bytes of a first piece that is too large to be kept whole."""
    pieces: deque[bytes] | None = None
    """The last ones, from the second piece on."""
    mark: bytes | None = None
    """What a piece of a stream has in it if it has tokens; None while no times are taken."""
    token_at: float | None = None
    """When the first such piece came, in monotonic seconds."""
    stamps: Stamps | None = None
    _now: Callable[[], float]

    def time(self, mark: bytes, now: Callable[[], float]) -> None:
        """Take the times of pieces with `mark` in them."""
        self.mark = mark
        self._now = now

    def piece(self, chunk: bytes) -> None:
        mark = self.mark
        if mark is not None and chunk.rfind(mark) >= 0:  # quicker than `in`
            stamps = self.stamps
            if stamps is None:
                self._first_token(mark, chunk)
            else:
                times = stamps.times
                times.append(self._now())
                if len(times) >= FULL:
                    stamps.fold()
        size = len(chunk)
        pieces = self.pieces
        if pieces is None:
            if not self.size:
                self.first = chunk
                if size > KEEP:
                    self.first, self.start = chunk[-KEEP:], chunk[:HEAD]
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

    def _first_token(self, mark: bytes, chunk: bytes) -> None:
        """A chat's stream begins with an event that only names the role; the first text comes right behind it, and no time
        between them is one that a token took."""
        now = self._now()
        if self.token_at is None:
            self.token_at = now
            if b'"role"' in chunk and chunk.count(mark) == 1:
                return
        self.stamps = Stamps()
        self.stamps.times.append(now)

    def gaps(self) -> Gaps | None:
        """Times between the pieces that had tokens in them; an engine that sends several tokens at once has fewer pieces."""
        return None if self.stamps is None else self.stamps.gaps()

    def tail(self) -> bytes:
        """The end of what was relayed."""
        return self.first if self.pieces is None else b"".join(self.pieces)

    def usage(self, *, part: bool = False) -> Usage:
        """Tokens as the engine counted them, from the last place where it says; None where it does not. Of a `part`, a stream that
        ended before its engine could say, a token for each piece that had some: engines send a piece for each, or for several."""
        told = self._told()
        came = self.stamps.pieces if part and self.stamps is not None else 0
        return told if came <= (told.completion_tokens or 0) else structs.replace(told, completion_tokens=came)

    def _told(self) -> Usage:
        first, counts = self.first, None
        if self.size == len(first) <= MERGED and first.startswith(b"{"):
            counts = _of_whole(first)
        if counts is None:
            counts = _last_counts(self.tail())
        if counts is None and self.mark is None:
            counts = _last_counts(self.start or self.first[:HEAD])
        if counts is None:
            return _NOTHING
        prompt, cached = counts.prompt, counts.cached
        completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
        if completion is not None and (prompt is None or (cached is None and counts.output_tokens is not None)):
            # Messages streams tell the prompt's tokens at the beginning and the answer's at the end.
            begun = _usage_at(self.first, self.first.find(b'"usage"'))
            if begun is not None:
                prompt = begun.prompt if prompt is None else prompt
                cached = begun.cached if cached is None else cached
        return Usage(prompt, completion, cached, counts.reasoning)

    def ends_event(self) -> bool:
        """What was relayed so far ends where a new event may begin."""
        return not self.size or self.tail().endswith((b"\n\n", b"\n\n\r\n"))

    def error_event(self) -> bool:
        """The end of an event stream says that the engine failed (vLLM does so with status 200)."""
        tail = self.tail()
        return b'"error"' in tail and _EVENT_ERROR.search(tail) is not None

    def next_number(self) -> int | None:
        """That of the event behind the last one, where the engine numbers them; like `"usage"`, the member cannot stand inside text."""
        numbers = _NUMBER.findall(_CHUNK_LINE.sub(b"", self.tail()))
        return int(numbers[-1]) + 1 if numbers else None


_NOTHING: Final = Usage()


def _of_whole(answer: bytes) -> _Counts | None:
    """Of a plain answer that is here from its beginning to its end, as most are."""
    try:
        return _decode_whole(answer).usage
    except msgspec.MsgspecError:  # it is looked for by other means
        return None


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
