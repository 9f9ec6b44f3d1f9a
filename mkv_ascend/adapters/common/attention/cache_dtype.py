# SPDX-License-Identifier: Apache-2.0
"""Attention in the dtype of the cache, where it differs from the model's.

The operators take queries, keys and values of one dtype (npu_fused_infer_attention_score,
flash_attn_with_kvcache). The operator that writes the cache takes one dtype for rows and cache.
vllm-ascend 0.23.0 passes them rows in the model's dtype, so a float16 cache of a bfloat16 model is
refused.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import IN_DTYPE_OF_CACHE


@functools.cache
def implementation(base: type[Any]) -> type[Any]:
    """The implementation ``base`` with queries, keys and values cast to the cache's dtype."""

    def forward(
        self: Any,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: Any,
        attn_metadata: Any,
        output: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if attn_metadata is None or output is None:
            result: torch.Tensor = base.forward(
                self, layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
            )
            return result
        dtype = kv_cache[0].dtype
        inside = torch.empty_like(output, dtype=dtype)
        base.forward(
            self,
            layer,
            query.to(dtype),
            None if key is None else key.to(dtype),
            None if value is None else value.to(dtype),
            kv_cache,
            attn_metadata,
            inside,
            *args,
            **kwargs,
        )
        return output.copy_(inside)

    return derive(base, "[cast]", {"forward": forward}, IN_DTYPE_OF_CACHE)
