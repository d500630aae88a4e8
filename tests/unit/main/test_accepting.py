"""One listening socket, several who accept: evenly, and nobody is waited for who does not."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from vllm_mm.main import accepting
from vllm_mm.main.accepting import AWAY, Acceptor, Counts


@dataclass
class Side:
    """One process, as far as accepting goes."""

    acceptor: Acceptor
    got: list[socket.socket] = field(default_factory=list)


@dataclass
class Port:
    listener: socket.socket
    counts: Counts
    sides: list[Side]
    clients: list[socket.socket] = field(default_factory=list)

    async def connect(self, number: int) -> None:
        """So many connections, each accepted before the next one comes."""
        for _ in range(number):
            before = sum(len(side.got) for side in self.sides)
            self.clients.append(socket.create_connection(self.listener.getsockname()))
            async with asyncio.timeout(20):
                while sum(len(side.got) for side in self.sides) == before:
                    await asyncio.sleep(0)


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    fd = Counts.make(2)
    counts = Counts(fd, 2)
    made = Port(listener, counts, [])
    for process in range(2):
        got: list[socket.socket] = []
        acceptor = Acceptor(listener.dup(), counts, process, got.append, lambda got=got: len(got))
        made.sides.append(Side(acceptor, got))
    yield made
    for side in made.sides:
        side.acceptor.stop()
    for sock in (listener, *made.clients, *(s for side in made.sides for s in side.got)):
        sock.close()
    os.close(fd)


async def test_connections_are_dealt_evenly(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has fewer takes the next one."""
    monkeypatch.setattr(accepting, "STAND_BACK", 60.0)
    for side in port.sides:
        side.acceptor.start()
    await port.connect(2)
    assert [len(side.got) for side in port.sides] == [1, 1]


async def test_who_lost_connections_gets_the_next_ones(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "STAND_BACK", 0.0)
    for side in port.sides:
        side.acceptor.start()
    await port.connect(6)
    gone, stays = port.sides
    kept = len(stays.got)
    for connection in gone.got:
        connection.close()
    gone.got.clear()
    gone.acceptor.tell()
    for _ in range(20):
        await asyncio.sleep(0)  # until nobody stands back any more
    assert port.counts.get(0) == 0
    monkeypatch.setattr(accepting, "STAND_BACK", 60.0)
    await port.connect(1)
    assert (len(gone.got), len(stays.got)) == (1, kept)


async def test_a_process_that_hangs_keeps_no_connection_from_the_others(port: Port) -> None:
    """It has the fewest, and does not come."""
    port.counts.set(0, 0)
    port.sides[1].acceptor.start()
    await port.connect(5)
    assert len(port.sides[1].got) == 5


async def test_one_that_is_away_is_not_waited_for(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody stands back for it."""
    monkeypatch.setattr(accepting, "STAND_BACK", 60.0)
    for side in port.sides:
        side.acceptor.start()
    port.sides[0].acceptor.stop()
    port.sides[0].acceptor.tell()
    assert port.counts.get(0) == AWAY
    await port.connect(5)
    assert len(port.sides[1].got) == 5


async def test_without_descriptors_it_rests_and_goes_on(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of spinning on a connection that cannot be accepted."""
    monkeypatch.setattr(accepting, "REST", 0.01)
    side = port.sides[0]
    refused = 0

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def accept(self) -> object:
            nonlocal refused
            refused += 1
            if refused == 1:
                raise OSError(24, "Too many open files")
            return real.accept()

    real = side.acceptor._listener
    side.acceptor._listener = Full()  # type: ignore[assignment]
    side.acceptor.start()
    await port.connect(1)
    assert refused >= 2
    assert len(side.got) == 1
    with contextlib.suppress(OSError):
        side.acceptor.stop()
