"""Request bodies that came compressed (`Content-Encoding`): made plain, with a bound on what they may become, before anybody
reads them. Engines do not read such bodies."""

import asyncio
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Final

from vllm_mm.domain.errors import BadRequest, PayloadTooLarge, UnsupportedEncoding

CODINGS: Final = b"gzip, deflate"
"""Those that are read here, as `Accept-Encoding` lists them."""
IN_TURN: Final = 1 << 16
"""So many bytes of the plain body are made at once; the rest of a larger one in a thread."""
MEMBERS: Final = 2_000
"""A gzip body may be made of so many parts (tools that work on blocks make one for every 64 KB)."""

_AT_ONCE: Final = 4
_STEP: Final = 1 << 20
_SLICE: Final = 1 << 16
_GZIP: Final = 31
_ZLIB: Final = 15
_BARE: Final = -15
"""What zlib calls the formats (`wbits`); the last is what some clients send for deflate, against RFC 9110, 8.4.1.2."""
_FORMATS: Final = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _ZLIB}


def coding_of(value: bytes | None) -> bytes | None:
    """The one coding that `Content-Encoding` names, None for a plain body. Raises UnsupportedEncoding."""
    if value is None:
        return None
    named = [c for c in (part.strip().lower() for part in value.split(b",")) if c not in {b"", b"identity"}]
    if not named:
        return None
    if len(named) > 1 or named[0] not in _FORMATS:
        shown = value[:100].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding `{shown}` is not read here. Send gzip, deflate, or a plain body.")
    return named[0]


async def plain(body: bytes | bytearray, coding: bytes, limit: int) -> bytearray:
    """The body without its coding, of `limit` bytes at most. Raises PayloadTooLarge, or BadRequest for what is not in that
    coding. What is large is made in a thread, so that no other request waits for it."""
    if not body:
        return bytearray()
    work = _Inflation(body, coding, limit)
    steps = iter(work)
    for _ in range(_AT_ONCE):
        if next(steps, None) is None:
            return work.made
        if len(work.made) >= IN_TURN:
            break
    await asyncio.to_thread(deque, steps, 0)
    return work.made


class _Inflation:
    """One body on its way; a step for each piece of it."""

    def __init__(self, body: bytes | bytearray, coding: bytes, limit: int) -> None:
        self.made = bytearray()
        self._body = memoryview(body)
        self._coding = coding
        self._limit = limit
        self._wbits = _FORMATS[coding]
        self._members = 0

    def __iter__(self) -> Iterator[int]:
        """The size of each piece that was made. Raises what `plain` raises."""
        zip_ = zlib.decompressobj(self._wbits)
        most = IN_TURN
        for start in range(0, len(self._body), _SLICE):
            data = bytes(self._body[start : start + _SLICE])
            while True:
                if zip_.eof:
                    self._count_member()
                    zip_ = zlib.decompressobj(self._wbits)
                try:
                    piece = zip_.decompress(data, most)
                except zlib.error as error:
                    if self._wbits != _ZLIB or self.made or start:
                        raise self._broken(str(error)) from error
                    self._wbits = _BARE
                    zip_ = zlib.decompressobj(_BARE)
                    continue
                self.made += piece
                if len(self.made) > self._limit:
                    raise PayloadTooLarge(
                        f"The body is larger than {self._limit} bytes when it is decompressed (limits.body). Send less, or raise the "
                        "limit."
                    )
                yield len(piece)
                data = zip_.unused_data if zip_.eof else zip_.unconsumed_tail
                if not data and (zip_.eof or len(piece) < most):
                    break
                most = _STEP
        if not zip_.eof:
            raise self._broken("it ends too early")

    def _count_member(self) -> None:
        """Behind the end of one there is more: another part, if it is gzip."""
        self._members += 1
        if self._wbits != _GZIP or self._members >= MEMBERS:
            raise self._broken("there is more behind its end")

    def _broken(self, why: str) -> BadRequest:
        return BadRequest(f"The body is not what Content-Encoding says ({self._coding.decode()}): {why}.")
