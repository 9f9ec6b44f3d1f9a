# SPDX-License-Identifier: Apache-2.0
"""From config.json to the layers that keep a cache: numbers only, no weights and no model classes.

Only the model types of ``FAMILIES`` are read. Every other one is refused by name, and then built
(``commands/from_vllm.py``): which layers a model has is decided by vLLM's class and cannot be
guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_defaults import DefaultsError, completed
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file, text_part
from mkv_ascend.checks.families import (
    FAMILIES,
    MIMO_V2,
    QWEN3_5,
    Reader,
    predictor_of_compressed,
    window_of_unequal_heads,
)
from mkv_ascend.checks.language_part import DECODERS, OF_LANGUAGE_ALONE, decoder_of
from mkv_ascend.checks.model_layer import ExplainError, ModelLayer, NotFromNumbersError

__all__ = [
    "ExplainError",
    "ModelConfig",
    "ModelLayer",
    "NotFromNumbersError",
    "read_model",
    "read_models",
]


NEXT_N_PREDICTORS = (
    *("deepseek_v3", "deepseek_v32", "deepseek_v4"),
    *("ernie4_5_moe", "glm4_moe", "hy_v3", "mimo"),
)
"""Families whose ``num_nextn_predict_layers`` counts layers of a predictor."""


@dataclass(frozen=True)
class ModelConfig:
    """The config.json of a model (of a multi-modal one, its text part), defaults filled in.

    ``decoder``: what stands before the number in the names of its layers.
    """

    folder: Path
    model_type: str
    values: Mapping[str, Any]
    decoder: str = OF_LANGUAGE_ALONE

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
    def is_multimodal(self) -> bool:
        """Whether the language model is a part of the whole model."""
        return self.decoder != OF_LANGUAGE_ALONE

    @property
    def state_dtype(self) -> str | None:
        """Dtype of the recurrent states of an engine with this target; None: its caches' own.

        vLLM takes it from the config of multi-modal Qwen3.5
        (``Qwen3_5ForConditionalGenerationConfig``), for the states of both models.
        """
        named = self.get("mamba_ssm_dtype") if self.model_type in QWEN3_5 else None
        return str(named) if named and self.is_multimodal else None

    def layers(self, tensor_parallel_size: int, num_draft_tokens: int) -> list[ModelLayer]:
        """The layers that keep a cache on one rank, in the order of execution."""
        return FAMILIES[self.model_type](Reader(self, tensor_parallel_size, num_draft_tokens))

    def mtp_layers(self, tensor_parallel_size: int) -> list[ModelLayer]:
        """The layer of its own multi-token predictor, attention as in the model's last layer.

        Of several the first one alone is built (``patches/draft_architecture.py``).
        """
        if self.model_type == MIMO_V2:
            # vLLM builds the first alone, whatever the checkpoint has.
            return [window_of_unequal_heads(Reader(self, tensor_parallel_size, 0))]
        counts = {"qwen3_next": self.get("num_nextn_predict_layers") or 1}
        for name in QWEN3_5:
            counts[name] = self.get("mtp_num_hidden_layers") or 1
        for name in NEXT_N_PREDICTORS:
            counts[name] = self.get("num_nextn_predict_layers") or 0
        if not counts.get(self.model_type):
            raise NotFromNumbersError(
                f"{self.folder} has no multi-token predictor that can be explained; method mtp "
                f"works here for {', '.join(sorted(counts))} with num_nextn_predict_layers"
            )
        if self.model_type == "deepseek_v4":
            return predictor_of_compressed(Reader(self, tensor_parallel_size, 0))
        return [self.layers(tensor_parallel_size, 0)[-1]]


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
        ModelConfig(folder, text["model_type"], whole, decoder)
        for folder, (text, decoder), whole in zip(folders, texts, values, strict=True)
    ]


def _text_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The numbers of the language model, with what its layers' names begin with."""
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
    decoder = decoder_of(config)
    if decoder is None:
        raise NotFromNumbersError(
            f"{path}: how layers are named in {config.get('architectures')} is not known; known "
            f"multi-modal classes: {', '.join(sorted(DECODERS))}"
        )
    return text, decoder
