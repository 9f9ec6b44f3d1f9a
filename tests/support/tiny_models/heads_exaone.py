# SPDX-License-Identifier: Apache-2.0
"""The drafting layer of K-EXAONE, as in checkpoints that vLLM's ``exaone_moe_mtp`` loads.

In a file of its own, beside ``heads``: a change of that one trains all heads anew.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers.models.exaone_moe import modeling_exaone_moe as transformers_own

from tests.support.tiny_models.heads import MTP_HEADS, Head, Qwen3NextMtpHead

MODEL_TYPE = "exaone_moe"


class WindowedLayer(transformers_own.ExaoneMoeDecoderLayer):
    """A layer that takes a causal mask, and hides what lies before its window."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **given: Any
    ) -> torch.Tensor:
        length = hidden_states.shape[1]
        window = self.self_attn.sliding_window
        before = torch.ones(length, length, dtype=torch.bool).tril(-window)
        mask = attention_mask.masked_fill(before, float("-inf"))
        return super().forward(hidden_states=hidden_states, attention_mask=mask, **given)


class ExaoneMoeMtpHead(Qwen3NextMtpHead):
    """As Qwen3-Next's, one more layer: the target's first kind, with a window and no experts."""

    def __init__(self, target: Any) -> None:
        Head.__init__(self, target)
        config, inner = target.config, target.model
        width, epsilon = config.hidden_size, config.rms_norm_eps
        norm = type(inner.norm)
        self.pre_fc_norm_embedding = norm(width, eps=epsilon)
        self.pre_fc_norm_hidden = norm(width, eps=epsilon)
        self.fc = nn.Linear(2 * width, width, bias=False)
        assert config.layer_types[0] == "sliding_attention"
        assert config.mlp_layer_types[0] == "dense"
        self.layer = WindowedLayer(config, 0)
        self.norm = norm(width, eps=epsilon)
        self.rope = type(inner.rotary_emb)(config)


def register() -> None:
    """Let heads of this family be built and loaded."""
    cast("dict[str, type[Head]]", MTP_HEADS)[MODEL_TYPE] = ExaoneMoeMtpHead
