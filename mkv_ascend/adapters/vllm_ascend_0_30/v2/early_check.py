# SPDX-License-Identifier: Apache-2.0
"""What cannot be served with model runner V2 of vllm-ascend 0.30.0rc2, said before the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.drafting.recurrent_options import has_recurrent_layers
from mkv_ascend.adapters.vllm_ascend_0_30.v2.methods import METHODS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

V1 = "Set VLLM_USE_V2_MODEL_RUNNER=0: model runner V1 serves it"


def why_not_served(config: VllmConfig) -> str | None:
    """What of a configuration our drafts in model runner V2 cannot serve; None if all of it."""
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or speculative.method not in METHODS:
        return None
    target, draft = config.model_config, speculative.draft_model_config
    refused = {
        "data parallelism": parallel.data_parallel_size > 1,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": (
            parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size > 1
        ),
        "--enable-eplb": parallel.enable_eplb,
        "enable_adaptive_verification": speculative.enable_adaptive_verification,
        "parallel drafting": speculative.parallel_drafting and speculative.method != "dflash",
        "a draft with positions on several axes (M-RoPE)": (draft.uses_mrope),
        "a target that takes images or sound": target.is_multimodal_model,
        "a head whose later passes reuse the first one's choice of keys": bool(
            getattr(draft.hf_config, "index_share_for_mtp_iteration", False)
        ),
        "a draft model with recurrent layers": has_recurrent_layers(config),
        "a target with recurrent layers other than gated delta nets": (
            target.is_hybrid and not hasattr(target.hf_text_config, "linear_num_value_heads")
        ),
    }
    for asked, is_asked in refused.items():
        if is_asked:
            return f"{asked}: not served by the drafts of mkv_ascend on model runner V2. {V1}"
    return None
