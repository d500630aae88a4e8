"""The connection between the controller and a worker: whole messages, in order, bounded, whatever the pieces."""

import asyncio
import socket
from typing import Any

import pytest

from vllm_mm.engine.lending import link as links
from vllm_mm.engine.lending import messages as say
from vllm_mm.engine.lending.link import Link


class Transport(asyncio.Transport):
    def __init__(self, link: Link[Any]) -> None:
        super().__init__()
        self.link = link
        self.written = bytearray()
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.link.connection_lost(None)


def made() -> tuple[Link[Any], Transport, list[Any], list[str]]:
    came: list[Any] = []
    ends: list[str] = []
    link = Link[Any](say.Up, came.append, ends.append)
    transport = Transport(link)
    link.connection_made(transport)
    return link, transport, came, ends


MESSAGES = [say.Hello(1, 0), say.Back("a", 3, 2), say.Ack(7), say.Follow("t", "a" * 300, True)]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_arrive_whole_and_in_order(size: int) -> None:
    """However the bytes are cut."""
    sender, out, _, _ = made()
    for message in MESSAGES:
        sender.send(message)
    receiver, _, came, ends = made()
    data = bytes(out.written)
    for at in range(0, len(data), size):
        receiver.data_received(data[at : at + size])
    assert came == MESSAGES
    assert ends == []


def test_what_is_no_message_ends_the_connection() -> None:
    """Once, with the reason; and what comes behind it is not looked at."""
    link, transport, came, ends = made()
    link.data_received(b"\0\0\0\1\xff" + b"\0\0\0\1\xff")
    assert transport.aborted
    assert came == []
    assert len(ends) == 1
    assert ends[0]


def test_a_length_beyond_the_bound_is_not_waited_for() -> None:
    link, transport, _, ends = made()
    link.data_received((say.LARGEST + 1).to_bytes(4, "big"))
    assert transport.aborted
    assert "bytes" in ends[0]


def test_who_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of keeping for it what it does not take."""
    monkeypatch.setattr(links, "BEHIND", 100)
    link, transport, _, ends = made()
    for _ in range(30):
        link.send(say.Ack(1))
    assert transport.aborted
    assert ends == ["it does not read what it is told"]
    size = len(transport.written)
    link.send(say.Ack(1))
    assert len(transport.written) == size


async def test_the_end_of_the_other_side_is_heard() -> None:
    ours, theirs = socket.socketpair()
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    link = Link[Any](say.Up, lambda _: None, over.set_result)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    theirs.close()
    async with asyncio.timeout(20):
        assert await over == ""
    link.close()
