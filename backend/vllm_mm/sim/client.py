"""The API server's side of the line to the engine core."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineDeadError(Exception):
    """The core is gone; nothing will be answered any more."""

    def __init__(self) -> None:
        super().__init__(ENGINE_DEAD)


class EngineCallError(Exception):
    """The core refused a call; the message says why."""


@dataclass(slots=True)
class Stats:
    """The core's counters, as of its last message."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    garbled: bool = False
    sleep_level: int = 0


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence under way. `on_tokens` is called with the number of new tokens and whether these are the last."""

    id: int
    total: int
    on_tokens: Callable[[int, bool], None]
    done: asyncio.Future[str]
    """The end: "finished" or "abort"; EngineDeadError."""
    generated: int = 0


@dataclass(slots=True)
class Engine(asyncio.Protocol):
    """Submits, aborts and calls; everything that the core says goes to whom it concerns."""

    stats: Stats = field(default_factory=Stats)
    dead: bool = False
    stopping: bool = False
    """The server stops: a vanished core is no news, and those who wait are left waiting."""
    draining: bool = False
    """The server stops after what is under way; new requests fail."""
    _transport: asyncio.Transport | None = None
    _inbox: bytearray = field(default_factory=bytearray)
    _generations: dict[int, Generation] = field(default_factory=dict[int, Generation])
    _calls: dict[int, asyncio.Future[Any]] = field(default_factory=dict[int, asyncio.Future[Any]])
    _next: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The core has ended."""
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def connect(cls, line: socket.socket) -> "Engine":
        """Take over the line after the core said that it is ready."""
        engine = cls()
        line.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: engine, sock=line)
        return engine

    async def drain(self) -> None:
        """Refuse new requests; returns when the last one is over."""
        self.draining = True
        if self._generations:
            await self._idle.wait()

    def submit(self, prompt: int, total: int, on_tokens: Callable[[int, bool], None]) -> Generation:
        """Begin to generate `total` tokens. Raises EngineDeadError."""
        if self.dead or self.draining:
            raise EngineDeadError
        self._next += 1
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        generation = Generation(self._next, total, on_tokens, done)
        self._generations[generation.id] = generation
        self._send({"add": generation.id, "prompt": prompt, "total": total})
        return generation

    def abort(self, generation: Generation) -> None:
        """Forget it; harmless when it is over."""
        if self._forget(generation) and not self.dead:
            self._send({"abort": [generation.id]})

    def abort_all(self) -> int:
        """End everything as aborted; returns how many there were."""
        found = list(self._generations.values())
        self._send({"abort": [generation.id for generation in found]})
        for generation in found:
            self._finish(generation, "abort")
        return len(found)

    async def call(self, method: str, **arguments: object) -> Any:
        """Ask the core to do something. Raises EngineCallError or EngineDeadError."""
        if self.dead:
            raise EngineDeadError
        self._next += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[self._next] = future
        self._send({"call": self._next, "method": method, **arguments})
        try:
            return await future
        except EngineCallError as error:
            raise EngineCallError(f"Call to {method} method failed: {error}") from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        if b"\n" not in data:
            return
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = rest
        for line in lines:
            self._message(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.dead = True
        self.gone.set()
        if self.stopping:
            return
        for future in [*self._calls.values(), *(generation.done for generation in self._generations.values())]:
            if not future.done():
                future.set_exception(EngineDeadError())
                future.exception()  # a client that is gone leaves nobody to ask for it
        self._generations.clear()
        self._idle.set()

    def _send(self, message: dict[str, object]) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _message(self, message: dict[str, Any]) -> None:
        self.stats = Stats(*message["stats"])
        if "tokens" in message:
            finished: Sequence[int] = message["finished"]
            for number, count in message["tokens"]:
                generation = self._generations.get(number)
                if generation is not None:
                    generation.generated += count
                    last = number in finished
                    generation.on_tokens(count, last)
                    if last:
                        self._finish(generation, "finished")
        elif "aborted" in message:
            for number in message["aborted"]:
                if (generation := self._generations.get(number)) is not None:
                    self._finish(generation, "abort")
        elif "return" in message:
            future = self._calls.pop(message["return"], None)
            if future is not None and not future.done():
                if "error" in message:
                    future.set_exception(EngineCallError(message["error"]))
                    future.exception()  # a client that is gone leaves nobody to ask for it
                else:
                    future.set_result(message["value"])

    def _finish(self, generation: Generation, how: str) -> None:
        self._forget(generation)
        if not generation.done.done():
            generation.done.set_result(how)

    def _forget(self, generation: Generation) -> bool:
        known = self._generations.pop(generation.id, None) is not None
        if not self._generations and self.draining:
            self._idle.set()
        return known
