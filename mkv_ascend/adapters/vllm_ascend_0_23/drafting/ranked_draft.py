# SPDX-License-Identifier: Apache-2.0
"""A draft of vllm-ascend 0.23.0: its rows may be shared by the ranks of tensor parallelism."""

from __future__ import annotations

import torch

from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.drafting.draft import HiddenStates


class RankedDraft(AscendDraft):
    """``AscendDraft`` whose proposer splits the rows of heads over ranks."""

    def runs_in_step(self) -> bool:
        """See ``AscendDraft``."""
        return super().runs_in_step() or bool(self._proposer.enable_shared_expert_dp)

    def share_of_rank(
        self, states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``AscendDraft``."""
        states, positions = self._proposer.maybe_pad_and_reduce(states, positions)
        return states, positions

    def of_all_ranks(self, states: HiddenStates, positions: torch.Tensor) -> HiddenStates:
        """See ``AscendDraft``."""
        last, _, hidden = self._proposer.maybe_all_gather_and_unpad(
            states.last, positions, states.hidden
        )
        return HiddenStates(last, hidden)
