"""The limit of open files: the soft one of most systems (1024) is for programs that use select(2); this one does not."""

import contextlib
import resource

SPARE_FILES = 512
"""File descriptors beside those of connections: database, logs, engines."""


def files_needed(connections: int) -> int:
    """For `connections` clients at the same time: each takes one descriptor, and another towards its engine."""
    return 2 * connections + SPARE_FILES


def raise_limit(connections: int) -> tuple[int, int]:
    """Raises the soft limit as far as needed and allowed; returns what it was and what it is now. Engines inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    wanted = files_needed(connections) if hard == infinite else min(files_needed(connections), hard)
    if soft == infinite or soft >= wanted:
        return soft, soft
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; then it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return soft, wanted
    return soft, soft
