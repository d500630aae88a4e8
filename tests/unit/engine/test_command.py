"""What an engine's command line and environment are guaranteed to be."""

import itertools
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_mm.domain.errors import ConfigError
from vllm_mm.domain.residency import Device
from vllm_mm.domain.specs import GIB, DeviceWish, EngineKind, ModelSpec, SleepMode, SleepSpec, Task
from vllm_mm.engine import command
from vllm_mm.engine.ports import LAUNCH_VARIABLE, OWNER_VARIABLE, Address

CPU = Device(id="cpu", capacity=32 * GIB, kind="cpu")
GPUS = (Device(id="0", capacity=80 * GIB), Device(id="1", capacity=40 * GIB))
SIM = (Device(id="sim0", capacity=24 * GIB, kind="sim"), Device(id="sim1", capacity=20 * GIB, kind="sim"))
WORK = Path("/run/mm/abc")
SOCKET = Address(socket="/run/mm/abc/s")


def build(
    spec: ModelSpec,
    devices: tuple[Device, ...] = (CPU,),
    env: Mapping[str, str] | None = None,
    address: Address = SOCKET,
    chosen: tuple[str, ...] | None = None,
    kv_cache: int = 0,
) -> tuple[tuple[str, ...], dict[str, str]]:
    return command.build(
        spec,
        address=address,
        device_bytes=dict.fromkeys(chosen or [d.id for d in devices], spec.memory or 8 * GIB),
        kv_cache=kv_cache,
        devices=devices,
        workdir=WORK,
        token="tok",
        owner="own",
        base_env={"PATH": "/bin", "HOME": "/home/u"} if env is None else env,
        cache_dir=Path("/cache"),
        sim_ledger=Path("/ledger"),
        python="/py",
    )


def vllm(**changes: Any) -> ModelSpec:
    return ModelSpec(id="m", model="org/model", **changes)


def option(argv: tuple[str, ...], name: str) -> list[str]:
    """The values that follow an option."""
    assert argv.count(name) == 1, f"{name} once in {argv}"
    return list(itertools.takewhile(lambda a: not a.startswith("--"), argv[argv.index(name) + 1 :]))


def test_a_vllm_command_line_from_a_plain_spec() -> None:
    """The whole of it, on the CPU: address, names, our two flags, nothing else."""
    argv, _ = build(vllm(aliases=("gpt", "b")))
    assert argv == (
        *("vllm", "serve", "org/model", "--uds", "/run/mm/abc/s", "--served-model-name", "m", "gpt", "b"),
        *("--disable-uvicorn-access-log", "--enable-request-id-headers"),
    )
    assert build(ModelSpec(id="org/m", executable="/opt/v/bin/vllm"))[0][:3] == ("/opt/v/bin/vllm", "serve", "org/m")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"seed": None}, []),
        ({"max-model-len": 8192}, ["--max-model-len", "8192"]),
        ({"max_model_len": "8k"}, ["--max-model-len", "8k"]),
        ({"--max-model-len": 1}, ["--max-model-len", "1"]),
        ({"tp": 2}, ["--tensor-parallel-size", "2"]),
        ({"allowed-methods": ["GET", "POST"]}, ["--allowed-methods", "GET", "POST"]),
        ({"middleware": ["a.b", "c.d"]}, ["--middleware", "a.b", "--middleware", "c.d"]),
        ({"limit-mm-per-prompt": {"image": 2}}, ["--limit-mm-per-prompt", '{"image": 2}']),
        ({"hf_overrides.rope_scaling.factor": 4.0}, ["--hf-overrides.rope_scaling.factor", "4.0"]),
        ({"chat-template": "-x"}, ["--chat-template=-x"]),
        ({"O": 3}, ["-O", "3"]),
        ({"empty": []}, []),
    ],
)
def test_arguments_are_written_as_vllm_reads_them(args: dict[str, Any], expected: list[str]) -> None:
    """True is a flag, False its negation, None leaves out, lists and mappings as vLLM wants them."""
    plain, _ = build(vllm())
    argv, _ = build(vllm(args=args))
    assert list(argv[len(plain) :]) == expected


def test_the_users_arguments_win_over_ours() -> None:
    """Also by leaving one of ours out, for an engine that does not know it."""
    argv, _ = build(vllm(args={"disable_uvicorn_access_log": False, "enable-request-id-headers": None}))
    assert "--no-disable-uvicorn-access-log" in argv
    assert "--disable-uvicorn-access-log" not in argv
    assert "--enable-request-id-headers" not in argv


