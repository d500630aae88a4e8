"""Comments for a client that asked for progress: where they may stand, and that nothing stands behind an answer's end."""

from collections.abc import Callable

import pytest

from fakes import FakeClock
from vllm_mm.domain.scheduling import Ticket
from vllm_mm.gateway.ports import Problem
from vllm_mm.gateway.progress import STILL, Comments
from vllm_mm.gateway.relay import Call, Relay
from vllm_mm.gateway.routes import ROUTES

EVENT = b'data: {"choices":[{"text":"one"}]}\n\n'


class Client:
    """Everything that was written, and where the end was."""

    raw = True
    gone = False

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def start(self, *_: object) -> None:
        self.written.append(b"HEAD")

    def data(self, chunk: bytes) -> None:
        self.written.append(chunk)

    def writer(self) -> Callable[[bytes], None]:
        return self.data

    def finish(self) -> None:
        self.written.append(b"END")

    def cut(self) -> None:
        self.written.append(b"CUT")


class Lease:
    on_freeze: Callable[[bool], None] | None = None

    def freeze(self, frozen: bool) -> None:
        assert self.on_freeze is not None
        self.on_freeze(frozen)


class Wait:
    position, phase, percent, eta_s = 1, "", None, 3.0


class Leases:
    def wait_info(self, _: Ticket) -> Wait:
        return Wait()

    def follow(self, _: Ticket, *, on: bool) -> None:
        pass


class Streamed:
    """A stream whose first event is out, of a request that has its lease."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.client, self.lease = Client(), Lease()
        self.relay = Relay(Call(ROUTES[b"/v1/completions"], b"", [], 0.0), self.client, "r", self.clock.now)  # type: ignore[arg-type]
        self.relay.raw = False
        ticket = Ticket("r", "m", 0.0, 30.0)
        self.comments = Comments(Leases(), self.clock, self.relay, ticket, 5.0)  # type: ignore[arg-type]
        self.comments.leased(self.lease)  # type: ignore[arg-type]
        self.relay.head(200, [(b"content-type", b"text/event-stream")], chunked=True, length=None)
        self.relay.data(EVENT)


@pytest.fixture
def it() -> Streamed:
    return Streamed()


async def test_a_freeze_and_its_end_are_told(it: Streamed) -> None:
    it.lease.freeze(True)
    await it.clock.advance(STILL + 5.1)
    it.lease.freeze(False)
    it.relay.data(EVENT)
    it.relay.end()
    still = b": frozen model=m position=1 eta=3s\n\n"
    assert it.client.written == [b"HEAD", EVENT, still, still, b": resumed\n\n", EVENT, b"END"]


@pytest.mark.parametrize("told", [False, True])
async def test_nothing_follows_the_end_of_an_answer(it: Streamed, told: bool) -> None:
    """An engine goes on before its wake is known to be good, and may be done with the answer by then. Timers that are due come
    before the request's own coroutine hears of the end, and the connection may have the next request already."""
    it.lease.freeze(True)
    if told:
        await it.clock.advance(STILL + 0.1)
    it.relay.end()
    before = list(it.client.written)
    await it.clock.advance(20.0)
    it.lease.freeze(False)
    assert it.client.written == before


async def test_nothing_follows_a_cut(it: Streamed) -> None:
    it.lease.freeze(True)
    await it.clock.advance(STILL + 0.1)
    it.relay.refuse(Problem(503, "gone", "unavailable"))
    before = list(it.client.written)
    await it.clock.advance(20.0)
    it.lease.freeze(False)
    assert it.client.written == before
    assert before[-1] == b"CUT"
