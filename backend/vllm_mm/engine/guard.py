"""A small process that ends the engines when their controller dies, for `engines_outlive_controller: false`.

PR_SET_PDEATHSIG will not do: it goes by the thread that forked, and reaches the leader alone, not its children. The guard
holds the reading end of a pipe; its end without a word before means that the controller died.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Generator

from vllm_mm.clock import RealClock
from vllm_mm.engine import children
from vllm_mm.engine.launchers.local import LocalLauncher

BYE = b"bye\n"
DEADLINE = 30.0
"""Seconds for killing what is left."""


@contextlib.contextmanager
def guarded(owner: str) -> Generator[None]:
    """While this is entered, the death of this process ends all engines of `owner`; leaving it ends only the guard."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "vllm_mm.engine.guard", owner], stdin=subprocess.PIPE, start_new_session=True
    )
    children.expect(guard.pid)
    try:
        yield
    finally:
        if guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                guard.stdin.write(BYE)
                guard.stdin.close()
        guard.wait(DEADLINE)
        children.done(guard.pid)


def main(owner: str) -> int:
    """Wait for the end of the controller, then kill what it left. Exit code 1 when something survives."""
    said = b""
    while chunk := os.read(0, 64):
        said += chunk
    if said.endswith(BYE):
        return 0
    report = asyncio.run(LocalLauncher(owner, RealClock()).sweep_unknown(frozenset(), DEADLINE))
    return 1 if report.survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
