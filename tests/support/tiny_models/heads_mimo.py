# SPDX-License-Identifier: Apache-2.0
"""The drafting layer of MiMo, as in checkpoints that vLLM's ``mimo_mtp`` loads.

In a file of its own, beside ``heads``: a change of that one trains all heads anew. MiMo itself is
Qwen2 in all that decides tokens, and transformers has no class of its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from tests.support.tiny_models.heads import MTP_HEADS, Head, attend

MODEL_TYPE = "qwen2"
"""Of the checkpoints here; published ones bring code of their own for ``mimo``."""


class MimoMtpHead(Head):
    """One more layer of the target's kind, which takes the target's states before its last norm."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        config, inner = target.config, target.model
        width, epsilon = config.hidden_size, config.rms_norm_eps
        norm = type(inner.norm)
        self.token_layernorm = norm(width, eps=epsilon)
        self.hidden_layernorm = norm(width, eps=epsilon)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.layer = type(inner.layers[-1])(config, 0)
        self.final_layernorm = norm(width, eps=epsilon)
        self.rope = type(inner.rotary_emb)(config)

    def known(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The last layer's output but for its length, which ``hidden_layernorm`` takes away."""
        directions: torch.Tensor = hidden_states[-1] / self.target.model.norm.weight
        return directions

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # At position 0 vLLM hides the token.
        visible = (torch.arange(tokens.shape[1]) > 0)[:, None]
        normed = [self.hidden_layernorm(known), self.token_layernorm(self.embed(tokens) * visible)]
        states = attend(self.layer, self.rope, self.input_proj(torch.cat(normed, dim=-1)))
        states = self.final_layernorm(states)
        return states, states

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the MTP layer alone; a checkpoint has them beside the target's."""
        own = {
            f"{name}.weight": getattr(self, name).weight
            for name in ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        }
        named = {**own, **self.layer.state_dict()}
        return {f"model.mtp_layers.0.{name}": value.detach() for name, value in named.items()}


def register() -> None:
    """Let heads of this family be built and loaded."""
    cast("dict[str, type[Head]]", MTP_HEADS)[MODEL_TYPE] = MimoMtpHead
