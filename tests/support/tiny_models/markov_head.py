# SPDX-License-Identifier: Apache-2.0
"""A DSpark head: a block of masks whose first row drafts, and a bias by the token before, in torch.

What it is follows the checkpoints that vLLM 0.30.0 loads (``qwen3_dspark``). The block is that of
a DFlash head, but for the first row: the one of the token that the target has chosen drafts the
next token. So K tokens take K rows. A token that is drafted adds a row of numbers to the logits of
the next one: a product of two thin matrices, called the Markov head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Qwen3Config

from tests.support.tiny_models.block_head import BlockHead


class MarkovBias(nn.Module):
    """What a token adds to the logits of the next one."""

    def __init__(self, vocabulary: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor = self.markov_w2(self.markov_w1(tokens))
        return bias


class MarkovHead(BlockHead):
    """The head on ``target``; ``config`` holds its mask token, its depths and ``markov_rank``."""

    unanswered = 0

    def __init__(self, target: Any, config: Qwen3Config) -> None:
        super().__init__(target, config)
        self.markov_head = MarkovBias(config.vocab_size, config.markov_rank)

    def options(self, config: Qwen3Config) -> dict[str, Any]:
        return {name: getattr(config, name) for name in ("target_layer_ids", "mask_token_id")}

    def after(self, logits: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        return logits + self.markov_head(before)
