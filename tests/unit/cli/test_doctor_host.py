"""What `doctor` says of the machine: driver, environments, processes of an earlier server."""

import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from admin_rig import blank_database, settings
from vllm_mm.cli import checks, doctor_host
from vllm_mm.cli.checks import Finding, Status
from vllm_mm.domain.catalog import Catalog
from vllm_mm.domain.specs import GIB, ModelSpec
from vllm_mm.engine import procfs
from vllm_mm.engine.devices.gpus import DriverMissingError
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE
from vllm_mm.settings import Settings
from vllm_mm.store.database import Database
from vllm_mm.store.meta import installation, known_installation


def machine(tmp_path: Path, *, card: bool, driver: str | None) -> tuple[Path, Path]:
    """The two places that are looked at."""
    devices = tmp_path / "pci" / "0000:01:00.0"
    devices.mkdir(parents=True)
    (devices / "class").write_text("0x030200\n" if card else "0x020000\n")
    (devices / "vendor").write_text("0x10de\n")
    version = tmp_path / "version"
    if driver is not None:
        version.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Wed Nov  1 2026\n")
    return tmp_path / "pci", version


def dead() -> object:
    raise DriverMissingError("no NVIDIA driver answers (Driver/library version mismatch)")


@pytest.mark.parametrize(
    ("card", "driver", "answers", "status", "told"),
    [
        (False, None, True, Status.OK, "no NVIDIA GPU here"),
        (True, None, True, Status.WARN, "1 NVIDIA GPU and no driver"),
        (True, "550.54.15", True, Status.OK, "NVIDIA driver 550.54.15"),
        (True, "550.54.15", False, Status.FAIL, "version mismatch"),
    ],
)
def test_the_driver_of_the_gpu(
    card: bool, driver: str | None, answers: bool, status: Status, told: str, tmp_path: Path
) -> None:
    """There, and of one mind with its library; else with what to do."""
    finding = doctor_host.gpu_driver(*machine(tmp_path, card=card, driver=driver), lambda: None if answers else dead())
    assert (finding.status, told in finding.detail) == (status, True), finding
    assert bool(finding.advice) == (status is not Status.OK)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_environments_are_found_where_people_make_them(tmp_path: Path) -> None:
    """conda's, also those that only its list knows; a folder of a project; the one that is active."""
    home, cwd = tmp_path / "home", tmp_path / "work"
    cwd.mkdir()
    there = {
        program(home / "miniconda3" / "envs" / "llm" / "bin" / "vllm"),
        program(home / "project" / ".venv" / "bin" / "vllm"),
        program(tmp_path / "elsewhere" / "bin" / "vllm"),
        program(tmp_path / "active" / "bin" / "vllm"),
        program(cwd / ".venv" / "bin" / "vllm"),
    }
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{tmp_path / 'elsewhere'}\n\n")
    environ = {"HOME": str(home), "VIRTUAL_ENV": str(tmp_path / "active")}
    assert {p for p in doctor_host.environments(environ, cwd) if p.is_relative_to(tmp_path)} == there


def test_a_model_that_misses_vllm_is_told_where_there_is_one(tmp_path: Path) -> None:
    """As the setting that uses it. One that is used is not told again."""
    found = program(tmp_path / "venv" / "bin" / "vllm")
    environ = {"HOME": str(tmp_path)}
    (finding,) = doctor_host.other_environments(True, [], environ, tmp_path)
    assert (finding.status, f"`executable: {found}`" in finding.advice) == (Status.WARN, True)
    (finding,) = doctor_host.other_environments(False, [], environ, tmp_path)
    assert (finding.status, finding.advice) == (Status.OK, "")
    assert [
        f for f in doctor_host.other_environments(False, [found], environ, tmp_path) if str(tmp_path) in f.detail
    ] == []


def test_an_environment_that_was_moved_is_broken(tmp_path: Path) -> None:
    """Its program is there, and the interpreter that it names is not."""
    moved = program(tmp_path / "bin" / "vllm", f"#!{tmp_path}/gone/bin/python3\n")
    (finding,) = checks.engines(Catalog([ModelSpec("m", executable=str(moved))]), "/usr/bin")
    assert (finding.status, "gone/bin/python3, which is not there" in finding.detail) == (Status.FAIL, True)
    assert "make that environment again" in finding.advice


def orphans(configured: Settings) -> Finding:
    return doctor_host.orphans(configured, doctor_host.owner_of(configured))


def test_a_model_whose_folder_is_not_there(tmp_path: Path) -> None:
    """One that may be on the hub is not looked for."""
    there = Catalog([ModelSpec("a", model=str(tmp_path)), ModelSpec("b", model="org/name")])
    assert list(checks.folders(there)) == []
    (finding,) = checks.folders(Catalog([ModelSpec("m", model=str(tmp_path / "gone"))]))
    assert (finding.status, finding.name) == (Status.FAIL, "model m")
    assert "gone on this machine" in finding.detail


def test_arguments_of_an_engine_that_cannot_be_asked_are_not_passed_over(tmp_path: Path) -> None:
    silent = ModelSpec("m", executable=str(tmp_path / "gone"), args={"max-model-len": 8})
    (finding,) = doctor_host.arguments(settings(tmp_path), [silent])
    assert (finding.status, finding.name) == (Status.WARN, "arguments")
    assert "taken as they are" in finding.advice


def test_engines_of_our_own_are_no_strangers(tmp_path: Path) -> None:
    """What runs for this installation uses nothing of what its models may have."""
    configured = settings(tmp_path, devices=[{"id": "sim0", "memory": "8GiB", "simulated": True}])
    claims = configured.paths.data_dir / "sim" / "sim0"
    claims.mkdir(parents=True)
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    marks = {**os.environ, OWNER_VARIABLE: "us", LAUNCH_VARIABLE: "token"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=marks, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        stat = procfs.read_stat(engine.pid)
        assert stat is not None
        (claims / f"{engine.pid}-{stat.start_ticks}").write_text(str(6 * GIB))
        ((ours,), (strangers,)) = (checks.devices(configured, owner)[1] for owner in ("us", "them"))
        assert (ours.foreign, strangers.foreign) == (0, 6 * GIB)
        engine.kill()


async def test_engines_that_no_server_owns_are_told(tmp_path: Path) -> None:
    """With their pids, and what to do; those of a running server, of another installation, or none, are well."""
    configured = settings(tmp_path)
    assert (await asyncio.to_thread(orphans, configured)).detail == "no server has run here before"
    configured.paths.data_dir.mkdir()
    (configured.paths.data_dir / "state.db").write_bytes(await blank_database(tmp_path))
    database = Database(configured.database_url)
    assert await known_installation(database) is None
    owner = await installation(database)
    assert await known_installation(database) == owner
    await database.close()
    assert (await asyncio.to_thread(orphans, configured)).detail == "none"
    marks = {**os.environ, OWNER_VARIABLE: owner, LAUNCH_VARIABLE: "token"}
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=marks, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        finding = await asyncio.to_thread(orphans, configured)
        assert (finding.status, f"kill {engine.pid}" in finding.advice) == (Status.WARN, True), finding
        lock = os.open(configured.paths.data_dir / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = await asyncio.to_thread(orphans, configured)
        os.close(lock)
        assert (finding.status, "the running server's" in finding.detail) == (Status.OK, True), finding
        engine.kill()
