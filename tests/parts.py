"""The whole suite in three pytest runs side by side, for `scripts/test`: what works, what mostly waits, and what brings up engines.

Each writes its own log in .state; its failures, its slowest tests and its summary are shown when it ends, and the counts of all
in the last line. Arguments go to all. Folders are not split further: tests of one folder may measure time beside other
folders', not beside one another.

Tests of real processes need the processor in time, which a machine with other guests does not promise. A few of them that fail
are run once more, alone, when everything else is over. Those that pass then are named as unsteady, with their first failure
above, and do not fail the run. Whatever needs no clock, and chaos, whose next run would be another one, has no second run.
"""

import json
import os
import re
import shutil
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
ONE_RUN = ("chaos",)
"""Folders, besides `WORK`, whose failures stand."""
FAILURES = 1
"""pytest's exit code when tests failed and nothing worse happened."""
FEW = 3
"""More failures than these are no accident."""
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
    order = (
        "failed",
        "passed",
        "unsteady",
        "skipped",
        "deselected",
        "xfailed",
        "xpassed",
        "warnings",
        "error",
        "errors",
    )
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
        self.cache = STATE / f"pytest-{self.name}"
        again = {"MM_REAL_STARTS": "0"} if "--lf" in self.arguments else {}  # the whole part was counted before
        if not again:
            shutil.rmtree(self.cache, ignore_errors=True)
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", "-o", f"cache_dir={self.cache}"),
                    *("--durations=25", "--durations-min=3", *self.paths, *self.arguments),
                ],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "160", **again},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    @property
    def failed(self) -> list[str]:
        """Node ids of what failed."""
        try:
            return list(json.loads((self.cache / "v" / "cache" / "lastfailed").read_text()))
        except OSError:
            return []

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
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def once_more(failed: list[str]) -> bool:
    """Whether these failures may be an accident of the machine's."""
    folders = {node.split("/")[1] for node in failed}
    return 0 < len(failed) <= FEW and not folders & {*WORK, *ONE_RUN}


def repeat(parts: list[Part]) -> int:
    """Run what failed alone, one part after the other. The exit code of the first that fails again."""
    for part in [p for p in parts if p.process.returncode]:
        failed = part.failed
        if not failed:
            return part.process.returncode  # something else than a test
        print(f"\n===== part `{part.name}`: once more, alone: {', '.join(failed)}", flush=True)
        shutil.copy(part.path, part.path.with_suffix(".first.log"))
        again = Part(part.name, part.paths, [*part.arguments, "--lf"])
        try:
            again.process.wait()
        finally:
            again.end()
        again.finish()
        if again.process.returncode:
            return again.process.returncode
        print("".join(f"UNSTEADY (failed beside others, passed alone): {node}\n" for node in failed), flush=True)
    return 0


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
    counted = [counts(p.log) for p in parts]
    code = next((p.process.returncode for p in parts if p.process.returncode), 0)
    if code == FAILURES and once_more([node for p in parts for node in p.failed]):
        code = repeat(parts)
        for count in counted if not code else ():
            count["unsteady"] = sum(count.pop(word, 0) for word in ("failed", "error", "errors"))
    print(f"\n{total(counted, time.monotonic() - began)}", flush=True)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
