"""Dead children that nobody waits for.

This process is a subreaper (prctl(2)): whoever loses its parent somewhere below an engine becomes our child. A sweep reaps
those it knew; one that forked away, left its session and died before anybody looked would stay a zombie for as long as the
controller runs, and take a process number with it. So whoever *is* waited for says so, and the others are reaped.
"""

import contextlib
import os

from vllm_mm.engine import procfs

_awaited: dict[int, bool] = {}
"""By pid: whether its whole session is waited for. Of the process, as its children are."""


def expect(pid: int, *, session: bool = False) -> None:
    """Its exit is somebody's to collect; with `session` that of everybody in its session too."""
    _awaited[pid] = session


def done(pid: int) -> None:
    """It is reaped."""
    _awaited.pop(pid, None)


def reap_orphans() -> int:
    """Collect the dead children of other sessions that nobody expects, and tell how many. Cheap: only our own children are
    looked at. Those of our own session are ordinary subprocesses, whose makers wait for them."""
    own, reaped = os.getsid(0), 0
    for pid in procfs.children(os.getpid()):
        stat = procfs.read_stat(pid)
        if stat is None or not stat.dead or stat.sid == own or pid in _awaited or _awaited.get(stat.sid, False):
            continue
        with contextlib.suppress(OSError):
            reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped
