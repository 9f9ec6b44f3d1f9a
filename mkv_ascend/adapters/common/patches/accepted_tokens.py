# SPDX-License-Identifier: Apache-2.0
"""Gives the number of accepted tokens to builders of states that must return to that token.

A verification leaves several states: one after each token, or a window that holds them all. The
next step starts from the state after the last accepted token. vllm-ascend (0.23.0,
``model_runner_v1.py``) gives the number only to the builder of the gated delta net, and only in
steps that verify drafts. Without it vLLM's other builders treat a verification as part of a prompt,
and rejected tokens stay in the state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.attention.backends.short_conv_attn import ShortConvAttentionMetadataBuilder
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.adapters.common.patches.gdn_rows import build_of_padded_rows

BUILDERS = (Mamba2AttentionMetadataBuilder, ShortConvAttentionMetadataBuilder)
"""vLLM's builders of states that can go back, except that of the gated delta net."""

RECORD = build_of_padded_rows.record
"""``build`` is replaced for the same purpose as there."""


@contextmanager
def with_accepted_tokens(
    groups: Sequence[Sequence[AttentionGroup]], accepted: torch.Tensor
) -> Iterator[None]:
    """Pass ``accepted`` to ``build`` of those builders while the block runs.

    Args:
        groups: attention groups per KV group.
        accepted: tokens accepted in each request's last step, int32 [requests].
    """
    builders: list[Any] = [
        builder
        for kv_group in groups
        for group in kv_group
        for builder in group.metadata_builders
        if isinstance(builder, BUILDERS)
    ]
    if builders:
        # Chunks of prompts accept no token, and start from the same state as one accepted token.
        accepted = accepted.clamp(min=1)
    for builder in builders:
        # An attribute of the instance hides the method of the class.
        builder.build = functools.partial(builder.build, num_accepted_tokens=accepted)
    try:
        yield
    finally:
        for builder in builders:
            del builder.build
