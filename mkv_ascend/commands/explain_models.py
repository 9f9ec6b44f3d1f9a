# SPDX-License-Identifier: Apache-2.0
"""From config.json to the layers that keep a cache: numbers only, no weights and no model classes.

Only the model types of ``FAMILIES`` are read. Every other one is refused by name, and then built
(``explain_built``): which layers a model has is decided by vLLM's class and cannot be guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_file import ConfigFileError, read_config_file, text_part
from mkv_ascend.layout.kind import Kind

__all__ = [
    "FAMILIES",
    "ExplainError",
    "ModelConfig",
    "ModelLayer",
    "NotFromNumbersError",
    "read_model",
]


class ExplainError(ValueError):
    """What cannot be explained; the message says what was asked and what is possible."""


class NotFromNumbersError(ExplainError):
    """What the numbers of a config.json do not tell; vLLM's class of the model may."""


@dataclass(frozen=True)
class ModelLayer:
    """One layer on one rank. ``head_size`` in elements (MLA: latent, rope and indexer together).

    ``window``: tokens, 0 for all. ``vectors``: elements of an MLA layer's latent, rope and, with an
    indexer, its key. ``states``: shapes of the states.
    """

    kind: Kind
    num_heads: int = 1
    num_kv_heads: int = 1
    head_size: int = 0
    window: int = 0
    vectors: tuple[int, ...] = ()
    states: tuple[tuple[int, ...], ...] = ()
    has_sink: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """The config.json of a model (of a multi-modal one, its text part), defaults filled in."""

    folder: Path
    model_type: str
    values: Mapping[str, Any]

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
        return str(value).removeprefix("torch.")

    def layers(self, tensor_parallel_size: int, num_draft_tokens: int) -> list[ModelLayer]:
        """The layers that keep a cache on one rank, in the order of execution."""
        return FAMILIES[self.model_type](_Reader(self, tensor_parallel_size, num_draft_tokens))

    def mtp_layers(self, tensor_parallel_size: int) -> list[ModelLayer]:
        """The layers of its own multi-token predictor, attention as in the model's last layer."""
        counts = {"qwen3_next": self.get("num_nextn_predict_layers") or 1}
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
    path = folder / "config.json"
    try:
        config = read_config_file(folder)
    except ConfigFileError as error:
        raise ExplainError(str(error)) from error
    text = dict(text_part(config))
    model_type = text.get("model_type")
    if model_type not in FAMILIES:
        raise NotFromNumbersError(
            f"{path}: models of type {model_type!r} cannot be explained by their numbers alone; "
            f"known: {', '.join(sorted(FAMILIES))}"
        )
    if config.get("is_encoder_decoder"):
        raise NotFromNumbersError(
            f"{path}: encoder-decoder models cannot be explained by numbers alone"
        )
    dtype = config.get("dtype") or config.get("torch_dtype")
    completed = _completed(model_type, text, path)
    return ModelConfig(folder, model_type, {"dtype": dtype, **completed})


def _completed(model_type: str, text: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config with the defaults of its class, as vLLM reads it; as it is for other types.

    Published configs leave out what equals the default: heads, or which layers have a window.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    if model_type not in CONFIG_MAPPING:
        return text
    verbosity = logging.get_verbosity()
    # It warns of rotary embeddings, which no cache depends on.
    logging.set_verbosity_error()
    try:
        filled = CONFIG_MAPPING[model_type].from_dict(dict(text)).to_dict()
    except Exception as error:  # Its classes raise what they like.
        raise ExplainError(f"{path}: transformers refuses it: {error}") from error
    finally:
        logging.set_verbosity(verbosity)
    given = {name: value for name, value in text.items() if value is not None}
    # use_sliding_window: false takes the window away.
    taken_away = {name for name in ("sliding_window",) if filled.get(name) is None}
    kept = {name: value for name, value in given.items() if name not in taken_away}
    return {name: value for name, value in {**filled, **kept}.items() if value is not None}


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

    def attention(self, window: int = 0, has_sink: bool = False) -> ModelLayer:
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
        )


def _keys_and_values(reader: _Reader, has_sink: bool = False) -> list[ModelLayer]:
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
        layers.append(reader.attention(config.number("sliding_window") if sliding else 0, has_sink))
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
    return _keys_and_values(reader, has_sink=True)


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
    """Qwen3-Next; vLLM, ``MambaStateShapeCalculator.gated_delta_net_state_shape``."""
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
    state = ModelLayer(Kind.MAMBA, states=(conv, ssm))
    return [
        state if layer_type == "linear_attention" else reader.attention() for layer_type in types
    ]


def _short_convolution(reader: _Reader) -> list[ModelLayer]:
    """LFM2; vLLM, ``MambaStateShapeCalculator.short_conv_state_shape``."""
    config = reader.config
    channels = reader.per_rank("hidden_size", config.number("hidden_size"))
    state = ModelLayer(Kind.MAMBA, states=((config.number("conv_L_cache") - 1, channels),))
    return [
        state if layer_type == "conv" else reader.attention()
        for layer_type in config.get("layer_types") or []
    ]


FAMILIES: dict[str, Callable[[_Reader], list[ModelLayer]]] = {
    "llama": _keys_and_values,
    "mistral": _keys_and_values,
    "mixtral": _keys_and_values,
    "granite": _keys_and_values,
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
    "lfm2": _short_convolution,
}
"""Model type -> how its layers are read."""
