"""Telling Python's collector and C's allocator that this process is a server: many short-lived objects, a few large ones."""

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 32 << 20


def settle() -> None:
    """Call once, when everything is loaded and before the first request.

    What exists now is not looked at again by the collector (gc.freeze), and it runs less often: a request leaves no
    cycles behind, so there is little to find. Bodies of megabytes come from memory that is kept, instead of being
    mapped and faulted in for each one (mallopt(3); without glibc this part does nothing).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)
