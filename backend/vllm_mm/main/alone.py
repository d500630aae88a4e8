"""One controller per data directory."""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

from vllm_mm.control import rules
from vllm_mm.domain.errors import ConfigError

PATIENCE = 10.0
"""Seconds that a predecessor has for its end: it may be handing its engines over."""


@contextlib.contextmanager
def alone(data_dir: Path) -> Generator[None]:
    """Holds the data directory; waits for a predecessor, and says so. Raises ConfigError when there still is one.

    The kernel gives the lock back with the process, whatever its end, so that none is ever left behind.
    """
    path = rules.private(data_dir) / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}. Set paths.data_dir to another place.") from error
    try:
        _wait(lock, data_dir)
        # For the message of the next one; on a full disk that one does without.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _wait(lock: int, data_dir: Path) -> None:
    end = time.monotonic() + PATIENCE
    told = False
    while not _taken(lock):
        who = _holder(lock)
        if not told:
            print(f"vllm-mm: waiting for {who} to end, up to {PATIENCE:.0f} s", file=sys.stderr, flush=True)
            told = True
        if time.monotonic() > end:
            raise ConfigError(f"{who} serves from {data_dir}. Stop it, or give this one its own --data-dir.")
        time.sleep(0.05)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> str:
    pid = os.pread(lock, 20, 0).strip()
    return "another vllm-mm" + (f" (pid {pid.decode()})" if pid.isdigit() else "")
