# SPDX-License-Identifier: Apache-2.0
"""The drafting layer of ERNIE 4.5 with experts, as in checkpoints that vLLM's ``ernie_mtp`` loads.

In a file of its own, beside ``heads``: a change of that one trains all heads anew. It is a layer of
Llama, without experts, and rotates as Llama does; the target rotates neighbouring elements.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from tests.support.tiny_models.heads import MTP_HEADS, Head, attend

MODEL_TYPE = "ernie4_5_moe"

SIZES = (
    "hidden_size",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
)
"""What the layer takes from the target's configuration."""


class ErnieMtpHead(Head):
    """One layer, without a norm behind it, over token and the target's normed state."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        config = LlamaConfig(
            **{name: getattr(target.config, name) for name in SIZES}, attn_implementation="eager"
        )
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.mtp_emb_norm = LlamaRMSNorm(width, eps=epsilon)
        self.mtp_hidden_norm = LlamaRMSNorm(width, eps=epsilon)
        self.mtp_linear_proj = nn.Linear(2 * width, width, bias=False)
        self.layer = LlamaDecoderLayer(config, 0)
        self.rope = LlamaRotaryEmbedding(config)

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # At position 0 vLLM hides the token.
        visible = (torch.arange(tokens.shape[1]) > 0)[:, None]
        normed = [self.mtp_emb_norm(self.embed(tokens) * visible), self.mtp_hidden_norm(known)]
        states = attend(self.layer, self.rope, self.mtp_linear_proj(torch.cat(normed, dim=-1)))
        return states, states

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the MTP layer alone; a checkpoint has them beside the target's."""
        named = {
            f"{name}.0.weight": getattr(self, name).weight
            for name in ("mtp_emb_norm", "mtp_hidden_norm", "mtp_linear_proj")
        }
        named |= {f"mtp_block.0.{name}": value for name, value in self.layer.state_dict().items()}
        return {f"model.{name}": value.detach() for name, value in named.items()}


def register() -> None:
    """Let heads of this family be built and loaded."""
    cast("dict[str, type[Head]]", MTP_HEADS)[MODEL_TYPE] = ErnieMtpHead
