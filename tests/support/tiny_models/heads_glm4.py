# SPDX-License-Identifier: Apache-2.0
"""The drafting layer of GLM-4 with experts, as in checkpoints that vLLM's ``glm4_moe_mtp`` loads.

In a file of its own, beside ``heads``: a change of that one trains all heads anew.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from tests.support.tiny_models.heads import MTP_HEADS, Head, MtpHead, attend


class Glm4MoeMtpHead(MtpHead):
    """One more layer of the target's own kind, with experts.

    What it hands to its next step is before its last norm; vllm-ascend changes that for DeepSeek
    alone.
    """

    def __init__(self, target: Any) -> None:
        Head.__init__(self, target)
        config, inner = target.config, target.model
        self.index = config.num_hidden_layers
        width, epsilon = config.hidden_size, config.rms_norm_eps
        norm = type(inner.norm)
        self.enorm, self.hnorm = norm(width, eps=epsilon), norm(width, eps=epsilon)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.layer = type(inner.layers[-1])(config, self.index)
        self.norm = norm(width, eps=epsilon)
        self.rope = type(inner.rotary_emb)(config)

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # At position 0 vLLM hides the token.
        visible = (torch.arange(tokens.shape[1]) > 0)[:, None]
        normed = [self.enorm(self.embed(tokens) * visible), self.hnorm(known)]
        states = attend(self.layer, self.rope, self.eh_proj(torch.cat(normed, dim=-1)))
        return self.norm(states), states


def register() -> None:
    """Let heads of this family be built and loaded."""
    cast("dict[str, type[Head]]", MTP_HEADS)["glm4_moe"] = Glm4MoeMtpHead
