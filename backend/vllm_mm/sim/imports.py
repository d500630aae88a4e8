"""What importing vLLM would cost, paid once by the process that imports this module.

`MM_SIM_IMPORTS` (seconds; the profile's key `imports`) is in the environment of engines that have such a cost. A process
forked from one that has paid pays nothing, as with real imports.
"""

import mmap
import os
import time
from collections.abc import Mapping

from vllm_mm.vocabulary.profile import IMPORTS_VARIABLE

_STEP = 0.05


def cost(environ: Mapping[str, str]) -> float:
    """Seconds; 0 when the variable is missing or no number (an engine does not die of it)."""
    try:
        seconds = float(environ.get(IMPORTS_VARIABLE, "0"))
    except ValueError:
        return 0.0
    return seconds if 0.0 < seconds < 3600.0 else 0.0


def pay(wanted: float) -> float:
    """Sleep for the part of `wanted` seconds that the import has not taken yet; returns that part. For an engine that was
    told on its command line only."""
    left = max(0.0, wanted - PAID)
    _work(left)
    return left


def _work(seconds: float) -> None:
    """Pass the time as imports do: not standing still, for fresh memory is written all the time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            page[0] = 1
        time.sleep(min(left, _STEP))


PAID = cost(os.environ)
"""Seconds that this process, or the one that it was forked from, has paid."""
_work(PAID)
