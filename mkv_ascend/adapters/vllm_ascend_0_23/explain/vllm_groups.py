# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of layers, by its own functions with vllm-ascend's patches.

``mkv_ascend.commands.vllm_groups`` runs this module in a process of its own, out of which
``VLLM_PLUGINS=ascend`` keeps mkv_ascend.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mkv_ascend.adapters.questions import answer
from mkv_ascend.layout.component import LayerLayout, StateExtent, TokenExtent
from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.retention import Retention
from mkv_ascend.layout.serialization import from_dict


def _spec(layout: LayerLayout, retention: Retention, padded: int | None) -> Any:
    """vLLM's or vllm-ascend's spec of a layer: the recipe of its layout, backwards."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
    from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

    if layout.kind is Kind.MAMBA:
        shapes = [x.extent for x in layout.components]
        return MambaSpec(
            block_size=layout.tokens_per_block,
            shapes=tuple(x.state_shape for x in shapes if isinstance(x, StateExtent)),
            dtypes=tuple(getattr(torch, x.dtype) for x in layout.components),
            page_size_padded=padded,
            num_speculative_blocks=retention.extra_blocks,
        )
    rows = [x.extent for x in layout.components if isinstance(x.extent, TokenExtent)]
    dims = tuple(row.dim for row in rows)
    latent = layout.kind in (Kind.MLA, Kind.SPARSE_MLA)
    common: dict[str, Any] = {
        "block_size": layout.tokens_per_block,
        "num_kv_heads": rows[0].heads,
        "head_size": sum(dims) if latent else dims[0],
        "dtype": getattr(torch, layout.components[0].dtype),
        "page_size_padded": padded,
    }
    if latent:
        sparse = dims if layout.kind is Kind.SPARSE_MLA else None
        return AscendMLAAttentionSpec(**common, sparse_head_dim=sparse)
    if layout.kind is Kind.SLIDING_WINDOW:
        return SlidingWindowSpec(**common, sliding_window=retention.extent)
    return FullAttentionSpec(**common)


def _vllm_config(tokens: int, tokens_per_step: int, encoder_tokens: int) -> Any:
    """The few fields that vLLM's grouping and its memory estimate read."""
    return SimpleNamespace(
        max_concurrent_batches=1,
        model_config=SimpleNamespace(max_model_len=tokens),
        # No worker of ours: the functions of mkv_ascend are not installed.
        parallel_config=SimpleNamespace(
            worker_cls="", decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=tokens_per_step,
            max_num_encoder_input_tokens=encoder_tokens,
        ),
        cache_config=SimpleNamespace(mamba_cache_mode="none", num_gpu_blocks_override=None),
        speculative_config=None,
    )


def _block_bytes(groups: list[Any]) -> int:
    """Bytes of one block id, as ``get_kv_cache_config_from_groups`` shares memory out."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    if len(groups) == 1 and isinstance(groups[0].kv_cache_spec, UniformTypeKVCacheSpecs):
        size: int = groups[0].kv_cache_spec.page_size_bytes
        return size
    page: int = groups[0].kv_cache_spec.page_size_bytes
    return page * max(len(group.layer_names) for group in groups)


def group_by_vllm(question: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of OtherGrouping; to be called in a process with vllm-ascend."""
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm_ascend.utils import adapt_patch

    adapt_patch(is_global_patch=True)
    specs = {}
    for layer in question["layers"]:
        layout = from_dict(LayerLayout, layer["layout"])
        retention = from_dict(Retention, layer["retention"])
        specs[layout.layer] = _spec(layout, retention, layer["padded"])
    return group_specs(specs, question["tokens"], question["tokens_per_step"])


def group_specs(
    specs: dict[str, Any], tokens: int, tokens_per_step: int, encoder_tokens: int = 0
) -> dict[str, Any]:
    """The same for vLLM's own specs, vllm-ascend's patches being in place."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    config = _vllm_config(tokens, tokens_per_step, encoder_tokens)
    register_all_kvcache_specs(config)
    try:
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    except (NotImplementedError, AssertionError, ValueError) as error:
        return {"error": _described(error)}
    held: int = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    block_bytes = _block_bytes(groups)
    return {
        "groups": len(groups),
        "request_blocks": -(-held // block_bytes),
        "block_bytes": block_bytes,
    }


def _described(error: Exception) -> str:
    """Class, message and place: some of vLLM's assertions have no message."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{words} ({Path(place.filename).name}:{place.lineno})"


if __name__ == "__main__":
    answer(group_by_vllm)
