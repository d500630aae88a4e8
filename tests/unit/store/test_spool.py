"""Rows that the database does not take for now are in a file as well: whatever ends the controller, they are written later."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy.exc import OperationalError

from admin_rig import ROW
from fakes import FakeClock
from vllm_mm.domain.audit import Entry
from vllm_mm.domain.events import Event
from vllm_mm.domain.usage import Gaps, RequestRecord
from vllm_mm.store.behind import WriteBehind
from vllm_mm.store.spool import Spool

AWAY = OperationalError("INSERT", {}, Exception("it is away"))


class Database:
    """Takes rows while it is there."""

    def __init__(self) -> None:
        self.there = True
        self.rows: list[int] = []
        self.tries = 0

    async def write(self, rows: Sequence[int]) -> None:
        self.tries += 1
        if not self.there:
            raise AWAY
        self.rows += rows


def writer(database: Database, clock: FakeClock, path: Path, limit: int = 10) -> WriteBehind[int]:
    behind = WriteBehind[int](database.write, clock, name="things", batch=3, limit=limit, spool=Spool(path, int))
    behind.start()
    return behind


async def until(clock: FakeClock, done: Callable[[], bool], step: float = 0.5) -> None:
    """Time goes on until it is so; files are written in threads, which take their own time."""
    async with asyncio.timeout(30):
        while not done():
            await clock.advance(step)
            await asyncio.sleep(0.001)


async def close(behind: WriteBehind[int], clock: FakeClock) -> bool:
    task = asyncio.create_task(behind.close())
    await until(clock, task.done)
    return task.result()


async def test_what_waits_is_in_the_file_and_the_file_goes_with_it(tmp_path: Path) -> None:
    """Each row once, those too that come while it waits; when all is written nothing is left."""
    path, clock, database = tmp_path / "things.jsonl", FakeClock(), Database()
    behind = writer(database, clock, path)
    database.there = False
    for i in range(4):
        behind.add(i)
    await until(clock, path.exists)
    behind.add(4)
    await until(clock, lambda: path.read_text().split() == ["0", "1", "2", "3", "4"])
    assert path.stat().st_mode & 0o777 == 0o600
    database.there = True
    await until(clock, lambda: not path.exists())
    assert database.rows == [0, 1, 2, 3, 4]
    assert await close(behind, clock)


async def test_what_has_to_be_safe_is_in_the_file_when_a_busy_database_takes_too_long(tmp_path: Path) -> None:
    """Before its writer knows of any trouble. Then the database takes it after all, and the file goes; where there is no file it is said."""
    path, clock, database = tmp_path / "things.jsonl", FakeClock(), Database()
    busy = asyncio.Event()

    async def write(rows: Sequence[int]) -> None:
        await busy.wait()
        await database.write(rows)

    behind = WriteBehind[int](write, clock, name="things", limit=10, spool=Spool(path, int))
    behind.start()
    for row in (1, 2):
        behind.add(row)
        securing = asyncio.create_task(behind.secure(1.0))
        await until(clock, securing.done)
        assert securing.result()
    assert path.read_text().split() == ["1", "2"]
    killed = Spool(path, int)
    assert killed.read() == [1, 2]
    busy.set()
    await until(clock, lambda: not path.exists())
    assert database.rows == [1, 2]
    assert await behind.secure(1.0)
    behind.add(3)
    securing = asyncio.create_task(behind.secure(1.0))
    await until(clock, securing.done)
    assert securing.result()
    assert not path.exists()
    assert await close(behind, clock)
    busy.clear()
    without = WriteBehind[int](write, clock, name="things", limit=10)
    without.start()
    without.add(4)
    securing = asyncio.create_task(without.secure(1.0))
    await until(clock, securing.done)
    assert not securing.result()
    busy.set()
    assert await close(without, clock)


def test_the_folder_is_there_while_it_is_needed_and_has_to_be_ours(tmp_path: Path) -> None:
    """In the system's temporary directory anybody may have made it before us."""
    spool = Spool(tmp_path / "mine" / "x", int)
    spool.append([1])
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    spool.clear()
    assert not (tmp_path / "mine").exists()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="somebody else's"):
        Spool(tmp_path / "link" / "x", int).append([1])
    assert not (tmp_path / "x").exists()


