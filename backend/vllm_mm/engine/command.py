"""From a model's spec to the command line and the environment of its process. Pure, but for the search of a free port and the default of `base_env`.

Facts about flags and variables: vLLM 0.32 (`vllm/envs.py`, `engine/arg_utils.py`, `platforms/cpu.py`).
"""

import hashlib
import json
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.residency import Device
from vllm_mm.domain.sleep import why_no_sleep
from vllm_mm.domain.specs import GIB, ArgValue, EngineKind, ModelSpec, Task
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE, Address
from vllm_mm.vocabulary.profile import IMPORTS_VARIABLE
from vllm_mm.vocabulary.quantities import parse_duration

SOCKET_PATH_BYTES = 107
"""What `sun_path` of a unix socket's address holds besides its final zero (unix(7))."""
_IPC_NAME_BYTES = 37
"""vLLM's own sockets are named TMPDIR/UUID4."""
_TMP = "t"
CPU_KV_CACHE = "VLLM_CPU_KVCACHE_SPACE"
"""GiB of KV cache of vLLM's CPU build, a whole number. Without it the build wants 92 % of the machine's memory."""

_OURS = {
    "uds": "the address is chosen for each launch",
    "host": "the address is chosen for each launch",
    "port": "the address is chosen for each launch",
    "model": "use `model` of the model itself",
    "model-tag": "use `model` of the model itself",
    "served-model-name": "use the model's id and its `aliases`",
    "api-key": "nobody but the server reaches the engine, and keys do not belong on command lines; use the server's keys",
}
_APPENDED = frozenset({"middleware"})
"""vLLM options that take one value each time they are given; other lists follow one option."""

_DROPPED = frozenset({
    "VLLM_PORT",  # makes every engine take the same internal port (vllm-project/vllm#43206)
    "VLLM_API_KEY",  # the engine would refuse its own controller
    "PROMETHEUS_MULTIPROC_DIR",  # shared by all engines it would mix their metrics
    "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC",  # systemd's, for us
})  # fmt: skip
_DROPPED_FOR_VLLM = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})
"""The controller's Python is not the engine's."""

_KEY = "{api_key}"
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def can_sleep(spec: ModelSpec, devices: Sequence[Device]) -> bool:
    """Whether the engine of `spec` is started so that it can be put to sleep on these devices."""
    return not why_no_sleep(spec, devices)


def address_for(spec: ModelSpec, workdir: Path) -> Address:
    """A unix socket in the work directory; for a command with `{port}` or `{host}` a loopback port that is free now.

    Raises ConfigError when the work directory's path is too long for sockets, or a command names neither.
    """
    if spec.engine is EngineKind.COMMAND:
        names = {m.group(1) for part in spec.command for m in _PLACEHOLDER.finditer(part)}
        if names & {"port", "host"}:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                return Address(host="127.0.0.1", port=int(probe.getsockname()[1]))
        if "socket" not in names:
            raise ConfigError(
                f"{spec.id}: the command has to be told where to listen: put {{port}} (with {{host}}), or {{socket}}, into it"
            )
    path = workdir / "s"
    # The longest path that has to fit: our socket, or one that vLLM makes in its TMPDIR.
    longest = len(str(path).encode())
    if spec.engine is EngineKind.VLLM:
        longest = max(longest, len(str(workdir / _TMP).encode()) + _IPC_NAME_BYTES)
    if longest > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{workdir} is {longest - SOCKET_PATH_BYTES} bytes too long a path for unix sockets (their limit is "
            f"{SOCKET_PATH_BYTES} bytes); use a data directory with a shorter path (--data-dir)"
        )
    return Address(socket=str(path))


def engine_key(spec: ModelSpec, token: str) -> str:
    """The secret that `{api_key}` stands for in a launch of `spec`; empty where the spec does not use it. From the token,
    so that the next controller knows it too."""
    texts = (*spec.command, *spec.env.values())
    if spec.engine is not EngineKind.COMMAND or not any(_KEY in text for text in texts):
        return ""
    return hashlib.sha256(f"engine key {token}".encode()).hexdigest()[:40]


