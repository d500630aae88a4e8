"""The suite in parts: nothing is left out, and what they came to is told."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import parts

TESTS = Path(__file__).parents[2]


def test_every_folder_is_in_one_part() -> None:
    """Also one that is added tomorrow."""
    folders = [p.name for p in TESTS.iterdir() if p.is_dir() and any(p.rglob("test_*.py"))]
    found = [path for paths in parts.split([*folders, "new"]).values() for path in paths]
    assert sorted(found) == sorted(f"tests/{name}" for name in [*folders, "new"])
    assert not list(TESTS.glob("test_*.py")), "a file of tests outside of the folders would be in no part"
    assert {*parts.WORK, *parts.ENGINES} <= set(folders)


LOG = """
...............F                                                         [ 50%]
=================================== FAILURES ===================================
boom in 3 places
=========================== short test summary info ============================
FAILED tests/a.py::test_b - assert 1 == 2
============= 1 failed, 12 passed, 3 skipped in 65.33s (0:01:05) ==============
real vLLM starts: 3 (2 warm)
"""


def test_counts_are_read_and_added() -> None:
    """From pytest's last line, whatever else is printed behind it; in pytest's words."""
    assert parts.counts(LOG) == {"failed": 1, "passed": 12, "skipped": 3}
    assert parts.counts("no such line") == {}
    both = [parts.counts(LOG), Counter({"passed": 8, "error": 1})]
    assert parts.total(both, 65.0).strip("= ") == "1 failed, 20 passed, 3 skipped, 1 error in 65.00s (1 min 5 s)"


def test_what_is_shown_begins_with_the_failures() -> None:
    """Not with the dots; a log without any of it is shown from its last lines."""
    assert parts.shown(LOG).startswith("=================================== FAILURES")
    assert parts.shown("Traceback\n") == "Traceback"


def test_all_run_and_the_worse_one_counts(tmp_path: Path) -> None:
    """In a tree of its own: two parts with tests, two summaries, one last line."""
    for folder, text in (("unit", "assert True"), ("real", "assert False")):
        path = tmp_path / "tests" / folder / "test_one.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"def test_it() -> None:\n    {text}\n")
    (tmp_path / "tests/parts.py").write_text((TESTS / "parts.py").read_text())
    run = subprocess.run(
        [sys.executable, "tests/parts.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "part `work` (tests/unit): exit code 0" in run.stdout
    assert "part `engines` (tests/real): exit code 1" in run.stdout
    assert run.stdout.splitlines()[-1].strip("= ").startswith("1 failed, 1 passed in")
    assert "part `engines`: once more, alone: tests/real/test_one.py::test_it" in run.stdout, "it fails again"


def test_few_failures_of_real_processes_get_a_second_run() -> None:
    """Not what needs no clock, not chaos, and not when many fail."""
    real = [f"tests/integration/test_a.py::test_{n}" for n in range(5)]
    assert parts.once_more(real[: parts.FEW])
    assert not parts.once_more(real[: parts.FEW + 1])
    assert not parts.once_more([real[0], "tests/unit/test_b.py::test_c"])
    assert not parts.once_more(["tests/chaos/test_chaos.py::test_chaos[sim]"])
    assert not parts.once_more([])


def test_what_passes_alone_is_named_as_unsteady(tmp_path: Path) -> None:
    """With its first failure, and the run does not fail for it; what passed the first time is not run again."""
    path = tmp_path / "tests" / "process" / "test_one.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from pathlib import Path\n"
        "def test_unlucky() -> None:\n    there = Path('there').exists()\n    Path('there').touch()\n    assert there\n"
        "def test_other() -> None:\n    assert not Path('other').exists()\n    Path('other').touch()\n"
    )
    (tmp_path / "tests/parts.py").write_text((TESTS / "parts.py").read_text())
    run = subprocess.run(
        [sys.executable, "tests/parts.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "FAILED tests/process/test_one.py::test_unlucky" in run.stdout
    assert "UNSTEADY (failed beside others, passed alone): tests/process/test_one.py::test_unlucky" in run.stdout
    assert run.stdout.splitlines()[-1].strip("= ").startswith("1 passed, 1 unsteady in")
