"""Phases, facts and known failures, from real logs (tests/fixtures: vLLM 0.32, CPU build) and, for what needs a
GPU, from the texts in vLLM's source."""

import time
from pathlib import Path

import pytest

from vllm_mm.engine.failures import KnownFailure, recognise
from vllm_mm.engine.progress import PHASES, PROFILED_FROM, Fact, LineInfo, parse

FIXTURES = Path(__file__).parents[2] / "fixtures"
LOGS = FIXTURES / "engine-logs"
MORE_LOGS = FIXTURES / "vllm-logs"
"""Of the real engines that this installation runs: starts under other settings, with all their lines."""


def read(name: str, folder: Path = LOGS) -> list[LineInfo]:
    lines = (folder / f"{name}.log").read_text().splitlines()
    return [info for line in lines if (info := parse(line)) is not None]


def known(line: str) -> KnownFailure:
    info = parse(line)
    assert info is not None, line
    assert info.failure is not None, line
    return info.failure


def test_a_good_start_is_read_from_beginning_to_end() -> None:
    """Every phase in its order, none twice in a wrong place, and the facts that footprints are learned from."""
    infos = read("good-cpu")
    phases = [info.phase for info in infos if info.phase]
    assert sorted(phases, key=PHASES.index) == phases
    assert list(dict.fromkeys(phases)) == [
        *("version", "architecture", "engine", "weights", "compile", "kv_cache", "warmup", "tasks", "startup_complete"),
    ]
    facts: dict[str, Fact] = {}
    for info in infos:
        facts.update(info.facts)
    assert facts == {
        "version": "0.32.0",
        "architecture": "LlamaForCausalLM",
        "max_model_len": 2048,
        "weights_s": 2.72,
        "kv_cache_gib": 1.0,
        "kv_tokens": 23296,
        "max_concurrency": 11.38,
        "init_s": 84.63,
        "tasks": ["generate"],
    }
    assert [info.percent for info in infos if info.percent is not None] == [0, 100, 100]
    assert not [info.failure for info in infos if info.failure]


@pytest.mark.parametrize(
    ("log", "kind", "permanent", "words"),
    [
        ("bad-argument", "bad_argument", True, ("--max-model-lenn", "`max-model-lenn`")),
        ("bad-value", "bad_argument", True, ("'nonsense'", "`dtype`")),
        ("max-model-len", "bad_argument", True, ("999999", "8192 or less")),
        ("not-found-folder", "model_not_found", True, ("/models/no-such-model",)),
        ("not-found-hub", "model_not_found", True, ("was not found", "HF_HUB_OFFLINE")),
        ("empty-folder", "model_not_found", True, ("/tmp/empty",)),
        ("sleep-mode-on-cpu", "sleep_mode_unsupported", True, ("enable-sleep-mode",)),
        ("stale-socket", "address_in_use", False, ("another process",)),
        ("port-in-use", "address_in_use", False, ("another process",)),
        ("kv-cache-too-small", "kv_cache_too_small", True, ("8192", "0.35 GiB", "0.09 GiB", "max-model-len to 1920")),
        ("kv-cache-too-small-unlimited", "kv_cache_too_small", True, ("smaller max-model-len",)),
        ("no-cache-blocks-cpu", "no_cache_blocks", True, ("0.12 GiB", "gpu-memory-utilization")),
        ("memory-at-start-cpu", "memory_at_start", False, ("9.16 of 12.21", "12.2 GiB")),
    ],
)
def test_a_failed_start_is_recognised(log: str, kind: str, permanent: bool, words: tuple[str, ...]) -> None:
    """From the real log of such a start: one kind, whichever of its lines is read, and advice that names the thing."""
    failures = [info.failure for info in read(log) if info.failure]
    assert {(f.kind, f.permanent) for f in failures} == {(kind, permanent)}
    text = f"{failures[0].message} {failures[0].advice}"
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("fail-bad-argument", "bad_argument"),
        ("fail-bad-value", "bad_argument"),
        ("fail-embed-max-model-len", "bad_argument"),
        ("fail-kv-cache-small", "kv_cache_too_small"),
        ("fail-kv-space-huge", "memory_at_start"),
        ("fail-max-model-len", "bad_argument"),
        ("fail-model-missing", "model_not_found"),
        ("fail-model-unknown-offline", "model_not_found"),
        ("fail-socket-busy", "address_in_use"),
        ("fail-socket-file-stale", "address_in_use"),
        ("fail-socket-path-long", "path_too_long"),
        ("good-all-minilm-l6-v2", None),
        ("good-smollm2-135m-float32", None),
        ("good-tiny-random-llama", None),
    ],
)
def test_each_log_tells_one_kind_of_failure_or_none(log: str, kind: str | None) -> None:
    """Warnings of a start that fails otherwise, or of one that does not fail, are not taken for the cause."""
    infos = read(log, MORE_LOGS)
    assert {info.failure.kind for info in infos if info.failure} == ({kind} if kind else set())
    phases = [info.phase for info in infos if info.phase]
    assert sorted(phases, key=PHASES.index) == phases
    assert (phases[-1:] == ["startup_complete"]) is (kind is None)


