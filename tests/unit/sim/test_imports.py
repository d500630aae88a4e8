"""What is guaranteed of the cost of imports: paid before the arguments are read, once, and never by a fork of who paid."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, EngineKind, ModelSpec
from vllm_mm.engine import command
from vllm_mm.engine.ports import Address
from vllm_mm.sim import imports
from vllm_mm.sim.profile import parse
from vllm_mm.vocabulary.profile import IMPORTS_VARIABLE

BACKEND = Path(__file__).parents[3] / "backend"


def environment(**sim: str) -> dict[str, str]:
    _, env = command.build(
        ModelSpec(id="m", engine=EngineKind.SIM, sim=sim), address=Address(socket="/r/s"), device_bytes={"sim0": GIB},
        devices=(Device("sim0", GIB, kind="sim"),), workdir=Path("/r"), token="t", owner="o", cache_dir=Path("/c"),
        sim_ledger=Path("/l"), python="/py", base_env={},
    )  # fmt: skip
    return env


def test_the_environment_tells_the_cost_before_anything_is_imported() -> None:
    """Seconds, for a model whose profile has the key, and for no other."""
    assert environment(imports="1500ms")[IMPORTS_VARIABLE] == "1.5"
    assert IMPORTS_VARIABLE not in environment(startup="3s")
    assert parse({"imports": "3s"}).imports == 3.0
    with pytest.raises(ConfigError, match=r"m: sim\.imports: 'soon' is not a duration"):
        environment(imports="soon")


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("", 0.0), ("x", 0.0), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0)])  # fmt: skip
def test_a_variable_that_is_no_cost_costs_nothing(text: str, seconds: float) -> None:
    assert imports.cost({IMPORTS_VARIABLE: text}) == seconds


def test_the_import_takes_its_time_and_a_fork_is_spared() -> None:
    """The process that imports sleeps once; asking it again, or in a child, costs nothing; a higher cost only the rest."""
    script = """
import os, time
began = time.monotonic()
from vllm_mm.sim.imports import pay
took = time.monotonic() - began
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, f"{pay(0.2)} {pay(0.25):.2f}".encode())
    os._exit(0)
os.wait()
print(took >= 0.2, os.read(reader, 100).decode())
"""
    env = {**os.environ, "PYTHONPATH": str(BACKEND), IMPORTS_VARIABLE: "0.2"}
    began = time.monotonic()
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "0.0", "0.05"]
    assert time.monotonic() - began >= 0.2
