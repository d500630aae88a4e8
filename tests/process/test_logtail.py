"""The log tail: bounded in every direction, exact about lines, unhurt by its readers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes import FakeClock
from vllm_mm.engine import logtail
from vllm_mm.engine.logtail import LineSplitter, LogTail


def texts(*chunks: bytes) -> list[str]:
    split = LineSplitter()
    return [line for chunk in chunks for line, _ in split.feed(chunk)] + [line for line, _ in split.flush()]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo", ["one", "two"]),
        (b"\r 10%\r 20%\r100%\ndone\n", [" 10%", " 20%", "100%", "done"]),
        (b"\n\n  \n", []),
        ("caf\u00e9\n".encode(), ["caf\u00e9"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"\x1b[36mINFO\x1b[0m x\n", ["INFO x"]),
        (b"tail \n", ["tail"]),
    ],
)
def test_lines_do_not_depend_on_how_the_bytes_arrive(data: bytes, lines: list[str]) -> None:
    """Whole, byte by byte, and cut in two at each place: the same lines."""
    assert texts(data) == lines
    assert texts(*(data[i : i + 1] for i in range(len(data)))) == lines
    for cut in range(len(data)):
        assert texts(data[:cut], data[cut:]) == lines


def test_an_endless_line_is_cut_and_the_rest_of_it_dropped() -> None:
    """Memory is bounded by the length of a line, not by the patience of whoever writes it."""
    split = LineSplitter()
    lines: list[str] = []
    for _ in range(100):
        lines += [line for line, _ in split.feed(b"x" * 1000)]
    lines += [line for line, _ in split.feed(b"\nnext\n")]
    assert [len(line) <= logtail.LINE_BYTES + 10 for line in lines] == [True, True]
    assert lines[0].endswith("[...]")
    assert lines[1] == "next"


class Rig:
    """A tail on a file, with a clock that is moved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.tail = LogTail(path, self.clock, offset=0, rotate_bytes=logtail.ROTATE_BYTES)

    def write(self, data: str) -> None:
        with self.path.open("a") as out:
            out.write(data)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "m.log")
    yield made
    await made.tail.close()


async def test_the_file_is_followed_from_now_on(rig: Rig) -> None:
    """Subscribers get the lines that come after they came, in order, until they stop."""
    rig.tail.start()
    rig.write("early\n")
    await rig.clock.advance(1)
    seen: list[str] = []
    stop = rig.tail.follow(seen.append)
    rig.write("a\nb\nunfin")
    await rig.clock.advance(1)
    rig.write("ished\n")
    await rig.clock.advance(1)
    stop()
    stop()
    rig.write("late\n")
    await rig.clock.advance(1)
    assert seen == ["a", "b", "unfinished"]
    assert rig.tail.lines(10) == ("early", "a", "b", "unfinished", "late")
    assert rig.tail.lines(2) == ("unfinished", "late")
    assert rig.tail.lines(0) == ()


async def test_a_quiet_log_is_looked_at_less_often(rig: Rig) -> None:
    """50 ms while lines come, 250 ms after some seconds without."""
    rig.tail.start()
    looks = 0
    poll = rig.tail.poll

    def counted(lag: int = logtail.LAG_BYTES) -> int:
        nonlocal looks
        looks += 1
        return poll(lag)

    rig.tail.poll = counted  # type: ignore[method-assign] # counted, not replaced
    await rig.clock.advance(1)
    assert 18 <= looks <= 22
    await rig.clock.advance(9)
    looks = 0
    await rig.clock.advance(1)
    assert 3 <= looks <= 5
    rig.write("x\n")
    await rig.clock.advance(0.3)
    looks = 0
    await rig.clock.advance(1)
    assert 18 <= looks <= 22


