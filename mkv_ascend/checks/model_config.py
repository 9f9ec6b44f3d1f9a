# SPDX-License-Identifier: Apache-2.0
"""From config.json to the layers that keep a cache: numbers only, no weights and no model classes.

Only the model types of ``FAMILIES`` are read. Every other one is refused by name, and then built
(``commands/from_vllm.py``): which layers a model has is decided by vLLM's class and cannot be
guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_defaults import DefaultsError, completed
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file, text_part
from mkv_ascend.layout.kind import Kind

__all__ = [
    "FAMILIES",
    "QWEN_3_5",
    "ExplainError",
    "ModelConfig",
    "ModelLayer",
    "NotFromNumbersError",
    "read_model",
    "read_models",
]


QWEN_3_5 = ("qwen3_5_text", "qwen3_5_moe_text")


class ExplainError(ValueError):
    """What cannot be explained; the message says what was asked and what is possible."""


class NotFromNumbersError(ExplainError):
    """What the numbers of a config.json do not tell; vLLM's class of the model may."""


@dataclass(frozen=True)
class ModelLayer:
    """One layer on one rank. ``head_size`` in elements (MLA: latent, rope and indexer together).

    ``window``: tokens, 0 for all. ``vectors``: elements of an MLA layer's latent, rope and, with an
    indexer, its key. ``states``: shapes of the states. ``module``: name of the layer's cache inside
    its decoder layer, as vLLM's class of the model has it. ``aligned_states``: shapes by which
    vllm-ascend aligns blocks, where they are not those of the states.
    """

    kind: Kind
    num_heads: int = 1
    num_kv_heads: int = 1
    head_size: int = 0
    window: int = 0
    vectors: tuple[int, ...] = ()
    states: tuple[tuple[int, ...], ...] = ()
    has_sink: bool = False
    module: str = "self_attn.attn"
    aligned_states: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """The config.json of a model (of a multi-modal one, its text part), defaults filled in.

    ``prefix``: of the names of its layers, ``language_model.`` in a multi-modal model.
    """

    folder: Path
    model_type: str
    values: Mapping[str, Any]
    prefix: str = ""

    def number(self, name: str) -> int:
        """A whole number of the config; ExplainError where it has none of this name."""
        value = self.values.get(name)
        if not isinstance(value, int):
            raise ExplainError(
                f"{self.folder / 'config.json'} has no number {name!r}, which a model of type "
                f"{self.model_type} needs"
            )
        return value

    def get(self, name: str) -> Any:
        """A value of the config, None where there is none."""
        return self.values.get(name)

    @property
    def dtype(self) -> str:
        """Dtype of the model, and so of its caches."""
        value = self.get("dtype") or self.get("torch_dtype") or "bfloat16"
        name = str(value).removeprefix("torch.")
        # vLLM's dtype "auto" computes models in float32 in the platform's dtype of 16 bits.
        return "bfloat16" if name == "float32" else name

    @property
    def state_dtype(self) -> str | None:
        """Dtype of the recurrent states of an engine with this target; None: its caches' own.

        vLLM takes it from the config of multi-modal Qwen3.5
        (``Qwen3_5ForConditionalGenerationConfig``), for the states of both models.
        """
        named = self.get("mamba_ssm_dtype") if self.model_type in QWEN_3_5 else None
        return str(named) if named and self.prefix else None

    def layers(self, tensor_parallel_size: int, num_draft_tokens: int) -> list[ModelLayer]:
        """The layers that keep a cache on one rank, in the order of execution."""
        return FAMILIES[self.model_type](_Reader(self, tensor_parallel_size, num_draft_tokens))

    def mtp_layers(self, tensor_parallel_size: int) -> list[ModelLayer]:
        """The layers of its own multi-token predictor, attention as in the model's last layer."""
        counts = {"qwen3_next": self.get("num_nextn_predict_layers") or 1}
        for name in QWEN_3_5:
            counts[name] = self.get("mtp_num_hidden_layers") or 1
        for name in ("deepseek_v3", "deepseek_v32"):
            counts[name] = self.get("num_nextn_predict_layers") or 0
        if not counts.get(self.model_type):
            raise NotFromNumbersError(
                f"{self.folder} has no multi-token predictor that can be explained; method mtp "
                f"works here for {', '.join(sorted(counts))} with num_nextn_predict_layers"
            )
        return [self.layers(tensor_parallel_size, 0)[-1]] * counts[self.model_type]


def read_model(folder: Path) -> ModelConfig:
    """The config of a model; ExplainError when there is none or it is of a type not known here."""
    return read_models([folder])[0]


def read_models(folders: Sequence[Path]) -> list[ModelConfig]:
    """As ``read_model``, for several at once: their defaults are asked for in one process."""
    texts = [_text_of(folder) for folder in folders]
    try:
        values = completed([text for text, _ in texts])
    except DefaultsError as error:
        paths = " or ".join(str(folder / "config.json") for folder in folders)
        raise ExplainError(f"{paths}: transformers refuses it: {error}") from error
    return [
        ModelConfig(folder, text["model_type"], whole, prefix)
        for folder, (text, prefix), whole in zip(folders, texts, values, strict=True)
    ]


