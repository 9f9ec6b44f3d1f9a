# SPDX-License-Identifier: Apache-2.0
"""Mixin: proposals of method dflash are replayed from graphs.

In the graph are the context's keys and values, the layout of the block and the pass over it.
Outside it the target's hidden states are combined, into a buffer.
"""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.drafting.plan import LaterSteps
from mkv_ascend.drafting.replaying import Replaying
from mkv_ascend.drafting.steps import Passes


class ReplayingBlocks(Replaying):
    """Mixin before ``ProposingBlocks``, whose proposal is one pass over rows of one length."""

    _dflash_hidden_states: torch.Tensor
    _context_positions_buffer: torch.Tensor

    def _set_hidden_states(self, states: torch.Tensor, rows: int) -> None:
        """The context, [rows, hidden size], in the buffer that a graph reads; no padding, which has
        no slots.
        """
        self._dflash_hidden_states[: states.shape[0]] = self.model.combine_hidden_states(states)

    def before_replay(
        self, requests: int, next_token_ids: torch.Tensor, num_rejected: torch.Tensor | None
    ) -> None:
        """What the target sampled begins each block."""
        self._set_block_ids(next_token_ids)  # type: ignore[attr-defined]

    def passes_to_capture(self, requests: int) -> tuple[int, Passes]:
        """Rows of the context, as many as those of the block, and the pass over the block."""
        common = self._common_of_verify_step(requests)
        rows, device = common.num_actual_tokens, self.device
        self._set_first_pass(
            torch.zeros(rows, dtype=torch.int32, device=device),
            self.runner.positions[:rows],
            torch.zeros(requests, dtype=torch.int32, device=device),
            common,
            None,
        )
        steps = self.draft_plan.plan_steps(requests, requests)
        self.copy_lengths(steps)
        slots = self._set_block(steps, rows)  # type: ignore[attr-defined]
        self.wait_for_lengths()
        block = self._common_of_block(common, steps, requests, rows)  # type: ignore[attr-defined]
        return rows, Passes(self.metadata.first_pass(block, slots, steps.tables), (), list)

    def run_passes(self, passes: Passes, rows: int, requests: int) -> torch.Tensor:
        """Write the context's keys and values, lay out the block and draft; int64 [requests, K]."""
        plan: Any = self.draft_plan
        self._set_block(plan.later_steps(requests, requests), rows)  # type: ignore[attr-defined]
        self.model.precompute_and_store_context_kv(
            self._dflash_hidden_states[:rows],
            self._context_positions_buffer[:rows],
            plan.first_slots[:, :rows],
        )
        drafted: torch.Tensor = self._drafted(requests, rows)  # type: ignore[attr-defined]
        return drafted

    def lengths_of_passes(self, first: list[int], steps: LaterSteps) -> list[list[int]]:
        """Lengths with the block, past whose end the plan says 1."""
        lengths: list[int] = steps.host_lengths.amax(dim=0).tolist()
        return [lengths]