async def test_a_reader_that_fails_is_dropped_and_hurts_nobody(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def broken(line: str) -> None:
        raise RuntimeError(line)

    seen: list[str] = []
    rig.tail.follow(broken)
    rig.tail.follow(seen.append)
    rig.write("a\nb\n")
    rig.tail.poll()
    assert seen == ["a", "b"]
    assert len(caplog.records) == 1
    assert "dropped" in caplog.text


async def test_a_reader_may_stop_another_while_a_line_is_given_out(rig: Rig) -> None:
    seen: list[str] = []
    stops = [rig.tail.follow(lambda _: stops[1]()), rig.tail.follow(seen.append)]
    rig.write("a\nb\n")
    rig.tail.poll()
    assert seen in ([], ["a"])


async def test_of_a_progress_bar_the_tail_keeps_the_latest_state(rig: Rig) -> None:
    """Readers get each state; the ring is not flooded, and a log line before the bar is not eaten."""
    seen: list[str] = []
    rig.tail.follow(seen.append)
    rig.write("INFO loading\n" + "".join(f"\rshards: {i}%" for i in range(101)) + "\nINFO loaded\n")
    rig.tail.poll()
    assert len(seen) == 103
    assert rig.tail.lines(10) == ("INFO loading", "shards: 100%", "INFO loaded")


async def test_the_ring_is_bounded(rig: Rig) -> None:
    rig.write("".join(f"{i}\n" for i in range(logtail.RING_LINES + 500)))
    rig.tail.poll()
    lines = rig.tail.lines(10**6)
    assert len(lines) == logtail.RING_LINES
    assert lines[-1] == str(logtail.RING_LINES + 499)


async def test_an_engine_that_writes_faster_than_can_be_read_loses_lines_and_says_so(rig: Rig) -> None:
    seen: list[str] = []
    rig.tail.follow(seen.append)
    rig.write("first\n")
    rig.tail.poll()
    rig.write(("y" * 99 + "\n") * (logtail.LAG_BYTES // 100 + 100) + "last\n")
    rig.tail.drain()
    assert seen[0] == "first"
    assert "bytes of log left out" in seen[1]
    assert seen[-1] == "last"
    assert len(seen) < logtail.HISTORY_BYTES // 100 + 10


async def test_the_last_words_need_no_end_of_line(rig: Rig) -> None:
    rig.write("a\nfatal")
    rig.tail.poll()
    assert rig.tail.lines(5) == ("a",)
    rig.tail.drain()
    assert rig.tail.lines(5) == ("a", "fatal")


async def test_a_large_file_is_rotated_in_place(tmp_path: Path) -> None:
    """The writer keeps its descriptor (opened for appending) and goes on; one old file is kept; no line is lost here."""
    path, clock = tmp_path / "m.log", FakeClock()
    tail = LogTail(path, clock, offset=0, rotate_bytes=1000)
    seen: list[str] = []
    tail.follow(seen.append)
    tail.start()
    written: list[str] = []
    with path.open("a", buffering=1) as writer:
        for round_ in range(3):
            for i in range(60):
                line = f"round {round_} line {i:04}"
                written.append(line)
                writer.write(line + "\n")
            while path.stat().st_size >= 1000:
                await clock.advance(0.1)
                await asyncio.to_thread(lambda: None)
    await tail.close()
    assert seen == written
    assert path.stat().st_size < 1000
    assert (tmp_path / "m.log.1").read_text().splitlines() == written[-60:]


async def test_lines_are_counted(rig: Rig) -> None:
    """Those that took the place of another too; a follower finds the number of its own line."""
    seen: list[tuple[int, str]] = []
    rig.tail.follow(lambda line: seen.append((rig.tail.written, line)))
    rig.write("one\n10%\r20%\rdone\n")
    rig.tail.drain()
    assert seen == [(1, "one"), (2, "10%"), (3, "20%"), (4, "done")]
    assert (rig.tail.written, rig.tail.lines(5)) == (4, ("one", "done"))


async def test_so_many_old_files_are_kept_as_are_wanted(tmp_path: Path) -> None:
    """The latest is `.1`; the oldest goes."""
    path, clock = tmp_path / "m.log", FakeClock()
    tail = LogTail(path, clock, offset=0, rotate_bytes=100, old_files=3)
    for round_ in range(5):
        path.write_text(f"round {round_} " + "x" * 200 + "\n")
        tail.poll()
        await tail._rotate()
    tail.release()
    kept = {p.name: p.read_text().split("x")[0].strip() for p in tmp_path.iterdir() if p != path}
    assert kept == {"m.log.1": "round 4", "m.log.2": "round 3", "m.log.3": "round 2"}


async def test_a_file_that_somebody_truncated_is_read_from_its_beginning(rig: Rig) -> None:
    rig.write("one\ntwo\n")
    rig.tail.poll()
    rig.path.write_text("new\n")
    rig.tail.poll()
    assert rig.tail.lines(5) == ("one", "two", "new")


async def test_an_adopted_engines_log_is_there_at_once(tmp_path: Path) -> None:
    """The ring starts with what was written before, bounded like all the rest."""
    path = tmp_path / "m.log"
    path.write_text("x" * logtail.HISTORY_BYTES + "\n" + "earlier\n")
    tail = LogTail.resumed(path, FakeClock())
    assert tail.lines(1) == ("earlier",)
    await tail.close()


async def test_closing_ends_everything_and_may_be_repeated(rig: Rig) -> None:
    rig.tail.start()
    seen: list[str] = []
    rig.tail.follow(seen.append)
    await rig.tail.close()
    await rig.tail.close()
    rig.write("late\n")
    assert rig.tail.poll() == 0
    assert seen == []


async def test_what_is_there_can_be_read_at_once(rig: Rig) -> None:
    """Several chunks of it, without waiting for the next look."""
    rig.write("".join(f"line {i:8d}\n" for i in range(20_000)))
    rig.tail.catch_up()
    assert rig.tail.lines(1) == ("line    19999",)