def _text_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The numbers of the language model, with the prefix of its layers' names."""
    path = folder / "config.json"
    try:
        config = read_config_file(folder)
    except ConfigFileError as error:
        raise ExplainError(str(error)) from error
    text = dict(text_part(config))
    if text.get("model_type") not in FAMILIES:
        raise NotFromNumbersError(
            f"{path}: models of type {text.get('model_type')!r} cannot be explained by their "
            f"numbers alone; known: {', '.join(sorted(FAMILIES))}"
        )
    if config.get("is_encoder_decoder"):
        raise NotFromNumbersError(
            f"{path}: encoder-decoder models cannot be explained by numbers alone"
        )
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype is not None:
        text.setdefault("dtype", dtype)
    return text, "language_model." if "text_config" in config else ""


@dataclass(frozen=True)
class _Reader:
    """A config with the number of ranks, and of draft tokens that its states must allow for."""

    config: ModelConfig
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
        self, window: int = 0, has_sink: bool = False, module: str = "self_attn.attn"
    ) -> ModelLayer:
        """Keys and values; with more ranks than heads, each rank has one (vLLM replicates it)."""
        name = "num_key_value_heads"
        heads = self.config.number(name if self.config.get(name) else "num_attention_heads")
        if heads % self.ranks and self.ranks % heads:
            raise ExplainError(
                f"{self.config.folder}: num_key_value_heads {heads} and --tensor-parallel-size "
                f"{self.ranks}: one must divide the other"
            )
        size = self.config.get("head_dim") or (
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
    reader: _Reader, has_sink: bool = False, module: str = "self_attn.attn"
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


def _without_window(reader: _Reader) -> list[ModelLayer]:
    """Qwen: vLLM takes no windows for these models."""
    types = set(reader.config.get("layer_types") or ())
    if "sliding_attention" in types:
        raise NotFromNumbersError(
            f"{reader.config.folder}: use_sliding_window in a {reader.config.model_type} model "
            "cannot be explained; set use_sliding_window to false in the config.json"
        )
    return [reader.attention()] * reader.config.number("num_hidden_layers")


def _with_sinks(reader: _Reader) -> list[ModelLayer]:
    return _keys_and_values(reader, has_sink=True, module="attn.attn")


def _latent(reader: _Reader) -> list[ModelLayer]:
    """MLA: every rank keeps the whole latent and rope."""
    vectors = (reader.config.number("kv_lora_rank"), reader.config.number("qk_rope_head_dim"))
    layer = ModelLayer(Kind.MLA, reader.query_heads(), 1, head_size=sum(vectors), vectors=vectors)
    return [layer] * reader.config.number("num_hidden_layers")


def _sparse_latent(reader: _Reader) -> list[ModelLayer]:
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


def _gated_delta_net(reader: _Reader) -> list[ModelLayer]:
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


def _short_convolution(reader: _Reader) -> list[ModelLayer]:
    """LFM2; vLLM, ``MambaStateShapeCalculator.short_conv_state_shape``.

    The window holds all tokens of a verification, too (``patches/short_convolution.py``).
    """
    config = reader.config
    channels = reader.per_rank("hidden_size", config.number("hidden_size"))
    width = config.number("conv_L_cache") - 1
    state = ModelLayer(
        Kind.MAMBA,
        states=((width + reader.draft_tokens, channels),),
        module="conv",
        aligned_states=((width, channels),),
    )
    return [
        state if layer_type == "conv" else reader.attention()
        for layer_type in config.get("layer_types") or []
    ]


def _mamba2(reader: _Reader) -> list[ModelLayer]:
    """Granite 4; vLLM, ``MambaStateShapeCalculator.mamba2_state_shape``."""
    config = reader.config
    groups = reader.per_rank("mamba_n_groups", config.number("mamba_n_groups"))
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
        state if layer_type == "mamba" else reader.attention()
        for layer_type in config.get("layer_types") or []
    ]


FAMILIES: dict[str, Callable[[_Reader], list[ModelLayer]]] = {
    "llama": _keys_and_values,
    "mistral": _keys_and_values,
    "mixtral": _keys_and_values,
    "granite": _keys_and_values,
    "granitemoehybrid": _mamba2,
    "gemma2": _keys_and_values,
    "gemma3_text": _keys_and_values,
    "gpt_oss": _with_sinks,
    "qwen2": _without_window,
    "qwen2_moe": _without_window,
    "qwen3": _without_window,
    "qwen3_moe": _without_window,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "kimi_k2": _latent,
    "deepseek_v32": _sparse_latent,
    "qwen3_next": _gated_delta_net,
    **dict.fromkeys(QWEN_3_5, _gated_delta_net),
    "lfm2": _short_convolution,
}
"""Model type -> how its layers are read."""
