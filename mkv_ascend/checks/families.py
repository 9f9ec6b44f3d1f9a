# SPDX-License-Identifier: Apache-2.0
"""Families of models: how vLLM's classes make layers of the numbers of a config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mkv_ascend import host_versions
from mkv_ascend.checks.block_layers import BLOCK_CLASSES, window_of_each_layer
from mkv_ascend.checks.compressed_layers import RATIOS, CompressedNumbers, caches_of_layer
from mkv_ascend.checks.model_layer import ExplainError, ModelLayer, NotFromNumbersError
from mkv_ascend.layout.kind import Kind

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FAMILIES",
    "MIMO_V2",
    "QWEN3_5",
    "SHORT_CONVOLUTION",
    "Reader",
    "predictor_of_compressed",
    "window_of_unequal_heads",
]

MAMBA2_TYPES = frozenset({"mamba", "linear_attention"})
"""Names of Granite-4's recurrent layers: as published, and as transformers 5.14.1 reads them."""
SHORT_CONVOLUTION = "conv"
"""LFM2's own name of a short convolution; a host may have another."""


class Numbers(Protocol):
    """What families read of a config.json; ``model_config.ModelConfig`` has it."""

    @property
    def folder(self) -> Path:
        """Where it lies; messages name it."""

    @property
    def model_type(self) -> str:
        """Its ``model_type``."""

    def number(self, name: str) -> int:
        """A whole number; ExplainError where there is none of this name."""

    def get(self, name: str) -> Any:
        """A value, None where there is none."""