def test_what_can_never_fit_is_not_tried_again() -> None:
    """400 GiB on a host of 12 will not become free; 12.2 of 12.21 may."""
    huge = [info.failure for info in read("fail-kv-space-huge", MORE_LOGS) if info.failure]
    assert {f.permanent for f in huge} == {True}


@pytest.mark.parametrize(
    ("line", "kind", "permanent", "word"),
    [
        (
            (
                "(EngineCore pid=1) ERROR 01-01 00:00:00 [core.py:1] ValueError: Free memory on device cuda:0 (10.5/79.1 GiB) on startup is "
                "less than desired GPU memory utilization (0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
                "other processes."
            ),
            *(
                "memory_at_start",
                False,
                "cuda:0 has 10.5 of 79.1 GiB free, and the engine wants 72.8 GiB (utilization 0.92)",
            ),
        ),
        (
            (
                "ValueError: Free memory on device cuda:1 (10.5/79.1 GiB) on startup is less than the engine's budget after excluding external "
                "process's weights (0.92, 72.8 GiB). Decrease GPU memory utilization"
            ),
            *("memory_at_start", False, "72.8"),
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine",
            *("no_cache_blocks", True, "memory"),
        ),
        (
            "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free memory 72.3 GiB. This happens when",
            *("profiling_disturbed", False, "70.1 -> 72.3"),
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB of which",
            *("out_of_memory", False, "2.50 GiB"),
        ),
        ("RuntimeError: CUDA error: out of memory", "out_of_memory", False, "memory"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check", "no_device", True, "nvidia-smi"),
        ("RuntimeError: No CUDA GPUs are available", "no_device", True, "nvidia-smi"),
        ("RuntimeError: Failed to infer device type, please set", "no_device", True, "nvidia-smi"),
        (
            "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
            "no_device",
            True,
            "driver",
        ),
        (
            "ImportError: libnuma.so.1: cannot open shared object file: No such file",
            "missing_module",
            True,
            "libnuma.so.1",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "device_unsupported",
            True,
            "build",
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has 7.5",
            *("dtype_unsupported", True, "half"),
        ),
        (
            "  Value error, torch.bfloat16 is not supported for quantization method gptq. Supported dtypes: [torch.float16] [type=value_error",
            *("dtype_unsupported", True, "gptq"),
        ),
        (
            "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: ... [type=value_error",
            *("architecture_unsupported", True, "FooForCausalLM"),
        ),
        ("ModuleNotFoundError: No module named 'flash_attn'", "missing_module", True, "flash_attn"),
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url https://huggingface.co/a/b",
            *("access_denied", True, "HF_TOKEN"),
        ),
        (
            "OSError: You are trying to access a gated repo. Make sure to have access to it at https://huggingface.co/a/b.",
            *("access_denied", True, "HF_TOKEN"),
        ),
        (
            "OSError: a/b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
            *("model_not_found", True, "a/b"),
        ),
        ("huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.", "model_not_found", True, "not found"),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
            *("download_failed", False, "https://huggingface.co"),
        ),
        ("OSError: [Errno 28] No space left on device: '/cache/x'", "disk_full", False, "HF_HOME"),
        (
            "  Value error, invalid literal for int() with base 10: '0.5' [type=value_error, input_value=ArgsKwargs((), {}), input_type=A]",
            *("bad_argument", True, "invalid literal for int() with base 10: '0.5'"),
        ),
    ],
)
def test_failures_that_need_a_gpu_or_a_network_are_recognised(line: str, kind: str, permanent: bool, word: str) -> None:
    """The texts as vLLM's source, PyTorch and huggingface_hub have them, with or without the prefix of a log line."""
    for text in (line, f"(EngineCore pid=1) ERROR 01-01 00:00:00 [core.py:1510] {line}"):
        if text != line and line.startswith("(Engine"):
            continue
        failure = known(text)
        assert (failure.kind, failure.permanent) == (kind, permanent)
        assert word in f"{failure.message} {failure.advice}"
        assert failure.advice


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("vllm-mm sim: error: argument --sim: startup: 'soon' is not a duration", "Correct the model's `sim` (`vllm-mm sim --help` lists them)."),
        ("vllm serve: error: argument --x: y", "Correct `x` in the model's args (`vllm serve --help=all` lists them)."),
        ("llama-server: error: unrecognized arguments: --x", "Correct `x` in the model's args."),
    ],
)  # fmt: skip
def test_the_help_that_is_named_is_that_of_the_engine(line: str, advice: str) -> None:
    """Whose command line was refused, that one's help is named, and none where we know of none."""
    assert known(line).advice == advice


