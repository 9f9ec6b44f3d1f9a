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
    why="With K by batch size vLLM captures graphs for each K, and its builder of Mamba2 layers "
    "and short convolutions asserts that a captured row has as many tokens as the largest K "
    "verifies. "
    "Nothing else of it needs that: operators are given where each row begins and ends, and its "
    "states for as many tokens as the largest K verifies.",
    until="vLLM's builder captures rows of any K",
    test="tests/emulated/runner_v2/test_following_loads.py"
    "::test_states_go_on_from_what_was_accepted",
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
