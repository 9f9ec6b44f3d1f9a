# SPDX-License-Identifier: Apache-2.0
"""Method dspark: blocks of mask tokens as dflash has them, and tokens that depend on each other.

The row of the token that the target sampled drafts the first token, if the draft's configuration
does not say otherwise: then K rows draft K tokens. Each token adds a row of numbers to the logits
of the next one (the draft's Markov head).
"""

from __future__ import annotations

import torch
from vllm_ascend.spec_decode.dspark_proposer import AscendDSparkProposer

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.drafting.mask_tokens import MaskTokensDraft
from mkv_ascend.adapters.common.drafting.proposers import PLANNED, PLANNED_RECORDS
from mkv_ascend.adapters.common.drafting.strategies import MaskTokens

DSparkProposer = derive(AscendDSparkProposer, "", PLANNED, *PLANNED_RECORDS)


class MarkovDraft(MaskTokensDraft):
    """``ContextDraft``: vLLM's model of method dspark.

    Each drafted token adds to the logits of the next one, so they are sampled one by one.
    """

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Draft``; ``rows`` are K of each request, behind each other."""
        model, facts = self.model, self.loaded.facts
        tokens = facts.num_speculative_tokens
        logits = model.compute_draft_logits(states[rows])
        logits = logits.view(-1, tokens, logits.shape[-1])
        requests = logits.shape[0]
        window = tokens + (not facts.from_anchor)
        before = self.buffers.token_ids[: requests * window].view(requests, window)[:, 0]
        drafted = []
        for row in logits.unbind(1):
            bias = model.markov_bias(model.markov_embed(before))
            before = model.map_draft_to_target((row + bias).argmax(dim=-1))
            drafted.append(before)
        every = torch.stack(drafted, dim=1).flatten()
        return every if out is None else out.copy_(every)


class Markov(MaskTokens):
    """Method dspark."""

    draft_class = MarkovDraft
