# SPDX-License-Identifier: Apache-2.0
"""The spec of an MLA layer from the layer itself.

vllm-ascend's runner (0.30.0rc2, ``get_kv_cache_spec``) takes the sizes of every MLA layer from the
target's configuration where that target has sparse attention, also for layers of the draft. Beside
DeepSeek-V4 it leaves them vLLM's own spec. Where a node decodes with ``--kv-cache-dtype int8``, it
gives layers with plain latents, such as one that drafts, a cache of 8 bits, too. It asks the target
for the size of every indexer's keys, whether or not the target has indexers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm_ascend.attention.utils import get_sfa_qsfa_packed_head_dim
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig


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
