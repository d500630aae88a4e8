"""Accepting connections from one listening socket in several processes, evenly.

Each process tells the others how many connections it has, in shared memory. Who has more than another stands back for a moment, in which
that one may accept; after it the connection is taken all the same, so that a process that hangs holds up nobody.
"""

import asyncio
import mmap
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

import uvicorn

STAND_BACK: Final = 0.002
"""Seconds for which a connection is left to a process that has fewer."""
REST: Final = 0.5
"""Seconds without accepting after the system had no file descriptor left."""
AWAY: Final = (1 << 31) - 1
"""The count of a process that accepts nothing."""
_COUNT: Final = struct.Struct("i")


class Counts:
    """How many connections each process has. `fd` is a file in memory that they share; it is closed with this."""

    def __init__(self, fd: int, processes: int) -> None:
        self._memory = mmap.mmap(fd, _COUNT.size * processes)
        self._places = tuple(range(0, _COUNT.size * processes, _COUNT.size))

    @staticmethod
    def make(processes: int) -> int:
        """A new file in memory, in which nobody accepts yet; its descriptor."""
        fd = os.memfd_create("vllm-mm-connections", os.MFD_CLOEXEC)
        os.write(fd, _COUNT.pack(AWAY) * processes)
        return fd

    def set(self, process: int, count: int) -> None:
        """`process` counts from 0."""
        _COUNT.pack_into(self._memory, self._places[process], count)

    def away(self, process: int) -> None:
        """It accepts nothing (any more)."""
        self.set(process, AWAY)

    def get(self, process: int) -> int:
        found: int = _COUNT.unpack_from(self._memory, self._places[process])[0]
        return found

    def least(self) -> int:
        """The fewest that any process has."""
        return min(self.get(process) for process in range(len(self._places)))


class Acceptor:
    """Accepts for one process. `serve` gets each connection; `open_ones` says how many there are now."""

    def __init__(
        self,
        listener: socket.socket,
        counts: Counts,
        process: int,
        serve: Callable[[socket.socket], None],
        open_ones: Callable[[], int],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._counts = counts
        self._process = process
        self._serve = serve
        self._open_ones = open_ones
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self) -> None:
        self.tell()
        self._loop.add_reader(self._listener.fileno(), self._ready)

    def tell(self) -> None:
        """The number of connections is another."""
        if not self._ended:
            self._counts.set(self._process, self._open_ones())

    def stop(self) -> None:
        """Accept no more; what waits is the others'."""
        if self._ended:
            return
        self._ended = True
        self._counts.away(self._process)
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _ready(self) -> None:
        self.tell()
        if self._counts.get(self._process) > self._counts.least():
            self._stand_back(STAND_BACK)
        else:
            self._accept()

    def _accept(self) -> None:
        """One at a time: the next may be another's."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:
            self._stand_back(REST)
            return
        connection.setblocking(False)
        self._serve(connection)
        self._counts.set(self._process, self._counts.get(self._process) + 1)

    def _stand_back(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._ready)
        self._accept()


def make_protocol(server: uvicorn.Server) -> asyncio.Protocol:
    """As uvicorn makes one for a connection that it accepted."""
    make = cast("Callable[..., asyncio.Protocol]", server.config.http_protocol_class)
    return make(config=server.config, server_state=server.server_state, app_state=server.lifespan.state)
