# SPDX-License-Identifier: Apache-2.0
"""LongCat-Flash's drafting layer is built, and loaded from one checkpoint with its target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.model_executor.models.longcat_flash import FlashConfig

from mkv_ascend.adapters.patching import patch, replaced

Weights = Iterable[tuple[str, torch.Tensor]]
OUTPUT = "lm_head.weight"


@patch(
    name="LongCat-Flash beside its drafting layer",
    target=(
        "vllm.model_executor.models.longcat_flash:FlashModel.load_weights",
        "vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.__init__",
        "vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.load_weights",
    ),
    reads=(
        "vllm.model_executor.models.longcat_flash:FlashConfig.__init__",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._maybe_share_lm_head",
        "vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.compute_logits",
    ),
)
def skip_the_drafting_layer(original: Any, model: Any, weights: Weights) -> set[str]:
    """``FlashModel.load_weights`` without those of the drafting layer."""
    found: set[str] = original(
        model, ((name, value) for name, value in weights if not name.startswith("mtp."))
    )
    return found


@skip_the_drafting_layer.also(
    target="vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.__init__"
)
def _build_without_experts(original: Any, model: Any, *, vllm_config: Any, prefix: str) -> None:
    """``LongCatFlashMTP.__init__`` with the configuration that vLLM makes of the model's."""
    config = vllm_config.model_config
    with replaced(config, "hf_config", FlashConfig(**vars(config.hf_config))):
        original(model, vllm_config=vllm_config, prefix=prefix)


@skip_the_drafting_layer.also(
    target="vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.load_weights"
)
def _load_the_output_matrix(original: Any, model: Any, weights: Weights) -> set[str]:
    """``LongCatFlashMTP.load_weights``, and the matrix that the target has as well."""

    def others() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in weights:
            if name == OUTPUT:
                parameter = model.lm_head.weight
                parameter.weight_loader(parameter, value)
            else:
                yield name, value

    found: set[str] = original(model, others())
    for layer in model.model.layers.values():
        # Where it is the target's, vllm-ascend puts the target's in its place.
        layer.shared_head = OutputMatrix(model)
    return found | {OUTPUT}


class OutputMatrix:
    """``head`` is the drafting model's output matrix, as layers of DeepSeek-V3 have their own."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def head(self) -> Any:
        """The module."""
        return self._model.lm_head

    @head.setter
    def head(self, module: Any) -> None:
        self._model.lm_head = module
