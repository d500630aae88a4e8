"""Connections of several processes: a worker serves the routes of models, and hands a connection on which something else is asked for to
the controller, with what was read of it. Nothing is proxied: whatever the controller can do works, whoever accepted.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from vllm_mm.api.asgi import Receive, Send
from vllm_mm.api.cycle import HotCycle
from vllm_mm.api.openai import MODELS
from vllm_mm.api.protocol import HotProtocol
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.routes import RESPONSES, ROUTES, UPLOADS, route_of

LINE: Final = 16384
"""Bytes in which a request line has to end; a longer one is refused by the parser."""
AGAIN: Final = 0.02
"""Seconds after which is looked again whether an earlier answer has left."""
_OWN: Final = (frozenset(ROUTES) | frozenset(UPLOADS) | {MODELS}) - {RESPONSES.path}
_BELOW: Final = MODELS + b"/"
_MISDIRECTED: Final = (
    b'{"error": {"message": "This has to be asked for on a connection of its own, not right behind another request.", '
    b'"type": "invalid_request_error", "param": null, "code": "misdirected"}}'
)

Hand = Callable[[int, bytes], None]
"""Passes on a connection, by its file descriptor, which it closes, and the bytes that were read."""


def is_ours(head: bytes) -> bool | None:
    """Whether a worker serves the request that begins so; None while its first line is not complete."""
    start = len(head) - len(head.lstrip(b"\r\n"))  # RFC 9112, 2.2: empty lines before a request are ignored
    end = head.find(b"\n", start)
    if end < 0:
        return True if len(head) > LINE else None
    _, _, rest = head[start:end].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path in _OWN or path.startswith(_BELOW):
        return True
    route = route_of(path) if path.endswith(b"/") else None
    return route is not None and route.path in _OWN


def worker_protocol(gateway: Gateway, hand: Hand, lost: Callable[[], None]) -> type[asyncio.Protocol]:
    """As `protocol.hot_protocol`, for a worker. `lost` is called when there is a connection less."""

    class BoundWorkerProtocol(WorkerProtocol):
        _gateway = gateway
        _hand = staticmethod(hand)
        _lost = staticmethod(lost)

    return BoundWorkerProtocol


class WorkerProtocol(HotProtocol):
    """Looks at the first line of each request before the parser does. Use `worker_protocol`."""

    _hand: Hand
    _lost: Callable[[], None]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._inside = False
        """The parser is in the middle of a request."""
        self._early = b""
        """What came while it cannot be decided, or done."""
        self._look_again: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        super().connection_lost(exc)
        self._lost()

    def data_received(self, data: bytes) -> None:
        if self._inside or self._dropping or self._direct is not None:
            super().data_received(data)
            return
        if self._early:
            data, self._early = self._early + data, b""
        ours = is_ours(data)
        if ours:
            super().data_received(data)
        elif ours is None:
            self._wait_for_line(data)
        elif self._idle:
            self._hand_over(data)
        else:
            # An earlier request is being answered: this one is the controller's when that is done.
            self._early = data
            self.flow.pause_reading()
            self._later()

    def on_message_begin(self) -> None:
        self._inside = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._inside = False
        super().on_message_complete()

    def _complete(self, cycle: HotCycle, body: bytes | bytearray) -> None:
        self._inside = False  # a large body ends past the parser
        super()._complete(cycle, body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._early and not self._in_head:
            self._later()

    @property
    def _idle(self) -> bool:
        """No request is being answered, and no answer is on its way out."""
        cycle: Any = self.cycle
        answered = cycle is None or cycle.response_complete
        return answered and not self.pipeline and not self.transport.get_write_buffer_size()

    def _wait_for_line(self, data: bytes) -> None:
        """From now on the time for a request's head runs."""
        if not self._in_head:
            self._in_head = True
            self._head_since = self.loop.time()
        self._early = data

    def _later(self) -> None:
        if self._look_again is None:
            self._look_again = self.loop.call_later(AGAIN, self._look)

    def _look(self) -> None:
        self._look_again = None
        if self.transport.is_closing() or not self._early:
            return
        if self._idle:
            data, self._early = self._early, b""
            self._hand_over(data)
        else:
            self._later()

    def _hand_over(self, data: bytes) -> None:
        """The connection goes on elsewhere: here it is dropped without a word to the client."""
        self.transport.pause_reading()
        sock = self.transport.get_extra_info("socket")
        self._dropping = True
        self._hand(os.dup(sock.fileno()), data)
        self.transport.abort()


async def misdirected(scope: Any, receive: Receive, send: Send) -> None:  # noqa: ARG001  # ASGI's signature
    """The application of a worker behind the routes of models: reached only by a request in the same packet as one before it."""
    headers = [
        (b"content-type", b"application/json"), (b"connection", b"close"), (b"content-length", b"%d" % len(_MISDIRECTED)),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": _MISDIRECTED})


class HandingOver:
    """A worker's end of the socket (AF_UNIX, SOCK_SEQPACKET) over which connections go."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._waiting: deque[tuple[int, int]] = deque()

    def hand(self, connection: int, read: bytes) -> None:
        """Pass on the file descriptor `connection` and what was `read` of it, in a file in memory: a packet is short that way."""
        content = os.memfd_create("vllm-mm-read", os.MFD_CLOEXEC)
        view = memoryview(read)
        while view:
            view = view[os.write(content, view) :]
        self._waiting.append((connection, content))
        if len(self._waiting) == 1:
            self._send()

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            both = self._waiting[0]
            try:
                self._channel.sendmsg([b"c"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", both))])
            except BlockingIOError:
                loop.add_writer(self._channel.fileno(), self._send)
                return
            except OSError:
                pass  # the controller is gone, and this process about to end
            self._waiting.popleft()
            for fd in both:
                os.close(fd)
        loop.remove_writer(self._channel.fileno())


class TakingOver:
    """The controller's end. Each connection is served as if it had accepted it."""

    def __init__(self, channel: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(channel.fileno(), self._take)

    def close(self) -> None:
        """Take no more."""
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()

    def _take(self) -> None:
        size = array.array("i").itemsize
        while True:
            try:
                word, parts, _, _ = self._channel.recvmsg(1, socket.CMSG_SPACE(2 * size))
            except BlockingIOError:
                return
            except OSError:
                word, parts = b"", []
            fds = array.array("i")
            for level, kind, content in parts:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(content[: len(content) - len(content) % size])
            if len(fds) == 2:
                task = self._loop.create_task(self._serve(socket.socket(fileno=fds[0]), fds[1]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if not word:
                self._loop.remove_reader(self._channel.fileno())
                return

    async def _serve(self, connection: socket.socket, content: int) -> None:
        with open(content, "rb") as file:  # noqa: ASYNC230  # in memory
            file.seek(0)
            read = file.read()
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it may be over already
            await self._loop.connect_accepted_socket(lambda: _Landing(self._make(), read), connection)


class _Landing(asyncio.Protocol):
    """Gives a connection to its protocol together with what another process has read of it, before anything else is read."""

    def __init__(self, protocol: asyncio.Protocol, read: bytes) -> None:
        self._protocol = protocol
        self._read = read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        connection.set_protocol(self._protocol)
        self._protocol.connection_made(connection)
        self._protocol.data_received(self._read)
