"""What config.json of well-known architectures says, as far as memory depends on it; written from their published shapes."""

from typing import Any

from vllm_mm.domain.weights import Tensor

LLAMA: dict[str, Any] = {  # 8 billion parameters, grouped heads
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
SMOLLM: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    "max_position_embeddings": 8192, "dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
MISTRAL: dict[str, Any] = {  # every layer has a window
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,
    "max_position_embeddings": 32768, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {  # latent attention
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840, "vocab_size": 102400,
    "rope_scaling": {"type": "yarn", "factor": 40}, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA: dict[str, Any] = {  # one layer in six sees everything, and there is a picture tower
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
        "max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "vocab_size": 262208,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}  # fmt: skip
QWEN_VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "hidden_size": 3584,
    "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 28, "max_position_embeddings": 32768,
    "vocab_size": 152064, "torch_dtype": "bfloat16", "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "embed_dim": 1280},
}  # fmt: skip
AWQ: dict[str, Any] = {
    **LLAMA, "torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "mxfp4"}, "torch_dtype": "bfloat16", "vocab_size": 201088,
}  # fmt: skip
QWEN_NEXT: dict[str, Any] = {  # three layers in four are recurrent
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 262144,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 12,
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "torch_dtype": "bfloat16", "vocab_size": 151936,
}  # fmt: skip
BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384, "intermediate_size": 1536,
    "num_hidden_layers": 6, "num_attention_heads": 12, "max_position_embeddings": 512, "vocab_size": 30522,
}  # fmt: skip


def llama_tensors(config: dict[str, Any], stored: str = "BF16") -> tuple[Tensor, ...]:
    """As a checkpoint of that architecture has them."""
    hidden, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = config["num_key_value_heads"] * (config.get("head_dim") or hidden // config["num_attention_heads"])
    tensors = [
        Tensor("model.embed_tokens.weight", stored, (vocab, hidden)),
        Tensor("model.norm.weight", stored, (hidden,)),
    ]
    if not config["tie_word_embeddings"]:
        tensors.append(Tensor("lm_head.weight", stored, (vocab, hidden)))
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, hidden)), ("mlp.gate_proj", (wide, hidden)), ("mlp.up_proj", (wide, hidden)),
            ("mlp.down_proj", (hidden, wide)), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
        ):  # fmt: skip
            tensors.append(Tensor(f"model.layers.{layer}.{name}.weight", stored, shape))
    return tuple(tensors)
