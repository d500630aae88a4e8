"""The whole suite in three pytest runs side by side, for `scripts/test`: what works, what mostly waits, and what brings up engines.

Each writes its own log in .state; its failures, its slowest tests and its summary are shown when it ends, and the counts of all
in the last line. Arguments go to all. Folders are not split further: tests of one folder may measure time beside other
folders', not beside one another.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".state"
WORK = ("unit", "stateful", "migrations")
"""Folders whose tests need the processor and no clock."""
ENGINES = ("contract", "chaos", "real")
"""Folders with all starts of real vLLM, which are counted together; the rest is in `wait`."""
TELL = 60.0
"""Seconds between two lines that say how far it is."""


def split(folders: list[str]) -> dict[str, list[str]]:
    """Paths of each part. Every folder with tests is in one of them."""
    return {
        "work": [f"tests/{name}" for name in folders if name in WORK],
        "wait": [f"tests/{name}" for name in folders if name not in (*WORK, *ENGINES)],
        "engines": [f"tests/{name}" for name in folders if name in ENGINES],
    }


def shown(log: str) -> str:
    """What people want to see of a run that is over: errors, failures, warnings and the summary."""
    found = re.search(
        r"^=+ (ERRORS|FAILURES|warnings summary|slowest .*durations|short test summary info) =+$", log, re.MULTILINE
    )
    return log[found.start() :] if found else "\n".join(log.splitlines()[-15:])


def counts(log: str) -> Counter[str]:
    """Of the last line: how many passed, failed, and so on. Empty when the run came to none."""
    lines = [line for line in log.splitlines() if re.search(r"\bin \d[\d.]*s\b", line)]
    return Counter(
        {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", lines[-1].split(" in ")[0])} if lines else {}
    )


def total(parts: list[Counter[str]], seconds: float) -> str:
    """As pytest's own last line."""
    added = sum(parts, Counter[str]())
    order = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error", "errors")
    words = ", ".join(f"{added[word]} {word}" for word in order if added[word])
    return f" {words or 'no tests ran'} in {seconds:.2f}s ({int(seconds) // 60} min {int(seconds) % 60} s) ".center(
        80, "="
    )


@dataclass
class Part:
    """One run of pytest."""

    name: str
    paths: list[str]
    arguments: list[str]
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.path = STATE / f"test-{self.name}.log"
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", "-o", f"cache_dir={STATE}/pytest-{self.name}"),
                    *("--durations=25", "--durations-min=3", *self.paths, *self.arguments),
                ],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def progress(self) -> str:
        """In percent of its tests."""
        found = re.findall(r"\[ *(\d+)%\]", self.log)
        return f"{self.name} {found[-1] if found else 0} %"

    def finish(self) -> None:
        """Say what came of it."""
        took = time.monotonic() - self.began
        print(
            f"\n===== part `{self.name}` ({', '.join(self.paths)}): exit code {self.process.returncode}, {took:.0f} s, all of it in {self.path}"
        )
        print(shown(self.log), flush=True)

    def end(self) -> None:
        """As Ctrl-C does, so that fixtures tidy up; then by force."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    STATE.mkdir(mode=0o700, exist_ok=True)
    folders = sorted(p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and any(p.rglob("test_*.py")))
    began = told = time.monotonic()
    running = parts = [Part(name, paths, arguments) for name, paths in split(folders).items() if paths]
    try:
        while running:
            time.sleep(0.5)
            for part in [p for p in running if p.process.poll() is not None]:
                part.finish()
            running = [p for p in running if p.process.returncode is None]
            if running and time.monotonic() - told > TELL:
                told = time.monotonic()
                print(f"tests: {told - began:.0f} s: {', '.join(p.progress() for p in running)}", flush=True)
    finally:
        for part in running:
            part.end()
    print(f"\n{total([counts(p.log) for p in parts], time.monotonic() - began)}", flush=True)
    return next((p.process.returncode for p in parts if p.process.returncode), 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
