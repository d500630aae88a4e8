"""Writes that are gathered: together, in order, and never behind what ends their connection."""

import asyncio
from collections.abc import Callable

import pytest

from vllm_mm.engine.gathering import AT_ONCE, LARGE, LONELY, MOST, Gathering, Outbox


class Recorded(asyncio.Transport):
    """Remembers what is done to it."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.seen: list[object] = []
        self.closing = False
        self.broken = broken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.broken:
            raise RuntimeError("broken")
        self.seen.append(bytes(data))

    def writelines(self, list_of_data: object) -> None:
        self.seen.append(list(list_of_data))  # type: ignore[call-overload]

    def write_eof(self) -> None:
        self.seen.append("eof")

    def close(self) -> None:
        self.seen.append("close")
        self.closing = True

    def abort(self) -> None:
        self.seen.append("abort")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7


class Later:
    """The event loop's `call_soon`."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def made(*, broken: bool = False, later: Later | None = None) -> tuple[Gathering, Recorded, Later]:
    later = later or Later()
    inner = Recorded(broken=broken)
    return Gathering(inner, Outbox(later)), inner, later


def test_writes_wait_for_the_end_of_the_pass_and_are_made_in_order() -> None:
    transport, inner, later = made()
    transport.write(b"a")
    transport.write(b"b")
    assert inner.seen == []
    assert len(later.calls) == 1
    assert transport.holds
    assert transport.get_write_buffer_size() == 9
    later.run()
    assert inner.seen == [b"ab"]
    assert not transport.holds
    assert transport.get_write_buffer_size() == 7
    transport.write(b"c")
    later.run()
    assert inner.seen == [b"ab", b"c"]


def test_one_flush_for_all_connections_of_an_outbox() -> None:
    later, inners = Later(), [Recorded() for _ in range(3)]
    outbox = Outbox(later)
    for number, inner in enumerate(inners):
        Gathering(inner, outbox).write(b"%d" % number)
    assert len(later.calls) == 1
    later.run()
    assert [inner.seen for inner in inners] == [[b"0"], [b"1"], [b"2"]]


def test_the_first_do_not_wait_for_any_number_of_others() -> None:
    later, inners = Later(), [Recorded() for _ in range(MOST + 1)]
    outbox = Outbox(later)
    for inner in inners[:MOST]:
        Gathering(inner, outbox).write(b"x")
    assert all(inner.seen == [b"x"] for inner in inners[:MOST])
    Gathering(inners[MOST], outbox).write(b"y")
    later.run()
    assert inners[MOST].seen == [b"y"]


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda t: t.close(), "close"),
        (lambda t: t.write_eof(), "eof"),
        (lambda t: t.writelines([b"c", b"d"]), [b"c", b"d"]),
        (lambda t: t.write(b"x" * (LARGE + 1)), b"x" * (LARGE + 1)),
        (lambda t: t.write(bytearray(b"m")), b"m"),
    ],
)
def test_nothing_passes_what_is_held(act: Callable[[Gathering], None], told: object) -> None:
    transport, inner, later = made()
    transport.write(b"ab")
    act(transport)
    assert inner.seen == [b"ab", told]
    later.run()
    assert inner.seen == [b"ab", told]


def test_an_abort_drops_what_is_held() -> None:
    transport, inner, later = made()
    transport.write(b"ab")
    transport.abort()
    later.run()
    assert inner.seen == ["abort"]
    assert not transport.holds


def test_nothing_is_written_to_a_connection_that_was_lost_meanwhile() -> None:
    transport, inner, later = made()
    transport.write(b"ab")
    inner.closing = True
    later.run()
    assert inner.seen == []


def test_many_small_writes_do_not_grow_without_bound() -> None:
    transport, inner, _ = made()
    for _ in range(5):
        transport.write(b"x" * LARGE)
    assert sum(len(piece) for piece in inner.seen if isinstance(piece, bytes)) >= 3 * LARGE


def test_one_that_cannot_be_written_to_keeps_nobody_elses_bytes(caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    outbox = Outbox(later)
    bad, good = Recorded(broken=True), Recorded()
    Gathering(bad, outbox).write(b"a")
    Gathering(good, outbox).write(b"b")
    later.run()
    assert good.seen == [b"b"]
    assert "could not be written to" in caplog.text


def test_where_one_is_always_alone_most_writes_are_made_at_once() -> None:
    transport, inner, later = made()
    for _ in range(LONELY):
        transport.write(b"a")
        later.run()
    for _ in range(2):
        inner.seen.clear()
        for _ in range(AT_ONCE):
            transport.write(b"b")
        assert inner.seen == [b"b"] * AT_ONCE
        assert later.calls == []
        transport.write(b"c")
        assert transport.holds, "it is looked again whether others have come"
        later.run()


def test_who_is_not_alone_any_more_waits_for_the_others() -> None:
    later = Later()
    outbox = Outbox(later)
    one, other = Gathering(Recorded(), outbox), Gathering(Recorded(), outbox)
    for _ in range(LONELY):
        one.write(b"a")
        later.run()
    for _ in range(AT_ONCE):
        one.write(b"a")
    for _ in range(LONELY):
        one.write(b"b")
        other.write(b"b")
        assert one.holds
        assert other.holds
        later.run()
    for _ in range(LONELY - 1):
        one.write(b"c")
        assert one.holds
        later.run()


def test_what_was_flushed_before_its_time_counts_for_nobody() -> None:
    later = Later()
    outbox = Outbox(later)
    all_of_them = [Gathering(Recorded(), outbox) for _ in range(MOST)]
    for _ in range(LONELY + 1):
        for each in all_of_them:
            each.write(b"x")
        later.run()
    assert outbox.at_once == 0


def test_at_once_is_not_written_to_a_connection_that_is_closing() -> None:
    transport, inner, later = made()
    for _ in range(LONELY):
        transport.write(b"a")
        later.run()
    inner.seen.clear()
    inner.closing = True
    transport.write(b"b")
    assert inner.seen == []
