"""One controller for each database."""

import asyncio
from pathlib import Path

import pytest

from fakes import FakeClock
from postgres import Postgres
from vllm_mm.clock import RealClock
from vllm_mm.domain.errors import ConfigError
from vllm_mm.store import sole as module
from vllm_mm.store.sole import Hold, sole


def name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def cut(postgres: Postgres, url: str) -> None:
    """Every connection to that database."""
    postgres.sql(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name(url)}' AND pid <> pg_backend_pid()"  # noqa: S608  # our own words
    )


async def test_a_second_one_on_postgresql_refuses_to_start(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the first one to end, and says who that is; another database of the same server is another matter; when the first has
    ended it may."""
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    url, other, said = postgres.empty(), postgres.empty(), list[str]()
    clock = RealClock()
    async with sole(url, tmp_path, clock, said.append) as first, sole(other, tmp_path, clock, said.append):
        assert first is not None
        assert said == []
        with pytest.raises(
            ConfigError, match=r"another vllm-mm \(from its own host, since .*\) serves from this database. Stop it"
        ):
            async with sole(url, tmp_path, clock, said.append):
                raise AssertionError
        assert len(said) == 1
        assert said[0].startswith("waiting for another vllm-mm (from its own host")
        await first.look()
        assert first.problem() is None
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    async with sole(url, tmp_path, clock, said.append):
        waiting = asyncio.ensure_future(_once(url, tmp_path, clock, said))
        while len(said) < 2:
            await asyncio.sleep(0.01)
    await waiting


async def _once(url: str, tmp_path: Path, clock: RealClock, said: list[str]) -> None:
    async with sole(url, tmp_path, clock, said.append):
        pass


async def test_a_lock_that_is_lost_is_taken_again(postgres: Postgres, tmp_path: Path) -> None:
    """Its connection was cut. Until it is there again, and for as long as somebody else has it, that is told."""
    url = postgres.empty()
    async with sole(url, tmp_path, RealClock(), print) as mine:
        assert mine is not None
        for _ in range(2):
            cut(postgres, url)
            await mine.look()
            assert "the lock on the database is lost, and another server could take it" in (mine.problem() or "")
            await mine.look()
            assert mine.problem() is None
        cut(postgres, url)
        await mine.look()
        async with sole(url, tmp_path, RealClock(), print) as theirs:
            assert theirs is not None
            await mine.look()
            assert "took the database while this server had no connection to it. Stop one of the two" in (
                mine.problem() or ""
            )
            assert theirs.problem() is None
        await mine.look()
        assert mine.problem() is None


async def test_it_is_looked_after(postgres: Postgres) -> None:
    """Again and again, by the clock."""
    url, clock = postgres.empty(), FakeClock()
    hold = Hold(url, clock)
    await hold.take(print)
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1

    hold.look = look  # type: ignore[method-assign]
    running = asyncio.create_task(hold.run())
    await clock.advance(module.EVERY * 3)
    assert looks == 3
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await hold.close()


async def test_a_database_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    """At the start; nothing is waited for."""
    with pytest.raises(ConfigError, match="the database cannot be reached"):
        async with sole(f"postgresql+asyncpg://mm@/x?host={tmp_path}", tmp_path, RealClock(), print):
            raise AssertionError


async def test_a_file_outside_of_the_data_directory_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two data directories may name the same one. Inside, the lock on the directory does; of a database in memory there is one each."""
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    clock, said = RealClock(), list[str]()
    url = f"sqlite+aiosqlite:///{tmp_path}/shared/state.db"
    async with sole(url, tmp_path / "a", clock, said.append) as none:
        assert none is None
        with pytest.raises(ConfigError, match=r"another vllm-mm serves from .*shared/state.db. Stop it"):
            async with sole(url, tmp_path / "b", clock, said.append):
                raise AssertionError
        assert len(said) == 1
    async with sole(url, tmp_path / "b", clock, said.append), sole("sqlite+aiosqlite://", tmp_path, clock, print):
        pass
    (tmp_path / "c").mkdir()
    async with sole(f"sqlite+aiosqlite:///{tmp_path}/c/state.db", tmp_path / "c", clock, said.append):
        assert list((tmp_path / "c").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be opened: .*database.url to another place"):
        async with sole(f"sqlite+aiosqlite:///{tmp_path}/file/state.db", tmp_path, clock, print):
            raise AssertionError
