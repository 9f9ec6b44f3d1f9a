# SPDX-License-Identifier: Apache-2.0
"""The specs of all layers as planning takes them, in either model runner; those of MLA layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import (
    MLAAttentionSpec,
)
from vllm_ascend.attention.utils import get_sfa_qsfa_packed_head_dim
from vllm_ascend.core.kv_cache_interface import (
    AscendMLAAttentionSpec,
)

from mkv_ascend.adapters.common.kv_cache.kernel_blocks import with_kernel_blocks
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.patching import lent
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches.recurrent import refuse_other_states

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# The spec of an MLA layer from the layer itself.
#
# vllm-ascend's runner (0.30.0rc2, ``get_kv_cache_spec``) takes the sizes of every MLA layer from
# the target's configuration where that target has sparse attention, also for layers of the draft.
# Beside DeepSeek-V4 it leaves them vLLM's own spec. Where a node decodes with ``--kv-cache-dtype
# int8``, it gives layers with plain latents, such as one that drafts, a cache of 8 bits, too. It
# asks the target for the size of every indexer's keys, whether or not the target has indexers.


def size_of_index_keys(config: VllmConfig) -> int | None:
    """Numbers in a key of the draft's indexers; None without a draft, or if it has none."""
    speculative = config.speculative_config
    draft = None if speculative is None else speculative.draft_model_config
    size: int | None = getattr(getattr(draft, "hf_text_config", None), "index_head_dim", None)
    return size


def corrected_specs(specs: Mapping[str, Any], layers: Mapping[str, Any]) -> dict[str, Any]:
    """``specs``, those of MLA layers with the sizes of their layer."""
    return {name: _corrected(spec, layers[name]) for name, spec in specs.items()}


def _corrected(spec: Any, layer: Any) -> Any:
    if type(spec) is MLAAttentionSpec and isinstance(layer, MLAAttention):
        own = {field.name: getattr(spec, field.name) for field in fields(spec) if field.init}
        spec = AscendMLAAttentionSpec(**own)
    if type(spec) is not AscendMLAAttentionSpec or not isinstance(layer, MLAAttention):
        return spec
    quantised = getattr(layer.impl, "fa_quant_layer", None)
    if quantised:
        return spec
    if quantised is False:
        # A plain layer among those of 8 bits, such as one that drafts.
        spec = replace(spec, dtype=layer.impl.dtype, cache_dtype_str="auto")
    latent, rope = layer.kv_lora_rank, layer.qk_rope_head_dim
    size = latent + rope
    if getattr(layer.impl, "enable_sparse_sfa_c8", False):
        size = get_sfa_qsfa_packed_head_dim(latent, rope)
    return spec if spec.head_size == size else replace(spec, head_size=size)


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
