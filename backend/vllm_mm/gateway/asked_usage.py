"""Token counts of streams whose clients did not ask for them: the engine is asked (`stream_options.include_usage`), and what it adds
to the stream is taken out again.

vLLM adds one event behind the last one of the answer, with `usage` and without choices, and moves `system_fingerprint` from the
events that end a choice into it (entrypoints/openai/chat_completion/serving.py). Both are undone: the client gets the bytes
that it would have got.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from vllm_mm.domain.body_edits import Body, Edit, Member, Unreadable, members
from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.gateway.chunks import Unframed
from vllm_mm.gateway.ports import LeaseView

IN_TURN: Final = 1 << 16
"""A larger body is looked at in a thread, so that no other request waits for it."""
EVENT: Final = 1 << 20
"""A longer event passes as it comes."""

_WHOLE: Final = b'"stream_options":{"include_usage":true}'
_ASKED: Final = b'"include_usage":true'
_NO: Final = frozenset({b"null", b"false"})
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_USAGE: Final = b'"usage"'
_ENDS: Final = b'"finish_reason":"'
_FINGERPRINT: Final = b'"system_fingerprint"'


def may_ask(spec: ModelSpec) -> bool:
    """An engine that is told to give usage to everybody would not be understood: its clients get it."""
    return spec.stream_usage and (
        spec.engine is EngineKind.COMMAND or not spec.arguments.get("enable-force-include-usage")
    )


async def ask(body: Body, *, options: bool) -> Sequence[Edit]:
    """What makes a request for a stream ask for its usage; nothing where it says itself what it wants. `options`: it has
    `stream_options`, at the top level."""
    if not options:
        at = body.index(b"{") + 1
        return ((at, at, _WHOLE + b","),)  # there is a model behind it
    found = _find(body) if len(body) <= IN_TURN else await asyncio.to_thread(_find, body)
    return () if found is None else (found,)


def _find(body: Body) -> Edit | None:
    try:
        there, _, _ = members(body, body.index(b"{"), {b"stream_options"})
        last = there[-1]  # of several with one name it is the last that parsers take
        if body[last.value : last.end] == b"null":
            return last.value, last.end, b"{%b}" % _ASKED
        if body[last.value : last.value + 1] != b"{":
            return None  # the engine will say what it thinks of it
        return _inside(body, last.value)
    except (Unreadable, IndexError):
        return None


def _inside(body: Body, at: int) -> Edit | None:
    there, first, end = members(body, at, {b"include_usage", b"continuous_usage_stats"})
    last: dict[bytes, Member] = {member.key: member for member in there}
    if any(bytes(body[member.value : member.end]) not in _NO for member in last.values()):
        return None
    asked = last.get(b"include_usage")
    if asked is not None:
        return asked.value, asked.end, b"true"
    return first, first, _ASKED + b"," if end > first else _ASKED


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    system_fingerprint: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Event).decode


class Fingerprints:
    """What the engine of each model gives as `system_fingerprint`, the same for all that one launch answers."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, bytes]] = {}

    def taker(self, lease: LeaseView) -> Callable[[bool], "UsageTaker"]:
        """Makes one for a stream of that launch."""
        generation, known = self._known.get(lease.model, (0, b""))
        fingerprint = known if generation == lease.generation else None

        def learn(said: bytes) -> None:
            self._known[lease.model] = (lease.generation, said)

        return lambda framed: UsageTaker(framed=framed, fingerprint=fingerprint, learn=learn)


class UsageTaker:
    """Takes the event with the usage out of a stream, however its bytes are split. Holds only what is not a whole event, and the
    end of an answer until the event behind it is there; at most EVENT bytes."""

    def __init__(self, *, framed: bool, fingerprint: bytes | None, learn: Callable[[bytes], None]) -> None:
        """`framed`: what is fed, and what comes out, has the chunk sizes of HTTP. `fingerprint`: the JSON text that the engine gives
        as `system_fingerprint`, empty if it gives none, None while that is not known; then `learn` is told."""
        self._chunks = Unframed() if framed else None
        self._end = b"\n\n\r\n" if framed else b"\n\n"
        self._fingerprint = fingerprint
        self._learn = learn
        self._text = b""
        """Of an event that is not whole yet."""
        self._last: bytes | None = None
        """An event that ended a choice; whether it has to name the fingerprint is not known."""
        self._passing = False
        """In the middle of an event that is too long."""
        self._taken = False
        self._slow = False
        """Something is held, or the engine's chunks do not end where its events do."""

    def feed(self, piece: bytes) -> bytes:
        if not self._slow and piece.endswith(self._end) and piece.rfind(_USAGE) < 0 and piece.rfind(_ENDS) < 0:
            return piece  # nearly every piece of every stream: whole events, none of them of interest
        if self._chunks is None:
            return self._events(piece)
        text, tail = self._chunks.feed(piece)
        out = self._events(text)
        if tail:
            out += self._rest()
        self._slow = bool(self._text or self._passing or self._last is not None or self._chunks.inside)
        return b"%b%b" % (_framed(out), tail)

    def flush(self) -> bytes:
        """The rest, at the end of a complete answer."""
        return b"" if self._chunks is not None else self._rest()

    def _rest(self) -> bytes:
        rest = (self._last or b"") + self._text
        self._last, self._text = None, b""
        return rest

    def _events(self, piece: bytes) -> bytes:
        text = self._text + piece
        look = max(0, len(self._text) - 3)  # an end may be split
        out: list[bytes] = []
        at = 0
        while (end := _EVENT_END.search(text, look)) is not None:
            event = text[at : end.end()]
            at = look = end.end()
            out.append(event if self._passing else self._event(event))
            self._passing = False
        rest = text[at:]
        if self._passing or len(rest) > EVENT:
            self._passing = True
            out += (self._last or b"", rest)
            rest, self._last = b"", None
        self._text = rest
        self._slow = bool(rest or self._passing or self._last is not None)
        return b"".join(out)

    def _event(self, event: bytes) -> bytes:
        before, self._last = self._last or b"", None
        if _USAGE in event and not self._taken:
            found = _read(event)
            if found is not None:
                self._taken = True
                if self._fingerprint is None:
                    self._fingerprint = bytes(found.system_fingerprint)
                    self._learn(self._fingerprint)
                return self._named(before) if before else b""
        if _ENDS in event and _FINGERPRINT not in event and not self._taken:
            if self._fingerprint is None:
                self._last = event
                return before
            event = self._named(event)
        return before + event

    def _named(self, event: bytes) -> bytes:
        """With the fingerprint behind its last member."""
        at = event.rfind(b"}")
        if not self._fingerprint or at < 0:
            return event
        return b'%b,"system_fingerprint":%b%b' % (event[:at], self._fingerprint, event[at:])


def _read(event: bytes) -> _Event | None:
    """The event that was asked for; None when it is another one."""
    head, data, text = event.partition(b"data:")
    if not data or head.strip():
        return None
    try:
        found = _decode(text)
    except msgspec.MsgspecError:
        return None
    usage = bytes(found.usage)
    return found if found.choices == [] and usage.startswith(b"{") else None


def _framed(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text) if text else b""
