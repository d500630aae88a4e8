"""Why an engine did not start: the known texts, and what to do about each. Pure.

The texts are those of vLLM 0.32 (run on its CPU build; the GPU ones read in its source: `v1/worker/utils.py`,
`v1/core/kv_cache_utils.py`, `v1/worker/gpu_worker.py`, `config/model.py`, `config/vllm.py`, `platforms/cuda.py`), of PyTorch,
of argparse, and of huggingface_hub. The first that is found counts, so the more telling ones stand first.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """Why a start failed, in words for people. `permanent`: trying again without a change cannot help."""

    kind: str
    message: str
    advice: str
    permanent: bool


_NO_ERROR = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[")
"""vLLM warns of things with the words with which it dies of them elsewhere."""


def recognise(line: str) -> KnownFailure | None:
    """The failure that a log line tells of, if it is a known one. A line of a run that succeeds may tell of one too
    (a retried download): it means something only when the start fails."""
    if _NO_ERROR.search(line):
        return None
    for pattern, fail in _FAILURES:
        match = pattern.search(line)
        if match is not None:
            return fail(match)
    return None


_N = r"(-?[\d.,]*\d)"


def _failure(kind: str, message: str, advice: str, *, permanent: bool) -> Callable[[re.Match[str]], KnownFailure]:
    """`message` and `advice` may refer to the match's groups, as `{1}` or by name; a group that is not there is empty."""

    def make(match: re.Match[str]) -> KnownFailure:
        groups = [str(group or "").strip() for group in (match.group(), *match.groups())]
        return KnownFailure(kind, _short(message.format(*groups)), _short(advice.format(*groups)), permanent)

    return make


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else text[:397] + "..."


def _kv_cache_too_small(match: re.Match[str]) -> KnownFailure:
    length, needed, available, possible = match.groups()
    shorter = f"Set max-model-len to {possible} or less" if possible else "Set a smaller max-model-len"
    return KnownFailure(
        "kv_cache_too_small",
        f"One request of the model's full length ({length} tokens) needs {needed} GiB of KV cache, and only {available} GiB "
        "are left for it",
        f"{shorter}, or give the model more `memory`.",
        permanent=True,
    )


def _host_memory(match: re.Match[str]) -> KnownFailure:
    node, free, total, _, wanted = match.groups()
    never = float(wanted) > float(total)
    return KnownFailure(
        "memory_at_start",
        f"The host has {free} of {total} GiB of memory free (node {node}), and the engine wants {wanted} GiB",
        f"{'Lower' if never else 'Free memory on the host, or lower'} gpu-memory-utilization or VLLM_CPU_KVCACHE_SPACE "
        "(on the CPU both are about host memory).",
        permanent=never,
    )


_HELP = {
    "vllm": " (`vllm serve --help=all` lists them)",
    "vllm serve": " (`vllm serve --help=all` lists them)",
    "vllm-mm sim": " (`vllm-mm sim --help` lists them)",
}


def _bad_argument(match: re.Match[str]) -> KnownFailure:
    program, text = match[1].strip(), match[2].strip()
    unknown = re.search(r"unrecognized arguments: (--?[\w-]+)", text)
    named = re.search(r"argument (--?[\w-]+)", text)
    what = unknown[1] if unknown else named[1] if named else ""
    where = f"Correct `{what.lstrip('-')}` in the model's args" if what else "Correct the model's args"
    if program == "vllm-mm sim":
        where = "Correct the model's `sim`"
    return KnownFailure(
        "bad_argument", _short(f"The engine refuses its command line: {text}"), f"{where}{_HELP.get(program, '')}.",
        permanent=True,
    )  # fmt: skip


_MEMORY_ADVICE = (
    "Wait for the other processes on the device to give memory back, stop them, or give this model less `memory` "
    "(or a lower gpu-memory-utilization)."
)
_HUB = "See that the name is right, or give the path of a folder; with HF_HUB_OFFLINE=1 only what was downloaded before exists."