@pytest.mark.parametrize("name", ["uds", "port", "host", "served_model_name", "--api-key", "model"])
def test_what_the_launch_decides_cannot_be_set(name: str) -> None:
    """A key does not belong on a command line, and another address would never be found."""
    with pytest.raises(ConfigError, match=name.lstrip("-").replace("_", "-")):
        build(vllm(args={name: "x"}))


def test_sleep_mode_is_on_where_the_engine_has_it() -> None:
    """On GPUs, unless it is refused; never on the CPU, whose build dies of the flag. The routes exist only in dev mode."""
    argv, env = build(vllm(), GPUS[:1])
    assert "--enable-sleep-mode" in argv
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    argv, env = build(vllm(args={"enable-sleep-mode": False}), GPUS[:1], env={"VLLM_SERVER_DEV_MODE": "1"})
    assert not [a for a in argv if "sleep" in a]
    assert "VLLM_SERVER_DEV_MODE" not in env
    argv, env = build(vllm())
    assert "--enable-sleep-mode" not in argv
    assert "VLLM_SERVER_DEV_MODE" not in env
    argv, env = build(vllm(sleep=SleepSpec(SleepMode.ALWAYS)))
    assert "--enable-sleep-mode" not in argv, "the CPU build refuses it"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"


def test_who_can_sleep() -> None:
    devices = (CPU, *GPUS, *SIM)
    gpu = DeviceWish(ids=("0",))
    assert command.can_sleep(vllm(devices=gpu), devices)
    assert not command.can_sleep(vllm(), devices), "it might come to run on the CPU"
    assert not command.can_sleep(vllm(devices=gpu, args={"enable_sleep_mode": False}), devices)
    assert not command.can_sleep(vllm(), ())
    assert command.can_sleep(ModelSpec(id="m", engine=EngineKind.SIM), (CPU,))
    assert not command.can_sleep(ModelSpec(id="m", engine=EngineKind.COMMAND, command=("x", "{port}")), GPUS)


def test_gpus_are_chosen_by_the_environment() -> None:
    """By their number on the PCI bus, and only those that were reserved."""
    _, env = build(vllm(), GPUS, env={"CUDA_VISIBLE_DEVICES": "7"}, chosen=("1",))
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
    assert "CUDA_VISIBLE_DEVICES" not in build(vllm())[1]


def test_several_devices_are_one_tensor_parallel_engine() -> None:
    assert option(build(vllm(devices=DeviceWish(count=2)), GPUS)[0], "--tensor-parallel-size") == ["2"]
    assert option(
        build(vllm(devices=DeviceWish(count=2), args={"tp": 1, "pp": 2}), GPUS)[0], "--tensor-parallel-size"
    ) == ["1"]


def test_a_declared_size_becomes_the_fraction_of_the_largest_device() -> None:
    """One fraction for all: on none of them may it come to more than was reserved. Rounded down, for the same reason."""
    argv, _ = build(vllm(memory=30 * GIB, devices=DeviceWish(count=2)), GPUS)
    assert option(argv, "--gpu-memory-utilization") == ["0.375"]
    argv, _ = build(vllm(memory=10 * GIB), (replace(GPUS[0], capacity=30 * GIB),))
    assert option(argv, "--gpu-memory-utilization") == ["0.3333"]
    argv, _ = build(vllm(memory=10 * GIB, args={"gpu-memory-utilization": 0.5}), GPUS[:1])
    assert option(argv, "--gpu-memory-utilization") == ["0.5"]
    assert "--gpu-memory-utilization" not in build(vllm(memory=GIB))[0]


def test_what_is_reserved_becomes_the_fraction_when_nothing_is_declared() -> None:
    """Of all that the device has, also where it was configured as smaller: vLLM takes its share of the whole."""
    assert option(build(vllm(), GPUS[:1])[0], "--gpu-memory-utilization") == ["0.1"]
    half = replace(GPUS[0], capacity=40 * GIB, total=80 * GIB)
    assert option(build(vllm(), (half,))[0], "--gpu-memory-utilization") == ["0.1"]
    whole = replace(GPUS[0], capacity=int(7.3636 * GIB))
    spec = vllm(memory=int(whole.capacity * 0.92))
    assert option(build(spec, (whole,))[0], "--gpu-memory-utilization") == ["0.92"], "not 0.9199 for a lost byte"


def test_a_given_kv_cache_is_told_in_bytes() -> None:
    """Beside the fraction, which is what vLLM checks the free memory with; on the CPU the variable would win over it."""
    argv, _ = build(vllm(kv_cache=3 * GIB), GPUS[:1])
    assert option(argv, "--kv-cache-memory-bytes") == [str(3 * GIB)]
    assert option(argv, "--gpu-memory-utilization") == ["0.1"]
    argv, env = build(vllm(kv_cache=3 * GIB), env={"VLLM_CPU_KVCACHE_SPACE": "8"}, kv_cache=3 * GIB)
    assert option(argv, "--kv-cache-memory-bytes") == [str(3 * GIB)]
    assert "VLLM_CPU_KVCACHE_SPACE" not in env


