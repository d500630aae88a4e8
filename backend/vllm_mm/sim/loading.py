"""The phases of a load: what is logged, how long each takes, in vLLM's own words and order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vllm_mm.sim.options import VERSION, Options
from vllm_mm.vocabulary.quantities import gib

ARCHITECTURES = {
    "generate": "LlamaForCausalLM",
    "embed": "BertModel",
    "score": "BertForSequenceClassification",
    "classify": "BertForSequenceClassification",
    "transcribe": "WhisperForConditionalGeneration",
    "realtime": "VoxtralRealtimeGeneration",
}
SUPPORTED_TASKS = {
    "generate": "['generate']",
    "embed": "['embed', 'token_embed']",
    "score": "['classify', 'token_classify']",
    "classify": "['classify', 'token_classify']",
    "transcribe": "['transcription']",
    "realtime": "['generate', 'transcription', 'realtime']",
}


@dataclass(frozen=True, slots=True)
class Info:
    """A log line."""

    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress bar on stderr."""

    text: str
    end: bool


@dataclass(frozen=True, slots=True)
class Enter:
    """A phase begins (see `faults.PHASES`)."""

    phase: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes."""

    seconds: float


Step = Info | Progress | Enter | Wait


def kv_tokens(options: Options) -> int:
    """How many tokens the KV cache holds."""
    return max(1, options.profile.kv_cache // max(1, options.profile.kv_bytes_per_token))


def rank_weights(options: Options) -> int:
    """Bytes of weights of one rank."""
    return options.profile.weights // options.tensor_parallel_size


def rank_kv_cache(options: Options) -> int:
    """Bytes of KV cache of one rank."""
    return options.profile.kv_cache // options.tensor_parallel_size


def server_steps(options: Options) -> Iterator[Step]:
    """What the API server says before the engine core exists."""
    yield Enter("version")
    yield Info("api_utils.py:345", f"vLLM server version {VERSION}, serving model {options.model}")
    yield Info("api_utils.py:273", f"non-default args: {{'model_tag': '{options.model}', 'model': '{options.model}'}}")
    yield Enter("architecture")
    yield Info("model.py:632", f"Resolved architecture: {ARCHITECTURES[options.profile.task]}")
    yield Info("model.py:2011", f"Using max model len {options.max_model_len}")


def core_steps(options: Options, elapsed: Callable[[], float]) -> Iterator[Step]:
    """The load itself, in the engine core. `elapsed` gives seconds since an earlier call of it."""
    profile = options.profile
    yield Enter("init")
    yield Info(
        "core.py:133",
        f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{options.model}', max_seq_len={options.max_model_len}, "
        f"tensor_parallel_size={options.tensor_parallel_size}, served_model_name={options.served_names[0]}",
    )
    yield Wait(profile.startup)
    yield Enter("weights")
    yield Info("gpu_model_runner.py:4903", f"Starting to load model {options.model}...")
    elapsed()
    yield from _shards(profile.shards, profile.weights / profile.load_bandwidth)
    took = elapsed()
    yield Info("default_loader.py:384", f"Loading weights took {took:.2f} seconds")
    yield Info(
        "gpu_model_runner.py:4998",
        f"Model loading took {gib(rank_weights(options)):.2f} GiB memory and {took:.6f} seconds",
    )
    elapsed()
    if profile.compile:
        yield Enter("compile")
        yield Info("backends.py:988", "Using cache directory: torch_compile_cache/sim for vLLM's torch.compile")
        yield Wait(profile.compile)
        yield Info("monitor.py:53", f"torch.compile took {profile.compile:.2f} s in total")
    if options.kv_cache_left is not None and options.kv_cache_left <= 0:  # told before it is found to be too little
        yield Info("gpu_worker.py:473", f"Available KV cache memory: {gib(options.kv_cache_left):.2f} GiB")
    yield Enter("kv_cache")
    tokens = kv_tokens(options)
    yield Info("gpu_worker.py:473", f"Available KV cache memory: {gib(rank_kv_cache(options)):.2f} GiB")
    yield Info(
        "kv_cache_utils.py:1612",
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {options.max_model_len:,} tokens per request: "
        f"{tokens / options.max_model_len:.2f}x",
    )
    if profile.graphs:
        yield Enter("graphs")
        yield from _graphs(profile.graphs)
        yield Info("gpu_model_runner.py:6030", f"Graph capturing finished in {profile.graphs:.0f} secs, took 0.10 GiB")
    yield Enter("warmup")
    yield Info("core.py:402", f"init engine (profile, create kv cache, warmup model) took {elapsed():.2f} s")


def ready_steps(options: Options) -> Iterator[Info]:
    """What the API server says when the core is ready."""
    yield Info("api_server.py:592", f"Supported tasks: {SUPPORTED_TASKS[options.profile.task]}")
    where = f"unix:{options.uds}" if options.uds else f"http://{options.host}:{options.port}"
    yield Info("api_server.py:596", f"Starting vLLM server on {where}")


def _shards(count: int, seconds: float) -> Iterator[Step]:
    for done in range(count + 1):
        if done:
            yield Wait(seconds / count)
        yield Progress(
            f"Loading safetensors checkpoint shards: {100 * done // count:3d}% Completed | {done}/{count} [00:00<00:00]",
            end=done == count,
        )


def _graphs(seconds: float, sizes: int = 4) -> Iterator[Step]:
    for done in range(sizes + 1):
        if done:
            yield Wait(seconds / sizes)
        yield Progress(
            f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): {100 * done // sizes:3d}%| {done}/{sizes} [00:00<00:00]",
            end=done == sizes,
        )
