"""What a token takes in the KV cache, and how many tokens a size holds, as vLLM counts them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import model_configs as known
from vllm_mm.domain.footprint import per_gib
from vllm_mm.domain.kv_cache import KvCache, Layers, kv_cache
from vllm_mm.domain.model_config import Setup
from vllm_mm.domain.specs import GIB


def cache(config: dict[str, Any], **setup: Any) -> KvCache:
    found = kv_cache(config, Setup(**setup))
    assert found is not None
    return found


def test_the_figure_that_vllm_logs_for_a_small_model() -> None:
    """SmolLM2-135M: 23,040 bytes a token, and 46,592 tokens in 1 GiB, with the blocks of the CPU build and those of GPUs."""
    for gpu in (False, True):
        found = cache(known.SMOLLM, gpu=gpu)
        assert found.token_bytes == 23_040
        assert found.tokens(GIB) == 46_592
    assert per_gib(23_040, 128) == 46_592
    assert cache(known.SMOLLM, dtype="float32").token_bytes == 46_080
    assert cache(known.SMOLLM, gpu=False, max_model_len=2048, dtype="float32").tokens(GIB) == 23_296


@pytest.mark.parametrize(
    ("config", "setup", "expected"),
    [
        (known.LLAMA, {}, 131_072),
        (known.LLAMA, {"tensor_parallel": 2}, 65_536),
        (known.LLAMA, {"tensor_parallel": 16}, 16_384),  # a head is the least
        (known.LLAMA, {"pipeline_parallel": 2}, 65_536),
        (known.LLAMA, {"tensor_parallel": 2, "pipeline_parallel": 4}, 16_384),
        (known.LLAMA, {"kv_dtype": "fp8_e5m2"}, 65_536),
        (known.LLAMA, {"kv_dtype": "int8_per_token_head"}, 65_536),
        (known.LLAMA, {"dtype": "float"}, 262_144),
        (known.AWQ, {}, 131_072),
        (known.MISTRAL, {}, 131_072),
        (known.DEEPSEEK, {}, 31_104),
        (known.DEEPSEEK, {"tensor_parallel": 8}, 31_104),  # the latent vector is not split
        (known.QWEN_VL, {}, 57_344),
        (known.GEMMA, {}, 10 * 8192),  # beyond the window only one layer in six grows
        (known.GPT_OSS, {}, 12 * 2048),
        (known.QWEN_NEXT, {}, 12 * 2048),
        ({**known.LLAMA, "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}}, {}, 65_536),
        ({**known.LLAMA, "quantization_config": {"quantization": {"kv_cache_quant_algo": "FP8"}}}, {}, 65_536),
        ({**known.DEEPSEEK, "model_type": "deepseek_v32", "index_head_dim": 128}, {}, 27 * (656 + 132)),
        ({**known.DEEPSEEK, "model_type": "deepseek_v32", "index_head_dim": 128}, {"kv_dtype": "bfloat16"}, 27 * (1152 + 132)),
        ({**known.DEEPSEEK, "model_type": "other"}, {}, 27 * 16 * 128 * 2 * 2),  # has the words, but no such cache
        ({"model_type": "falcon", "n_layer": 2, "n_head": 71, "hidden_size": 4544, "multi_query": True}, {}, 2 * 64 * 2 * 2),
        ({"model_type": "whisper", "decoder_layers": 4, "decoder_attention_heads": 6, "d_model": 384}, {}, 4 * 384 * 2 * 2),
    ],
)  # fmt: skip
def test_bytes_of_a_token(config: dict[str, Any], setup: dict[str, Any], expected: int) -> None:
    """On one device."""
    assert cache(config, **setup).token_bytes == expected


def test_an_unknown_type_of_cache_is_told() -> None:
    assert "int4_per_token_head" in cache(known.LLAMA, kv_dtype="int4_per_token_head").notes[0]


def test_a_window_bounds_what_a_request_takes() -> None:
    """A long request of Mistral 7B (v0.1) keeps 4,095 tokens and those in flight, in blocks of which one more is begun."""
    found = cache(known.MISTRAL, max_batched_tokens=2048)
    assert found.request() == (-(-(4095 + 2 * 2048) // 16) + 1) * 16 * 131_072
    assert found.request(100) == 8 * 16 * 131_072
    assert cache({**known.MISTRAL, "sliding_window": None}).request() == 32768 * 131_072
    assert cache({**known.MISTRAL, "sliding_window": 0}).request() == 32768 * 131_072


def test_groups_of_a_hybrid_model() -> None:
    """Gemma 3 27B: 10 full layers and 52 with a window are groups of 10 layers, 1 and 6 of them; padding fills the last."""
    found = cache(known.GEMMA, max_batched_tokens=2048)
    assert {(k.count, k.window) for k in found.layers} == {(10, None), (52, 1024)}
    assert found.length == 131072, "Gemma's length is scaled already"
    assert found.block_bytes == 10 * 16 * 8192
    window = -(-(1023 + 4096) // 16) + 1
    assert found.request() == found.block_bytes * (131072 // 16 + 6 * window)
    without = cache(known.GEMMA, windows=False)
    assert without.token_bytes == 62 * 8192
    assert [k.window for k in without.layers] == [None]


def test_kinds_that_are_nearly_as_many_are_filled_up() -> None:
    """12 and 13 layers are one group each, of 13."""
    config = {
        **known.GPT_OSS,
        "num_hidden_layers": 25,
        "layer_types": [*known.GPT_OSS["layer_types"], "full_attention"],
    }
    found = cache(config)
    assert found.block_bytes == 13 * 16 * 2048


def test_recurrent_layers_take_the_same_for_every_request() -> None:
    """Qwen3-Next: the block of a full layer grows until a state fits into it."""
    found = cache(known.QWEN_NEXT)
    state = (2 * 16 * 128 + 32 * 128) * 3 * 2 + 32 * 128 * 128 * 4
    assert max(k.state for k in found.layers) == state
    tokens = -(-state // (2048 * 16)) * 16
    assert found.block_bytes == 12 * tokens * 2048
    assert found.request(1) == 4 * found.block_bytes
    assert any("estimated" in note for note in found.notes)
    assert cache(known.QWEN_NEXT, windows=False).token_bytes == found.token_bytes


def test_a_purely_recurrent_model() -> None:
    """Only states: tokens cost nothing."""
    config = {
        "model_type": "mamba2", "hidden_size": 1024, "num_hidden_layers": 3, "layer_types": ["mamba2"] * 3, "state_size": 128,
        "num_heads": 32, "max_position_embeddings": 100,
    }  # fmt: skip
    found = cache(config)
    state = (2048 + 2 * 128) * 3 * 2 + 2048 * 128 * 4
    assert (found.block_bytes, found.request(), found.request(1)) == (3 * state, 3 * state, 3 * state)
    assert found.tokens(7 * found.block_bytes) == 700
    assert kv_cache({**config, "state_size": None}, Setup()) is None


def test_states_that_cannot_be_told_are_left_out_and_said() -> None:
    found = cache({**known.QWEN_NEXT, "linear_num_value_heads": None})
    assert [k.state for k in found.layers] == [0]
    assert "not counted" in found.notes[0]


def test_layers_by_a_pattern_of_letters() -> None:
    """Nemotron-H: M is recurrent, * attends, - keeps nothing."""
    config = {
        "model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "ssm_state_size": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4,
    }  # fmt: skip
    found = cache(config)
    assert {(k.count, k.token_bytes) for k in found.layers} == {(2, 0), (1, 4096)}
    assert max(k.state for k in found.layers) == (8192 + 2048) * 6 + 8192 * 128 * 4


def test_layers_of_several_widths() -> None:
    """A wider layer for the whole and a narrower one for windows: the narrower has longer blocks, or a padded page."""
    config = {**known.GPT_OSS, "global_head_dim": 128}
    found = cache(config)
    assert {(k.token_bytes, k.window) for k in found.layers} == {(4096, None), (2048, 128)}
    assert found.block_bytes == 12 * 16 * 4096
    window = -(-(127 + 4096) // 32) + 1
    assert found.request() == found.block_bytes * (131072 // 16 + window)
    fewer = cache({**config, "num_global_key_value_heads": 6})
    assert {k.token_bytes for k in fewer.layers} == {3072, 2048}
    same = cache({**config, "layer_types": ["full_attention"] * 24})
    assert same.block_bytes == 24 * 16 * 4096


def test_full_layers_of_several_widths_share_one_group() -> None:
    found = KvCache((Layers(2, 100), Layers(3, 200)), block=16, length=160, in_flight=0)
    assert found.block_bytes == (2 * 100 + 3 * 200) * 16
    assert found.request() == 10 * found.block_bytes


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "gemma2", "sliding_window": 4096}, "wfwf"),
        ({"model_type": "cohere2", "sliding_window": 4096}, "wwwf"),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 2}, "wfwf"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 3}, "fffw"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "ffff"),
        ({"model_type": "phi3", "sliding_window": 2047}, "wwww"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, "cccf"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192, "no_rope_layers": [1, 0, 1, 0]}, "cfcf"),
        ({"model_type": "gemma3n_text", "sliding_window": 512, "num_kv_shared_layers": 2, "sliding_window_pattern": 2}, "wf"),
        ({"model_type": "bamba", "layers_block_type": ["attention", "mlp", "attention", "other"]}, "ff"),
    ],
)  # fmt: skip
def test_which_layers_have_a_window(config: dict[str, Any], windows: str) -> None:
    """f: full, w: window, c: chunk."""
    base = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 1024}
    found = cache(base | config)
    counted = {("f" if k.window is None else "c" if k.chunk else "w"): k.count for k in found.layers}
    assert counted == {letter: windows.count(letter) for letter in set(windows)}
    assert found.request(20) > 0


def test_an_encoder_keeps_nothing() -> None:
    found = cache(known.BERT)
    assert (found.layers, found.want(4, 1000), found.tokens(GIB), found.least) == ((), 0, 0, 0)


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "new-thing"}, {"num_hidden_layers": 4}, {"num_hidden_layers": "four"}]
)
def test_a_file_that_does_not_tell(config: dict[str, Any]) -> None:
    assert kv_cache(config, Setup()) is None


_SETUPS = st.builds(
    Setup, tensor_parallel=st.integers(1, 8), pipeline_parallel=st.integers(1, 4), max_model_len=st.integers(1, 200_000),
    gpu=st.booleans(), kv_dtype=st.sampled_from(["auto", "fp8", "float16"]), block=st.sampled_from([None, 16, 32, 128]),
    max_batched_tokens=st.sampled_from([None, 512, 8192]), windows=st.booleans(),
)  # fmt: skip
_CONFIGS = st.sampled_from([
    known.LLAMA, known.MISTRAL, known.DEEPSEEK, known.GEMMA, known.QWEN_VL, known.GPT_OSS, known.QWEN_NEXT, known.SMOLLM,
])  # fmt: skip


@given(_CONFIGS, _SETUPS, st.integers(1, 16), st.integers(0, 100_000))
def test_more_is_never_less(config: dict[str, Any], setup: Setup, requests: int, tokens: int) -> None:
    """More requests, tokens or bytes never take or hold less; what is wanted for some requests holds their tokens; and the
    least that starts holds one request of the greatest length."""
    found = kv_cache(config, setup)
    assert found is not None
    assert found.want(requests, tokens) <= found.want(requests + 1, tokens)
    assert found.want(requests, tokens) <= found.want(requests, tokens + 1000)
    assert found.request(tokens) <= found.request(tokens + 1)
    assert found.tokens(found.want(requests, tokens)) >= max(requests * found.length, tokens)
    assert found.tokens(found.least) >= found.length
    assert found.tokens(GIB) <= found.tokens(2 * GIB)


@given(_CONFIGS, st.integers(1, 4))
def test_more_devices_never_take_more_each(config: dict[str, Any], parallel: int) -> None:
    one, more = (kv_cache(config, Setup(tensor_parallel=n, max_model_len=4096)) for n in (parallel, parallel * 2))
    assert one is not None
    assert more is not None
    assert more.token_bytes <= one.token_bytes
    assert more.request() <= one.request()
