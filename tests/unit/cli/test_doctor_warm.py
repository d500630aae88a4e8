"""What `doctor` says of warm starts."""

import asyncio
import sys
from pathlib import Path

import pytest

from vllm_mm.cli import doctor_warm
from vllm_mm.cli.checks import Finding
from vllm_mm.cli.doctor_warm import saved, warm_starts
from vllm_mm.clock import RealClock
from vllm_mm.control.declared import catalog
from vllm_mm.domain.launches import StartRecord
from vllm_mm.settings import Settings, load
from vllm_mm.store.database import Database
from vllm_mm.store.launches import Launches
from vllm_mm.store.migrate import upgrade


def start(seconds: float | None, phase: str) -> StartRecord:
    return StartRecord("m", 1, 100.0, None if seconds is None else 100.0 + seconds, {phase: 1.0}, "ready", "")


class Doctor:
    """Its findings about a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def settings(self, models: str) -> Settings:
        file = self.folder / "vllm-mm.yaml"
        file.write_text(f"devices: cpu\npaths: {{data_dir: {self.folder}/d}}\nmodels: {models}\n")
        return load(file, None, {"HOME": str(self.folder)})

    def __call__(self, models: str) -> list[Finding]:
        settings = self.settings(models)
        return list(warm_starts(settings, catalog(settings), self.said.append))

    def program(self, text: str) -> Path:
        made = self.folder / "vllm"
        made.write_text(text)
        made.chmod(0o755)
        return made


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def test_simulated_engines_are_not_worth_a_word(doctor: Doctor) -> None:
    """They start at once either way."""
    assert doctor("{m: {engine: sim}}") == []
    assert doctor.said == []


def test_who_does_not_want_warm_starts_gets_no_check(doctor: Doctor) -> None:
    """Nothing is imported for models that are always started the other way."""
    (finding,) = doctor("{m: {executable: /bin/true, launcher: local, memory: 1GiB}}")
    assert (finding.status, finding.detail) == ("ok", "not asked for (`launcher: local`)")
    assert doctor.said == []


def test_a_program_that_is_not_vllms_script_is_named_with_the_reason(doctor: Doctor) -> None:
    """And what to do about it."""
    program = doctor.program("#!/bin/sh\nexec something\n")
    (finding,) = doctor(f"{{m: {{executable: {program}, memory: 1GiB}}}}")
    assert finding.status == "warn"
    assert "not for m" in finding.detail
    assert str(program) in finding.detail
    assert "launcher: local" in finding.advice


def test_an_environment_in_which_the_imports_fail(doctor: Doctor) -> None:
    """The reason is the import's own; nobody waits longer than for the attempt; it was said what goes on."""
    program = doctor.program(f"#!{sys.executable}\nfrom vllm.entrypoints.cli.main import main\n")
    warm, saves = doctor(f"{{m: {{executable: {program}, memory: 1GiB}}}}")
    assert warm.name == f"warm starts {sys.executable}"
    assert warm.status == "warn"
    assert "not possible" in warm.detail
    assert "No module named 'vllm'" in warm.detail
    assert "docs/cold-start.md" in warm.advice
    assert "not known yet" in saves.detail
    assert "scripts/bench start" in saves.detail
    assert len(doctor.said) == 1
    assert sorted(p.name for p in doctor.folder.iterdir()) == ["vllm", "vllm-mm.yaml"], "nothing is made"


def test_it_does_not_take_longer_than_it_may(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is no time for is said to be unknown."""
    monkeypatch.setattr(doctor_warm, "DEADLINE", 0.5)
    program = doctor.program(f"#!{sys.executable}\nfrom vllm.entrypoints.cli.main import main\n")
    warm, _ = doctor(f"{{m: {{executable: {program}, memory: 1GiB}}}}")
    assert warm.detail.startswith("not looked at")


def test_what_was_saved_comes_from_the_history_of_starts(doctor: Doctor) -> None:
    """From the server's own database: medians of the good starts of both ways."""
    settings = doctor.settings("{m: {executable: /bin/true, memory: 1GiB}}")

    async def history() -> Finding:
        settings.paths.data_dir.mkdir()
        await upgrade(settings.database_url, None, RealClock())
        database = Database(settings.database_url)
        launches = Launches(database, RealClock())
        for seconds, phase in ((30.0, "spawn"), (2.0, "fork"), (4.0, "fork"), (3.0, "fork")):
            await launches.record_start("m", 1, 100.0, 100.0 + seconds, {phase: 1.0}, "ready", "")
        await database.close()
        return await doctor_warm._savings(settings, ["m"])

    told = asyncio.run(history())
    assert told.detail == "m: 27.0 s of 30.0 s a start (medians of 3 warm and 1 local ones)"


def test_starts_of_one_way_or_that_failed_tell_nothing() -> None:
    """A comparison needs both."""
    assert saved("m", [start(2.0, "fork"), start(None, "spawn")]) == ""
    assert saved("m", [start(30.0, "spawn")]) == ""
    assert saved("m", []) == ""
