"""Writes that are gathered while the event loop goes through what has arrived, and made together at the end of that.

Each write to a socket may wake who waits at its other end, and a wake-up costs more than all else in it: many microseconds on a
virtual machine. Made one behind the other, most writes find the other side awake. At 64 requests at a time this made a quarter of
what a request costs (docs/performance.md). Where writes come one by one there is nothing to gather, and the pass through the loop
until they are made is time lost: then most are made at once, and one in a few is held to see whether others have come.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

log = logging.getLogger(__name__)

LARGE: Final = 65536
"""What is larger, in bytes, is written at once: it would have to be copied, and is its own reason to wake somebody."""
MOST: Final = 64
"""So many connections are written to together at most: those who came first should not wait for all others."""
LONELY: Final = 4
"""So many times in a row one connection was alone in the outbox; then it is not waited for others..."""
AT_ONCE: Final = 32
"""...for so many writes."""


class Outbox:
    """The connections that have something to be written. One for each kind of them, on one event loop."""

    __slots__ = ("_alone", "_later", "_waiting", "at_once")

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        """`later` has a function called when the event loop is through with what it is at (`loop.call_soon`)."""
        self._later = later
        self._waiting: list[Gathering] = []
        self._alone = 0
        self.at_once = 0
        """So many writes are not worth to be held."""

    def add(self, transport: "Gathering") -> None:
        """It holds something now."""
        waiting = self._waiting
        waiting.append(transport)
        if len(waiting) == 1:
            self._later(self._flush)
        elif len(waiting) >= MOST:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1:
            self._alone = 0
        elif waiting:
            self._alone += 1
            if self._alone >= LONELY:
                self._alone, self.at_once = LONELY - 1, AT_ONCE
        for transport in waiting:
            try:
                transport.flush()
            except Exception:  # one connection's trouble must not keep another's bytes
                log.exception("a connection could not be written to")


class Gathering(asyncio.Transport):
    """A transport whose writes are gathered in an outbox. Nothing that is asked of it passes what it holds: it is closed, or
    ended, behind that. `abort` drops it, as it drops what the operating system did not take."""

    __slots__ = ("_held", "_inner", "_outbox", "is_closing")

    def __init__(self, inner: asyncio.Transport, outbox: Outbox) -> None:
        self._inner = inner
        self._outbox = outbox
        self._held: bytes | None = None
        self.is_closing = inner.is_closing

    @property
    def holds(self) -> bool:
        """Something waits to be written that nobody at the other end can have seen."""
        return self._held is not None

    def flush(self) -> None:
        """Write what is held, now."""
        held, self._held = self._held, None
        if held is not None and not self._inner.is_closing():
            self._inner.write(held)

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        held = self._held
        if type(data) is bytes and len(data) <= LARGE:
            if held is None:
                outbox = self._outbox
                if outbox.at_once:
                    outbox.at_once -= 1
                    if not self.is_closing():
                        self._inner.write(data)
                else:
                    self._held = data
                    outbox.add(self)
                return
            if len(held) <= LARGE:
                self._held = held + data
                return
        self.flush()
        self._inner.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.flush()
        self._inner.writelines(list_of_data)

    def write_eof(self) -> None:
        self.flush()
        self._inner.write_eof()

    def close(self) -> None:
        self.flush()
        self._inner.close()

    def abort(self) -> None:
        self._held = None
        self._inner.abort()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size() + (len(self._held) if self._held is not None else 0)

    # As it is

    def can_write_eof(self) -> bool:
        return self._inner.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner.set_protocol(protocol)

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._inner.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)
