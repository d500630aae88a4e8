"""Real processes, each test with an owner mark of its own, and none of them left when it ends."""

import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rig import Rig, marked
from vllm_mm.clock import RealClock
from vllm_mm.engine.launchers.local import LocalLauncher


@pytest.fixture
def owner() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def nothing_left(owner: str) -> Iterator[None]:
    """No test leaves a process: each with its mark is gone at the end, and is killed if it is not."""
    yield
    left = marked(owner)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


@pytest.fixture
async def rig(owner: str, tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(owner, tmp_path, LocalLauncher(owner, RealClock()))
    yield made
    for process in made.started:
        await process.stop(graceful=False, grace=0, deadline=5)
        await process.close()
