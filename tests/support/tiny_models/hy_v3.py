# SPDX-License-Identifier: Apache-2.0
"""Hunyuan 3, of which transformers has a class since 5.7, and its drafting layer.

In all that decides tokens it is GLM-4 with experts whose heads are rotated whole, and transformers'
class of that family computes it on each host. A test compares it with transformers' own where there
is one. Checkpoints have the published names.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers.models.glm4_moe.configuration_glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeForCausalLM

from tests.support.tiny_models.further_heads import Glm4MoeMtpHead
from tests.support.tiny_models.heads import separate_experts
from tests.support.tiny_models.own_names import OwnNames

MODEL_TYPE = "hy_v3"

PUBLISHED = {
    "mlp.gate.weight": "mlp.router.gate.weight",
    "mlp.gate.e_score_correction_bias": "mlp.expert_bias",
    "mlp.shared_experts.": "mlp.shared_mlp.",
}
"""Parts of names here -> in checkpoints."""


class HyV3Config(Glm4MoeConfig):
    """GLM's sizes, and some of them by the names of this family."""

    model_type = MODEL_TYPE


class HyV3ForCausalLM(OwnNames, Glm4MoeForCausalLM):
    """The whole model."""

    config_class = HyV3Config

    def published(self) -> dict[str, torch.Tensor]:
        """See ``OwnNames``."""
        return published(self.state_dict())


def published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``state`` by the names of checkpoints, with a view of each expert's matrices."""
    found = {}
    for name, value in separate_experts(state).items():
        for own, there in PUBLISHED.items():
            name = name.replace(own, there)
        found[name] = value
    return found


class HyV3MtpHead(Glm4MoeMtpHead):
    """One more layer of the target's own kind; its next step takes states after the last norm."""

    NAMES: Mapping[str, str] = {**Glm4MoeMtpHead.NAMES, "norm": "final_layernorm"}
    copies_matrices = False
    hands_on_normed = True

    def layer_weights(self) -> dict[str, torch.Tensor]:
        return published(self.layer.state_dict())
