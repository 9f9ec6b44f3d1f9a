# SPDX-License-Identifier: Apache-2.0
"""A proposal: K draft tokens for each request, from a draft over any number of KV groups.

One launch writes the inputs and slots of the first pass. A second plans positions, lengths and
slots of all later passes. Metadata is built once per distinct need. Then the passes run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from mkv_ascend.drafting.counts import ProposalCounts
from mkv_ascend.drafting.draft import Draft, TargetOutput
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.passes import Passes, limited, run_passes
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.strategy import Strategy


class Proposal:
    """Drafts for one batch after another.

    Args:
        draft: the draft model.
        strategy: how the draft makes draft tokens from the target's step.
        plan: positions, lengths and slots.
        needs: attention metadata.
        run: runs planned passes; hosts with their own way replace it.

    ``counts``: what proposals have taken so far.
    """

    def __init__(
        self,
        draft: Draft,
        strategy: Strategy,
        plan: DraftPlan,
        needs: Needs,
        run: Callable[[Draft, Passes], torch.Tensor] = run_passes,
    ) -> None:
        self.draft, self.strategy, self.plan, self.needs = draft, strategy, plan, needs
        self._run = run
        self.counts = ProposalCounts()

    def propose(self, target: TargetOutput, tokens: int | None = None) -> torch.Tensor:
        """Draft for the B requests of the target's step.

        Args:
            tokens: to draft for each request, at most K; None: K. A draft that drafts all of its
                tokens in one pass drafts K in any case.

        Returns:
            int64 [B, drafted], with a column at least.
        """
        rows = self.strategy.lay_out(target)
        passes = self.strategy.plan(target, rows)
        if tokens is not None:
            passes = limited(passes, tokens)
        self.counts.passes += 1 + len(passes.positions)
        with self.draft.running(passes.first, passes.batch):
            return self.run(passes)

    def run(self, passes: Passes) -> torch.Tensor:
        """Run planned passes, inside the draft's forward context; int64 [B, K]."""
        return self._run(self.draft, passes)
