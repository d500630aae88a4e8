"""The data plane under test: a real server on a real port, in both of its forms, over leases that need no manager."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn

from vllm_mm.api.handing import HandingOver, TakingOver, worker_protocol
from vllm_mm.api.openai import OpenAIApp
from vllm_mm.api.problems import explain
from vllm_mm.api.protocol import hot_protocol
from vllm_mm.clock import RealClock
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.keys import Key, Scope, digest
from vllm_mm.domain.lifecycle import State
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.domain.specs import ModelSpec
from vllm_mm.domain.usage import RequestRecord
from vllm_mm.engine.endings import Ending, Endings
from vllm_mm.engine.exchange import Exchange, ResponseSink, Session, SessionSink, UpstreamRequest
from vllm_mm.engine.ports import Address
from vllm_mm.engine.wire import InferenceChannel
from vllm_mm.gateway.forward import Gateway
from vllm_mm.gateway.identity import Keyring
from vllm_mm.gateway.ports import Rules

if TYPE_CHECKING:
    from vllm_mm.domain.errors import MMError

SECRET = "mm-test-secret"
AUTH = {"authorization": f"Bearer {SECRET}"}


class PlainLease:
    """What a lease does, without a gate."""

    def __init__(self, model: str, generation: int, channel: InferenceChannel) -> None:
        self.model = model
        self.engine_name = model
        self.generation = generation
        self.granted_at = time.monotonic()
        self.ready_at = 0.0
        self.suspected = 0
        self.on_freeze: Callable[[bool], None] | None = None
        self.on_drain: Callable[[bool], None] | None = None
        self.stood_still = 0.0
        self.reason: str | None = None
        self.revoked: MMError | None = None
        self._channel = channel
        self.exchange_running: Exchange | None = None

    def frozen_s(self, now: float) -> float:
        return self.stood_still

    def suspect(self) -> None:
        self.suspected += 1

    async def exchange(
        self, request: UpstreamRequest, sink: ResponseSink, *, on_started: Callable[[Exchange], None] | None = None
    ) -> None:
        exchange = self._channel.send(request, sink)
        self.exchange_running = exchange
        try:
            if on_started is not None:
                on_started(exchange)
            await exchange.done
        finally:
            self.exchange_running = None
            exchange.abort(asyncio.CancelledError())

    async def converse(
        self, request: UpstreamRequest, sink: SessionSink, *, on_started: Callable[[Session], None] | None = None
    ) -> None:
        session = self._channel.converse(request, sink)
        try:
            if on_started is not None:
                on_started(session)
            await session.done
        finally:
            session.abort(asyncio.CancelledError())


@dataclass
class Waiting:
    position: int = 1
    phase: str = "weights"
    percent: float | None = 45.0
    eta_s: float | None = 12.0


@dataclass
class Described:
    state: State
    generation: int = 1


class PlainLeases:
    """Leases on given addresses. `hold` makes every lease wait for it; `fail` makes it raise."""

    def __init__(self, catalog: Catalog, address: Address) -> None:
        self.catalog = catalog
        self.channel = InferenceChannel(address, limit=256)
        self.out: set[PlainLease] = set()
        self.waiting: set[str] = set()
        self.taken = 0
        self.tickets: list[Ticket] = []
        self.hold: asyncio.Event | None = None
        self.fail: list[MMError] = []
        self.channels: list[InferenceChannel] = []
        """Used up one by one before `channel`."""
        self.now = Described(State.READY)
        """What every instance is said to be in."""
        self.launch: int | None = None
        """The generation of all leases; None counts them."""
        self.endings = Endings()

    @contextlib.asynccontextmanager
    async def _lease(self, ticket: Ticket) -> AsyncIterator[PlainLease]:
        self.tickets.append(ticket)
        self.waiting.add(ticket.id)
        try:
            if self.hold is not None:
                await self.hold.wait()
            if self.fail:
                raise self.fail.pop(0)
        finally:
            self.waiting.discard(ticket.id)
        self.taken += 1
        channel = self.channels.pop(0) if self.channels else self.channel
        lease = PlainLease(ticket.model, self.launch or self.taken, channel)
        self.out.add(lease)
        try:
            yield lease
        finally:
            self.out.discard(lease)

    def launched(self, generation: int) -> None:
        """Every lease from now on, and every instance, is of that launch."""
        self.launch = self.now.generation = generation

    def lease(self, ticket: Ticket) -> contextlib.AbstractAsyncContextManager[PlainLease]:
        return self._lease(ticket)

    @contextlib.asynccontextmanager
    async def look(self, ticket: Ticket, generation: int) -> AsyncIterator[PlainLease | None]:
        """On the launch that `now` is in, if it is READY."""
        if self.now.state is not State.READY or self.now.generation != generation:
            yield None
            return
        lease = PlainLease(ticket.model, generation, self.channel)
        self.out.add(lease)
        try:
            yield lease
        finally:
            self.out.discard(lease)

    def ending(self, model: str, generation: int) -> Ending | None:
        return self.endings.of(model, generation)

    def wait_info(self, ticket: Ticket) -> Waiting:
        return Waiting()

    def follow(self, ticket: Ticket, *, on: bool) -> None:
        pass

    def describe(self, model: str) -> Described:
        """Where leases are counted as launches, the latest is the one that there is."""
        return self.now if self.launch is not None or not self.taken else Described(self.now.state, self.taken)


MODEL = ModelSpec(id="org/model-1", aliases=("short",), lora={"tuned": "/lora"}, args={"max-model-len": 4096})
OTHER = ModelSpec(id="other")


@dataclass
class Plane:
    port: int
    leases: PlainLeases
    gateway: Gateway
    server: uvicorn.Server
    form: str
    rows: list[RequestRecord] = field(default_factory=list)
    serving: asyncio.Task[None] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    async def settled(self, rows: int, seconds: float = 60.0) -> None:
        """Until so many rows are there; then nothing may be left: no lease, no ticket, no request."""
        async with asyncio.timeout(seconds):
            while len(self.rows) < rows or self.gateway.running or self.gateway.realtime.running:
                await asyncio.sleep(0.005)
        assert len(self.rows) == rows
        assert not self.leases.out
        assert not self.leases.waiting


FORMS = ("protocol", "asgi")
"""Inside uvicorn's protocol, and as a plain ASGI application on an unchanged uvicorn."""
WORKER = "worker"
"""As one of several processes: what is not a worker's is handed to a second end, in this same process."""


