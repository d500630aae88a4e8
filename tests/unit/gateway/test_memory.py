"""A server's memory settings, in a process of its own because they last."""

import subprocess
import sys

SCRIPT = """
import gc
from vllm_mm.gateway.memory import settle
settle()
print(gc.get_freeze_count() > 1000, gc.get_threshold()[0] > 700, gc.isenabled())
blob = bytearray(8 << 20)
"""


def test_settle() -> None:
    """What is loaded is not collected again, and the collector runs less often but does run."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "True"]
    assert done.stderr == ""