def build(
    spec: ModelSpec,
    *,
    address: Address,
    device_bytes: Mapping[str, int],
    devices: Sequence[Device],
    workdir: Path,
    token: str,
    owner: str,
    cache_dir: Path,
    sim_ledger: Path,
    python: str,
    kv_cache: int = 0,
    base_env: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The argument list and the whole environment of one launch on the devices of `device_bytes`. What it inherits comes
    from `base_env` (default: our own environment). `kv_cache`: bytes of KV cache on each device, as far as the engine has to be
    told.

    Raises ConfigError for what the spec must not say. No secret of ours is in either, but the one that `{api_key}` asks for.
    """
    chosen = [d for d in devices if d.id in device_bytes]
    sleeps = can_sleep(spec, chosen)
    match spec.engine:
        case EngineKind.VLLM:
            argv = _vllm(spec, address, chosen, device_bytes, sleeps=sleeps)
        case EngineKind.SIM:
            argv = _sim(spec, address, chosen, device_bytes, python, sim_ledger, sleeps=sleeps)
        case EngineKind.COMMAND:
            argv = _command(spec, address, engine_key(spec, token))
    env = _inherited(spec, os.environ if base_env is None else base_env)
    env["TMPDIR"] = str(workdir / _TMP)
    if spec.engine is not EngineKind.COMMAND:
        env["VLLM_NO_USAGE_STATS"] = "1"
        env.setdefault("VLLM_CACHE_ROOT", str(cache_dir / "vllm"))
        if not env.get("HOME"):  # else Hugging Face's own place, shared with everything else on the machine
            env.setdefault("HF_HOME", str(cache_dir / "huggingface"))
        env.pop("VLLM_SERVER_DEV_MODE", None)
        if sleeps:
            env["VLLM_SERVER_DEV_MODE"] = "1"  # /sleep and /wake_up exist only then
    if spec.engine is EngineKind.SIM and spec.sim.get("imports") is not None:
        env[IMPORTS_VARIABLE] = f"{_duration(spec, 'imports'):g}"
    gpus = [d.id for d in chosen if d.kind == "gpu"]
    if gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    elif spec.engine is EngineKind.VLLM:
        if spec.kv_cache is not None or "kv-cache-memory-bytes" in spec.arguments:
            env.pop(CPU_KV_CACHE, None)  # it would win over the argument
        else:
            env.setdefault(CPU_KV_CACHE, str(max(1, kv_cache // GIB)))
    env.update(_own_env(spec, token))
    env["SPT_NOENV"] = "1"  # a process that renames itself must not write over its environment (setproctitle)
    # Last: a title that is written over the environment nevertheless eats from its beginning.
    for name, value in ((OWNER_VARIABLE, owner), (LAUNCH_VARIABLE, token)):
        env.pop(name, None)
        env[name] = value
    return argv, env


def _duration(spec: ModelSpec, key: str) -> float:
    try:
        return parse_duration(spec.sim[key])
    except ValueError as error:
        raise ConfigError(f"{spec.id}: sim.{key}: {error}") from error


def _own_env(spec: ModelSpec, token: str) -> dict[str, str]:
    if spec.engine is EngineKind.COMMAND:
        return {name: value.replace(_KEY, engine_key(spec, token)) for name, value in spec.env.items()}
    if "VLLM_API_KEY" in spec.env:
        raise ConfigError(f"{spec.id}: `VLLM_API_KEY` cannot be set in env: {_OURS['api-key']}")
    return dict(spec.env)


def _inherited(spec: ModelSpec, base_env: Mapping[str, str]) -> dict[str, str]:
    dropped = _DROPPED | (_DROPPED_FOR_VLLM if spec.engine is EngineKind.VLLM else frozenset[str]())
    return {k: v for k, v in base_env.items() if k not in dropped and not k.startswith("VLLM_MM_")}


def _user_arguments(spec: ModelSpec) -> dict[str, ArgValue]:
    arguments = dict(spec.arguments)
    for name, reason in _OURS.items():
        if name in arguments:
            raise ConfigError(f"{spec.id}: `{name}` cannot be set in args: {reason}")
    return arguments


def _render(arguments: Mapping[str, ArgValue]) -> list[str]:
    argv: list[str] = []
    for name, value in arguments.items():
        option = f"-{name}" if len(name) == 1 else f"--{name}"
        if value is None:
            continue
        if value is True:
            argv.append(option)
        elif value is False:
            argv.append(f"--no-{name}")
        elif isinstance(value, list):
            texts = [_text(item) for item in value]
            if name in _APPENDED:
                argv += [part for text in texts for part in (option, text)]
            elif texts:
                argv += [option, *texts]
        else:
            text = _text(value)
            argv += [f"{option}={text}"] if text.startswith("-") and len(name) > 1 else [option, text]
    return argv


def _text(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _vllm(
    spec: ModelSpec, address: Address, devices: Sequence[Device], reserved: Mapping[str, int], *, sleeps: bool
) -> tuple[str, ...]:
    ours: dict[str, ArgValue] = {"disable-uvicorn-access-log": True, "enable-request-id-headers": True}
    if sleeps and any(d.kind == "gpu" for d in devices):  # the CPU build refuses to start with it
        ours["enable-sleep-mode"] = True
    if spec.devices.count > 1:
        ours["tensor-parallel-size"] = spec.devices.count
    arguments = _user_arguments(spec)
    gpus = [d for d in devices if d.kind == "gpu" and d.capacity > 0]
    if gpus:
        # Also beside a given KV cache: what is checked at the start is this fraction, 0.92 without it.
        ours["gpu-memory-utilization"] = _utilization(reserved, gpus)
    if spec.kv_cache is not None:
        ours["kv-cache-memory-bytes"] = spec.kv_cache
    ours |= _adapters(spec)
    # False is the default of the sleep mode, and some builds refuse its very name.
    if arguments.get("enable-sleep-mode") is False:
        arguments["enable-sleep-mode"] = None
    return (spec.executable, "serve", *_model_and_address(spec, address), *_render(ours | arguments))


def _adapters(spec: ModelSpec) -> dict[str, ArgValue]:
    modules: list[object] = [f"{name}={path}" for name, path in spec.lora.items()]
    return {"enable-lora": True, "lora-modules": modules} if modules else {}


def _utilization(reserved: Mapping[str, int], gpus: Sequence[Device]) -> float:
    """vLLM's one fraction, for all devices and of all that each has: none may give more than was reserved on it. Rounded down,
    but for what a division leaves."""
    fraction = min(reserved[d.id] / max(d.capacity, d.total) for d in gpus)
    return math.floor(max(0.0001, min(fraction, 0.99)) * 10_000 + 0.001) / 10_000


def _model_and_address(spec: ModelSpec, address: Address) -> list[str]:
    where = ["--uds", address.socket] if address.socket else ["--host", address.host, "--port", str(address.port)]
    return [spec.model or spec.id, *where, "--served-model-name", *spec.served_names]


def _sim(
    spec: ModelSpec, address: Address, devices: Sequence[Device], reserved: Mapping[str, int], python: str, ledger: Path,
    *, sleeps: bool,
) -> tuple[str, ...]:  # fmt: skip
    ours: dict[str, ArgValue] = {"disable-uvicorn-access-log": True, "enable-request-id-headers": True}
    if sleeps:
        ours["enable-sleep-mode"] = True
    if spec.devices.count > 1:
        ours["tensor-parallel-size"] = spec.devices.count
    arguments = _user_arguments(spec)
    if arguments.get("enable-sleep-mode") is False:
        arguments["enable-sleep-mode"] = None
    ours |= _adapters(spec)
    profile: dict[str, ArgValue] = {}
    simulated = [d for d in devices if d.kind == "sim"]
    if spec.kv_cache is not None:
        ours["kv-cache-memory-bytes"] = spec.kv_cache
    elif spec.memory is not None and simulated and "kv_cache" not in spec.sim:
        ours["gpu-memory-utilization"] = _utilization(reserved, simulated)
    if simulated:
        profile["device"] = ",".join(d.id for d in simulated)
        profile["device_memory"] = min(d.capacity for d in simulated)
        profile["ledger"] = str(ledger)
    if spec.task is not Task.GENERATE:
        profile["task"] = spec.task.value
    profile |= spec.sim
    pairs = [f"{k}={_profile_text(v)}" for k, v in profile.items() if v is not None]
    return (
        python,
        "-m",
        "vllm_mm.sim",
        *_model_and_address(spec, address),
        *_render(ours | arguments),
        *(part for pair in pairs for part in ("--sim", pair)),
    )


def _profile_text(value: ArgValue) -> str:
    return ",".join(_text(item) for item in value) if isinstance(value, list) else _text(value)


def _command(spec: ModelSpec, address: Address, key: str) -> tuple[str, ...]:
    if not spec.command:
        raise ConfigError(
            f"{spec.id}: an engine of kind `command` needs `command`, a list of the program and its arguments"
        )
    values = {"model": spec.model or spec.id, "api_key": key}
    if address.socket:
        values |= {"socket": address.socket}
    else:
        values |= {"host": address.host, "port": str(address.port)}

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group()[0]
        if name in values:
            return values[name]
        known = "{host}, {port}, {socket}, {model} and {api_key}"
        if name in ("host", "port", "socket"):
            raise ConfigError(
                f"{spec.id}: the command mixes {{socket}} with {{host}} and {{port}}; use the one or the other"
            )
        raise ConfigError(
            f"{spec.id}: the command has an unknown placeholder {{{name}}}; known are {known} (write {{{{ for a bracket)"
        )

    return tuple(_PLACEHOLDER.sub(replace, part) for part in spec.command)
