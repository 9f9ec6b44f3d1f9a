# SPDX-License-Identifier: Apache-2.0
"""Quantised weights of a draft: their description, and the names of its layers in it."""

from __future__ import annotations

import copy
from typing import Any

from mkv_ascend.adapters.common.patches.names_of_drafts import by_name_in_checkpoint
from mkv_ascend.adapters.patching import patch


@patch(
    name="description of a draft's quantised weights",
    target=(
        "vllm.model_executor.model_loader.weight_utils:get_quant_config",
        "vllm_ascend.quantization.modelslim_config:AscendModelSlimConfig.get_quant_method",
        "vllm_ascend.quantization.compressed_tensors_config"
        ":AscendCompressedTensorsConfig.get_quant_method",
    ),
    reads=(
        "vllm.config.vllm:VllmConfig._get_quantization_config",
        "vllm.v1.spec_decode.draft_model:DraftModelProposer._get_model",
        "vllm_ascend.quantization.modelslim_config:AscendModelSlimConfig.is_layer_skipped_ascend",
    ),
)
def read_descriptions(original: Any, model_config: Any, *rest: Any, **named: Any) -> Any:
    """``get_quant_config`` for a model whose overrides are a function, too."""
    if not isinstance(model_config.hf_overrides, dict):
        model_config = copy.copy(model_config)
        model_config.hf_overrides = {}
    return original(model_config, *rest, **named)


for _target in read_descriptions.record.targets[1:]:
    read_descriptions.also(target=_target)(by_name_in_checkpoint)
