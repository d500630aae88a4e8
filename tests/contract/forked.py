"""Simulated engines forked from one zygote, for the tests that otherwise start them: the same object as `subprocess.Popen` is."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from vllm_mm.engine.launchers import zygote
from vllm_mm.engine.launchers.local import become_subreaper

BACKEND = Path(__file__).parents[2] / "backend"
MAIN = str(BACKEND / "vllm_mm" / "sim" / "__main__.py")


class Forked:
    """A forked engine: our child, as one that was started is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked engine", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forkery:
    """One zygote with the simulated engine's modules. `mark` is the variable that every engine shows, 32 characters long."""

    def __init__(self, mark: str) -> None:
        become_subreaper()
        self._mark = mark
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, zygote.__file__, " " * zygote.TITLE_BYTES],
                env={**os.environ, "PYTHONPATH": str(BACKEND), "SPT_NOENV": "1", mark: "0" * 32}, stdin=theirs, start_new_session=True,
            )  # fmt: skip
        answer = self._ask({
            "op": "prepare", "kind": "plain", "entry": "vllm_mm.sim.launch:main", "architectures": [], "model_types": [],
            "modules": ["vllm_mm.sim.launch", "vllm_mm.sim.server"],
        })  # fmt: skip
        assert answer["ready"], answer

    def fork(self, args: Sequence[str], env: Mapping[str, str], log: BinaryIO) -> Forked:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                request = {
                    "op": "fork",
                    "argv": [MAIN, *args],
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
        answer, _ = zygote.read_frame(self._channel, 60)
        assert answer is not None, "the zygote ended"
        return answer