@dataclass(frozen=True)
class Reader:
    """A config with the number of ranks, and of draft tokens that its states must allow for."""

    config: Numbers
    ranks: int
    draft_tokens: int

    def per_rank(self, name: str, number: int) -> int:
        if number % self.ranks:
            raise ExplainError(
                f"{self.config.folder}: {name} is {number}, which --tensor-parallel-size "
                f"{self.ranks} does not divide"
            )
        return number // self.ranks

    def query_heads(self) -> int:
        return self.per_rank("num_attention_heads", self.config.number("num_attention_heads"))

    def attention(
        self,
        window: int = 0,
        has_sink: bool = False,
        module: str = "self_attn.attn",
        *,
        heads_by: str = "num_key_value_heads",
        size_by: str = "head_dim",
    ) -> ModelLayer:
        """Keys and values; with more ranks than heads, each rank has one (vLLM replicates it).

        ``heads_by``, ``size_by``: names of the numbers.
        """
        heads = self.config.number(heads_by if self.config.get(heads_by) else "num_attention_heads")
        if heads % self.ranks and self.ranks % heads:
            raise ExplainError(
                f"{self.config.folder}: {heads_by} {heads} and --tensor-parallel-size "
                f"{self.ranks}: one must divide the other"
            )
        size = self.config.get(size_by) or (
            self.config.number("hidden_size") // self.config.number("num_attention_heads")
        )
        return ModelLayer(
            Kind.SLIDING_WINDOW if window else Kind.FULL_ATTENTION,
            self.query_heads(),
            max(1, heads // self.ranks),
            size,
            window,
            has_sink=has_sink,
            module=module,
        )


def _keys_and_values(
    reader: Reader, has_sink: bool = False, module: str = "self_attn.attn"
) -> list[ModelLayer]:
    """Dense layers, some or all with a window by ``layer_types``."""
    config = reader.config
    count = config.number("num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        if config.get("sliding_window"):
            raise NotFromNumbersError(
                f"{config.folder}: sliding_window {config.get('sliding_window')} without "
                "layer_types: vLLM then gives the window to layers of the draft too, which cannot "
                "be explained; add layer_types to the config.json"
            )
        types = ["full_attention"] * count
    layers = []
    for layer_type in types[:count]:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise NotFromNumbersError(
                f"{config.folder}: layers of type {layer_type!r} in a {config.model_type} model "
                "cannot be explained without loading it"
            )
        sliding = layer_type == "sliding_attention"
        window = config.number("sliding_window") if sliding else 0
        layers.append(reader.attention(window, has_sink, module))
    return layers


def _qwen3(reader: Reader) -> list[ModelLayer]:
    """Without windows, but for drafts of mask tokens."""
    config = reader.config
    if BLOCK_CLASSES.isdisjoint(config.get("architectures") or ()):
        return _without_window(reader)
    windows = window_of_each_layer(config, config.number("num_hidden_layers"))
    return [reader.attention(window) for window in windows]


def _without_window(reader: Reader) -> list[ModelLayer]:
    """Qwen: vLLM takes no windows for these models."""
    types = set(reader.config.get("layer_types") or ())
    if "sliding_attention" in types:
        raise NotFromNumbersError(
            f"{reader.config.folder}: use_sliding_window in a {reader.config.model_type} model "
            "cannot be explained; set use_sliding_window to false in the config.json"
        )
    return [reader.attention()] * reader.config.number("num_hidden_layers")


def _two_head_sizes(reader: Reader) -> list[ModelLayer]:
    """Gemma 4: full attention has heads of its own size and, where values are its keys, number.

    The last layers may read the caches of earlier ones (``num_kv_shared_layers``).
    """
    config = reader.config
    if config.get("use_bidirectional_attention") == "all":
        raise NotFromNumbersError(
            f"{config.folder}: use_bidirectional_attention is 'all', which changes the windows"
        )
    own_heads = config.get("attention_k_eq_v") and config.get("num_global_key_value_heads")
    full = reader.attention(
        heads_by="num_global_key_value_heads" if own_heads else "num_key_value_heads",
        size_by="global_head_dim" if config.get("global_head_dim") else "head_dim",
    )
    layers = [layer if layer.window else full for layer in _keys_and_values(reader)]
    return layers[: len(layers) - (config.get("num_kv_shared_layers") or 0)]


def _unequal_heads(reader: Reader) -> list[ModelLayer]:
    """MiMo-V2-Flash: values have another size than keys; windows have heads of their own."""
    config = reader.config
    count, pattern = config.number("num_hidden_layers"), config.get("hybrid_layer_pattern")
    if not isinstance(pattern, list) or len(pattern) < count:
        raise ExplainError(
            f"{config.folder}: hybrid_layer_pattern is {pattern!r}; a model of type "
            f"{config.model_type} has a 1 there for each layer with a window, and a 0 for others"
        )
    full = replace(reader.attention(), value_size=config.get("v_head_dim") or 0)
    window = window_of_unequal_heads(reader)
    return [window if kind == 1 else full for kind in pattern[:count]]


def window_of_unequal_heads(reader: Reader) -> ModelLayer:
    """A layer with a window of MiMo-V2-Flash; its predictor is one as well."""
    config = reader.config
    heads = "swa_num_attention_heads"
    return replace(
        reader.attention(
            max(0, config.get("sliding_window_size") or 0),
            bool(config.get("add_swa_attention_sink_bias")),
            heads_by="swa_num_key_value_heads",
            size_by="swa_head_dim",
        ),
        num_heads=reader.per_rank(heads, config.number(heads)),
        value_size=config.get("swa_v_head_dim") or 0,
    )


def _with_sinks(reader: Reader) -> list[ModelLayer]:
    return _keys_and_values(reader, has_sink=True, module="attn.attn")


def _latent(reader: Reader) -> list[ModelLayer]:
    """MLA: every rank keeps the whole latent and rope."""
    vectors = (reader.config.number("kv_lora_rank"), reader.config.number("qk_rope_head_dim"))
    layer = ModelLayer(Kind.MLA, reader.query_heads(), 1, head_size=sum(vectors), vectors=vectors)
    return [layer] * reader.config.number("num_hidden_layers")


def _sparse_latent(reader: Reader) -> list[ModelLayer]:
    """MLA with an indexer in every layer."""
    indexer = reader.config.number("index_head_dim")
    return [
        ModelLayer(
            Kind.SPARSE_MLA,
            layer.num_heads,
            1,
            head_size=layer.head_size + indexer,
            vectors=(*layer.vectors, indexer),
        )
        for layer in _latent(reader)
    ]


def _gated_delta_net(reader: Reader) -> list[ModelLayer]:
    """Qwen3-Next, Qwen3.5; vLLM, ``MambaStateShapeCalculator.gated_delta_net_state_shape``."""
    config = reader.config
    key = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    value_heads, value_dim = (
        config.number("linear_num_value_heads"),
        config.number("linear_value_head_dim"),
    )
    width = config.number("linear_conv_kernel_dim") - 1 + reader.draft_tokens
    conv = (
        width,
        reader.per_rank("channels of the convolution", 2 * key + value_heads * value_dim),
    )
    ssm = (
        reader.per_rank("linear_num_value_heads", value_heads),
        value_dim,
        config.number("linear_key_head_dim"),
    )
    types = config.get("layer_types") or []
    state = ModelLayer(Kind.MAMBA, states=(conv, ssm), module="linear_attn")
    return [
        state if layer_type == "linear_attention" else reader.attention() for layer_type in types
    ]


def _short_convolution(reader: Reader) -> list[ModelLayer]:
    """LFM2; vLLM, ``MambaStateShapeCalculator.short_conv_state_shape``.

    The window holds all tokens of a verification, too (``patches/short_convolution.py``).
    """
    config = reader.config
    channels = reader.per_rank("hidden_size", config.number("hidden_size"))
    width = config.number("conv_L_cache") - 1
    state = ModelLayer(
        Kind.MAMBA,
        states=((width + reader.draft_tokens, channels),),
        module=SHORT_CONVOLUTION,
        aligned_states=((width, channels),),
    )
    return [
        state if layer_type == "conv" else reader.attention()
        for layer_type in config.get("layer_types") or []
    ]


def _mamba2(reader: Reader) -> list[ModelLayer]:
    """Granite 4; vLLM, ``MambaStateShapeCalculator.mamba2_state_shape``."""
    config = reader.config
    # Fewer groups than ranks are whole on each.
    groups = max(1, config.number("mamba_n_groups") // reader.ranks)
    heads = reader.per_rank("mamba_n_heads", config.number("mamba_n_heads"))
    inner = config.number("mamba_expand") * config.number("hidden_size")
    size = config.number("mamba_d_state")
    channels = reader.per_rank("channels of the convolution", inner) + 2 * groups * size
    width = config.number("mamba_d_conv") - 1
    ssm = (heads, config.number("mamba_d_head"), size)
    state = ModelLayer(
        Kind.MAMBA,
        states=((width + reader.draft_tokens, channels), ssm),
        module="mixer",
        aligned_states=((width, channels), ssm),
    )
    return [
        state if layer_type in MAMBA2_TYPES else reader.attention()
        for layer_type in config.get("layer_types") or []
    ]


def _compressed(reader: Reader) -> list[ModelLayer]:
    """DeepSeek-V4: several caches in a decoder layer, whole on every rank."""
    return [
        layer
        for depth in range(reader.config.number("num_hidden_layers"))
        for layer in _compressed_layer(reader, depth, depth)
    ]


def predictor_of_compressed(reader: Reader) -> list[ModelLayer]:
    """The layers of DeepSeek-V4's own predictor, of depth 0; its ratio is behind the last."""
    return _compressed_layer(reader, 0, reader.config.number("num_hidden_layers"))


def _compressed_layer(reader: Reader, depth: int, place: int) -> list[ModelLayer]:
    """The caches of decoder layer ``depth``, whose ratio is at ``place``."""
    config = reader.config
    ratios = config.get("compress_ratios") or []
    ratio = ratios[place] if place < len(ratios) else 0
    if type(ratio) is not int or ratio not in (0, 1, *RATIOS):
        raise ExplainError(
            f"{config.folder}: compress_ratios has {ratio!r} for layer {place}; "
            f"{host_versions.vllm_ascend()} takes {', '.join(map(str, RATIOS))}, and 0 for a "
            "window alone"
        )
    numbers = CompressedNumbers(
        config.number("head_dim"), config.number("index_head_dim"), config.number("sliding_window")
    )
    return [
        ModelLayer(
            Kind.COMPRESSED_MLA,
            reader.query_heads(),
            head_size=numbers.latent,
            window=cache.window,
            module=f"self_attn.{cache.module}",
            compressed=cache,
            depth=depth,
        )
        for cache in caches_of_layer(numbers, ratio)
    ]


MIMO_V2 = "mimo_v2_flash"
QWEN3_5 = ("qwen3_5_text", "qwen3_5_moe_text")

FAMILIES: dict[str, Callable[[Reader], list[ModelLayer]]] = {
    "llama": _keys_and_values,
    "mistral": _keys_and_values,
    "mixtral": _keys_and_values,
    "granite": _keys_and_values,
    "granitemoehybrid": _mamba2,
    "gemma2": _keys_and_values,
    "gemma3_text": _keys_and_values,
    "gemma4_text": _two_head_sizes,
    "cohere2": _keys_and_values,
    "glm4_moe": _keys_and_values,
    "ernie4_5": _keys_and_values,
    "ernie4_5_moe": _keys_and_values,
    "hy_v3": _keys_and_values,
    "minimax_m2": _keys_and_values,
    "mimo": _without_window,
    MIMO_V2: _unequal_heads,
    "gpt_oss": _with_sinks,
    "qwen2": _without_window,
    "qwen2_moe": _without_window,
    "qwen3": _qwen3,
    "qwen3_moe": _without_window,
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"), _without_window
    ),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), _without_window),
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "kimi_k2": _latent,
    "deepseek_v32": _sparse_latent,
    "deepseek_v4": _compressed,
    "qwen3_next": _gated_delta_net,
    **dict.fromkeys(QWEN3_5, _gated_delta_net),
    "lfm2": _short_convolution,
}
"""Model type -> how its layers are read."""
