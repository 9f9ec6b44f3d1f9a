# SPDX-License-Identifier: Apache-2.0
"""Which caches need not be contiguous, and since when.

op-plugin's documentation refuses memory that is not contiguous for all operators here. The design
page "Non-Contiguous KV Cache" of vllm-ascend 0.30.0rc2 (its sections 3 and 8) widens that: K and V
of grouped-query attention are views of one allocation, in which only the distance of two blocks
differs from a contiguous cache's. Its release notes keep caches contiguous for
``_npu_paged_attention``, and its page does so for sparse, compressed and latent (MLA) caches.

So such caches are accepted where the installed vllm-ascend has that page, by the operators that it
passes them to: ``npu_scatter_pa_kv_cache`` and ``npu_fused_infer_attention_score``, v1 and v2. Its
own ``transpose_kv_cache_by_block`` takes them since then as well, as that operator's README says.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from emulated_npu.operators.requirements import require, require_contiguous

TOLD_BY = "npu_scatter_pa_kv_cache"
"""The operator of torch.ops._C_ascend that came with such caches."""

_documented = False


def learn(custom_operators: Collection[str]) -> None:
    """Take note of the operators that the installed vllm-ascend defines."""
    global _documented
    _documented = TOLD_BY in custom_operators


def are_documented() -> bool:
    """Whether the installed vllm-ascend is one that documents such caches."""
    return _documented


def require_blocks(name: str, cache: torch.Tensor) -> None:
    """Refuse a cache (blocks, ...) unless it is contiguous, or may have blocks at any distance.

    Blocks may not lie over each other, and each is contiguous in itself.
    """
    if not _documented or cache.dim() < 2 or cache.shape[0] == 0:
        require_contiguous(name, cache)
        return
    size = cache[0].numel()
    require(
        cache[0].is_contiguous() and (cache.shape[0] == 1 or cache.stride(0) >= size),
        f"{name} (shape {tuple(cache.shape)}, strides {cache.stride()}) has blocks that are not "
        f"contiguous or lie over each other; only their distance is free, from {size} elements on",
    )
