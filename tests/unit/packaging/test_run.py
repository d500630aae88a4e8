"""scripts/run: what it serves, from which configuration and which state, with the rest of the scripts replaced."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = """\
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
say() { echo "$*"; }
fail() { echo "$*" >&2; exit 1; }
make_environment() { :; }
build_dashboard() { :; }
vllm_cpu_ready() { [[ -n ${VLLM_READY:-} ]]; }
vllm_cpu_dir() { echo "$root/cpu/env"; }
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/run", tmp_path / "scripts/run")
    (tmp_path / "scripts/environment.sh").write_text(ENVIRONMENT)
    for name, text in (("vllm-mm", 'echo "$@"'), ("python", "cat >/dev/null")):
        (tmp_path / ".venv/bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    return tmp_path


def run(checkout: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_") and name != "PORT"}
    return subprocess.run(
        [str(checkout / "scripts/run"), *args],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_demo_says_its_engine_and_keeps_its_own_state(checkout: Path) -> None:
    """The simulated engine, or real vLLM where it is installed."""
    told, command = run(checkout).stdout.splitlines()
    assert "simulated" in told
    assert command == f"serve --data-dir {checkout}/.state --config {checkout}/packaging/demo/sim.yaml"
    told, command = run(checkout, "--port", "9000", VLLM_READY="1").stdout.splitlines()
    assert "real vLLM on the CPU" in told
    assert command.endswith("packaging/demo/vllm-cpu.yaml")
    assert "simulated" in run(checkout, "--sim", VLLM_READY="1").stdout
    missing = run(checkout, "--vllm")
    assert (missing.returncode, "scripts/install-vllm-cpu" in missing.stderr) == (1, True)


@pytest.mark.parametrize(
    "args", [("--config", "own.yaml"), ("--config=own.yaml",), ("-c", "own.yaml"), ("-cown.yaml",)]
)
def test_a_configuration_of_ones_own_has_its_own_engine_and_state(checkout: Path, args: tuple[str, ...]) -> None:
    """Nothing is said about the demo's engine, and the demo's state is left alone."""
    told, command = run(checkout, *args, PORT="9000").stdout.splitlines()
    assert told == "engines and models: those of own.yaml"
    assert command == f"serve {' '.join(args)} --port 9000"
    refused = run(checkout, "--sim", *args)
    assert (refused.returncode, "about the demo" in refused.stderr) == (1, True)


def test_the_variable_names_a_configuration_too(checkout: Path) -> None:
    """`VLLM_MM_CONFIG`, as for every command."""
    told, command = run(checkout, VLLM_MM_CONFIG="own.yaml").stdout.splitlines()
    assert (told, command) == ("engines and models: those of own.yaml", "serve")


def test_the_demo_can_be_looked_at(checkout: Path) -> None:
    """With the configuration and the state that it would be served with."""
    command = run(checkout, "--doctor", "--json").stdout.splitlines()[-1]
    assert command == f"doctor --json --data-dir {checkout}/.state --config {checkout}/packaging/demo/sim.yaml"
