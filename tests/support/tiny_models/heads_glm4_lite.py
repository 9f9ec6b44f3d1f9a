# SPDX-License-Identifier: Apache-2.0
"""The drafting layer of GLM-4.7-Flash, as in checkpoints that vLLM's ``glm4_moe_lite_mtp`` loads.

In a file of its own, beside ``heads``: a change of that one trains all heads anew.
"""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from tests.support.tiny_models.heads import MTP_HEADS, Head
from tests.support.tiny_models.heads_glm4 import Glm4MoeMtpHead

MODEL_TYPE = "glm4_moe_lite"


class Glm4MoeLiteMtpHead(Glm4MoeMtpHead):
    """As GLM-4's with experts, with attention over a latent (MLA)."""

    def __init__(self, target: Any) -> None:
        Head.__init__(self, target)
        config, inner = target.config, target.model
        self.index = config.num_hidden_layers
        width, epsilon = config.hidden_size, config.rms_norm_eps
        norm = type(inner.norm)
        self.enorm, self.hnorm = norm(width, eps=epsilon), norm(width, eps=epsilon)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        # With experts, as all layers behind the first few have.
        self.layer = type(inner.layers[-1])(config, config.mlp_layer_types.index("sparse"))
        self.norm = norm(width, eps=epsilon)
        self.rope = type(inner.rotary_emb)(config)


def register() -> None:
    """Let heads of this family be built and loaded."""
    cast("dict[str, type[Head]]", MTP_HEADS)[MODEL_TYPE] = Glm4MoeLiteMtpHead
