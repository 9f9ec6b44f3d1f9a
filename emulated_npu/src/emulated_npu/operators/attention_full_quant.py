# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of 8 bits in npu_fused_infer_attention_score_v2, as MLA has them.

Source: op-plugin docs of the operator, MLA with head size 512, full quantisation. It documents
packed layouts without it; vllm-ascend 0.23.0 verifies drafts so, and the hardware is followed.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_call import FusedInferCall
from emulated_npu.operators.attention_paging import cache_block_size
from emulated_npu.operators.requirements import require, require_dtype, require_shape

HEAD_SIZE = 512
BLOCK_SIZE = 128
WIDTHS = {"key": 32, "value": 32, "key_rope": 16}
"""Elements of a row that lie beside each other in a block."""

LAYOUTS = ("BSND", "BSND_NBSD", "TND", "TND_NTD")
PER_TOKEN_AND_HEAD = 3


def check_fully_quantised(call: FusedInferCall) -> None:
    """Raise OperatorArgumentError for what is neither documented for 8 bits nor shown by them."""
    require(
        call.query_quant_mode == PER_TOKEN_AND_HEAD,
        f"query_quant_mode is {call.query_quant_mode}; an int8 query needs "
        f"{PER_TOKEN_AND_HEAD} (a scale for each token and head)",
    )
    require(
        call.input_layout in LAYOUTS,
        f"input_layout {call.input_layout} with an int8 query; allowed: {', '.join(LAYOUTS)}",
    )
    require_dtype("query", call.query, (torch.int8,))
    require(
        call.head_size == HEAD_SIZE,
        f"the head size of query is {call.head_size}; an int8 query needs {HEAD_SIZE} (MLA)",
    )
    require(not call.wants_log_sum, "softmax_lse is not available with an int8 query")
    _check_caches(call)
    _check_scales(call)


def _check_caches(call: FusedInferCall) -> None:
    if call.query_rope is None or call.key_rope is None:
        require(False, "an int8 query needs query_rope and key_rope")
        return
    require_dtype("query_rope", call.query_rope, (torch.bfloat16,))
    require(call.paged, "an int8 query needs a block_table")
    caches = {"key": call.key, "value": call.value, "key_rope": call.key_rope}
    for name, cache in caches.items():
        dtype = torch.bfloat16 if name == "key_rope" else torch.int8
        require_dtype(name, cache, (dtype,))
        width = WIDTHS[name]
        require(
            cache.dim() == 5 and cache.shape[4] == width,
            f"{name} has shape {tuple(cache.shape)}; with an int8 query it must be in NZ format, "
            f"(blocks, heads, head size / {width}, block size, {width})",
        )
    found = cache_block_size(call.key)
    require(found == BLOCK_SIZE, f"blocks of {found} tokens in NZ format; {BLOCK_SIZE} are allowed")


def _check_scales(call: FusedInferCall) -> None:
    scales = {
        "dequant_scale_query": (call.query_scale, tuple(call.query.shape[:-1])),
        "dequant_scale_key": (call.key_scale, (1,)),
        "dequant_scale_value": (call.value_scale, (1,)),
    }
    for name, (scale, shape) in scales.items():
        if scale is None:
            require(False, f"{name} is None; an int8 query needs all three scales")
            return
        require_dtype(name, scale, (torch.float32,))
        require_shape(name, scale, shape)
