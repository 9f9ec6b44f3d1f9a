# SPDX-License-Identifier: Apache-2.0
"""A draft as model runner V2 runs it."""

from __future__ import annotations

from typing import Any

import torch

from mkv_ascend.adapters.common import pipeline
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.mixed_draft import send_tokens_to_experts
from mkv_ascend.drafting.draft import HiddenStates


class SpeculatorDraft(AscendDraft):
    """``Draft`` of a speculator whose model is loaded."""

    _drafted = 0
    """Tokens that this proposal has drafted for each request."""
    _positions: torch.Tensor
    """Of this pass's rows; of later passes on several axes, if the draft has them (M-RoPE)."""
    _sampled_positions: torch.Tensor
    """In the sequence, of the rows that the first pass is sampled from."""

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        """See ``Draft``."""
        send_tokens_to_experts()
        proposer = self._proposer
        if positions is None:
            self._drafted, self._positions = 0, self.buffers.positions
            positions = proposer._get_positions(rows)
        else:
            self._positions = positions
        inputs: dict[str, Any] = {
            "input_ids": self.buffers.token_ids[:rows],
            "positions": positions,
            "inputs_embeds": proposer.inputs_embeds[:rows] if self._embeds else None,
        }
        if self._takes_states:
            inputs["hidden_states"] = proposer.hidden_states[:rows]
        with pipeline.whole():
            answer = proposer.model(**inputs)
        last, hidden = answer if isinstance(answer, tuple) else (answer, answer)
        return HiddenStates(last, hidden)

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Draft``; by the speculator, where it draws tokens or needs more than the best."""
        speculator = self._proposer
        if not speculator.samples:
            return super().sample(states, rows, out)
        sampled, positions = states[rows], self._positions[..., rows]
        if not self._drafted:
            self._sampled_positions = positions
        elif positions.dim() > 1:
            positions = self._sampled_positions + self._drafted
        tokens: torch.Tensor = speculator.sample_draft(
            sampled,
            positions,
            speculator.idx_mapping[: sampled.shape[0]],
            speculator.temperature,
            speculator.seeds,
            speculator.draft_steps[self._drafted],
            speculator.draft_logits,
        )
        self._drafted += 1
        return tokens if out is None else out.copy_(tokens)