@pytest.mark.parametrize(("kv_cache", "expected"), [(0, "1"), (GIB, "1"), (2 * GIB, "2"), (3 * GIB - 1, "2")])
def test_the_kv_cache_on_the_cpu_is_whole_gib(kv_cache: int, expected: str) -> None:
    """vLLM reads the variable with int(), and without it wants 92 % of the machine's memory."""
    assert build(vllm(), kv_cache=kv_cache)[1]["VLLM_CPU_KVCACHE_SPACE"] == expected


def test_a_simulated_engine_is_told_its_memory_as_vllm_would_be() -> None:
    """The fraction where only the sum is declared, the bytes of KV cache where those are, nothing where its profile says it."""
    sim = ModelSpec(id="m", engine=EngineKind.SIM)
    assert option(build(replace(sim, memory=6 * GIB), SIM[:1])[0], "--gpu-memory-utilization") == ["0.25"]
    assert option(build(replace(sim, kv_cache=GIB), SIM[:1])[0], "--kv-cache-memory-bytes") == [str(GIB)]
    for quiet in (sim, replace(sim, memory=6 * GIB, sim={"kv_cache": "2GiB"})):
        assert not {"--gpu-memory-utilization", "--kv-cache-memory-bytes"} & set(build(quiet, SIM[:1])[0])


def test_the_kv_cache_on_the_cpu_is_the_users_if_given() -> None:
    assert build(vllm(env={"VLLM_CPU_KVCACHE_SPACE": "9"}))[1]["VLLM_CPU_KVCACHE_SPACE"] == "9"
    assert build(vllm(), env={"VLLM_CPU_KVCACHE_SPACE": "8"})[1]["VLLM_CPU_KVCACHE_SPACE"] == "8"
    assert "VLLM_CPU_KVCACHE_SPACE" not in build(vllm(args={"kv-cache-memory-bytes": 10}))[1]


def test_lora_adapters_are_given_by_name_and_path() -> None:
    argv, _ = build(vllm(lora={"sql": "/l/sql", "de": "/l/de"}))
    assert "--enable-lora" in argv
    assert option(argv, "--lora-modules") == ["sql=/l/sql", "de=/l/de"]
    argv, _ = build(ModelSpec("s", engine=EngineKind.SIM, lora={"sql": "/l/sql"}), SIM[:1])
    assert "--enable-lora" in argv
    assert option(argv, "--lora-modules") == ["sql=/l/sql"]


def test_the_environment_carries_nothing_that_would_hurt() -> None:
    """What belongs to the controller, or to another server of the same machine, is not inherited."""
    hurtful = {
        "VLLM_PORT": "1",
        "VLLM_API_KEY": "k",
        "PROMETHEUS_MULTIPROC_DIR": "/p",
        "VLLM_MM_AUTH__ADMIN_TOKEN": "secret",
        "PYTHONPATH": "/ours",
        "LISTEN_FDS": "1",
        "NOTIFY_SOCKET": "/n",
        OWNER_VARIABLE: "x",
        LAUNCH_VARIABLE: "x",
    }
    argv, env = build(vllm(), env=hurtful | {"PATH": "/bin", "HOME": "/home/u", "HF_TOKEN": "t"})
    assert not (set(hurtful) - {OWNER_VARIABLE, LAUNCH_VARIABLE}) & set(env)
    assert "secret" not in json.dumps([argv, env])
    assert env["PATH"] == "/bin"
    assert env["HF_TOKEN"] == "t"


def test_the_marks_come_last_and_win() -> None:
    """A title that is written over the environment eats from its beginning; and a spec cannot forge a mark."""
    _, env = build(vllm(env={OWNER_VARIABLE: "x", LAUNCH_VARIABLE: "y", "Z": "z", "SPT_NOENV": ""}))
    assert list(env.items())[-2:] == [(OWNER_VARIABLE, "own"), (LAUNCH_VARIABLE, "tok")]
    assert env["SPT_NOENV"] == "1"
    assert env["Z"] == "z"


def test_caches_are_shared_and_temporary_files_are_not() -> None:
    _, env = build(vllm())
    assert env["TMPDIR"] == "/run/mm/abc/t"
    assert env["VLLM_CACHE_ROOT"] == "/cache/vllm"
    assert env["VLLM_NO_USAGE_STATS"] == "1"
    assert "HF_HOME" not in env, "the user's own, under HOME"
    _, env = build(vllm(), env={"VLLM_CACHE_ROOT": "/c"})
    assert (env["VLLM_CACHE_ROOT"], env["HF_HOME"]) == ("/c", "/cache/huggingface")
    _, env = build(vllm(env={"TMPDIR": "/mine", "HF_HOME": "/h"}), env={})
    assert (env["TMPDIR"], env["HF_HOME"]) == ("/mine", "/h")


