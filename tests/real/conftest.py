"""Tests on real vLLM: all of them named as not run, with the reason, where it is not installed."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import real_vllm
from serving import REAL_STARTS

DOCS = Path(__file__).parents[2] / "docs" / "transcripts"
RECORD = "MM_RECORD_TRANSCRIPTS"
"""Set to 1: the transcripts in docs/transcripts are written anew."""


WANTED = "MM_REAL_STARTS"
"""Set, in CI, to how many starts of real vLLM there have to be at least, where it is installed."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count, warm = REAL_STARTS.total(), REAL_STARTS["warm"]
    if not isinstance(real_vllm.find(os.environ), str):
        terminalreporter.write_line(f"real vLLM starts: {count} ({warm} warm)")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fewer than CI wants is a failure: the tests that are there for real starts have lost them."""
    wanted = int(os.environ.get(WANTED, "0"))
    if REAL_STARTS.total() < wanted and not isinstance(real_vllm.find(os.environ), str):
        print(f"\nFAILED: {REAL_STARTS.total()} starts of real vLLM, and {WANTED}={wanted}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def vllm() -> real_vllm.Installation:
    found = real_vllm.find(os.environ)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the whole matrix is wanted."""
    return bool(request.config.getoption("--real-full"))


class Transcript:
    """What happened, in order, for people to read."""

    def __init__(self, name: str, title: str) -> None:
        self._name = name
        self._lines = [f"# {title}", ""]
        self._began = datetime.now(UTC)

    def heading(self, text: str) -> None:
        self._lines += ["", f"## {text}", ""]

    def note(self, text: str) -> None:
        """A line with the seconds since the beginning."""
        passed = (datetime.now(UTC) - self._began).total_seconds()
        self._lines.append(f"    {passed:7.1f} s  {text}")

    def write(self) -> None:
        if os.environ.get(RECORD) == "1":
            DOCS.mkdir(parents=True, exist_ok=True)
            (DOCS / self._name).write_text("\n".join(self._lines) + "\n")


@pytest.fixture
def two_models_transcript() -> Iterator[Transcript]:
    """Written when the test is over, also when it failed."""
    transcript = Transcript("two-models.md", "Two models on real vLLM, and memory for one")
    yield transcript
    transcript.write()


@pytest.fixture
def preemption_transcript() -> Iterator[Transcript]:
    transcript = Transcript("preemption.md", "Frozen in the middle of an answer, on real vLLM")
    yield transcript
    transcript.write()


@pytest.fixture
def kills_transcript(launcher: str) -> Iterator[Transcript]:
    name, how = ("kills.md", "started") if launcher == "local" else ("kills-forked.md", "forked from a zygote")
    transcript = Transcript(name, f"SIGKILL on real vLLM, process by process, state by state: engines that are {how}")
    yield transcript
    transcript.write()
