"""A database that is away costs no request and no row: a full disk, and PostgreSQL that was stopped, under load.

MM_DATABASE_AWAY: seconds for which PostgreSQL stands still; a few by default, a minute by hand.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import pytest

from hard_cases import Case, running, sim, until
from postgres import Postgres
from serving import Serving

AWAY = float(os.environ.get("MM_DATABASE_AWAY", "3"))


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of that size. Skips where none can be mounted."""
    with tempfile.TemporaryDirectory(prefix="mm-disk-") as folder:
        options = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", folder]
        done = subprocess.run(options, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    """Until there is no room left."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


class Load:
    """Requests one after the other on several connections, until it is told to stop."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.statuses: list[int] = []
        self._url = url
        self._client = client
        self._over = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, lanes: int = 4) -> "AsyncGenerator[Load]":
        tasks = [asyncio.create_task(self._lane()) for _ in range(lanes)]
        try:
            yield self
        finally:
            self._over.set()
            await asyncio.gather(*tasks)

    async def _lane(self) -> None:
        while not self._over.is_set():
            body = {"model": "a", "prompt": "hi", "max_tokens": 2, "ignore_eos": True}
            answer = await self._client.post(f"{self._url}/v1/completions", json=body)
            self.statuses.append(answer.status_code)
            await asyncio.sleep(0.01)

    async def more(self, count: int) -> None:
        """Until so many more were answered."""
        wanted = len(self.statuses) + count
        await until(lambda: len(self.statuses) >= wanted, f"{count} more answers")


async def reasons(url: str, client: httpx.AsyncClient) -> str:
    """Why the server is not ready; empty when it is."""
    answer = await client.get(f"{url}/ready")
    assert answer.status_code == (503 if answer.json()["reasons"] else 200)
    return "; ".join(answer.json()["reasons"])


async def metric(url: str, client: httpx.AsyncClient, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", (await client.get(f"{url}/metrics")).text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


async def test_a_full_disk() -> None:
    """Under load: every request is answered, `/ready` says why it is not, the rows are in memory and in a file on another disk; and when
    there is room again all of them are in the database, once."""
    with small_disk("6m") as disk, tempfile.TemporaryDirectory() as spool:

        def linked(serving: Serving) -> None:
            serving.data.mkdir(mode=0o700)
            (serving.data / "state.db").symlink_to(disk / "state.db")

        database = {"spool_dir": spool}
        async with running({"a": sim()}, before=linked, database=database) as case:
            await case.ready("a")
            load = Load(case.url, case.client)
            async with load.running():
                await load.more(20)
                filler = fill(disk)

                async def told() -> bool:
                    return "rows of requests wait to be written" in await reasons(case.url, case.client)

                await until(told, "/ready to say it")
                assert "full" in await reasons(case.url, case.client)
                await load.more(20)
                assert (Path(spool) / "requests.jsonl").stat().st_size > 0
                assert await metric(case.url, case.client, "vllm_mm_ledger_waiting") > 0
                filler.unlink()

                async def well() -> bool:
                    return not await reasons(case.url, case.client)

                await until(well, "the database to be well again")
                await load.more(5)
            assert set(load.statuses) == {200}
            assert await case.outcomes(len(load.statuses)) == {"ok": len(load.statuses)}
            assert await metric(case.url, case.client, "vllm_mm_ledger_dropped_total") == 0
            await until(lambda: not (Path(spool) / "requests.jsonl").exists(), "the file to go")


@contextlib.asynccontextmanager
async def on_postgres(postgres: Postgres) -> "AsyncGenerator[tuple[Serving, Case, str]]":
    """A server whose database is PostgreSQL, and the name of that database."""
    url = postgres.migrated()
    name = url.partition("?")[0].rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix="mm-") as folder, tempfile.TemporaryDirectory() as spool:
        config = {
            "database": {"url": url, "spool_dir": spool},
            "timeouts": {"stop_grace": "400ms", "health": "100ms"},
            "queue": {"max_wait": "10m"},
            "devices": [{"id": "sim0", "memory": "48GiB", "simulated": True}],
            "models": {"a": sim(), "b": sim()},
        }
        serving = Serving(Path(folder), config, forked=True)
        async with httpx.AsyncClient(timeout=120) as client:
            try:
                await serving.start()
                yield serving, Case(serving, client, config), name
                assert "Traceback" not in serving.log, serving.log[-5000:]
            finally:
                if not postgres.runs:
                    postgres.start()
                serving.end()


async def test_postgresql_is_stopped(postgres: Postgres) -> None:
    """Under load, for some seconds: resident models serve on, `/ready` says it, nothing is started whose row cannot be written, and the one
    that was wanted meanwhile starts afterwards. Then every row is there, once; also of a server that ended while the database was away."""
    async with on_postgres(postgres) as (serving, case, name):
        await case.ready("a")
        load = Load(case.url, case.client)
        async with load.running():
            await load.more(20)
            postgres.stop()
            stopped = asyncio.get_running_loop().time()
            wanted = asyncio.create_task(case.complete("b", wait=600))

            async def told() -> bool:
                return "rows of requests wait to be written" in await reasons(case.url, case.client)

            await until(told, "/ready to say it")
            await asyncio.sleep(max(0.0, stopped + AWAY - asyncio.get_running_loop().time()))
            await load.more(20)
            assert not wanted.done()
            assert len(case.launches()) == 1, "an engine was started without its row"
            show = [sys.executable, "-m", "vllm_mm.main", "--url", case.url, "show", "a"]
            shown = await asyncio.to_thread(
                subprocess.run, show, capture_output=True, text=True, timeout=60, check=False
            )
            assert (shown.returncode, "state: ready" in shown.stdout) == (0, True), shown
            assert "its last starts: not known" in shown.stdout
            postgres.start()

            async def well() -> bool:
                return not await reasons(case.url, case.client)

            await until(well, "the database to be well again")
            assert (await wanted).status_code == 200
            await load.more(5)
        assert set(load.statuses) == {200}
        total = len(load.statuses) + 1

        def rows() -> str:
            return postgres.sql(
                "SELECT count(*), count(DISTINCT id), min(outcome), max(outcome) FROM requests", name
            ).strip()

        await until(lambda: rows() == f"{total}\t{total}\tok\tok", lambda: f"{total} rows: {rows()}")
        postgres.stop()
        for _ in range(3):
            assert (await case.complete("a")).status_code == 200
        assert await serving.stop() == 0, serving.log[-3000:]
        postgres.start()
        await serving.start()
        await until(lambda: rows().startswith(f"{total + 3}\t{total + 3}\t"), lambda: f"{total + 3} rows: {rows()}")
        kinds = json.loads(postgres.sql("SELECT json_agg(kind) FROM events", name))
        assert kinds.count("instance.ready") == 2
        assert await serving.stop() == 0
        assert serving.left() == {}
