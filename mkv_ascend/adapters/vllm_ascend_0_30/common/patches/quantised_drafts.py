# SPDX-License-Identifier: Apache-2.0
"""The names of a draft's layers in the description of its quantised weights."""

from __future__ import annotations

from mkv_ascend.adapters.common.patches.names_of_drafts import by_name_in_checkpoint
from mkv_ascend.adapters.patching import Patch, record

NAMES = Patch(
    record(
        name="names of a draft's layers among quantised weights",
        target=(
            "vllm_ascend.quantization.configs.modelslim_config"
            ":AscendModelSlimConfig.get_quant_method",
            "vllm_ascend.quantization.configs.compressed_tensors_config"
            ":AscendCompressedTensorsConfig.get_quant_method",
        ),
        reads=(
            "vllm.v1.spec_decode.draft_model:DraftModelProposer._get_model",
            "vllm_ascend.quantization.configs.modelslim_config:get_quant_type_for_layer",
        ),
    )
)
for _target in NAMES.record.targets:
    NAMES.also(target=_target)(by_name_in_checkpoint)
