"""Dead children that nobody waits for.

This process is a subreaper (prctl(2)): whoever loses its parent somewhere below an engine becomes our child. A sweep reaps
those it knew; one that forked away, left its session and died before anybody looked would stay a zombie for as long as the
controller runs, and take a process number with it. So whoever *is* waited for says so, and the others are reaped.
"""

import contextlib
import os
import time

from vllm_mm.engine import procfs

_awaited: dict[int, bool] = {}
"""By pid: whether its whole session is waited for. Of the process, as its children are."""

_looked_at = 0.0
"""Monotonic seconds of the last look."""


def expect(pid: int, *, session: bool = False) -> None:
    """Its exit is somebody's to collect; with `session` that of everybody in its session too."""
    _awaited[pid] = session


def done(pid: int) -> None:
    """It is reaped."""
    _awaited.pop(pid, None)


def reap_orphans(*, rest: float = 0.0) -> int:
    """Collect the dead children of other sessions that nobody expects, and tell how many. Cheap: only our own children are
    looked at. Those of our own session are ordinary subprocesses, whose makers wait for them. Nothing is done when the last look
    was less than `rest` seconds ago: each engine asks for one now and then."""
    global _looked_at  # noqa: PLW0603  # of the process, as its children are
    now = time.monotonic()
    if now - _looked_at < rest:
        return 0
    _looked_at = now
    own, reaped = os.getsid(0), 0
    for pid in procfs.children(os.getpid()):
        stat = procfs.read_stat(pid)
        if stat is None or not stat.dead or stat.sid == own or pid in _awaited or _awaited.get(stat.sid, False):
            continue
        with contextlib.suppress(OSError):
            reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped
