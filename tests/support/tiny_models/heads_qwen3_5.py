# SPDX-License-Identifier: Apache-2.0
"""The drafting layer of Qwen3.5, as in checkpoints that vLLM's ``qwen3_5_mtp`` loads.

In a file of its own, beside ``heads``: a change of that one trains all heads anew.
"""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from tests.support.tiny_models.heads import MTP_HEADS, Head, Qwen3NextMtpHead

MODEL_TYPES = ("qwen3_5", "qwen3_5_moe")
"""Of the checkpoints: without experts and with them. All see images too."""


class Qwen35MtpHead(Qwen3NextMtpHead):
    """As Qwen3-Next's, one more layer with attention, of the target's kind."""

    def __init__(self, target: Any) -> None:
        Head.__init__(self, target)
        # A target that sees pictures has its language part, and what describes it, one deeper.
        config = target.config.get_text_config()
        inner = getattr(target.model, "language_model", target.model)
        width, epsilon = config.hidden_size, config.rms_norm_eps
        norm = type(inner.norm)
        self.pre_fc_norm_embedding = norm(width, eps=epsilon)
        self.pre_fc_norm_hidden = norm(width, eps=epsilon)
        self.fc = nn.Linear(2 * width, width, bias=False)
        attention = config.layer_types.index("full_attention")
        self.layer = type(inner.layers[attention])(config, attention)
        self.norm = norm(width, eps=epsilon)
        self.rope = type(inner.rotary_emb)(config)


def register() -> None:
    """Let heads of this family be built and loaded."""
    for model_type in MODEL_TYPES:
        cast("dict[str, type[Head]]", MTP_HEADS)[model_type] = Qwen35MtpHead
