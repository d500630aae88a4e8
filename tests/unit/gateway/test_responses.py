"""Who holds which response, found in answers however their bytes are split, and kept while their engines work on them."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeClock
from vllm_mm.domain.errors import MMError, RequestCut
from vllm_mm.engine.exchange import Exchange, ResponseSink, UpstreamRequest
from vllm_mm.gateway import responses
from vllm_mm.gateway.background import FIRST, LARGEST, LONGEST, Background, Work
from vllm_mm.gateway.relay import Call
from vllm_mm.gateway.responses import Book, Held, ResponseRelay, id_in, read_wish
from vllm_mm.gateway.routes import CANCEL, RESPONSES, RETRIEVE, about_response

PLAIN = b'{"id":"resp_1","object":"response","output":[{"id":"msg_1"}]}'
LATE = b'{"object":"response","output":[{"id":"msg_1"}],"usage":{"id":1},"id":"resp_1"}'
EVENTS = b'event: response.created\ndata: {"response":{"output":[],"id":"resp_1"},"sequence_number":0}\n\nevent: x\ndata: {"id":"y"}\n\n'
ESCAPED = b'{"id":"resp_\\u00e9"}'


def held(key: str = "k", *, until: float = 100.0, generation: int = 1) -> Held:
    return Held("m", generation, key, "m", until)


def test_book_forgets_what_is_too_old_and_too_much() -> None:
    """The oldest go first; what was made again is new."""
    book = Book(2)
    book.add("a", held(until=10), 0)
    book.add("b", held(until=20), 0)
    book.add("a", held(until=30), 0)
    book.add("c", held(until=40), 0)
    assert [book.get(x, 0) is not None for x in "abc"] == [True, False, True]
    assert book.get("a", 29.9) is not None
    assert book.get("a", 30) is None
    assert len(book) == 1


def test_the_first_key_keeps_its_id() -> None:
    """Another key that gives its own response the same id does not get at the first one's."""
    book = Book(10)
    book.add("a", held("first"), 0)
    book.add("a", held("second", generation=2), 0)
    found = book.get("a", 0)
    assert found is not None
    assert (found.key, found.generation) == ("first", 1)
    book.add("a", held("first", generation=3), 0)
    found = book.get("a", 0)
    assert found is not None
    assert found.generation == 3


@pytest.mark.parametrize(
    ("body", "stays", "outlives"),
    [
        (b"{}", True, False),
        (b'{"store":true,"background":true}', True, True),
        (b'{"store":false,"background":false}', False, False),
        (b'{"store":null,"background":null}', False, False),
        (b'{"store":"False","background":"yes"}', False, True),
        (b'{"store":0,"background":1}', False, True),
        (b'{"store":NaN,"x":"\\ud800"}', True, False),  # only Python's parser takes it
    ],
)
def test_what_is_wished(body: bytes, stays: bool, outlives: bool) -> None:
    """As pydantic reads booleans, on the safe side: `stays` only if it may be stored, `outlives` if it may go on."""
    wish = read_wish(body)
    assert (wish.stays, wish.outlives) == (stays, outlives)


@pytest.mark.parametrize("text", [PLAIN, LATE, EVENTS, b": hello\n\n" + EVENTS])
def test_id_is_that_of_the_response(text: bytes) -> None:
    """At the top level, or in `response` of the first event; not of what is in it."""
    assert id_in(text) == "resp_1"


def test_id_that_is_not_there() -> None:
    """No id, or not yet."""
    assert id_in(ESCAPED) == "resp_é"
    for text in (
        b"",
        b"{",
        b'{"id":"resp_',
        b'{"output":[{"id":"msg_1"}]}',
        b"event: response.created\n",
        b"<html>",
        b'{"id":7}',
    ):
        assert id_in(text) is None


class _Client:
    raw = True
    gone = False

    def __init__(self) -> None:
        self.out = b""
        self.done = False

    def start(self, *_: object) -> None:
        pass

    def data(self, chunk: bytes) -> None:
        self.out += chunk

    def writer(self) -> Callable[[bytes], None]:
        return self.data

    def finish(self) -> None:
        self.done = True

    def bind(self, exchange: Exchange) -> None:
        pass


