"""The limit of open files: the soft one of most systems (1024) is for programs that use select(2); this one does not."""

import contextlib
import resource

SPARE_FILES = 512
"""File descriptors beside those of connections: database, logs, engines."""


def files_needed(connections: int, in_flight: int) -> int:
    """One for each of `connections` clients, and another for each request that an engine works on (`in_flight` at most)."""
    return connections + min(connections, in_flight) + SPARE_FILES


def raise_limit(connections: int) -> tuple[int, int]:
    """Raises the soft limit to what `connections` clients could ever need, as far as that is allowed; returns what it was
    and what it is now. Engines inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    most = files_needed(connections, connections)
    wanted = most if hard == infinite else min(most, hard)
    if soft == infinite or soft >= wanted:
        return soft, soft
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; then it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return soft, wanted
    return soft, soft
