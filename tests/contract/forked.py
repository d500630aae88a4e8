"""Engines and servers forked from one zygote, for the tests that otherwise start them: the same object as `subprocess.Popen` is."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from vllm_mm.engine.launchers import zygote
from vllm_mm.engine.launchers.local import become_subreaper
from vllm_mm.engine.launchers.recipe import Recipe, Warmth

BACKEND = Path(__file__).parents[2] / "backend"
MAIN = str(BACKEND / "vllm_mm" / "sim" / "__main__.py")
SERVER = Warmth(
    Recipe(
        python=sys.executable,
        kind="plain",
        entry="vllm_mm.main:run",
        modules=("vllm_mm.main", "vllm_mm.main.server", "alembic.command", "aiosqlite"),
        env=(),
        stamp="",
    ),
    argv=(),
    script=str(BACKEND / "vllm_mm" / "main" / "__main__.py"),
)
"""The controller itself. Importing what it needs is most of its start, and most of what a test of one costs the processor."""


class Forked:
    """What was forked: our child, as one that was started is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """`timeout` in seconds; None is a minute."""
        timeout = 60.0 if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def _orphans_are_ours() -> Iterator[None]:
    """The process between zygote and engine ends; then the engine is an orphan. Afterwards they go where they went before."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(37, ctypes.byref(before), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    become_subreaper()
    try:
        yield
    finally:
        libc.prctl(36, before.value, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


class Forkery:
    """One zygote. `mark` is the variable that every engine shows, with a value as long as `blank`."""

    def __init__(
        self, mark: str, warm: Warmth | None = None, env: Mapping[str, str] = os.environ, blank: str = "0" * 32
    ) -> None:
        """For what `warm` says; by default for simulated engines."""
        self._mark = mark
        self._known: set[str] = set()
        self._script = warm.script if warm is not None else None
        python, libraries = (warm.recipe.python, ["--libraries"]) if warm is not None else (sys.executable, [])
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [python, zygote.__file__, *libraries, zygote.room_for("zygote of a test")],
                env={**env, "SPT_NOENV": "1", mark: blank, **({} if warm else {"PYTHONPATH": str(BACKEND)})},
                stdin=theirs, start_new_session=True,
            )  # fmt: skip
        prepare = {
            "op": "prepare",
            "kind": "plain",
            "entry": "vllm_mm.sim.launch:main",
            "architectures": [],
            "model_types": [],
        }
        modules: Sequence[str] = ["vllm_mm.sim.launch", "vllm_mm.sim.server"]
        if warm is not None:
            prepare |= {"kind": warm.recipe.kind, "entry": warm.recipe.entry}
            modules = warm.recipe.modules
        answer = self._ask({**prepare, "modules": modules})
        assert answer["ready"], answer

    def learn(self, warm: Warmth) -> None:
        """Import what one model needs."""
        wanted = {*warm.needs.architectures, *warm.needs.model_types}
        if not wanted <= self._known:
            needs = {"architectures": warm.needs.architectures, "model_types": warm.needs.model_types}
            answer = self._ask({"op": "import", "modules": [], **needs})
            assert answer["ready"], answer
            self._known |= wanted

    def fork(self, args: Sequence[str], env: Mapping[str, str], log: BinaryIO) -> Forked:
        """`args`: of the simulated engine; the whole argument list of any other."""
        ours, theirs = socket.socketpair()
        with ours, _orphans_are_ours():
            with theirs:
                request = {
                    "op": "fork",
                    "argv": [*args] if self._script else [MAIN, *args],
                    "script": self._script,
                    "env": dict(env),
                    "marks": {self._mark: env[self._mark]},
                }
                zygote.write_frame(self._channel, request, [log.fileno(), theirs.fileno()])
            answer, fds = zygote.read_frame(ours, 20)
            for fd in fds:
                os.close(fd)
            assert answer is not None
            assert "pid" in answer, answer
            ours.send(zygote.GO)
        return Forked(answer["pid"])

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait(5)

    def _ask(self, message: zygote.Message) -> zygote.Message:
        zygote.write_frame(self._channel, message)
        answer, _ = zygote.read_frame(self._channel, 180)
        assert answer is not None, "the zygote ended"
        return answer
