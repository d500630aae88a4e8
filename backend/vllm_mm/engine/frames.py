"""Frames between the `websockets` parser and us: what both connections of a session, the client's and the engine's, have in common."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from websockets.exceptions import ProtocolError
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.protocol import Protocol

from vllm_mm.engine.exchange import CONTINUATION, TEXT, Frame

QUIET: Final = logging.getLogger("vllm_mm.websockets")
"""For parsers, which would write a line for each connection otherwise."""
QUIET.setLevel(logging.WARNING)
_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
_NO_CODE: Final = 1005
"""What the parser says of a close without a code; it is never on the wire (RFC 6455, 7.4.1)."""


class Goodbye(NamedTuple):
    """The other side's close."""

    code: int | None
    reason: str


def come(events: Sequence[object]) -> Iterator[object]:
    """What a parser has found, with data frames as ours; control frames are its own business, and left out."""
    for event in events:
        if not isinstance(event, WireFrame):
            yield event
        elif event.opcode in _DATA:
            yield Frame(int(event.opcode), bytes(event.data), event.fin)


def send(ws: Protocol, frame: Frame) -> None:
    """A frame as it is. One that has no place is dropped: an engine's message in several frames into which one of ours was put, or what a
    client's side has refused already; the session is over then."""
    with contextlib.suppress(ProtocolError):
        if frame.opcode == CONTINUATION:
            ws.send_continuation(frame.data, frame.fin)
        elif frame.opcode == TEXT:
            ws.send_text(frame.data, frame.fin)
        else:
            ws.send_binary(frame.data, frame.fin)


def goodbye(ws: Protocol) -> Goodbye | None:
    """The close that came; None when none did."""
    said = ws.close_rcvd
    return None if said is None else Goodbye(None if said.code == _NO_CODE else said.code, said.reason)
