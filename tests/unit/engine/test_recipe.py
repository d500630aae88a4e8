"""What is guaranteed of the way from a launch plan to a zygote: who can have one, and who shares one with whom."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from vllm_mm.engine.launchers.recipe import LATE, SECRET, Needs, NotWarm, Warmth, console_python, needs_of, warmth
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE, Address, LaunchPlan

MAIN = "from vllm.entrypoints.cli.main import main\nsys.exit(main())\n"


def plan(argv: tuple[str, ...], env: Mapping[str, str] | None = None, token: str = "t" * 32) -> LaunchPlan:
    marks = {OWNER_VARIABLE: "o", LAUNCH_VARIABLE: token}
    return LaunchPlan(
        "m", 1, token, argv, {"PATH": "/usr/bin:/bin", **(env or {}), **marks}, Address(), Path("/r"), Path("/l"), "f"
    )


def installation(folder: Path, head: str | None = None, body: str = MAIN) -> Path:
    """A `vllm` script in a bin directory, run by the Python next to it."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    if not python.exists():
        python.symlink_to(sys.executable)
    script = folder / "bin" / "vllm"
    script.write_text(
        (f"#!{python}\n" if head is None else head.replace("PYTHON", str(python))) + "import sys\n" + body
    )
    script.chmod(0o755)
    return script


def served(folder: Path, env: Mapping[str, str] | None = None, model: str = "org/m", token: str = "t" * 32) -> Warmth:
    found = warmth(plan((str(folder / "bin" / "vllm"), "serve", model), env, token))
    assert isinstance(found, Warmth), found
    return found


@pytest.mark.parametrize(
    "head",
    ["#!PYTHON\n", "#! PYTHON \n", "#!/bin/sh\n'''exec' \"PYTHON\" \"$0\" \"$@\"\n' '''\n", "#!/bin/sh\n'''exec' PYTHON \"$0\" \"$@\"\n' '''\n"],
)  # fmt: skip
def test_the_python_of_an_installation_is_read_from_its_script(tmp_path: Path, head: str) -> None:
    """Also where the path is too long for the kernel, and the installer wrote a shell script around it."""
    script = installation(tmp_path, head)
    assert console_python(script, "vllm") == str(tmp_path / "bin" / "python")
    found = served(tmp_path)
    assert (found.recipe.python, found.recipe.kind) == (str(tmp_path / "bin" / "python"), "vllm")
    assert (found.argv, found.script) == ((str(script), "serve", "org/m"), str(script))


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        ("#!PYTHON\n", "from wrapper import main\n", "is not the script that an installation of vllm makes"),
        ("#!/bin/sh\n", "exec numactl /opt/vllm serve\n", "is not the script that an installation of vllm makes"),
        ("#!/nowhere/python\n", MAIN, "/nowhere/python, which runs .*, does not exist"),
        ("", "\x7fELF", "is not the script"),
    ],
)
def test_what_is_not_known_is_not_forked(tmp_path: Path, head: str, body: str, reason: str) -> None:
    """A wrapper does more than the entry point, and a fork would leave that out."""
    installation(tmp_path, head, body)
    found = warmth(plan((str(tmp_path / "bin" / "vllm"), "serve", "org/m")))
    assert isinstance(found, NotWarm)
    assert re.search(reason, found.reason), found.reason


def test_other_programs_are_not_forked(tmp_path: Path) -> None:
    for argv in (("llama-server", "-m", "x"), (sys.executable, "-m", "http.server"), ("vllm",)):
        found = warmth(plan(argv))
        assert isinstance(found, NotWarm)
        assert "another program" in found.reason
    missing = warmth(plan((str(tmp_path / "vllm"), "serve", "m")))
    assert isinstance(missing, NotWarm)
    assert "there is no program" in missing.reason


def test_what_an_engine_reads_late_makes_no_difference(tmp_path: Path) -> None:
    """Nor do tokens, models and secrets; everything else asks for a zygote of its own."""
    installation(tmp_path)
    one = served(tmp_path).recipe
    late = dict.fromkeys(LATE - {OWNER_VARIABLE, LAUNCH_VARIABLE}, "changed")
    assert served(tmp_path, late, "other/model", "u" * 32).recipe == one
    assert served(tmp_path, {"HF_TOKEN": "a", "OPENAI_API_KEY": "b"}).recipe == one
    other = served(tmp_path, {"VLLM_LOGGING_LEVEL": "DEBUG"}).recipe
    assert other != one
    assert other.key != one.key
    assert (
        served(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}).recipe == served(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"}).recipe
    )


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_API_KEY", "WANDB_APIKEY", "DB_PASSWORD", "VLLM_MM_ADMIN_SECRET", "SSH_PRIVATE_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "my_passwd"],
)  # fmt: skip
def test_secrets_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    """A zygote outlives the engines; it never holds one."""
    installation(tmp_path)
    assert SECRET.search(name)
    assert name not in dict(served(tmp_path, {name: "s3cret"}).recipe.env)
    assert "s3cret" not in str(served(tmp_path, {name: "s3cret"}))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE", "PATH"])
def test_what_is_no_secret_is_part_of_the_environment(tmp_path: Path, name: str) -> None:
    """Imports may read it."""
    installation(tmp_path)
    assert dict(served(tmp_path, {name: "7"}).recipe.env)[name] == "7"


def test_a_change_of_the_installation_changes_the_recipe(tmp_path: Path) -> None:
    """A package that comes or goes changes its folder of packages; nothing else does."""
    installation(tmp_path)
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    before = served(tmp_path).recipe
    assert served(tmp_path).recipe == before
    (packages / "vllm-1.dist-info").mkdir()
    after = served(tmp_path).recipe
    assert after.stamp != before.stamp
    assert after.key != before.key


def test_a_model_tells_what_it_needs(tmp_path: Path) -> None:
    """Its architectures and its type, from the folder's config.json; nothing where there is none, or where it is odd."""
    config = tmp_path / "config.json"
    assert needs_of(tmp_path) == Needs()
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    assert needs_of(tmp_path) == Needs(("LlamaForCausalLM",), ("llama",))
    installation(tmp_path)
    assert served(tmp_path, model=str(tmp_path)).needs == Needs(("LlamaForCausalLM",), ("llama",))
    for text in ("[]", "{", '{"architectures": "x", "model_type": 3}', "null"):
        config.write_text(text)
        assert needs_of(tmp_path) == Needs(), text