@pytest.mark.parametrize(
    ("line", "phase", "percent"),
    [
        ("Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.9it/s]", "weights", 50),
        ("(Worker pid=1) Loading pt checkpoint shards: 100% Completed | 1/1", "weights", 100),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  97%|█████▋| 65/67 [00:02<00:00, 26it/s]",
            "graphs",
            97,
        ),
        ("Capturing CUDA graphs (decode, FULL):   3%|", "graphs", 3),
        ("model-00001-of-00002.safetensors:  17%|█▋        | 850M/4.97G", "download", 17),
        ("Fetching 12 files:   8%|▊         | 1/12", "download", 8),
        (
            "leftover 3%(EngineCore pid=2) INFO 01-01 00:00:00 [gpu_model_runner.py:1] Starting to load model x...",
            "weights",
            None,
        ),
        ('{"level":"INFO","message":"Starting to load model x..."}', "weights", None),
        ("INFO 01-01 00:00:00 [backends.py:1] Using cache directory: /c for vLLM's torch.compile", "compile", None),
        ("(APIServer pid=1) INFO:     Application startup complete.", "startup_complete", None),
    ],
)
def test_phases_on_the_gpu_and_percentages(line: str, phase: str, percent: float | None) -> None:
    """Also where two processes wrote into one line, and in JSON."""
    info = parse(line)
    assert info is not None
    assert (info.phase, info.percent) == (phase, percent)
    assert phase in PHASES


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("Model loading took 14.25 GiB memory and 3.123456 seconds", {"weights_gib": 14.25, "load_s": 3.123456}),
        ("Model loading took 14.25 GiB and 3.1 seconds", {"weights_gib": 14.25, "load_s": 3.1}),
        ("torch.compile took 21.34 s in total", {"compile_s": 21.34}),
        ("Available KV cache memory: -1.50 GiB", {"kv_cache_gib": -1.5}),
        (
            "GPU KV cache size: 1,234,560 tokens, Maximum concurrency for 8,192 tokens per request: 150.70x",
            {"kv_tokens": 1234560, "max_concurrency": 150.7},
        ),
        ("Graph capturing finished in 12 secs, took 0.61 GiB", {"graphs_s": 12.0}),
        ("init engine (profile, create kv cache, warmup model) took 30.50 s (compilation: 20.10 s)", {"init_s": 30.5}),
        ("vLLM server version 0.10.1.dev3+cpu, serving model x", {"version": "0.10.1.dev3+cpu"}),
        ("Supported tasks: ['embed', 'token_embed']", {"tasks": ["embed", "token_embed"]}),
    ],
)
def test_facts(line: str, facts: dict[str, Fact]) -> None:
    info = parse(f"(EngineCore pid=7) INFO 01-01 00:00:00 [x.py:1] {line}")
    assert info is not None
    assert info.facts == facts


@pytest.mark.parametrize(
    "line",
    [
        "",
        "(APIServer pid=1) INFO 01-01 00:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, GPU KV cache usage: 0.1%",
        "Free memory on device (70.1/79.1 GiB) on startup. Desired GPU memory utilization is (0.92, 72.8 GiB).",
        "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
        "WARNING Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "Traceback (most recent call last):",
    ],
)
def test_lines_that_tell_nothing(line: str) -> None:
    """Warnings and figures of a healthy engine are no failures; nor is the line that only points to the cause."""
    assert parse(line) is None


def test_messages_stay_short() -> None:
    """They go into answers to clients."""
    failure = recognise("vllm serve: error: argument --dtype: " + "x" * 5000)
    assert failure is not None
    assert len(failure.message) <= 400


def test_the_phases_after_the_memory_profile_are_phases() -> None:
    assert set(PHASES) > PROFILED_FROM
    assert "weights" not in PROFILED_FROM


def test_a_telling_piece_covers_each_failure() -> None:
    """`parse` looks first for a piece that all known texts have: it must not hide what `recognise` would find."""
    for log in FIXTURES.glob("*-logs/*.log"):
        for line in log.read_text().splitlines():
            info = parse(line)
            if info is None or info.phase is None:
                assert (info.failure if info else None) == recognise(line), line


def test_long_lines_cost_little() -> None:
    """A line of 8 KiB (the longest that the tail passes on) is read in milliseconds, whatever is in it."""
    for piece in ("(", "1", "Loading ", "error: ", "KV cache size: ", "Free memory on device (", ".bin"):
        line = (piece * 8192)[:8192]
        before = time.perf_counter()
        parse(line)
        assert time.perf_counter() - before < 0.25, piece
