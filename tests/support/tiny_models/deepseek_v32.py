# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3.2 for transformers 5.5.4, which has its attention as GLM-5's (``glm_moe_dsa``).

Transformers 5.14.1 has the family, and is used as it is. In 5.5.4 two families differ in the order
of the rotary features alone: DeepSeek's checkpoints hold those of queries and keys in pairs (the
indexer's in halves), GLM-5 takes all in halves. So the modules are GLM-5's there, and what two
projections give is put in halves behind them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

MODEL_TYPE = "deepseek_v32"


class DeepseekV32Config(GlmMoeDsaConfig):
    """GLM-5's configuration under DeepSeek's name, which vLLM reads too."""

    model_type = MODEL_TYPE


class DeepseekV32ForCausalLM(GlmMoeDsaForCausalLM):
    """GLM-5 with rotary features in pairs in the checkpoint, as in DeepSeek-V3.2's."""

    config_class = DeepseekV32Config

    def __init__(self, config: DeepseekV32Config) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            pairs_to_halves_behind(layer.self_attn)


def pairs_to_halves_behind(attention: Any) -> None:
    """Let the projections of ``attention`` give their last ``qk_rope_head_dim`` in halves."""
    rope, head = attention.qk_rope_head_dim, attention.qk_head_dim
    latent = attention.kv_lora_rank + rope
    for projection, size in ((attention.q_b_proj, head), (attention.kv_a_proj_with_mqa, latent)):
        projection.register_forward_hook(functools.partial(_in_halves, rope=rope, head_size=size))


def _in_halves(
    _module: Any, _inputs: Any, output: torch.Tensor, rope: int, head_size: int
) -> torch.Tensor:
    heads = output.unflatten(-1, (-1, head_size))
    plain, pairs = heads.split([head_size - rope, rope], dim=-1)
    return torch.cat((plain, pairs[..., ::2], pairs[..., 1::2]), dim=-1).flatten(-2)


@functools.cache
def register() -> None:
    """Let transformers' Auto classes know the family, if they do not. Once per process."""
    if MODEL_TYPE in CONFIG_MAPPING_NAMES:
        return
    register_checkpoint_conversion_mapping(
        MODEL_TYPE, get_checkpoint_conversion_mapping("glm_moe_dsa")
    )
    AutoConfig.register(MODEL_TYPE, DeepseekV32Config)
    AutoModelForCausalLM.register(DeepseekV32Config, DeepseekV32ForCausalLM)
