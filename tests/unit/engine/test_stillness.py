"""What counts as a standstill of a process that was asked for something."""

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from vllm_mm.clock import RealClock
from vllm_mm.engine.launchers import stillness


class Sleepless(RealClock):
    """Every sleep is over at once, and counted."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def moves(monkeypatch: pytest.MonkeyPatch, values: Iterable[int]) -> None:
    told: Iterator[int] = iter(values)
    monkeypatch.setattr(stillness, "movement", lambda _session: next(told))


async def test_five_looks_without_a_difference_are_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the time of the patience; whatever moved before does not count."""
    clock = Sleepless()
    moves(monkeypatch, [1, 2, 3, *[3] * 4, 4, *[4] * 5])
    await asyncio.wait_for(stillness.until_still(1, clock, 15.0), 10)
    assert clock.slept == [3.0] * 13


async def test_an_exchange_with_a_process_that_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With how long it was waited for, and long before its deadline."""
    moves(monkeypatch, itertools.repeat(7))
    with pytest.raises(TimeoutError, match=r"^and did nothing at all for 15 s$"):
        async with stillness.answered(1, Sleepless(), deadline=60.0, patience=15.0):
            await asyncio.Event().wait()


async def test_an_exchange_with_a_busy_process_has_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it moves."""
    moves(monkeypatch, itertools.count())
    with pytest.raises(TimeoutError, match=r"^within 0\.05 s$"):
        async with stillness.answered(1, Sleepless(), deadline=0.05, patience=15.0):
            await asyncio.Event().wait()


async def test_an_exchange_that_ends_leaves_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value, its errors and its cancellation are its own."""
    moves(monkeypatch, itertools.count())
    before = asyncio.all_tasks()
    with pytest.raises(OSError, match="gone"):
        async with stillness.answered(1, RealClock(), deadline=60.0, patience=15.0):
            raise OSError("gone")
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_work_is_movement() -> None:
    """A process that waits stands still; memory that it writes is seen. Nobody else's session counts."""
    script = """
import mmap, sys
print(flush=True)
for _ in sys.stdin:
    with mmap.mmap(-1, 1 << 20) as fresh:
        fresh.write(bytes(1 << 20))
    print(flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        seen = [stillness.movement(child.pid)]
        while seen[-1] not in seen[:-1]:  # until it has begun to wait for its first line
            seen.append(stillness.movement(child.pid))
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        assert stillness.movement(child.pid) >= seen[-1] + 256, "a fault for each page"
        child.stdin.close()
    assert stillness.movement(child.pid) == 0
