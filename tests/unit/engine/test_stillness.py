"""What counts as a standstill of a process that was asked for something."""

import asyncio
import itertools
import os
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
    """Of this process's session: fresh memory that is written counts, and nothing of anybody else's session."""
    session = os.getsid(0)
    before = stillness.movement(session)
    assert bytearray(4 << 20)
    assert stillness.movement(session) > before > 0
    assert stillness.movement(0x7FFFFFFF) == 0
