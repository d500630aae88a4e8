"""What a model's files make one expect: its length and type, its weights, and the sum."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import model_configs as known
from vllm_mm.domain import model_config as mc
from vllm_mm.domain.estimate import TOKENS, Estimate, describe, estimate, overhead
from vllm_mm.domain.footprint import Footprint
from vllm_mm.domain.model_config import Setup
from vllm_mm.domain.specs import GIB
from vllm_mm.domain.weights import Checkpoint, Tensor, weights


@pytest.mark.parametrize(
    ("config", "setup", "expected"),
    [
        (known.LLAMA, {}, 8192),
        (known.LLAMA, {"max_model_len": 100}, 100),
        (known.DEEPSEEK, {}, 163_840),  # scaled already
        (known.QWEN_VL, {}, 32_768),
        (known.GEMMA, {}, 131_072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.5}}, {}, 10_240),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 2}}, {}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": None}}, {}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, {}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "longrope"}}, {}, 131_072),
        ({"n_positions": 1024, "seq_length": 512}, {}, 512),
        ({"max_position_embeddings": 8192, "model_max_length": 128000}, {}, 128_000),
        ({}, {}, 2048),
        ({"max_position_embeddings": True, "n_positions": -1}, {}, 2048),
    ],
)  # fmt: skip
def test_the_length_of_a_request(config: dict[str, Any], setup: dict[str, Any], expected: int) -> None:
    assert mc.max_model_len(config, Setup(**setup)) == expected


@pytest.mark.parametrize(
    ("config", "setup", "expected"),
    [
        (known.LLAMA, {}, "bfloat16"),
        (known.LLAMA, {"dtype": "half"}, "float16"),
        (known.LLAMA, {"dtype": "float"}, "float32"),
        (known.LLAMA, {"dtype": "float32"}, "float32"),
        (known.BERT, {"pooling": True}, "float16"),
        ({"torch_dtype": "torch.float16"}, {}, "float16"),
        ({"dtype": "float32"}, {}, "bfloat16"),
        ({"dtype": "strange"}, {}, "bfloat16"),
        ({"thinker_config": {"text_config": {"dtype": "float16"}}}, {}, "float16"),
    ],
)
def test_the_type_that_it_computes_in(config: dict[str, Any], setup: dict[str, Any], expected: str) -> None:
    assert mc.dtype(config, Setup(**setup)) == expected


def test_how_a_checkpoint_is_quantised() -> None:
    assert mc.quantization(known.AWQ) == "awq"
    assert (
        mc.quantization({"text_config": {"compression_config": {"quant_method": "Compressed-Tensors"}}})
        == "compressed-tensors"
    )
    assert mc.quantization({"quantization_config": {"bits": 4}}) == "quantised"
    assert mc.quantization({"quantization_config": "fp8"}) == ""
    assert mc.quantization(known.LLAMA) == ""


def test_lists_that_are_none() -> None:
    assert mc.strings({"a": ["x", 1]}, "a") == ()
    assert mc.strings({"a": "x"}, "a") == ()


def test_sequences_and_tokens_by_default() -> None:
    assert (Setup().sequences, Setup().batched_tokens) == (256, 2048)
    assert (Setup(gpu=False, tensor_parallel=2).sequences, Setup(gpu=False, tensor_parallel=2).batched_tokens) == (
        256,
        4096,
    )


SMOLLM = Checkpoint(known.llama_tensors(known.SMOLLM))
LLAMA = Checkpoint(known.llama_tensors(known.LLAMA))


def test_the_weights_of_a_small_model_are_those_of_its_parameters() -> None:
    """134,515,008 of them (the model's card says 135 M), in 2 or 4 bytes."""
    assert weights(known.SMOLLM, SMOLLM, Setup()).size == 134_515_008 * 2
    found = weights(known.SMOLLM, SMOLLM, Setup(dtype="float32"))
    assert (found.size, found.tensors, found.stored, found.loaded) == (134_515_008 * 4, 272, "BF16", "float32")


def test_the_weights_of_a_large_one_over_several_devices() -> None:
    """8,030,261,248 parameters. Each rank has its share; in a pipeline the first and the last have embeddings or head besides."""
    whole = 8_030_261_248 * 2
    ends = 128256 * 4096 * 2
    assert weights(known.LLAMA, LLAMA, Setup()).size == whole
    assert weights(known.LLAMA, LLAMA, Setup(tensor_parallel=4)).size == whole // 4
    assert weights(known.LLAMA, LLAMA, Setup(pipeline_parallel=2)).size == (whole - 2 * ends) // 2 + ends
    assert weights(known.LLAMA, LLAMA, Setup(offload=2 * GIB)).size == whole - 2 * GIB
    assert weights(known.LLAMA, LLAMA, Setup(offload=200 * GIB)).size == 0
    tied = {**known.LLAMA, "tie_word_embeddings": True}
    assert weights(tied, LLAMA, Setup()).size == whole - ends
    assert weights(tied, LLAMA, Setup(pipeline_parallel=2)).size == (whole - 2 * ends) // 2 + ends


def test_a_quantised_checkpoint_stays_as_it_is() -> None:
    """AWQ: packed integers and their scales as they are, plain tensors in the type that is computed in."""
    packed = (
        Tensor("model.layers.0.mlp.up_proj.qweight", "I32", (4096, 1792)),
        Tensor("model.layers.0.mlp.up_proj.scales", "F16", (32, 14336)),
        Tensor("model.layers.0.mlp.up_proj.qzeros", "I32", (32, 1792)),
        Tensor("model.norm.weight", "F16", (4096,)),
    )
    found = weights(known.AWQ, Checkpoint(packed), Setup(dtype="float32"))
    assert found.size == 4096 * 1792 * 4 + 32 * 14336 * 2 + 32 * 1792 * 4 + 4096 * 4
    assert found.stored == "I32, F16"
    fp8 = (
        Tensor("model.layers.0.w.weight", "F8_E4M3", (10, 10)),
        Tensor("model.layers.0.w.weight_scale_inv", "F32", (1,)),
    )
    assert weights(known.LLAMA, Checkpoint(fp8), Setup()).size == 104
    assert weights(known.LLAMA, Checkpoint((Tensor("model.x", "F99", (3,)),)), Setup()).size == 3


def test_a_quantisation_at_the_start_shrinks_the_linear_layers_only() -> None:
    ends = 2 * 128256 * 4096 * 2
    linear = 8_030_261_248 * 2 - ends
    for name, share in (("fp8", 0.5), ("bitsandbytes", 4.5 / 16)):
        assert weights(known.LLAMA, LLAMA, Setup(quantization=name)).size == pytest.approx(
            ends + linear * share, rel=1e-3
        )
    assert weights(known.AWQ, LLAMA, Setup(quantization="awq")).notes == ()
    assert "quantization odd" in weights(known.LLAMA, LLAMA, Setup(quantization="odd")).notes[0]
    assert weights(known.LLAMA, LLAMA, Setup(quantization="gguf")).notes == ()


def test_files_whose_tensors_are_not_known() -> None:
    """PyTorch's are scaled from the type in config.json; GGUF and quantised ones are what they are."""
    for form, config, setup, expected in (
        ("bin", known.LLAMA, {}, 100), ("bin", known.LLAMA, {"dtype": "float32"}, 200), ("bin", {"dtype": "float32"}, {}, 50),
        ("gguf", known.LLAMA, {"dtype": "float32"}, 100), ("bin", known.AWQ, {"dtype": "float32"}, 100), ("bin", {}, {}, 100),
        ("bin", {"dtype": "float33"}, {}, 100),
    ):  # fmt: skip
        found = weights(config, Checkpoint(opaque=100, form=form), Setup(**setup))
        assert (found.size, found.stored) == (expected, form)


def test_the_sum() -> None:
    """Line by line: weights, the cache for four requests of the greatest length or 32,768 tokens, and the rest."""
    found = estimate(known.LLAMA, LLAMA, Setup())
    assert found.known
    assert found.weights is not None
    assert found.wanted_kv() == TOKENS * 131_072 + 16 * 131_072
    assert found.least_kv == 8192 * 131_072 + 16 * 131_072
    shown = found.footprint(found.wanted_kv())
    assert shown.per_device == found.fixed + found.wanted_kv()
    assert (shown.parts.weights, shown.parts.overhead) == (found.weights.size, found.overhead)
    assert (shown.source, shown.kv_token_bytes, shown.kv_tokens) == ("estimated", 131_072, 32_784)
    assert estimate(known.LLAMA, LLAMA, Setup(max_num_seqs=1)).wanted_kv() == found.least_kv
    assert estimate(known.LLAMA, LLAMA, Setup(kv_cache=5)).wanted_kv() == 5
    assert (
        estimate(known.LLAMA, LLAMA, Setup(max_model_len=131_072)).wanted_kv() == 4 * 131_072 * 131_072 + 16 * 131_072
    )


def test_what_is_not_known_is_said() -> None:
    nothing = estimate(None, None, Setup(), ("not here",))
    assert (nothing.known, nothing.fixed, nothing.least_kv, nothing.wanted_kv()) == (False, nothing.overhead, 0, GIB)
    assert nothing.notes == ("not here",)
    assert nothing.footprint(GIB).parts.weights == 0
    no_config = estimate(None, Checkpoint(opaque=100, form="gguf"), Setup())
    assert "1 GiB is assumed" in no_config.notes[0]
    assert describe(Footprint(1, "estimated"), None).kv_tokens is None
    encoder = estimate(known.BERT, Checkpoint(opaque=100), Setup(pooling=True))
    assert (encoder.wanted_kv(), encoder.footprint(0).kv_tokens, encoder.notes) == (0, None, ())


def test_the_overhead_grows_with_a_step_and_with_the_ranks_on_the_cpu() -> None:
    assert overhead(known.LLAMA, Setup(max_batched_tokens=8192)) > overhead(known.LLAMA, Setup())
    assert overhead(known.LLAMA, Setup(eager=True)) < overhead(known.LLAMA, Setup())
    assert overhead(known.LLAMA, Setup(gpu=False, tensor_parallel=2)) > overhead(known.LLAMA, Setup(gpu=False))
    assert 0.5 * GIB < overhead({}, Setup()) < 1.5 * GIB


@settings(deadline=None)  # the first example makes the tensors
@given(
    st.sampled_from([known.LLAMA, known.SMOLLM, known.AWQ]), st.integers(1, 8), st.integers(1, 4), st.integers(1, 40_000),
    st.integers(1, 300),
)  # fmt: skip
def test_a_sum_never_shrinks_with_what_is_asked(
    config: dict[str, Any], tp: int, pp: int, length: int, seqs: int
) -> None:
    """Longer requests need no less to start; more of them, and fewer devices, never take less; and no part is negative."""
    checkpoint = Checkpoint(known.llama_tensors(known.SMOLLM))

    def total(**changes: int) -> int:
        found = summed(**changes)
        return found.fixed + found.wanted_kv()

    def summed(**changes: int) -> Estimate:
        setup = Setup(
            **{"tensor_parallel": tp, "pipeline_parallel": pp, "max_model_len": length, "max_num_seqs": seqs, **changes}
        )
        found = estimate(config, checkpoint, setup)
        assert found.fixed >= 0
        assert 0 <= found.least_kv <= found.wanted_kv()
        return found

    assert summed().least_kv <= summed(max_model_len=length + 100).least_kv
    assert total() <= total(max_num_seqs=seqs + 10)
    assert total(tensor_parallel=2 * tp) <= total()
    assert total(pipeline_parallel=2 * pp) <= total()
