# SPDX-License-Identifier: Apache-2.0
"""Graphs of targets with Mamba2 layers or short convolutions of each K, on model runner V2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder

from mkv_ascend.adapters.patching import patch

BUILDERS = (Mamba2AttentionMetadataBuilder, ShortConvAttentionMetadataBuilder)
"""Those that are told the numbers of accepted tokens, so that rows may be of any length."""


@patch(
    name="captures of fewer drafts beside states",
    target="vllm.v1.attention.backends.mamba_attn:"
    "BaseMambaAttentionMetadataBuilder.build_for_cudagraph_capture",
    reads=(
        "vllm.v1.attention.backends.mamba_attn:"
        "BaseMambaAttentionMetadataBuilder._compute_common_metadata",
        "vllm.v1.attention.backends.mamba_attn:"
        "BaseMambaAttentionMetadataBuilder._update_metadata_for_cudagraph_capture",
        "vllm.v1.attention.backends.utils:split_decodes_and_prefills",
    ),
)
def capture_any_count(original: Callable[[Any, Any], Any], builder: Any, common: Any) -> Any:
    """Say of shorter rows that the longest has 1 + K tokens of the largest K.

    That number is compared with this K here and where rows are told from chunks of prompts, and is
    in no metadata.
    """
    most = 1 + builder.num_spec_tokens
    if isinstance(builder, BUILDERS) and common.max_query_len < most:
        common = common.replace(max_query_len=most)
    return original(builder, common)
