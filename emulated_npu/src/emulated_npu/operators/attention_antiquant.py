# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits in npu_fused_infer_attention_score: one scale for each channel.

Source: op-plugin docs of the operator, the section on grouped-query attention with a quantised
cache in NZ format. It lists four pairs of head counts and leaves block tables out; vllm-ascend
0.23.0 decodes so with a block table and with the head counts of one rank, so both are accepted.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_call import FusedInferCall
from emulated_npu.operators.requirements import require, require_dtype, require_range

HEAD_SIZE = 128
QUERY_LIMIT = 16
WIDTH = 32
"""Channels that lie beside each other in a block."""

LAYOUTS = ("BSH", "BSND", "BNSD")


def check_quantised(call: FusedInferCall) -> None:
    """Raise OperatorArgumentError for what is documented neither for 8 bits nor shown by them."""
    require_dtype("query", call.query, (torch.bfloat16,))
    for name, tensor in (("key", call.key), ("value", call.value)):
        require_dtype(name, tensor, (torch.int8,))
        require(
            tensor.dim() == 5 and tensor.shape[4] == WIDTH,
            f"{name} has shape {tuple(tensor.shape)}; int8 must be in NZ format, (blocks, heads, "
            f"head size / {WIDTH}, block size, {WIDTH})",
        )
    require(
        call.query_rope is None and call.key_rope is None,
        "query_rope and key_rope with an int8 cache; call without",
    )
    require(
        call.input_layout in LAYOUTS,
        f"input_layout {call.input_layout} with an int8 cache; allowed: {', '.join(LAYOUTS)}",
    )
    require(
        call.head_size == HEAD_SIZE,
        f"the head size of query is {call.head_size}; an int8 cache needs {HEAD_SIZE}",
    )
    require(
        call.inner_precise == 1,
        f"inner_precise is {call.inner_precise}; an int8 cache needs 1 (high performance)",
    )
    width = call.layout.sequence_length(call.query)
    require_range("the query length with an int8 cache", width, 1, QUERY_LIMIT)
    mode = 0 if width == 1 else 3
    require(
        call.sparse_mode == mode and (call.mask is None) == (width == 1),
        f"sparse_mode {call.sparse_mode} {'with' if call.mask is not None else 'without'} a mask "
        f"and {width} queries on an int8 cache; one query takes sparse_mode 0 and no mask, more "
        f"take 3 and the triangular mask",
    )
    _check_scale("key_antiquant_scale", call.key_scale, call)
    _check_scale("value_antiquant_scale", call.value_scale, call)


def _check_scale(name: str, scale: torch.Tensor | None, call: FusedInferCall) -> None:
    heads = call.num_kv_heads
    shape = {
        "BSH": (heads * HEAD_SIZE,),
        "BSND": (heads, HEAD_SIZE),
        "BNSD": (heads, 1, HEAD_SIZE),
    }[call.input_layout]
    if scale is None:
        require(False, f"{name} is None; an int8 cache needs both scales")
        return
    require_dtype(name, scale, (call.query.dtype,))
    require(
        tuple(scale.shape) == shape,
        f"{name} has shape {tuple(scale.shape)}; layout {call.input_layout} needs {shape}",
    )
