# SPDX-License-Identifier: Apache-2.0
"""The specs of all layers as planning takes them, in either model runner."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from mkv_ascend.adapters.common.kv_cache.kernel_blocks import with_kernel_blocks
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.patching import lent
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.mla_specs import (
    corrected_specs,
    size_of_index_keys,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches.convolution_update import (
    refuse_other_states,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def planned_specs(
    config: VllmConfig, ask: Callable[[], dict[str, Any]], draft_layers: Collection[str]
) -> dict[str, Any]:
    """The spec of every layer with a cache.

    Facts that planning needs besides are tied to the specs where they are planned: the engine core
    takes specs with facts for planned ones.

    Args:
        config: vLLM's.
        ask: vllm-ascend's own method, which gives the specs.
        draft_layers: names of the draft's layers.

    Raises:
        ValueError: no operator updates these states of convolutions.
    """
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    with lent(config.model_config.hf_text_config, "index_head_dim", size_of_index_keys(config)):
        specs = corrected_specs(ask(), layers)
    refuse_other_states(specs, config.model_config.dtype)
    if why_not_planned(config, specs.values()) is None:
        specs = with_kernel_blocks(specs, layers, draft_layers)
        tie_facts(specs, layers, draft_layers)
    return specs
