"""Mutants: each takes one protection out of the product, and the named tests have to notice.

    python tests/mutants.py            all of them
    python tests/mutants.py NAME ...   some

Works on a copy; the checkout is not touched. Exits 1 when a mutant survives, or no longer applies.
"""

import importlib
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mutations import configuration, core, data_plane, keys, live, processes, records, swaps, workers
from mutations.kinds import Mutant

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    "pytest", "fastapi", "httpx", "uvicorn", "uvloop", "sqlalchemy.ext.asyncio", "aiosqlite",
    "alembic.command", "pydantic_settings", "msgspec", "yaml", "typer", "prometheus_client", "psutil", "websockets", "rich.console",
)  # fmt: skip
"""Nothing of ours. Each run of the tests is a fork that has these already: importing them takes longer than most of the tests."""
BROKEN = 3
"""Exit code of a run in which pytest itself raised."""
LONGEST = 240.0
"""Seconds for the tests of one mutant. Those that hang have noticed it, though nobody wants to wait for that."""
WORKERS = 2
"""At once: each waits more than it works."""
MUTANTS = (
    *data_plane.MUTANTS,
    *processes.MUTANTS,
    *swaps.MUTANTS,
    *core.MUTANTS,
    *workers.MUTANTS,
    *records.MUTANTS,
    *live.MUTANTS,
    *keys.MUTANTS,
    *configuration.MUTANTS,
)


class Workshop:
    """A copy of the product in which one mutant after the other is tried. What Python compiled in it stays for the next."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        for part in ("backend", "tests", "migrations"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("static", "node_modules"))
        for part in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / part, folder / part)

    def survives(self, mutant: Mutant) -> str | None:
        """Why the mutant is a problem, or None when the tests noticed it."""
        file = self._root / mutant.file
        source = changed = file.read_text()
        for old, new in ((mutant.old, mutant.new), *mutant.more):
            if changed.count(old) != 1:
                return f"its text occurs {changed.count(old)} times in {mutant.file}: rewrite the mutant\n{old}"
            changed = changed.replace(old, new)
        log = self._root / "pytest.log"
        try:
            self._write(file, changed)
            code = self._pytest(log, mutant.tests)
        finally:
            self._write(file, source)
        if code == 1 or (code == BROKEN and _failed(log.read_text(errors="replace"))):
            return None  # what a failed test left open may break pytest's own end
        if code == 0:
            return f"SURVIVED: {mutant.what}, and {', '.join(mutant.tests)} did not notice"
        return f"pytest could not run (exit {code}):\n{log.read_text(errors='replace')[-4000:]}"

    def _pytest(self, log: Path, tests: tuple[str, ...]) -> int:
        """Its exit code, in a fork."""
        pid = os.fork()
        if not pid:
            code = BROKEN
            try:
                os.setsid()
                os.chdir(self._root)
                os.environ["PYTHONPATH"] = str(self._root / "backend")  # servers and engines are mutants too
                fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(fd, 1)
                os.dup2(fd, 2)
                sys.argv = ["pytest"]
                sys.path[:] = [p for p in sys.path if Path(p).resolve() != ROOT / "tests"]
                code = int(importlib.import_module("pytest").main(
                    ["-q", "-x", "-p", "no:cacheprovider", "--timeout=60", "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]
                ))  # fmt: skip
                sys.stdout.flush()
            except BaseException:  # told in the log; nothing of the parent may run here
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return 1

    def _write(self, file: Path, text: str) -> None:
        """Also out of Python's cache, which goes by times in whole seconds."""
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()


def _failed(log: str) -> bool:
    """Whether a test had failed: in the summary, or in the marks of the tests so far if it broke before that."""
    return "\nFAILED " in log or re.match(r"\s*[.sxXE]*F(?!ile |AILED)", log) is not None


_WORKSHOP: list[Workshop] = []
"""Of this process."""


def _open(folder: str) -> None:
    _WORKSHOP.append(Workshop(Path(tempfile.mkdtemp(dir=folder))))


def _survives(name: str) -> str | None:
    return _WORKSHOP[0].survives(next(m for m in MUTANTS if m.name == name))


def main(names: list[str]) -> int:
    unknown = set(names) - {m.name for m in MUTANTS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    chosen = [m for m in MUTANTS if not names or m.name in names]
    began, problems = time.monotonic(), 0
    for name in IMPORTED:
        importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(WORKERS, mp_context=fork, initializer=_open, initargs=(folder,)) as pool,
    ):
        for mutant, problem in zip(chosen, pool.map(_survives, [m.name for m in chosen]), strict=True):
            problems += problem is not None
            print(
                f"{'killed ' if problem is None else 'PROBLEM'} {mutant.name}{'' if problem is None else ': ' + problem}",
                flush=True,
            )
    print(f"{len(chosen) - problems} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