_FAILURES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], KnownFailure]], ...] = tuple(
    (re.compile(pattern), fail)
    for pattern, fail in (
        (
            (rf"Free memory on device (\S+) \({_N}/{_N} GiB\) on startup is less than "
            rf"(?:desired GPU memory utilization|the engine's budget.*?) \({_N}, {_N} GiB\)"),
            _failure(
                "memory_at_start", "Device {1} has {2} of {3} GiB free, and the engine wants {5} GiB (utilization {4})",
                _MEMORY_ADVICE, permanent=False,
            ),
        ),
        (
            rf"on kv cache allocation is less than requested memory for kv \((-[\d.]+|0\.0)/{_N} GiB\)",
            _failure(
                "no_cache_blocks", "The engine may use {2} GiB of the host's memory, and the model alone takes more",
                "Raise gpu-memory-utilization (on the CPU it is about host memory), or set VLLM_CPU_KVCACHE_SPACE.",
                permanent=True,
            ),
        ),
        (
            (rf"Available memory on node (\S+) \({_N}/{_N} GiB\) on (?:startup|kv cache allocation) is less than "
            rf"(?:desired CPU memory utilization|requested memory for kv) \((?:{_N}[,/] ?)?{_N} GiB\)"),
            _host_memory,
        ),
        (
            (rf"To serve at least one request with the model's max seq len \((\d+)\), \({_N} GiB KV cache is needed, which is "
            rf"larger than the available KV cache memory \({_N} GiB\)(?:.*?estimated maximum model length is (\d+))?"),
            _kv_cache_too_small,
        ),
        (
            r"No available memory for the cache blocks",
            _failure(
                "no_cache_blocks", "After the weights no memory is left for the KV cache",
                "Give the model more `memory` (or a higher gpu-memory-utilization), more devices, or a smaller max-model-len.",
                permanent=True,
            ),
        ),
        (
            rf"Error in memory profiling\.(?: Initial free memory {_N} GiB, current free memory {_N} GiB)?",
            _failure(
                "profiling_disturbed", "Another process gave memory back while the engine measured its own ({1} -> {2} GiB free)",
                "It is tried again. If it comes back, keep other programs off the device during loads.", permanent=False,
            ),
        ),
        (
            r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
            _failure(
                "out_of_memory", "The device ran out of memory while the model was loaded (asked for {1})",
                "Give the model more `memory` or more devices, or lower max-model-len, max-num-seqs or gpu-memory-utilization.",
                permanent=False,
            ),
        ),
        (
            r"Sleep mode is not supported on current platform|Sleep mode allocator is not available",
            _failure(
                "sleep_mode_unsupported", "This engine has no sleep mode on these devices",
                "Remove enable-sleep-mode from the model's args (vLLM has it on GPUs only).", permanent=True,
            ),
        ),
        (r"^([\w./ -]{1,80}): error: (.+)", _bad_argument),
        (
            r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(\S*?=?(\d+)",
            _failure(
                "bad_argument", "max-model-len {1} is more than the model was made for ({2})",
                "Set max-model-len to {2} or less.", permanent=True,
            ),
        ),
        (
            r"GatedRepoError|gated repo|Access to model (\S+) is restricted|401 Client Error|403 Client Error: Forbidden.*huggingface",
            _failure(
                "access_denied", "Hugging Face does not give this model to you {1}",
                "Accept the model's terms on its page, and set HF_TOKEN in the environment of the server (or the model's env).",
                permanent=True,
            ),
        ),
        (
            r"HFValidationError: Repo id must be .*?: '(.+?)'",
            _failure("model_not_found", "There is no folder {1}, and it is no name of a repository either", _HUB, permanent=True),
        ),
        (
            (r"RepositoryNotFoundError|404 Client Error|Invalid repository ID or local directory specified: '?([^'\s]*)"
            r"|OSError: (\S+) is not a local folder and is not a valid model identifier"
            r"|LocalEntryNotFoundError: Cannot find an appropriate cached snapshot|Can't load the configuration of '(\S+?)'"
            r"|RevisionNotFoundError|EntryNotFoundError: 404"),
            _failure("model_not_found", "The model {1}{2}{3} was not found", _HUB, permanent=True),
        ),
        (
            r"(\S*) ?does not appear to have a file named (\S+)",
            _failure("model_not_found", "{1} is not a model: it has no {2}", _HUB, permanent=True),
        ),
        (
            r"We couldn't connect to '(\S+?)'|(?:MaxRetryError|ConnectionError|ConnectTimeout|NameResolutionError)\b.*?(huggingface\.co|hf\.co)",
            _failure(
                "download_failed", "The model could not be downloaded from {1}{2}",
                "Check the network (HTTPS_PROXY, HF_ENDPOINT), or download it elsewhere and give the path of the folder.",
                permanent=False,
            ),
        ),
        (
            r"\[Errno 98\] [^\n]*address already in use|OSError: \[Errno 98\] Address already in use",
            _failure(
                "address_in_use", "The engine's address is taken by another process",
                "It is tried again with another address.", permanent=False,
            ),
        ),
        (
            r"AF_UNIX path too long",
            _failure(
                "path_too_long", "The path of the engine's socket is longer than unix sockets allow",
                "Use a data directory with a shorter path (--data-dir).", permanent=True,
            ),
        ),
        (
            r"No space left on device",
            _failure(
                "disk_full", "A file system is full (downloads, compile cache, /dev/shm or the temporary directory)",
                "Free some space, or move the caches (HF_HOME, VLLM_CACHE_ROOT) to a larger disk.", permanent=False,
            ),
        ),
        (
            (r"Found no NVIDIA driver|No CUDA GPUs are available|CUDA driver version is insufficient|Failed to infer device type"
            r"|Torch not compiled with CUDA enabled|libcuda\.so\.1: cannot open shared object"),
            _failure(
                "no_device", "The engine finds no GPU that it can use",
                "Check the driver with nvidia-smi (in a container: run it with --gpus), or use a CPU build of vLLM as `executable`.",
                permanent=True,
            ),
        ),
        (
            r"no kernel image is available for execution on the device",
            _failure(
                "device_unsupported", "This build of the engine has no code for the GPU's generation",
                "Use a build of vLLM that supports the GPU.", permanent=True,
            ),
        ),
        (
            (r"Bfloat16 is only supported on GPUs|(\S+) is not supported for quantization method (\w+)"
            r"|The quantization method (\w+) is not supported for the current GPU"
            r"|(?:model type|platform)\b.* does not support (b?float16)"),
            _failure(
                "dtype_unsupported", "The number format cannot be used here: {0}",
                "Set another dtype in the model's args (`half` or `float32`), or choose another quantization.", permanent=True,
            ),
        ),
        (
            r"Model architectures? \[?(.+?)\]? (?:are|is) not supported",
            _failure(
                "architecture_unsupported", "This version of vLLM cannot serve the architecture {1}",
                "Use a newer vLLM (`executable`), or another model.", permanent=True,
            ),
        ),
        (
            r"ModuleNotFoundError: No module named '([^']+)'",
            _failure(
                "missing_module", "The engine's Python lacks the module {1}",
                "Install it into the environment of the engine's `executable`.", permanent=True,
            ),
        ),
        (
            r"ImportError: (\S+): cannot open shared object file",
            _failure(
                "missing_module", "The engine lacks the library {1}",
                "Install it, or use an `executable` from an environment that fits this machine.", permanent=True,
            ),
        ),
        (
            # How pydantic shows what a configuration class of vLLM refuses.
            r"Value error, (.+?)(?: \[type=value_error|$)",
            _failure(
                "bad_argument", "The engine refuses its settings: {1}", "Correct the model's args or env.", permanent=True
            ),
        ),
    )
)  # fmt: skip
