"""The workers: with several ranks, a process for each (`VLLM::Worker_TP0`, ...), children of the engine core.

A worker ends `worker_linger` after its core, and the core's executor notices the death of one at once, ends the others (within
its patience, then by force), and takes the core with it, as vLLM's MultiprocExecutor does.
"""

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import NoReturn

from vllm_mm.sim.log import Log
from vllm_mm.sim.options import Options
from vllm_mm.sim.profile import Profile
from vllm_mm.sim.title import set_title

_PATIENCE = 4.0
"""Seconds that the executor gives the other workers to end by themselves."""


@dataclass(slots=True)
class Workers:
    """Of one core; none with one rank."""

    pids: tuple[int, ...]
    descriptors: tuple[int, ...]
    """A pidfd of each, for `select`: readable when it is dead."""
    _keep: int
    """The end of the pipe that tells them that the core lives."""

    def dead(self, timeout: float = 0.0) -> bool:
        """Whether one has died; waits up to `timeout` seconds for that."""
        return bool(select.select(self.descriptors, [], [], timeout)[0])

    def shut_down(self, log: Log) -> None:
        """One has died: say so, and end the others as the executor does."""
        [first, *_] = select.select(self.descriptors, [], [])[0]
        rank = self.descriptors.index(first)
        result = os.waitid(os.P_PID, self.pids[rank], os.WEXITED | os.WNOWAIT)
        code = 0 if result is None else result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        log.alarm(
            "multiproc_executor.py:315",
            f"Worker proc VllmWorker-{rank} died unexpectedly (exit code: {code}), shutting down executor.",
        )
        os.close(self._keep)
        self._keep = -1
        until = time.monotonic() + _PATIENCE
        left = set(self.descriptors)
        while left and (seconds := until - time.monotonic()) > 0:
            left -= set(select.select(left, [], [], seconds)[0])
        self.end()

    def end(self) -> None:
        """Kill and reap all of them; harmless when repeated."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.pids = ()


def fork_workers(options: Options, line: socket.socket) -> Workers:
    """`line`: the core's, which the workers have no part in."""
    if options.tensor_parallel_size == 1:
        return Workers((), (), -1)
    alive, keep = os.pipe()
    pids: list[int] = []
    for rank in range(options.tensor_parallel_size):
        pid = os.fork()
        if pid == 0:
            os.close(keep)
            line.close()
            _work(rank, alive, options.profile)
        pids.append(pid)
    os.close(alive)
    return Workers(tuple(pids), tuple(os.pidfd_open(pid) for pid in pids), keep)


def _work(rank: int, alive: int, profile: Profile) -> NoReturn:
    try:
        set_title(f"VLLM::Worker_TP{rank}", keep_environment=not profile.fault.wipe_environment)
        os.read(alive, 1)
        time.sleep(profile.worker_linger)
    finally:
        os._exit(0)
