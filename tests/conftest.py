"""Options of the whole suite, and what holds for all of it."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import real_vllm
import serving
from postgres import postgres  # noqa: F401  # a fixture
from rig import zombies

# How long an example takes says something about the machine, and nothing about the product.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-full", action="store_true", default=False,
        help="real vLLM: every kill in every state and the embedding model too, not only the part that CI has time for",
    )  # fmt: skip


def pytest_configure() -> None:
    """As from a terminal, also when whoever runs the tests in the background had these ignored: children inherit that."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_sessionfinish() -> None:
    real_vllm.end_zygotes()
    serving.end_forkeries()


@pytest.fixture(autouse=True, scope="module")
def no_zombies() -> Iterator[None]:
    """A module leaves no dead child of this process. Whoever makes a launcher has orphans handed to this process; that ends
    with the module too, so that those of other tests go where they always go."""
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    left = zombies()
    for process in left:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    assert not left, f"zombies: {left}"
