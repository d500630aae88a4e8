"""From a launch plan to what a zygote for it has to be: which Python, which imports, which entry point, which environment.

Reading files is all that happens here. A plan that a zygote cannot serve gives a `NotWarm` with the reason.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE, LaunchPlan

LATE = frozenset({
    OWNER_VARIABLE, LAUNCH_VARIABLE, "SPT_NOENV",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "TMPDIR", "VLLM_CACHE_ROOT", "VLLM_NO_USAGE_STATS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_RPC_TIMEOUT", "VLLM_RPC_BASE_PATH",
    "VLLM_HOST_IP", "VLLM_USE_MODELSCOPE", "VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_TORCH_PROFILER_DIR",
    "COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "TERM", "_",
})  # fmt: skip
"""Variables that vLLM looks at only when an engine starts (each was left out of the list of those that its imports read,
vLLM 0.32; TMPDIR is read by an import, and Python's copy of it is reset after the fork). Every other one that a plan
sets differently asks for another zygote."""
SECRET = re.compile(
    r"^(?!TOKENIZERS_|VLLM_\w*TOKENS).*(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)",
    re.IGNORECASE,
)
"""Names of variables that a zygote never holds; the engine gets them with its fork. Numbers of tokens are no secrets."""

_VLLM_ENTRY = "vllm.entrypoints.cli.main:main"
_VLLM_MODULES = (
    "vllm.entrypoints.cli.main", "vllm.entrypoints.cli.serve", "vllm.entrypoints.cli.openai", "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.benchmark.main", "vllm.entrypoints.cli.run_batch", "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.engine.async_llm",
    "vllm.v1.executor.multiproc_executor", "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.model_loader.default_loader",
    # What vLLM 0.32 imports only when it builds an engine and its API (seen with a finder on sys.meta_path in an engine).
    # None of it is code of the worker, which might look at the device.
    "vllm.entrypoints.cli.download_kernels", "vllm.entrypoints.cli.preload", "vllm.entrypoints.cli.snapshot",
    "vllm.entrypoints.launchers.run_batch", "vllm.renderers.hf", "vllm.v1.core.sched.scheduler",
    "vllm.entrypoints.launchers.api_server.routers", "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.entrypoints.serve.instrumentator.metrics", "vllm.entrypoints.serve.instrumentator.offline_docs",
    "vllm.entrypoints.serve.lora.api_router", "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.tokenize.api_router", "vllm.entrypoints.serve.sagemaker.api_router",
    "vllm.entrypoints.serve.elastic_ep.api_router", "vllm.entrypoints.serve.utils.fingerprint",
    "vllm.entrypoints.serve.middleware.x_request_id", "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router", "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router", "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.responses.api_router", "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.cohere.api_router", "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.render.api_router", "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "model_hosting_container_standards.sagemaker", "pydantic.v1", "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto", "uvicorn.lifespan.on", "multiprocessing.popen_fork",
)  # fmt: skip
_SIM_ENTRY = "vllm_mm.sim.launch:main"
_SIM_MODULES = ("vllm_mm.sim.launch", "vllm_mm.sim.server")
_SCRIPT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class NotWarm:
    """Why a plan is not for a zygote."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One engine environment. Equal recipes can share a zygote, whatever architectures each model needs."""

    python: str
    kind: str
    """`vllm`, or `plain` for anything that only wants its modules imported."""
    entry: str
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """What the zygote runs with: no secret, and none of `LATE`."""
    stamp: str
    """Changes with what is installed in the engine's environment."""

    @property
    def key(self) -> str:
        """12 hex digits; names the zygote in logs, events and the API."""
        text = json.dumps([self.python, self.kind, self.entry, self.env, self.stamp])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Needs:
    """What one model wants imported besides."""

    architectures: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Warmth:
    """A plan that a zygote can serve."""

    recipe: Recipe
    argv: tuple[str, ...]
    """As the engine's `sys.argv`."""
    script: str | None
    needs: Needs = field(default_factory=Needs)


def warmth(plan: LaunchPlan) -> Warmth | NotWarm:
    """How `plan` could be started from a zygote. Blocking: reads a script's first line and a model's config.json."""
    argv = plan.argv
    if len(argv) > 2 and argv[1] == "-m" and argv[2] == "vllm_mm.sim":
        package = Path(__file__).parents[2] / "sim"
        recipe = _recipe(argv[0], "plain", _SIM_ENTRY, _SIM_MODULES, plan.env, package)
        return Warmth(recipe, (str(package / "__main__.py"), *argv[3:]), None)
    if len(argv) > 2 and argv[1] == "serve":
        found = shutil.which(argv[0], path=plan.env.get("PATH"))
        if found is None:
            return NotWarm(f"there is no program {argv[0]}")
        python = console_python(Path(found), "vllm")
        if isinstance(python, NotWarm):
            return python
        recipe = _recipe(python, "vllm", _VLLM_ENTRY, _VLLM_MODULES, plan.env)
        return Warmth(recipe, (found, *argv[1:]), found, needs_of(Path(argv[2])))
    return NotWarm("only vLLM and simulated engines can be forked; this is another program")


def console_python(script: Path, package: str) -> str | NotWarm:
    """The Python of a console script, if it is one that runs `package`'s command line and nothing else."""
    try:
        with script.open("rb") as file:
            text = file.read(_SCRIPT_BYTES).decode(errors="replace")
    except OSError as error:
        return NotWarm(f"{script} cannot be read: {error.strerror}")
    head = re.match(r"#!\s*(\S+)[ \t]*\n", text)
    if head is None or Path(head[1]).name == "sh":
        # Where the path is too long for the kernel, installers write a shell script that is a Python script too.
        head = re.match(r"#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"? \"\$0\" \"\$@\"", text)
    if head is None or f"from {package}.entrypoints.cli.main import main" not in text:
        return NotWarm(
            f"{script} is not the script that an installation of {package} makes, so nothing is known about it"
        )
    if not Path(head[1]).exists():
        return NotWarm(f"{head[1]}, which runs {script}, does not exist")
    return head[1]


def needs_of(folder: Path) -> Needs:
    """What config.json of a model folder asks for; nothing when there is none (an id that is fetched by the engine)."""
    try:
        config: Any = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return Needs()
    if not isinstance(config, dict):
        return Needs()
    table = cast("dict[str, Any]", config)
    names: Any = table.get("architectures")
    architectures = tuple(str(n) for n in cast("list[Any]", names)) if isinstance(names, list) else ()
    kind: Any = table.get("model_type")
    return Needs(architectures, (kind,) if isinstance(kind, str) else ())


def _recipe(
    python: str, kind: str, entry: str, modules: tuple[str, ...], env: Mapping[str, str], *packages: Path
) -> Recipe:
    kept = tuple(sorted((k, v) for k, v in env.items() if k not in LATE and not SECRET.search(k)))
    return Recipe(python, kind, entry, modules, kept, installed(python, packages))


def installed(python: str, packages: Iterable[Path] = ()) -> str:
    """A digest of what is installed: the Python, the metadata folders of its packages (their names carry the version),
    its path files, and the modules of `packages`. Not the time of a folder itself, which changes with Python's caches."""
    root = Path(python).parent.parent
    places = [Path(python).resolve(), root / "pyvenv.cfg"]
    for package in packages:
        places += sorted(package.glob("*.py"))
    for library in ("lib", "lib64"):
        for kind in ("site-packages", "dist-packages"):
            for folder in sorted((root / library).glob(f"python3*/{kind}")):
                places += sorted(p for p in folder.iterdir() if p.suffix in {".dist-info", ".egg-info", ".pth"})
    stamps: list[tuple[str, int]] = []
    for place in places:
        try:
            stamps.append((str(place), place.stat().st_mtime_ns))
        except OSError:
            continue
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:12]
