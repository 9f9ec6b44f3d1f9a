# SPDX-License-Identifier: Apache-2.0
"""Rotary tables for latent attention that rotates nothing (Kimi-Linear).

vllm-ascend's MLA (0.23.0, ``attention/mla_v1.py``) always rotates, by tables that a model's rotary
modules record; a model without such modules ends in a TypeError. Cosine 1 and sine 0 rotate by
nothing. (The operators also put pairs of channels in another order, of queries and keys alike.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm_ascend.ops import rotary_embedding

from mkv_ascend.adapters.patching import record

if TYPE_CHECKING:
    from vllm.config import VllmConfig


TABLES = record(
    name="latent attention that rotates nothing",
    target=(
        "vllm_ascend.ops.rotary_embedding:_cos_cache",
        "vllm_ascend.ops.rotary_embedding:_sin_cache",
    ),
    reads=(
        "vllm_ascend.ops.rotary_embedding:_record_cos_and_sin_cache",
        "vllm_ascend.ops.rotary_embedding:get_cos_and_sin_mla",
    ),
)


def record_identity_rope(config: VllmConfig, device: torch.device) -> None:
    """Record such tables where the model has latent attention and no rotary module made any."""
    model = config.model_config
    if not model.use_mla or rotary_embedding._cos_cache is not None:
        return
    shape = (model.max_model_len, model.hf_text_config.qk_rope_head_dim)
    ones = torch.ones(shape, dtype=model.dtype, device=device)
    rotary_embedding._record_cos_and_sin_cache(ones, torch.zeros_like(ones))
