"""What importing vLLM would cost, paid once by the process that imports this module.

`MM_SIM_IMPORTS` (seconds; the profile's key `imports`) is in the environment of engines that have such a cost. A process
forked from one that has paid pays nothing, as with real imports.
"""

import os
import time
from collections.abc import Mapping

from vllm_mm.vocabulary.profile import IMPORTS_VARIABLE


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
    time.sleep(left)
    return left


PAID = cost(os.environ)
"""Seconds that this process, or the one that it was forked from, has paid."""
time.sleep(PAID)
