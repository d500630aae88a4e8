"""The connection between the controller and one worker: messages with their length in front, in order, over a socket pair."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from vllm_mm.engine.lending.messages import LARGEST

log = logging.getLogger(__name__)

M = TypeVar("M")
BEHIND: Final = 128 * 1024**2
"""Bytes that the other side may be behind before it is given up."""
_SIZE: Final = 4


class Link(asyncio.Protocol, Generic[M]):
    """One end. `on_message` is called in the order in which the other side sent; `on_end` once, when the connection is over for
    whatever reason, with what was wrong, or an empty text."""

    def __init__(self, kinds: Any, on_message: Callable[[M], None], on_end: Callable[[str], None]) -> None:
        """`kinds`: the union of the messages that may come."""
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message = on_message
        self._on_end = on_end
        self._transport: asyncio.WriteTransport | None = None
        self._came = bytearray()
        self._fault = ""
        self.ended = False

    def send(self, message: Any) -> None:
        """Never waits. After the end nothing happens."""
        transport = self._transport
        if transport is None or self.ended:
            return
        body = self._encode(message)
        if len(body) > LARGEST:
            self.fail(f"a message of {len(body)} bytes")
            return
        transport.write(len(body).to_bytes(_SIZE, "big") + body)
        if transport.get_write_buffer_size() > BEHIND:
            self.fail("it does not read what it is told")

    def fail(self, why: str) -> None:
        """The other side cannot be dealt with."""
        self._fault = self._fault or why
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """When all is sent."""
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        came = self._came
        came += data
        at = 0
        while len(came) - at >= _SIZE and not self._fault:
            size = int.from_bytes(came[at : at + _SIZE], "big")
            if size > LARGEST:
                self.fail(f"a message of {size} bytes")
                return
            end = at + _SIZE + size
            if len(came) < end:
                break
            try:
                self._on_message(self._decode(memoryview(came)[at + _SIZE : end]))
            except Exception as error:
                log.exception("what came over the link to another process could not be dealt with")
                self.fail(f"{type(error).__name__}: {error}")
                return
            at = end
        del came[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(self._fault or (str(exc) if exc is not None else ""))
