# SPDX-License-Identifier: Apache-2.0
"""The length of a later draft step is its position plus one.

After the first pass of a proposal, vllm-ascend 0.23.0 goes on from the lengths of the target's
pass, which count the tokens that were just rejected: a step at position 14 attends to 17 keys,
three of them stale. It never subtracts them (upstream vLLM does), so drafts after a rejection are
wrong; output tokens stay right, and only acceptance suffers. The first pass itself is right.

Lengths are needed on the host too, by builders that hand them to operators as lists. The host does
not know the rejections, so the positions are read once per proposal.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


class ExactLengths:
    """Mixin over vllm-ascend's proposers: lengths of the steps after the first pass."""

    _host_lengths: torch.Tensor | None = None
    _proposing = False
    uses_mrope: bool

    def _propose(self, *args: Any, **kwargs: Any) -> Any:
        # The same method builds metadata for dummy runs, whose positions mean nothing.
        self._proposing = True
        try:
            return super()._propose(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._proposing = False

    def attn_update_stack_num_spec_norm(
        self,
        draft_index: int,
        old_attn_metadata: Any,
        old_common_metadata: Any,
        batch_size: int,
        input_batch_size: int,
        used_update_positions: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Metadata of step ``draft_index``, which adds one to the lengths handed over here.

        Args:
            used_update_positions: positions of the step before, int32 [batch] (M-RoPE: [3, batch]).
        """
        if self._proposing:
            positions = used_update_positions[0] if self.uses_mrope else used_update_positions
            old_common_metadata = self._with_exact_lengths(
                draft_index, old_common_metadata, positions[:batch_size]
            )
        return super().attn_update_stack_num_spec_norm(  # type: ignore[misc]
            draft_index,
            old_attn_metadata,
            old_common_metadata,
            batch_size,
            input_batch_size,
            used_update_positions,
            *args,
            **kwargs,
        )

    def _with_exact_lengths(self, draft_index: int, metadata: Any, positions: torch.Tensor) -> Any:
        """A shallow copy of ``metadata`` with the lengths that the step before truly had."""
        if draft_index == 1:
            self._host_lengths = positions.cpu() + 1
        else:
            assert self._host_lengths is not None
            self._host_lengths = self._host_lengths + 1
        metadata = copy.copy(metadata)
        lengths = {
            "seq_lens": positions + 1,
            "seq_lens_cpu": self._host_lengths,
            "_seq_lens_cpu": self._host_lengths,
            "num_computed_tokens_cpu": self._host_lengths - 1,
        }
        for name, exact in lengths.items():
            present = getattr(metadata, name)
            if present is not None:
                replaced = present.clone()
                replaced[: exact.shape[0]] = exact.to(present.dtype)
                setattr(metadata, name, replaced)
        return metadata
