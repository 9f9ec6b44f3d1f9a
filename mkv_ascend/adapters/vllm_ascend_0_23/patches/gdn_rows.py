# SPDX-License-Identifier: Apache-2.0
"""Chunks of prompts that vllm-ascend 0.23.0 takes for verifications of gated delta nets.

A chunk of ``1 + K`` tokens counts as a verification with its last token accepted. So it goes on
from column ``K`` of the request's block table, while the chunk before it left its state in column
0. Here it stays a chunk of a prompt. Other rows: ``common/patches/gdn_rows.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mkv_ascend.adapters.common.patches import gdn_rows
from mkv_ascend.adapters.patching import patch


def install() -> None:
    """Replace vllm-ascend's methods, where the device has them. Idempotent."""
    from vllm_ascend.utils import is_310p

    if is_310p():
        return  # the 310P has a builder and layers of its own
    gdn_rows.apply()
    no_chunk_verifies.apply()


@patch(
    name="chunks of prompts of gated delta nets",
    target="vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionMetadataBuilder."
    "_fold_spec_sized_prefill_chunks_into_spec",
)
def no_chunk_verifies(
    original: Callable[..., Any],
    builder: Any,
    common_attn_metadata: Any,
    spec_sequence_masks_cpu: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """No chunk of a prompt counts as a verify step; the runner keeps them out of its graphs."""
    return spec_sequence_masks_cpu, num_accepted_tokens