def relayed(pieces: list[bytes], *, chunked: bool = False, status: int = 200) -> tuple[list[str], bytes]:
    client, found = _Client(), list[str]()
    relay = ResponseRelay(Call(RESPONSES, b"", [], 0.0), client, "r", lambda: 0.0)  # type: ignore[arg-type]
    relay.on_created = found.append
    relay.head(status, [(b"content-type", b"application/json")], chunked=chunked, length=None)
    for piece in pieces:
        relay.data(piece)
    relay.end()
    assert client.done
    return found, client.out


@settings(max_examples=200)
@given(st.sampled_from([PLAIN, LATE, EVENTS]), st.lists(st.integers(1, 40), max_size=60), st.booleans())
def test_id_is_found_however_the_answer_is_split(text: bytes, sizes: list[int], chunked: bool) -> None:
    """Once, also in an answer that keeps the engine's chunk sizes; and the bytes are what they were."""
    pieces, at = list[bytes](), 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    pieces = [p for p in (*pieces, text[at:]) if p]
    if chunked:
        pieces = [b"%x\r\n%b\r\n" % (len(p), p) for p in pieces] + [b"0\r\n\r\n"]
    found, out = relayed(pieces, chunked=chunked)
    assert found == ["resp_1"]
    assert out == b"".join(pieces)