def test_a_simulated_engine_gets_its_profile_and_its_devices() -> None:
    spec = ModelSpec(
        id="demo",
        engine=EngineKind.SIM,
        sim={"weights": "5GiB", "shards": 2, "fault": None},
        task=Task.EMBED,
        devices=DeviceWish(count=2),
        args={"max-model-len": 100},
    )
    argv, env = build(spec, SIM, env={"PYTHONPATH": "backend"})
    assert argv[:9] == (
        "/py",
        "-m",
        "vllm_mm.sim",
        "demo",
        "--uds",
        "/run/mm/abc/s",
        "--served-model-name",
        "demo",
        argv[8],
    )
    pairs = [argv[i + 1] for i, a in enumerate(argv) if a == "--sim"]
    assert pairs == [
        *("device=sim0,sim1", f"device_memory={20 * GIB}", "ledger=/ledger", "task=embed"),
        *("weights=5GiB", "shards=2"),
    ]
    assert option(argv, "--tensor-parallel-size") == ["2"]
    assert option(argv, "--max-model-len") == ["100"]
    assert "--enable-sleep-mode" in argv
    assert env["PYTHONPATH"] == "backend", "it runs in our own Python"


def test_a_simulated_engine_on_a_real_device_models_no_memory() -> None:
    argv, _ = build(ModelSpec(id="demo", engine=EngineKind.SIM, args={"enable-sleep-mode": False}))
    assert not [a for a in argv if "ledger" in a or "device" in a or "sleep" in a]


def test_a_command_gets_its_placeholders() -> None:
    """Braces of JSON stay; doubled ones become one."""
    spec = ModelSpec(
        id="m",
        engine=EngineKind.COMMAND,
        model="/m.gguf",
        command=("llama-server", "--host={host}", "--port", "{port}", "-m", "{model}", '{"a": 1}', "{{x}}"),
    )
    argv, env = build(spec, address=Address(host="127.0.0.1", port=81))
    assert argv == ("llama-server", "--host=127.0.0.1", "--port", "81", "-m", "/m.gguf", '{"a": 1}', "{x}")
    assert env["TMPDIR"] == "/run/mm/abc/t"
    assert "VLLM_CACHE_ROOT" not in env
    spec = replace(spec, command=("x", "--unix", "{socket}"))
    assert build(spec)[0] == ("x", "--unix", "/run/mm/abc/s")


def test_a_bad_command_says_what_is_known() -> None:
    spec = ModelSpec(id="m", engine=EngineKind.COMMAND, command=("x", "{prt}"))
    with pytest.raises(ConfigError, match=r"\{prt\}.*\{port\}"):
        build(spec)
    with pytest.raises(ConfigError, match="mixes"):
        build(replace(spec, command=("x", "{port}", "{socket}")))
    with pytest.raises(ConfigError, match="needs `command`"):
        build(replace(spec, command=()))
    with pytest.raises(ConfigError, match="where to listen"):
        command.address_for(replace(spec, command=("x",)), WORK)


def test_addresses() -> None:
    """A socket in the work directory, or for a command that wants one a port that is free."""
    assert command.address_for(vllm(), WORK) == SOCKET
    spec = ModelSpec(id="m", engine=EngineKind.COMMAND, command=("x", "{socket}"))
    assert command.address_for(spec, WORK) == SOCKET
    address = command.address_for(replace(spec, command=("x", "{port}")), WORK)
    assert address.socket is None
    with socket.socket() as listener:
        listener.bind((address.host, address.port))


def test_a_path_that_is_too_long_for_a_socket_is_refused_with_advice() -> None:
    """sun_path holds 107 bytes; and vLLM makes sockets with UUID names in the temporary directory."""
    sim = ModelSpec(id="m", engine=EngineKind.SIM)
    fits = Path("/" + "x" * (command.SOCKET_PATH_BYTES - 3))
    assert len(str(command.address_for(sim, fits).socket)) == command.SOCKET_PATH_BYTES
    with pytest.raises(ConfigError, match="data-dir"):
        command.address_for(sim, Path(f"{fits}x"))
    with pytest.raises(ConfigError, match="37 bytes too long"):
        command.address_for(vllm(), fits)
    uuid_name = "/t/" + "u" * 36
    command.address_for(vllm(), Path("/" + "x" * (command.SOCKET_PATH_BYTES - len(uuid_name) - 1)))
