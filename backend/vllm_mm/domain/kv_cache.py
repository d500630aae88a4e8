"""The KV cache of a model: what a token takes in it, and how many tokens a size holds. Pure.

Facts: vLLM 0.32 (`v1/kv_cache_interface.py`, `v1/core/kv_cache_utils.py`). vLLM gives memory in blocks of tokens. Layers of
one kind share a block table. A model with several kinds (full attention, windows, recurrent states) has its layers split
into groups of equal size, and one block is a block of every layer of a group; every group takes blocks of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from vllm_mm.domain.model_config import DTYPE_BYTES, Config, Setup, dtype, max_model_len, number, section, strings, text

GPU_BLOCK = 16
CPU_BLOCK = 128
"""Tokens in a block, when nobody says otherwise."""
_MLA = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2",
    "kimi_linear", "longcat_flash", "pangu_ultra_moe",
})  # fmt: skip
"""Model types that vLLM serves with latent attention; others may have a `kv_lora_rank` and no such cache."""
_WITHOUT_CACHE = frozenset({
    "albert", "bert", "camembert", "clip", "deberta", "deberta-v2", "distilbert", "electra", "gte", "modernbert", "mpnet", "new",
    "nomic_bert", "roberta", "siglip", "vit", "xlm-roberta",
})  # fmt: skip
"""Encoders: each request is read at once, and nothing is kept."""
_PATTERNS: Mapping[str, int] = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Every how many layers one is without a window, where config.json may leave that out."""
_BITS: Mapping[str, int] = {
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8, "int8": 8, "float16": 16, "bfloat16": 16, "float32": 32,
}  # fmt: skip
_DSA_FP8_BYTES = 656
"""A token of sparse latent attention in fp8: 512 values, 4 scales of 4 bytes, 64 values of 2 bytes."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of one kind, on one device."""

    count: int
    token_bytes: int
    """Bytes of one token in one layer; 0 for recurrent layers."""
    window: int | None = None
    """Tokens that are kept; None keeps all."""
    chunk: bool = False
    """The window is a chunk with fixed borders (Llama 4)."""
    state: int = 0
    """Bytes of one request in one recurrent layer, however long it is."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """The shape of the cache on one device."""

    layers: tuple[Layers, ...]
    block: int
    length: int
    """Tokens of the longest request."""
    in_flight: int
    """Tokens of steps that are not over, whose blocks outside a window are not free yet."""
    notes: tuple[str, ...] = ()

    @property
    def token_bytes(self) -> int:
        """Bytes that a further token of a long request takes: layers with a window take none."""
        whole = sum(kind.count * kind.token_bytes for kind in self.layers if kind.window is None)
        return whole or sum(kind.count * kind.token_bytes for kind in self.layers)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool that all groups share."""
        return self._group() * self._page() if self._split else sum(k.count * self._page_of(k) for k in self.layers)

    def request(self, tokens: int | None = None) -> int:
        """Bytes that one request of that many tokens takes (default: of the greatest length)."""
        return self.block_bytes * self._blocks(self.length if tokens is None else tokens)

    def want(self, requests: int, tokens: int) -> int:
        """Bytes for `requests` of the greatest length, or for `tokens` in requests of any length where that is more; with
        the one block that vLLM keeps for itself."""
        if not self.layers:
            return 0
        whole = max(requests, ceil(tokens / self.length))
        return whole * self.request() + self.block_bytes

    @property
    def least(self) -> int:
        """With less vLLM refuses to start."""
        return self.want(1, 0)

    def tokens(self, size: int) -> int:
        """The tokens that vLLM logs as "KV cache size" for a cache of `size` bytes."""
        if not self.layers or size <= 0:
            return 0
        return int(size // self.block_bytes / self._blocks(self.length) * self.length)

    @property
    def _split(self) -> bool:
        """Whether there are several groups."""
        return len({(kind.window, kind.chunk, bool(kind.state)) for kind in self.layers}) > 1

    def _page(self) -> int:
        """Bytes of one layer's block, the same for all layers of a model with several groups."""
        return max(self._page_of(kind) for kind in self.layers)

    def _page_of(self, kind: Layers) -> int:
        return kind.state or self._tokens() * kind.token_bytes

    def _tokens(self) -> int:
        """Tokens in a block of a full layer; more than usual where a recurrent state has to fit into a block."""
        state = max(kind.state for kind in self.layers)
        per_token = max(kind.token_bytes for kind in self.layers)
        if not state or not per_token:
            return self.block
        return max(self.block, ceil(state / (per_token * self.block)) * self.block)

    def _block_of(self, kind: Layers) -> int:
        """Tokens in a block of this kind: a narrower layer has more of them where that fills the page exactly."""
        own = self._page_of(kind)
        page = self._page() if self._split else own
        return self._tokens() * (page // own if page % own == 0 else 1)

    def _group(self) -> int:
        """Layers in a group: those of the smallest kind, or of the largest where they are nearly as many."""
        counts = [kind.count for kind in self.layers]
        return max(counts) if max(counts) < min(counts) * 1.5 else min(counts)

    def _groups(self) -> Iterator[tuple[int, Layers]]:
        for kind in self.layers:
            yield (ceil(kind.count / self._group()) if self._split else 1), kind
            if not self._split:
                return

    def _blocks(self, tokens: int) -> int:
        """Blocks that one request takes from the pool."""
        total = 0
        for groups, kind in self._groups():
            size = self._block_of(kind)
            if kind.state:
                needed = 1
            elif kind.window is None:
                needed = ceil(tokens / size)
            elif kind.chunk:
                needed = ceil(min(kind.window + self.in_flight, tokens) / size)
            else:  # the window need not begin with a block
                needed = ceil(min(kind.window - 1 + self.in_flight, tokens) / size) + 1
            total += groups * needed
        return total


def kv_cache(config: Config, setup: Setup) -> KvCache | None:
    """The cache of the model of `config`; None when the file does not tell. Encoders have one without layers."""
    inner = text(config)
    block = setup.block or (GPU_BLOCK if setup.gpu else CPU_BLOCK)
    length = max_model_len(config, setup)
    in_flight = setup.batched_tokens * (2 if setup.gpu else 1)  # steps overlap on GPUs
    kind = str(inner.get("model_type", config.get("model_type", "")))
    if kind in _WITHOUT_CACHE:
        return KvCache((), block, length, in_flight)
    found = _layers(config, inner, setup, kind)
    if not found:
        return None
    layers, notes = found
    if not setup.windows and any(k.window is None and not k.state for k in layers):
        layers = _merged([Layers(k.count, k.token_bytes, state=k.state) for k in layers])
    return KvCache(layers, block, length, in_flight, notes)


def _layers(
    config: Config, inner: Config, setup: Setup, kind: str
) -> tuple[tuple[Layers, ...], tuple[str, ...]] | None:
    names = _kinds(inner, kind)
    value_bytes, notes = _value_bytes(config, setup)
    if not names:
        return None
    full, narrow = _token_bytes(inner, setup, kind, value_bytes), None
    if wide := number(inner, "global_head_dim"):
        heads = number(inner, "num_global_key_value_heads") or _kv_heads(inner)
        narrow, full = full, _shared(heads, setup) * wide * 2 * value_bytes
    if not full and any(name not in _RECURRENT for name in names):
        return None
    window = number(inner, "attention_chunk_size") or number(inner, "sliding_window")
    found: list[Layers] = []
    for name in dict.fromkeys(names):
        count = ceil(names.count(name) / setup.pipeline_parallel)
        if name in _RECURRENT:
            state = _state(inner, setup)
            if not state:
                notes = (*notes, f"the state of its {name} layers is not counted: config.json does not tell its size")
                continue
            notes = (*notes, f"the state of its {name} layers is estimated from config.json")
            found.append(Layers(count, 0, state=state))
        elif name in _WINDOWED and window:
            found.append(Layers(count, narrow or full, window=window, chunk=name == "chunked_attention"))
        else:
            found.append(Layers(count, full))
    return (_merged(found), notes) if found else None


_RECURRENT = frozenset({"linear_attention", "mamba"})
_WINDOWED = frozenset({"sliding_attention", "chunked_attention"})


def _merged(found: list[Layers]) -> tuple[Layers, ...]:
    """Layers that differ only in their names are one kind."""
    kinds: dict[tuple[int, int | None, bool, int], int] = {}
    for k in found:
        key = (k.token_bytes, k.window, k.chunk, k.state)
        kinds[key] = kinds.get(key, 0) + k.count
    return tuple(Layers(count, size, window, chunk, state) for (size, window, chunk, state), count in kinds.items())


def _kinds(inner: Config, kind: str) -> list[str]:
    """The kind of every layer that keeps something, in order."""
    count = number(inner, "num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
    names = list(strings(inner, "layer_types") or strings(inner, "layers_block_type"))
    pattern = inner.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [{"M": "mamba", "*": "full_attention"}[letter] for letter in pattern if letter in "M*"]
    if not names:
        names = _by_window(inner, kind, count)
    names = [_ALIASES.get(name, name) for name in names[: count or None]]
    shared = number(inner, "num_kv_shared_layers")  # the last layers read what earlier ones keep
    return [name for name in names[: len(names) - shared] if name in _KEEPING]


_ALIASES: Mapping[str, str] = {"attention": "full_attention", "hybrid": "full_attention", "mamba2": "mamba"}
_KEEPING = _RECURRENT | _WINDOWED | {"full_attention"}


def _by_window(inner: Config, kind: str, count: int) -> list[str]:
    """For files that do not name their layers."""
    if number(inner, "attention_chunk_size"):
        value: object = inner.get("no_rope_layers")
        rope: list[object] = value if isinstance(value, list) and value else [(i + 1) % 4 for i in range(count)]  # pyright: ignore[reportUnknownVariableType]
        return ["chunked_attention" if keep else "full_attention" for keep in rope[:count]]
    if not number(inner, "sliding_window") or inner.get("use_sliding_window") is False:
        return ["full_attention"] * count
    every = number(inner, "sliding_window_pattern", "_sliding_window_pattern") or _PATTERNS.get(kind, 0)
    if every > 1:
        return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    first = number(inner, "max_window_layers") if inner.get("use_sliding_window") is True else 0
    return ["full_attention" if i < first else "sliding_attention" for i in range(count)]


def _kv_heads(inner: Config) -> int:
    if inner.get("multi_query") is True and not number(inner, "num_kv_heads", "n_head_kv"):
        return 1
    own = number(
        inner, "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups"
    )
    return own or number(inner, "num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")


def _shared(heads: int, setup: Setup) -> int:
    """Heads on one device: at least one, which several devices then keep alike."""
    return max(1, heads // setup.tensor_parallel)


def _token_bytes(inner: Config, setup: Setup, kind: str, value_bytes: int) -> int:
    """Of one token in one layer of full attention."""
    if kind in _MLA and (rank := number(inner, "kv_lora_rank")):
        # One latent vector for all heads, and every device keeps all of it.
        index = number(inner, "index_head_dim")
        if index and value_bytes == 1:
            return _DSA_FP8_BYTES + index + 4
        return (rank + number(inner, "qk_rope_head_dim")) * value_bytes + (index + 4 if index else 0)
    heads = number(inner, "num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
    width = number(inner, "head_dim", "hidden_size_per_head")
    if not width and heads:
        width = number(inner, "hidden_size", "n_embd", "d_model") // heads
    return _shared(_kv_heads(inner), setup) * width * 2 * value_bytes


def _value_bytes(config: Config, setup: Setup) -> tuple[int, tuple[str, ...]]:
    """Of one value in the cache, and what was assumed."""
    name = setup.kv_dtype
    if name == "auto":
        stored = section(config, "quantization_config")
        scheme = section(stored, "kv_cache_scheme")
        algorithm = str(
            stored.get("kv_cache_quant_algo", section(stored, "quantization").get("kv_cache_quant_algo", ""))
        )
        if scheme.get("num_bits") == 8 or algorithm.upper() == "FP8":
            return 1, ()
        if text(config).get("model_type") == "deepseek_v32":
            return 1, ()
        return DTYPE_BYTES.get(dtype(config, setup), 2), ()
    if name in _BITS:
        return _BITS[name] // 8, ()
    return 1, (f"a value of the KV cache in {name} is counted as one byte",)


def _state(inner: Config, setup: Setup) -> int:
    """Bytes of one request in one recurrent layer: the window of its convolution (2 bytes a value), and its state (4)."""
    tensor_parallel = setup.tensor_parallel
    if heads := number(inner, "linear_num_value_heads"):
        key_width, value_width = number(inner, "linear_key_head_dim"), number(inner, "linear_value_head_dim")
        keys = number(inner, "linear_num_key_heads") * key_width
        width = (2 * keys + heads * value_width) * max(1, number(inner, "linear_conv_kernel_dim") - 1)
        return (width * 2 + heads * key_width * value_width * 4) // tensor_parallel
    if not (size := number(inner, "mamba_d_state", "ssm_state_size", "state_size", "mamba_state_dim")):
        return 0
    hidden = number(inner, "hidden_size")
    wide = number(inner, "mamba_num_heads", "mamba_n_heads") * number(inner, "mamba_head_dim", "mamba_d_head")
    wide = wide or hidden * (number(inner, "mamba_expand", "expand") or 2)
    groups = number(inner, "mamba_n_groups", "n_groups") or 1
    kernel = number(inner, "mamba_d_conv", "conv_kernel") or 4
    return ((wide + 2 * groups * size) * (kernel - 1) * 2 + wide * size * 4) // tensor_parallel
