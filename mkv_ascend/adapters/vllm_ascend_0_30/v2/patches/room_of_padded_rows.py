# SPDX-License-Identifier: Apache-2.0
"""Buffers of graphs with gated delta nets whose rows are padded, on model runner V2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="buffers of padded rows in graphs of each K",
    target="vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder._can_pad_spec_decode",
    reads=(
        "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.__init__",
        "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder"
        "._pad_spec_decode_metadata",
    ),
)
def has_room(
    original: Callable[[Any, int, int], bool], builder: Any, requests: int, tokens: int
) -> bool:
    """Whether the buffers hold so many requests and tokens: they have 1 + K for each request."""
    if original(builder, requests, tokens):
        return True
    room: int = builder.spec_token_indx.numel()
    return requests <= builder.decode_cudagraph_max_bs and tokens <= room
