"""The command line, in vLLM's words where it has them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_mm.sim.profile import Profile, parse_pairs
from vllm_mm.vocabulary import faults
from vllm_mm.vocabulary.profile import KEYS
from vllm_mm.vocabulary.quantities import parse_count, parse_size

VERSION = "0.32.0"
"""The version of vLLM that is imitated, and that /version shows."""

_WITHOUT_MEANING = (
    "--dtype", "--seed", "--kv-cache-dtype", "--quantization", "--tokenizer", "--revision",
    "--max-num-batched-tokens", "--task", "--runner", "--block-size", "--swap-space", "--uvicorn-log-level",
    "--max-logprobs", "--load-format", "--tool-call-parser", "--reasoning-parser",
)  # fmt: skip
"""vLLM's options with a value that make no difference here; accepted so that a command line can be tried out."""
_SWITCHES_WITHOUT_MEANING = (
    "--enforce-eager", "--trust-remote-code", "--enable-prefix-caching", "--no-enable-prefix-caching",
    "--enable-chunked-prefill", "--no-enable-chunked-prefill",
    "--no-enable-log-requests", "--enable-log-requests", "--disable-log-stats",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What one simulated engine was started with."""

    model: str
    served_names: tuple[str, ...]
    lora_modules: Mapping[str, str]
    """Adapters by the name that requests ask for: their paths. Nothing is read from there."""
    uds: str | None
    host: str
    port: int
    max_model_len: int
    enable_sleep_mode: bool
    tensor_parallel_size: int
    memory_share: float | None
    """Of each device, that weights, overhead and cache may take together; None: as much as the profile says."""
    kv_cache_left: int | None
    """What that leaves for the cache of each rank, and may be less than nothing."""
    shutdown_timeout: float
    api_keys: tuple[str, ...]
    request_id_headers: bool
    force_include_usage: bool
    access_log: bool
    dev_mode: bool
    response_store: bool
    auto_tools: bool
    """Whether requests with tools may leave it to the model to call one."""
    keep_alive: float
    """Seconds that an idle connection is kept."""
    profile: Profile


def parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Raises SystemExit: 2, after argparse's message, for a bad command line; 0 after --help."""
    parser = _parser()
    known = parser.parse_args(argv)
    try:
        profile = parse_pairs(known.sim)
    except ValueError as error:
        parser.error(f"argument --sim: {error}")
    if known.tensor_parallel_size > len(profile.device) > 1:
        parser.error(
            f"argument --tensor-parallel-size: {known.tensor_parallel_size} ranks need as many devices, "
            f"and --sim device names {len(profile.device)}"
        )
    if known.max_num_seqs is not None:
        profile = replace(profile, max_num_seqs=known.max_num_seqs)
    ranks, left = known.tensor_parallel_size, None
    if known.kv_cache_memory_bytes is not None:
        profile = replace(profile, kv_cache=known.kv_cache_memory_bytes * ranks)
    elif known.gpu_memory_utilization is not None:
        left = int(profile.device_memory * known.gpu_memory_utilization) - profile.weights // ranks - profile.overhead
        profile = replace(profile, kv_cache=max(0, left) * ranks)
    return Options(
        model=known.model,
        served_names=tuple(known.served_model_name or (known.model,)),
        lora_modules=_adapters(parser, known),
        uds=known.uds,
        host=known.host,
        port=known.port,
        max_model_len=known.max_model_len or min(8192, max(1, profile.kv_cache // max(1, profile.kv_bytes_per_token))),
        enable_sleep_mode=known.enable_sleep_mode,
        tensor_parallel_size=known.tensor_parallel_size,
        memory_share=known.gpu_memory_utilization,
        kv_cache_left=left,
        shutdown_timeout=known.shutdown_timeout,
        api_keys=tuple(known.api_key or ()) or tuple(filter(None, [environ.get("VLLM_API_KEY", "")])),
        request_id_headers=known.enable_request_id_headers,
        force_include_usage=known.enable_force_include_usage,
        access_log=not known.disable_uvicorn_access_log,
        dev_mode=environ.get("VLLM_SERVER_DEV_MODE", "0") == "1",
        auto_tools=known.enable_auto_tool_choice or profile.tools,
        response_store=environ.get("VLLM_ENABLE_RESPONSES_API_STORE", "0") == "1",
        keep_alive=float(environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")),
        profile=profile,
    )


def _adapters(parser: argparse.ArgumentParser, known: argparse.Namespace) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in known.lora_modules or ():
        name, mark, path = text.partition("=")
        if not mark or not name or not path:
            parser.error(f"argument --lora-modules: {text!r} is not NAME=PATH")
        found[name] = path
    if found and not known.enable_lora:
        parser.error("argument --lora-modules: adapters need --enable-lora")
    return found


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction of a device's memory, such as 0.9")
    return found


def _bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm-mm sim",
        description="A simulated vLLM engine: its HTTP surface, log, exit codes and processes, and a model of time and memory.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=_epilog(),
    )
    add = parser.add_argument
    add("model", nargs="?", default="sim", metavar="MODEL", help="name of the model (sim)")
    add("--uds", metavar="PATH", help="listen on this unix socket; the file must not exist yet")
    add("--host", default="127.0.0.1", help="listen on this address (127.0.0.1)")
    add("--port", type=int, default=8000, help="and this port (8000)")
    add("--served-model-name", nargs="+", metavar="NAME", help="names to answer to; the first is shown in answers")
    add("--enable-lora", action="store_true", help="take requests for LoRA adapters")
    add(
        "--lora-modules",
        nargs="+",
        metavar="NAME=PATH",
        help="adapters to answer for; nothing is read from their paths",
    )
    add(
        "--max-model-len",
        type=_count,
        metavar="N",
        help="tokens of prompt and answer together (8192, or what the cache holds)",
    )
    add("--max-num-seqs", type=_count, metavar="N", help="sequences that run at once; the same as --sim max_num_seqs=N")
    add(
        "--gpu-memory-utilization",
        type=_share,
        metavar="F",
        help="share of each device for weights, overhead and cache together; the cache gets what is left",
    )
    add("--kv-cache-memory-bytes", type=_bytes, metavar="N", help="KV cache of each rank, whatever the share leaves")
    add("--enable-sleep-mode", action="store_true", help="without it /sleep answers 200 and frees nothing, as in vLLM")
    add(
        "--tensor-parallel-size",
        "-tp",
        type=_count,
        default=1,
        metavar="N",
        help="ranks; more than one makes worker processes",
    )
    add(
        "--shutdown-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds to finish requests in after SIGTERM (0)",
    )
    add(
        "--enable-auto-tool-choice",
        action="store_true",
        help="take requests with tools that leave the choice to the model",
    )
    add("--api-key", nargs="*", metavar="KEY", help="keys that /v1 and /v2 ask for")
    add("--enable-request-id-headers", action="store_true", help="echo X-Request-Id")
    add("--enable-force-include-usage", action="store_true", help="usage in every stream")
    add("--disable-uvicorn-access-log", action="store_true", help="no log line per request")
    add(
        "--sim",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one number of the simulation, or a fault; repeatable",
    )
    for name in _WITHOUT_MEANING:
        add(name, help=argparse.SUPPRESS)
    for name in _SWITCHES_WITHOUT_MEANING:
        add(name, action="store_true", help=argparse.SUPPRESS)
    return parser


def _epilog() -> str:
    keys = "\n".join(f"    {key:<27}{meaning}" for key, (_, meaning) in KEYS.items())
    return (
        "keys of --sim (sizes such as 5GiB, durations such as 250ms, rates such as 75, bandwidths such as 2GiB/s):\n"
        f"{keys}\n\n{faults.__doc__}\n"
        "example:\n    vllm-mm sim demo --uds /tmp/demo.sock --sim weights=5GiB --sim load_bandwidth=2GiB/s --sim startup=3s"
    )
