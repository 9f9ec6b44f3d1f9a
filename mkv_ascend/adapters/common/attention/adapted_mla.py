# SPDX-License-Identifier: Apache-2.0
"""MLA whose prefill keeps the dtype of the model and of the cache.

vllm-ascend 0.23.0 converts queries, keys and values of an MLA prefill to bfloat16 whatever the
model's dtype is, and then gathers the cached context (chunked prefill, prefix cache) into a buffer
of the *queries'* dtype: with a float16 or float32 cache the gather writes rows of another width.

* The context is gathered and attended to in the cache's dtype.
* A float32 prefill stays float32. Only the emulated NPU takes it, in the mode that compares tokens
  with a float32 reference; there the rounding to bfloat16 would be what is measured.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch_npu

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import IN_DTYPE_OF_CACHE


@functools.cache
def implementation(base: type[Any]) -> type[Any]:
    """vllm-ascend's implementation ``base`` with its prefill corrected."""

    def compute_prefill_context(
        self: Any,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        kv_c_and_k_pe_cache: tuple[torch.Tensor, ...],
        *args: Any,
    ) -> Any:
        dtype = kv_c_and_k_pe_cache[0].dtype
        if dtype.is_floating_point and dtype.itemsize > 1:
            q_nope, q_pe = q_nope.to(dtype), q_pe.to(dtype)
        return base._compute_prefill_context(self, q_nope, q_pe, kv_c_and_k_pe_cache, *args)

    def forward_prefill(self: Any, q_nope: torch.Tensor, *args: Any) -> torch.Tensor:
        if q_nope.dtype is torch.float32:
            return _forward_prefill_in_float32(self, q_nope, *args)
        result: torch.Tensor = base._forward_prefill(self, q_nope, *args)
        return result

    members = {
        "_compute_prefill_context": compute_prefill_context,
        "_forward_prefill": forward_prefill,
    }
    return derive(base, "", members, IN_DTYPE_OF_CACHE)


def _forward_prefill_in_float32(
    self: Any,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_pe: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, ...],
    attn_metadata: Any,
) -> torch.Tensor:
    """Attend from new tokens to new tokens, then merge with the cached context.

    Shapes: q_nope and k_nope [tokens, heads, 128], q_pe and k_pe [tokens, heads, 64], value
    [tokens, heads, 128]. Returns [tokens, heads * 128].
    """
    prefill = attn_metadata.prefill
    lengths = prefill.actual_seq_lengths_q
    if self.head_padding > 0:
        query, key = torch.cat((q_nope, q_pe), -1), torch.cat((k_nope, k_pe), -1)
        ropes = {}
    else:
        query, key = q_nope, k_nope
        ropes = {"query_rope": q_pe, "key_rope": k_pe.contiguous()}
    output, log_sum = torch_npu.npu_fused_infer_attention_score(
        query,
        key.contiguous(),
        value.contiguous(),
        num_heads=self.num_heads,
        num_key_value_heads=self.num_heads,
        input_layout="TND",
        atten_mask=prefill.attn_mask,
        sparse_mode=3,
        scale=self.scale,
        softmax_lse_flag=True,
        actual_seq_lengths=lengths,
        actual_seq_lengths_kv=list(lengths),
        **ropes,
    )
    output, _ = self._compute_prefill_context(
        q_nope, q_pe, kv_cache, self.qk_rope_head_dim, attn_metadata, output, log_sum
    )
    result: torch.Tensor = output.reshape(q_nope.shape[0], -1)
    return result
