"""Showing the name that was asked for: `model` in an answer, rewritten on its way. Only for aliases; an answer to the
model's own id is relayed untouched.

Both rewriters give the same output however the bytes are split, and hold a bounded part of them.
"""

import re
from collections.abc import Container
from typing import Final, Protocol

import msgspec

from vllm_mm.domain.body_edits import Edit

LINE: Final = 1 << 20
"""A longer line of an event stream passes as it is."""
HOLD: Final = 1 << 16
"""`model` of a plain JSON answer is looked for in so many first bytes."""

_TOKEN = re.compile(rb'\s*(?:("[^"\\]*(?:\\.[^"\\]*)*")|([{}\[\]:,])|([^\s{}\[\]:,"]+)|("))', re.DOTALL)
_OUTER = frozenset({b'"message"', b'"response"'})
"""Events of the Messages and Responses APIs carry the model one level down."""


class Rewriter(Protocol):
    """Decoded body in, decoded body out."""

    def feed(self, chunk: bytes) -> bytes: ...

    def flush(self) -> bytes:
        """The rest, at the end of a complete answer."""
        ...


def model_span(text: bytes) -> tuple[int, int] | None:
    """Where the value of the answer's `model` stands (quotes included): at the top level, or directly in `message` or
    `response`. None when there is none, or the text ends before it."""
    return value_span(text, b'"model"', _OUTER)


def value_span(text: bytes, wanted: bytes, outer: Container[bytes] = ()) -> tuple[int, int] | None:
    """Where the string stands that is the value of the key `wanted`, at the top level or directly in an object under one of the
    keys `outer` (all with their quotes)."""
    containers: list[bytes] = []
    key = name = b""
    at = 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        string, mark = match[1], match[2]
        if string is not None:
            if not name:
                key = string
            elif name == wanted and (len(containers) == 1 or (len(containers) == 2 and containers[1] in outer)):
                return match.span(1)
            else:
                name = b""
        elif mark is None:
            if match[4] is not None:
                return None  # a string that has no end yet
            name = b""
        elif mark == b":":
            name = key
        elif mark in b"{[":
            containers.append(name if mark == b"{" else b"[")
            key = name = b""
        elif mark in b"}]":
            if containers:
                containers.pop()
            if not containers:
                return None
            key = name = b""
        else:
            key = name = b""
    return None


class EventRewriter:
    """For event streams: rewrites `data:` lines, which hold one JSON object each."""

    def __init__(self, name: str) -> None:
        self._name = msgspec.json.encode(name)
        self._line = b""
        self._passing = False
        """In the middle of a line that is too long."""

    def feed(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        at = 0
        while (end := chunk.find(b"\n", at) + 1) > 0:
            line = self._line + chunk[at:end]
            self._line = b""
            at = end
            out.append(line if self._passing else self._rewrite(line))
            self._passing = False
        rest = self._line + chunk[at:]
        if self._passing or len(rest) > LINE:
            self._passing = True
            out.append(rest)
            rest = b""
        self._line = rest
        return b"".join(out)

    def flush(self) -> bytes:
        rest, self._line = self._line, b""
        return rest

    def _rewrite(self, line: bytes) -> bytes:
        if len(line) > LINE or not line.startswith(b"data:") or b'"model"' not in line:
            return line
        span = model_span(line[5:])
        if span is None:
            return line
        return b"".join((line[: 5 + span[0]], self._name, line[5 + span[1] :]))


class JsonRewriter:
    """For a plain JSON answer: holds its beginning until `model` was found, or cannot be."""

    def __init__(self, name: str) -> None:
        self._name = msgspec.json.encode(name)
        self._held = b""
        self._look_at = 1
        self.decided = False
        self.delta = 0
        """By how many bytes the answer grew; final once `decided`."""

    def feed(self, chunk: bytes) -> bytes:
        if self.decided:
            return chunk
        self._held += chunk
        size = len(self._held)
        if size < self._look_at:
            return b""
        span = model_span(self._held[:HOLD])
        if span is None and size < HOLD:
            self._look_at = min(HOLD, 2 * size)  # tiny pieces must not make it look again for each
            return b""
        return self._decide(span)

    def flush(self) -> bytes:
        return b"" if self.decided else self._decide(model_span(self._held[:HOLD]))

    def _decide(self, span: tuple[int, int] | None) -> bytes:
        self.decided = True
        held, self._held = self._held, b""
        if span is None:
            return held
        self.delta = len(self._name) - (span[1] - span[0])
        return b"".join((held[: span[0]], self._name, held[span[1] :]))


def model_edit(body: bytes | bytearray, name: str) -> Edit:
    """What makes another `model` of a request's, for engines that know only one name.

    The replaced one is the last at the top level, as for JSON parsers; when it cannot be found (it is spelled with
    escapes), another is added behind it.
    """
    value = msgspec.json.encode(name)
    span = _last_top_level_span(body)
    if span is not None:
        return (*span, value)
    end = body.rfind(b"}")
    return end, end, b',"model":' + value


def _last_top_level_span(text: bytes | bytearray) -> tuple[int, int] | None:
    depth = at = 0
    key = name = b""
    span: tuple[int, int] | None = None
    while match := _TOKEN.match(text, at):
        at = match.end()
        string, mark = match[1], match[2]
        if mark is not None and mark in b"{[":
            depth += 1
            name = b""
        elif mark is not None and mark in b"}]":
            depth -= 1
        elif depth == 1:
            if mark == b":":
                name = bytes(key)
            elif mark == b",":
                key = name = b""
            elif string is not None and not name:
                key = bytes(string)
                if b"\\" in key:
                    return None  # it may be a spelling of `model`
            elif name == b'"model"':
                span = match.span(1) if string is not None else match.span(3)
    return span
