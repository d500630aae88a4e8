"""What is shipped beside the code, as far as it can be judged without Docker and systemd."""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_mm.settings import Settings, load, parse_duration

ROOT = Path(__file__).parents[3]


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # keys keep their case
    parser.read(ROOT / "packaging/systemd/vllm-mm.service")
    return parser


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile's ENV sets."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line.removeprefix("ENV ").split())


@pytest.mark.parametrize("name", ["vllm-cpu", "sim"])
def test_the_demo_configurations_are_valid(name: str, tmp_path: Path) -> None:
    """Three models each, open on loopback only, with the model that the printed curl line names."""
    environ = {"MM_DEMO_VLLM": "/opt/vllm/bin/vllm", "MM_DEMO_MODELS": "/models"}
    settings = load(ROOT / f"packaging/demo/{name}.yaml", {}, environ, tmp_path)
    assert len(settings.models) == 3
    assert "smollm2-135m" in settings.models
    assert settings.auth.mode == "none"
    assert settings.server.host == "127.0.0.1"


def test_the_gpu_service_reserves_gpus_and_keeps_its_caches() -> None:
    """Downloads, compile caches and state outlive the container."""
    data = compose()
    service = data["services"]["controller"]
    assert "profiles" not in service, "plain `docker compose up` starts it"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    mounts = {v.split(":")[1] for v in service["volumes"]}
    image = image_environment()
    for variable in ("VLLM_MM_PATHS__DATA_DIR", "VLLM_MM_PATHS__CACHE_DIR", "HF_HOME"):
        assert any(image[variable] == m or image[variable].startswith(f"{m}/") for m in mounts), variable
    named = {v.split(":")[0] for s in data["services"].values() for v in s["volumes"] if not v.startswith(".")}
    assert named == set(data["volumes"])


def test_the_sim_profile_needs_no_gpu_and_its_settings_hold(tmp_path: Path) -> None:
    """The image's and the service's variables are settings that exist, and the open demo is published on loopback only."""
    service = compose()["services"]["sim"]
    assert service["profiles"] == ["sim"]
    assert "deploy" not in service
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    environ = {k: v for k, v in {**image_environment(), **service["environment"]}.items() if k.startswith("VLLM_MM_")}
    settings = load(ROOT / "packaging/demo/sim.yaml", {}, environ, tmp_path)
    assert settings.server.host == "0.0.0.0"  # inside the container
    assert settings.auth.force


def test_containers_have_time_to_end_their_engines() -> None:
    """Docker's and systemd's patience is longer than the server's own grace."""
    grace = Settings().server.shutdown_grace
    for service in compose()["services"].values():
        assert parse_duration(service["stop_grace_period"]) >= grace
    assert float(unit()["Service"]["TimeoutStopSec"]) > grace


def test_what_the_dockerfile_copies_exists_and_is_sent() -> None:
    """A renamed folder breaks the image only where Docker runs: so it is looked for here."""
    ignored = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if line}
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert "backend" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source == "." or source.split("/")[0] not in ignored, source


def test_the_unit_lets_engines_outlive_a_crash() -> None:
    """systemd kills the controller only; what happens to its engines is the controller's setting."""
    service = unit()["Service"]
    assert service["KillMode"] == "process"
    assert service["Restart"] == "always"
    assert "serve --config" in service["ExecStart"]
    assert Settings().engines_outlive_controller