def test_only_the_head_of_a_good_answer_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not errors, and no further than HEAD."""
    assert relayed([PLAIN], status=400)[0] == []
    looked = list[int]()

    def spy(text: bytes) -> None:
        looked.append(len(text))

    monkeypatch.setattr(responses, "id_in", spy)
    big = b'{"x":"' + b"y" * 200_000
    assert relayed([big[at : at + 1000] for at in range(0, len(big), 1000)])[0] == []
    assert sum(looked) < 4 * responses.HEAD


def test_paths_about_a_response() -> None:
    """As sent; ids may be encoded, and then may hold anything."""
    assert about_response(b"/v1/responses/resp_1") == (RETRIEVE, "resp_1")
    assert about_response(b"/v1/responses/a%2Fb/cancel") == (CANCEL, "a/b")
    assert about_response(b"/v1/responses/a/") == (RETRIEVE, "a"), "a slash at the end is no other path"
    for path in (
        b"/v1/responses",
        b"/v1/responses/",
        b"/v1/responses//cancel",
        b"/v1/responses/a/b",
        b"/v1/responses//",
    ):
        assert about_response(path) is None
    assert about_response(b"/x/v1/responses/a") is None


class _Lease:
    """Answers with the next of `said`."""

    model = engine_name = "m"
    generation = 1
    granted_at = 0.0
    reason = None
    revoked: MMError | None = None

    def __init__(self, *said: str | bytes | MMError) -> None:
        self.said = list(said)
        self.asked = list[bytes]()
        self.stood = 0.0
        self.on_freeze: Callable[[bool], None] | None = None
        self.back = False

    def frozen_s(self, now: float) -> float:
        return self.stood

    async def exchange(
        self, request: UpstreamRequest, sink: ResponseSink, *, on_started: Callable[[Exchange], None] | None = None
    ) -> None:
        self.asked.append(request.method + b" " + request.target)
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, MMError):
            raise said
        body = said if isinstance(said, bytes) else json.dumps({"id": "x", "output": [], "status": said}).encode()
        sink.head(200, [], chunked=False, length=len(body))
        sink.data(body[:10])
        sink.data(body[10:])
        sink.end()

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator["_Lease"]:
        try:
            yield self
        finally:
            self.back = True


async def follow(lease: _Lease, clock: FakeClock, deadline: float = 1e9) -> Background:
    background = Background(clock)
    holding = lease.hold()
    await holding.__aenter__()
    background.follow(holding, lease, Work("r/1", "k1", deadline))
    assert background.running == ("r/1",)
    return background


async def test_lease_is_kept_until_the_engine_is_done() -> None:
    """It is asked again and again, ever less often; then the lease is back."""
    lease, clock = _Lease("queued", "in_progress", "in_progress", "completed"), FakeClock()
    background = await follow(lease, clock)
    await clock.advance(FIRST)
    assert lease.asked == [b"GET /v1/responses/r%2F1"]
    assert not lease.back
    await clock.advance(3 * LONGEST)
    assert len(lease.asked) == 4
    assert lease.back
    assert background.running == ()


@pytest.mark.parametrize(
    "said", ["failed", b"no JSON at all", b"[1,2,3,4,5,6]", b"x" * (LARGEST + 1), RequestCut("gone")]
)
async def test_lease_goes_back_when_it_is_of_no_use(said: str | bytes | MMError) -> None:
    """Whatever the engine says but that it works on it still, and when it is gone."""
    lease, clock = _Lease(said), FakeClock()
    await follow(lease, clock)
    await clock.advance(FIRST)
    assert lease.back


async def test_a_frozen_engine_is_not_asked() -> None:
    """Until it goes on, or the lease is taken away."""
    lease, clock = _Lease("in_progress"), FakeClock()
    await follow(lease, clock)
    assert lease.on_freeze is None
    await clock.advance(FIRST)
    assert lease.on_freeze is not None
    lease.on_freeze(True)
    await clock.advance(100)
    assert len(lease.asked) == 1
    lease.on_freeze(False)
    await clock.advance(LONGEST)
    assert len(lease.asked) == 2
    lease.on_freeze(True)
    lease.revoked = RequestCut("stopped")
    lease.said = [lease.revoked]
    await clock.advance(LONGEST)
    assert lease.back


async def test_what_takes_too_long_is_cancelled() -> None:
    """At the deadline, to which the time is added for which it stood still."""
    lease, clock = _Lease("in_progress"), FakeClock()
    lease.stood = 50.0
    await follow(lease, clock, deadline=clock.now() + 10)
    await clock.advance(59)
    assert not lease.back
    await clock.advance(2 * LONGEST)
    assert lease.asked[-1] == b"POST /v1/responses/r%2F1/cancel"
    assert lease.back


CANCELLED = [b"GET /v1/responses/r%2F1", b"POST /v1/responses/r%2F1/cancel"]


async def test_what_runs_for_a_revoked_key_is_cancelled() -> None:
    """At once and not with the next question; that of other keys goes on."""
    lease, clock = _Lease("in_progress"), FakeClock()
    background = await follow(lease, clock)
    await clock.advance(0)
    background.revoked("k2")
    await clock.settle()
    assert lease.asked == []
    background.revoked("k1")
    await clock.settle()
    assert lease.asked == CANCELLED
    assert lease.back
    assert background.running == ()


async def test_what_is_done_is_not_cancelled_with_its_key() -> None:
    """The engine is asked first."""
    lease, clock = _Lease("completed"), FakeClock()
    background = await follow(lease, clock)
    background.revoked("k1")
    await clock.settle()
    assert lease.asked == CANCELLED[:1]
    assert lease.back


async def test_what_stands_still_is_cancelled_when_it_would_go_on() -> None:
    """A sleeping engine is asked nothing, and one that wakes is asked at once; no time passes here."""
    lease, clock = _Lease("in_progress"), FakeClock()
    background = await follow(lease, clock)
    await clock.settle()
    assert lease.on_freeze is not None
    lease.on_freeze(True)
    background.revoked("k1")
    await clock.settle()
    assert lease.asked == []
    lease.on_freeze(False)
    await clock.settle()
    assert lease.asked == CANCELLED
    assert lease.back


async def test_closing_gives_all_leases_back() -> None:
    """At the end of the server."""
    lease, clock = _Lease("in_progress"), FakeClock()
    background = await follow(lease, clock)
    await clock.advance(1)
    await background.close()
    assert lease.back
