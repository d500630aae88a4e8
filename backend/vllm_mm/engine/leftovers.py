"""What a launch leaves in the file system: its work directory, its socket, and vLLM's shared memory. Removed only on proof."""

import contextlib
import logging
import os
import shutil
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from vllm_mm.engine import procfs
from vllm_mm.engine.ports import LaunchPlan, LaunchRecord

_LOG = logging.getLogger(__name__)

_MARKER = ".launch"
_SHM = "/dev/shm"  # noqa: S108 - not a temporary file of ours: where the kernel keeps POSIX shared memory
_SHM_PREFIXES = ("psm_", "sem.mp-")
"""What Python's multiprocessing names its segments and semaphores; vLLM leaves both behind when it is killed."""


def prepare(plan: LaunchPlan) -> None:
    """Make the work directory (0700) and put the token into it, which is the licence to delete it later; and the launch's
    TMPDIR if that is inside (Python looks for another place when it is not there).

    Raises OSError with the path when it cannot be made, or is somebody else's.
    """
    plan.workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    plan.workdir.chmod(0o700)
    (plan.workdir / _MARKER).write_text(plan.token)
    temporary = Path(plan.env.get("TMPDIR", "/"))
    if temporary.is_relative_to(plan.workdir):
        temporary.mkdir(parents=True, exist_ok=True, mode=0o700)


def remove(record: LaunchRecord) -> None:
    """Delete the socket and the work directory of a launch that is over. Blocking; safe to repeat."""
    if record.address.socket:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(Path(record.address.socket).lstat().st_mode):
                Path(record.address.socket).unlink()
    workdir = record.workdir
    try:
        ours = not workdir.is_symlink() and (workdir / _MARKER).read_text() == record.token
    except OSError:
        ours = False
    if ours:
        shutil.rmtree(workdir, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            workdir.rmdir()  # an intent that never came to a start leaves it empty; a full one is not ours to judge


class SharedMemory:
    """The segments in /dev/shm that processes of one launch were seen to use.

    A file is removed only when a process of the launch had it mapped, it is still that file (inode), it is ours, no
    older than the launch, and no living process has it mapped. What nobody saw is left alone: a name proves nothing.
    """

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self._seen: dict[Path, int] = {}
        self._lock = threading.Lock()

    def observe(self, pids: Iterable[int]) -> None:
        """Remember what these processes of the launch have mapped now. Blocking."""
        inodes: set[int] = set()
        for pid in pids:
            inodes |= procfs.mapped_inodes(pid, _SHM + "/")
        if not inodes:
            return
        seen: dict[Path, int] = {}
        for path in Path(_SHM).iterdir():
            if path.name.startswith(_SHM_PREFIXES):
                with contextlib.suppress(OSError):
                    inode = path.lstat().st_ino
                    if inode in inodes:
                        seen[path] = inode
        with self._lock:
            self._seen |= seen

    def remove(self) -> None:
        """After the reaping. Blocking."""
        with self._lock:
            seen, self._seen = self._seen, {}
        if not seen:
            return
        in_use: set[int] = set()
        for pid in procfs.pids():
            in_use |= procfs.mapped_inodes(pid, _SHM + "/")
        for path, inode in seen.items():
            with contextlib.suppress(OSError):
                status = path.lstat()
                same = status.st_ino == inode and status.st_uid == os.getuid()
                # A second of slack: the record's time and the file system's clock are not read together.
                fresh = status.st_ctime >= self._started_at - 1.0
                if same and fresh and inode not in in_use:
                    path.unlink()
                    _LOG.info("removed %s, which a launch left behind", path)
