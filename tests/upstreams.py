"""A real HTTP server for the byte path's tests, scripted to the byte: what it sends, in which packets, and when it dies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from vllm_mm.engine.ports import Address


def chunk(data: bytes) -> bytes:
    """As it goes over the wire in a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Heard:
    """A request as the engine saw it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    raw_head: bytes

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k.lower() == name), None)


class Peer:
    """The engine's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: "Upstream") -> None:
        self.reader = reader
        self.writer = writer
        self.server = server
        self.gone = asyncio.Event()
        """The other side closed."""

    async def read(self) -> Heard | None:
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
        length = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
        body = await self.reader.readexactly(length)
        heard = Heard(method, target, [(k, v) for k, v in headers], body, head)
        self.server.heard.append(heard)
        return heard

    async def send(self, data: bytes) -> None:
        """One packet, as far as the socket allows."""
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)

    async def until_gone(self, seconds: float = 5.0) -> float:
        """Read until the other side closes; seconds that it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        self.gone.set()
        return loop.time() - began

    def reset(self) -> None:
        """Close so that the other side sees an error rather than an end (TCP), or at once (unix)."""
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Upstream:
    address: Address
    connections: int = 0
    heard: list[Heard] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    stop: Callable[[], Awaitable[None]] | None = None


@contextlib.asynccontextmanager
async def upstream(script: Script, where: Path | None = None) -> AsyncIterator[Upstream]:
    """Serve every connection with `script`, on a unix socket in `where`, or on TCP without one."""
    tasks: set[asyncio.Task[None]] = set()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        peer = Peer(reader, writer, server)
        server.peers.append(peer)
        try:
            await script(peer)
        except asyncio.CancelledError:
            pass
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            server.errors.append(error)
        finally:
            tasks.discard(task)
            writer.close()

    if where is not None:
        path = str(where / "engine.sock")
        listener = await asyncio.start_unix_server(on_connection, path, limit=1 << 24)
        address = Address(socket=path)
    else:
        listener = await asyncio.start_server(on_connection, "127.0.0.1", 0, limit=1 << 24)
        address = Address(port=listener.sockets[0].getsockname()[1])
    server = Upstream(address)

    async def stop() -> None:
        listener.close()
        for task in list(tasks):
            task.cancel()
        for peer in server.peers:
            peer.writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.stop = stop
    try:
        yield server
    finally:
        await stop()
        await asyncio.sleep(0)


def answers(*packets: bytes, close: bool = False) -> Script:
    """Every request on a connection is answered with these packets, each in a write of its own."""

    async def script(peer: Peer) -> None:
        while await peer.read() is not None:
            for packet in packets:
                await peer.send(packet)
                await asyncio.sleep(0.002)
            if close:
                return

    return script


class Collected:
    """A sink that remembers everything."""

    def __init__(self, *, raw: bool = True) -> None:
        self.raw = raw
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunked = False
        self.length: int | None = None
        self.chunks: list[bytes] = []
        self.ended = 0
        self.heads = 0

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def head(self, status: int, headers: list[tuple[bytes, bytes]], *, chunked: bool, length: int | None) -> None:
        assert not self.ended
        self.heads += 1
        self.status, self.headers, self.chunked, self.length = status, headers, chunked, length

    def data(self, chunk: bytes) -> None:
        assert self.heads == 1
        assert not self.ended
        self.chunks.append(chunk)

    def end(self) -> None:
        self.ended += 1
