# SPDX-License-Identifier: Apache-2.0
"""Quantised weights of drafts, and captured launches on keys and values of 8 bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from vllm_ascend.compilation.updatable_graph import get_capture_resource, register_task

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.patches import quantized
from mkv_ascend.adapters.common.patches.quantized import by_name_in_checkpoint, launch_arguments
from mkv_ascend.adapters.patching import Patch, record

# Captured launches with several queries per request on keys and values of 8 bits.
#
# vllm-ascend 0.30.0rc2 keeps a launch as a task of the graph that captures it, with what is to be
# asked for its lengths. So such a launch is one more task.
#
# There a layer's dtype of the cache decides whether its launches are those of 8 bits. It is that
# of ``--kv-cache-dtype`` for all layers of both models, whatever their weights say.

INT8 = "int8"
WORKSPACE = "mkv_ascend: verify steps on keys and values of 8 bits"


@dataclass(frozen=True)
class LengthsOfRequests:
    """What a launch of this layer takes of a step's metadata."""

    layer_name: str

    def resolve(self, attn_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that each step changes."""
        metadata = attn_metadata[self.layer_name]
        return {
            "actual_seq_lengths_kv": metadata.seq_lens_list,
            "block_table": metadata.block_tables,
        }


def install() -> None:
    """Apply the patches. Idempotent."""
    quantized.install(capture)
    layers.also_decide_cache_dtypes(as_described)
    NAMES.apply()


def as_described(arguments: dict[str, Any]) -> None:
    """Give a layer a cache of 8 bits if its weights describe one, and no other layer.

    Args:
        arguments: of the layer's constructor, changed.
    """
    config, quantised = arguments["cache_config"], arguments.get("quant_config")
    # Latents have forms of their own, which options ask for.
    if config is None or "kv_lora_rank" in arguments:
        return
    asks = getattr(quantised, "is_c8_quant_layer", None)
    described = asks is not None and asks(arguments["prefix"])
    if described == (config.cache_dtype == INT8):
        return
    own = copy.copy(config)
    own.cache_dtype = INT8 if described else "auto"
    arguments["cache_config"] = own


def capture(
    implementation: Any, layer: Any, query: torch.Tensor, metadata: Any, output: torch.Tensor
) -> torch.Tensor:
    """Capture a launch as a task of the graph."""
    requests, tokens = len(metadata.actual_seq_lengths_q), metadata.actual_seq_lengths_q[-1]
    lengths = LengthsOfRequests(layer.layer_name)
    arguments = launch_arguments(
        implementation,
        layer,
        query[:tokens].view(requests, tokens // requests, *query.shape[1:]),
        metadata.attn_mask,
    )
    arguments |= lengths.resolve({layer.layer_name: metadata})
    workspace = get_capture_resource(
        WORKSPACE,
        lambda: torch_npu._npu_fused_infer_attention_score_get_max_workspace(**arguments),
        use_max_workspace=True,
    )
    out = [output[:tokens].view_as(arguments["query"]), torch.empty(1, device=query.device)]
    register_task(
        torch_npu.npu_fused_infer_attention_score.out,
        {**arguments, "workspace": workspace, "out": out},
        lengths,
    )
    return output


# The names of a draft's layers in the description of its quantised weights.

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
