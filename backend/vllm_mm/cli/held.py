"""Whether a server runs here, as its lock tells."""

import fcntl
import os
from pathlib import Path


def held(data_dir: Path) -> bool:
    """Whether a server runs on this data directory."""
    try:
        fd = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