@contextlib.asynccontextmanager
async def plane(
    form: str,
    address: Address,
    *,
    rules: Rules | None = None,
    mode_none: bool = False,
    specs: Sequence[ModelSpec] = (MODEL, OTHER),
) -> AsyncIterator[Plane]:
    clock = RealClock()
    keys = Keyring(clock, open_to_all=mode_none)
    keys.replace(
        [
            Key("k1", "tester", digest(SECRET), frozenset({Scope.INFER})),
            Key("k2", "narrow", digest("mm-narrow"), frozenset({Scope.INFER}), models=frozenset({"other"})),
            Key("k3", "reader", digest("mm-reader"), frozenset({Scope.READ})),
            Key("k5", "second", digest("mm-second"), frozenset({Scope.INFER})),
            Key("k6", "told", digest("mm-told"), frozenset({Scope.INFER}), progress=True),
            Key("k4", "gone", digest("mm-gone"), frozenset({Scope.INFER}), revoked_at=1.0),
        ]
    )
    leases = PlainLeases(Catalog(specs), address)
    rows: list[RequestRecord] = []
    gateway = Gateway(leases, keys, rows.append, explain, clock, rules)

    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"admin " + scope["path"].encode() + b" " + body})

    app = OpenAIApp(gateway, fallback) if form == "asgi" else fallback
    http: Any = "httptools" if form == "asgi" else hot_protocol(gateway)
    taking = None
    if form == WORKER:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        elsewhere: Any = http
        http = worker_protocol(gateway, HandingOver(theirs).hand, lambda: None)
        taking = TakingOver(ours, lambda: elsewhere(config, server.server_state, {}))
    config = uvicorn.Config(
        app, http=http, host="127.0.0.1", port=0, lifespan="off",
        access_log=False, log_config=None, server_header=False, ws="none", timeout_graceful_shutdown=5,
        timeout_keep_alive=int(gateway.rules.keep_alive),
    )  # fmt: skip
    server = uvicorn.Server(config)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.get_running_loop().create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    made = Plane(port, leases, gateway, server, form, rows, serving)
    try:
        yield made
    finally:
        server.should_exit = True
        server.force_exit = True
        await serving
        if taking is not None:
            taking.close()
            theirs.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await gateway.responses.background.close()
        leases.channel.close()
        await asyncio.sleep(0.01)


@dataclass
class Answer:
    """A response as a strict client reads it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    """Decoded."""
    framed: bytes
    """As it came, chunk sizes included."""
    complete: bool
    """Its framing ended; False when the connection did first."""

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k == name), None)

    def all(self, name: str) -> list[str]:
        return [v for k, v in self.headers if k == name]


async def read_answer(
    reader: asyncio.StreamReader, *, on_body: Callable[[bytes], Awaitable[None]] | None = None
) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ")[1])
    headers = [(k.lower(), v) for k, v in (line.split(": ", 1) for line in head[1:] if line)]
    if status == 100:
        return Answer(100, headers, b"", b"", True)
    fields = dict(headers)
    body = framed = b""
    try:
        if fields.get("transfer-encoding") == "chunked":
            while True:
                line = await reader.readuntil(b"\r\n")
                framed += line
                size = int(line.split(b";")[0], 16)
                if size == 0:
                    while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
                        framed += trailer
                    framed += trailer
                    return Answer(status, headers, body, framed, True)
                piece = await reader.readexactly(size + 2)
                framed += piece
                body += piece[:-2]
                if on_body is not None:
                    await on_body(piece[:-2])
        elif "content-length" in fields:
            body = await reader.readexactly(int(fields["content-length"]))
        elif status not in {204, 304}:
            body = await reader.read(-1)
    except asyncio.IncompleteReadError as error:
        return Answer(status, headers, body + (b"" if framed else error.partial), framed + error.partial, False)
    except ConnectionError:
        return Answer(status, headers, body, framed, False)
    return Answer(status, headers, body, framed or body, True)


def post(path: str, body: bytes, headers: dict[str, str] | None = None, *, version: str = "1.1") -> bytes:
    fields = {
        "host": "test",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **AUTH,
        **(headers or {}),
    }
    lines = "".join(f"{k}: {v}\r\n" for k, v in fields.items() if v)
    return f"POST {path} HTTP/{version}\r\n{lines}\r\n".encode() + body


def get(path: str, headers: dict[str, str] | None = None, method: str = "GET") -> bytes:
    lines = "".join(f"{k}: {v}\r\n" for k, v in {"host": "test", **AUTH, **(headers or {})}.items() if v)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def ask(where: Plane, request: bytes) -> Answer:
    reader, writer = await where.open()
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return await read_answer(reader)
    finally:
        writer.close()
