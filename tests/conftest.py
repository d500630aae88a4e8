"""Options of the whole suite, and what holds for all of it."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import pytest

import real_vllm
from vllm_mm.engine import procfs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-full", action="store_true", default=False,
        help="real vLLM: every kill in every state and the embedding model too, not only the part that CI has time for",
    )  # fmt: skip


def pytest_sessionfinish() -> None:
    real_vllm.end_zygotes()


@pytest.fixture(autouse=True, scope="module")
def no_zombies() -> Iterator[None]:
    """A module leaves no dead child of this process. Whoever makes a launcher has orphans handed to this process; that ends
    with the module too, so that those of other tests go where they always go. Orphans of engines that a test ran without the
    product (they are in their leader's session, and no session of theirs or ours) are nobody's: they are reaped here."""
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    dead = [s for s in procfs.table().values() if s.ppid == os.getpid() and s.dead]
    for stat in dead:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(stat.pid, os.WNOHANG)
    left = [stat for stat in dead if stat.sid in {stat.pid, os.getsid(0)}]
    assert not left, f"zombies: {left}"
