# SPDX-License-Identifier: Apache-2.0
"""The spec of an MLA layer from the layer itself.

vllm-ascend's runner (0.23.0, ``get_kv_cache_spec``) asks the target's configuration whether layers
have an indexer, and of what sizes, also for those of the draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.attention import MLAAttention
from vllm_ascend.attention.utils import get_sfa_qsfa_packed_head_dim
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

from mkv_ascend.adapters.patching import record

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SIZES_OF_THE_LAYER = record(
    name="specs of MLA layers",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
)


def corrected_specs(
    specs: Mapping[str, Any], layers: Mapping[str, Any], config: VllmConfig, replicas: int
) -> dict[str, Any]:
    """``specs``, those of MLA layers that do not fit their layer replaced.

    Args:
        replicas: how often a rank keeps the indexer's keys (``sfa_dcp_replicated_indexer_size``).
    """
    return {name: _corrected(spec, layers[name], config, replicas) for name, spec in specs.items()}


def _corrected(spec: Any, layer: Any, config: VllmConfig, replicas: int) -> Any:
    if type(spec) is not AscendMLAAttentionSpec or not isinstance(layer, MLAAttention):
        return spec
    if getattr(layer.impl, "fa_quant_layer", False):
        return spec
    sizes = _sizes(layer) if layer.use_sparse else None
    if spec.sparse_head_dim == sizes and spec.head_size == sum(sizes or (layer.head_size,)):
        return spec
    return _spec_of_layer(layer, sizes, config, replicas)


def _sizes(layer: Any) -> tuple[int, int, int]:
    """Elements per token of the latent, the rope and the indexer's key, as the backend packs them.

    A layer without an indexer reads another's choice of tokens.
    """
    implementation = layer.impl
    indexer = implementation.head_dim if implementation.has_indexer else 0
    latent, rope = layer.kv_lora_rank, layer.qk_rope_head_dim
    if implementation.enable_sparse_sfa_c8:
        return get_sfa_qsfa_packed_head_dim(latent, rope), 0, indexer
    return latent, rope, indexer


def _spec_of_layer(
    layer: Any, sizes: tuple[int, int, int] | None, config: VllmConfig, replicas: int
) -> AscendMLAAttentionSpec:
    own = layer.get_kv_cache_spec(config)
    common = {
        "block_size": own.block_size,
        "num_kv_heads": own.num_kv_heads,
        "dtype": own.dtype,
        "cache_dtype_str": own.cache_dtype_str,
    }
    if sizes is None:
        return AscendMLAAttentionSpec(head_size=own.head_size, **common)
    return AscendMLAAttentionSpec(
        head_size=sum(sizes),
        sparse_head_dim=sizes,
        cache_sparse_sfa_c8=layer.impl.enable_sparse_sfa_c8,
        cache_sparse_li_c8=layer.impl.enable_sparse_li_c8,
        sfa_dcp_replicated_indexer_size=replicas,
        **common,
    )
