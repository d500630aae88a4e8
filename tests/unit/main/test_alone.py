"""One controller per data directory: who comes second waits a while, and is told for whom."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_mm.control import rules
from vllm_mm.domain.errors import ConfigError
from vllm_mm.main import alone as module
from vllm_mm.main.alone import alone


class Time:
    """Passes only while somebody sleeps; `then` is called at each sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_second_one_is_told_at_once_whom_it_waits_for(
    tmp_path: Path, time: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the pid and how long, before the first wait; once; and it refuses only when the time is over."""
    with alone(tmp_path / "d"):
        said: list[str] = []
        time.then = lambda: said.append(capsys.readouterr().err)
        refusal = rf"another vllm-mm \(pid {os.getpid()}\) serves from .* --data-dir"
        with pytest.raises(ConfigError, match=refusal), alone(tmp_path / "d"):
            pytest.fail("two at once")
        assert said[0] == f"vllm-mm: waiting for another vllm-mm (pid {os.getpid()}) to end, up to 10 s\n"
        assert set(said[1:]) == {""}
        assert time.now >= module.PATIENCE


def test_it_goes_on_when_the_first_one_ends(tmp_path: Path, time: Time) -> None:
    """As at an upgrade; and nobody waits for one that is gone."""
    first = contextlib.ExitStack()
    first.enter_context(alone(tmp_path / "d"))
    time.then = lambda: first.close() if time.now > 1 else None
    with alone(tmp_path / "d"):
        assert 1 < time.now < 2
    before = time.now
    with alone(tmp_path / "d"):
        assert time.now == before


def test_a_killed_one_holds_nothing(tmp_path: Path, time: Time) -> None:
    """Its pid is still in the file, but the kernel gave its lock back."""
    code = f"from pathlib import Path; from vllm_mm.main.alone import alone; import os\nwith alone(Path({str(tmp_path / 'd')!r})): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 9
    with alone(tmp_path / "d"):
        assert time.now == 0
        assert (tmp_path / "d" / "lock").read_text() == f"{os.getpid()}\n"


def test_the_directory_of_sockets_goes_when_it_is_empty(tmp_path: Path) -> None:
    """What an engine that was handed over has in it stays."""
    (tmp_path / "run" / "engine").mkdir(parents=True)
    rules.leave(tmp_path / "run")
    assert (tmp_path / "run" / "engine").is_dir()
    (tmp_path / "run" / "engine").rmdir()
    rules.leave(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    rules.leave(tmp_path / "run")