async def test_without_trouble_there_is_no_file(tmp_path: Path) -> None:
    """A database that takes everything costs no disk."""
    clock, database = FakeClock(), Database()
    behind = writer(database, clock, tmp_path / "things.jsonl")
    behind.add(1)
    await until(clock, lambda: database.rows == [1])
    assert await close(behind, clock)
    assert list(tmp_path.iterdir()) == []


async def test_the_next_controller_goes_on(tmp_path: Path) -> None:
    """One that was killed while the database was away, or that ended in order: its rows come before those of the next one."""
    path, clock, database = tmp_path / "things.jsonl", FakeClock(), Database()
    database.there = False
    killed = writer(database, clock, path)
    killed.add(1)
    killed.add(2)
    await until(clock, path.exists)
    assert killed._task is not None
    killed._task.cancel()
    ended = writer(database, clock, path)
    ended.add(3)
    assert not await close(ended, clock)
    assert path.read_text().split() == ["1", "2", "3"]
    database.there = True
    behind = WriteBehind[int](database.write, clock, name="things", spool=Spool(path, int))
    behind.add(4)
    behind.start()
    await until(clock, lambda: not path.exists() and database.rows == [1, 2, 3, 4])
    assert await close(behind, clock)


async def test_the_file_is_bounded_like_the_memory(tmp_path: Path) -> None:
    """The oldest rows go from both, and are counted; the others are written in order."""
    path, clock, database = tmp_path / "things.jsonl", FakeClock(), Database()
    behind = writer(database, clock, path, limit=5)
    database.there = False
    for i in range(23):
        behind.add(i)
        await clock.advance(6)
        await asyncio.sleep(0.002)
    await until(clock, lambda: path.exists() and path.read_text().split()[-5:] == ["18", "19", "20", "21", "22"])
    assert len(path.read_text().split()) <= 10
    assert behind.dropped == 18
    assert "18 were given up" in str(behind.problem())
    tries = database.tries
    await clock.advance(60)
    assert database.tries - tries <= 60 / 2 + 1, "it spins"
    database.there = True
    await until(clock, lambda: not path.exists())
    assert database.rows == [18, 19, 20, 21, 22]
    assert await close(behind, clock)


async def test_a_file_that_cannot_be_written_is_told_and_does_no_harm(tmp_path: Path) -> None:
    """The rows are in memory, which `/ready` says; nothing is half written."""
    path, clock, database = tmp_path / "gone" / "spool" / "things.jsonl", FakeClock(), Database()
    behind = writer(database, clock, path)
    database.there = False
    behind.add(1)
    await until(clock, lambda: "in memory alone" in str(behind.problem()))
    path.parent.parent.mkdir()
    await until(clock, lambda: path.exists() and "in memory alone" not in str(behind.problem()), 5)
    database.there = True
    await until(clock, lambda: database.rows == [1])
    assert await close(behind, clock)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full in the middle of a row leaves the rows before it; a line that was broken off harms no other."""
    spool = Spool(tmp_path / "x", int)
    spool.append([1, 2])

    def full(file: int, _text: object) -> None:
        os.write(file, b"3\n4")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("vllm_mm.store.spool._write_all", full)
        with pytest.raises(OSError, match="No space"):
            spool.append([3, 4, 5])
        with pytest.raises(OSError, match="No space"):
            spool.replace([9])
    assert (tmp_path / "x").read_text() == "1\n2\n"
    with (tmp_path / "x").open("ab") as file:
        file.write(b'"no number"\n7\n8')
    assert Spool(tmp_path / "x", int).read() == [1, 2, 7, 8]
    with (tmp_path / "x").open("ab") as file:
        file.write(b"x")
    assert Spool(tmp_path / "x", int).read() == [1, 2, 7]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (RequestRecord, structs.replace(ROW, gaps=Gaps(1.0, 2.0, 3.0, 4.0, (1, 2)))),
        (Event, Event(5, 1.5, "x", None, "cause", {"a": [1, {"b": None}]})),
        (Entry, Entry("aud_1", 1.0, "k", "n", "s", "a", "models", "o", 200, {"a": 1}, None, "r")),
    ],
)
def test_rows_come_back_whole(tmp_path: Path, kind: type, row: object) -> None:
    """What the product keeps in such files."""
    spool = Spool(tmp_path / "x", kind)
    spool.append([row, row])
    assert Spool(tmp_path / "x", kind).read() == [row, row]
