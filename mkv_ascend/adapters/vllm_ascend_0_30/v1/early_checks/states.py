# SPDX-License-Identifier: Apache-2.0
"""Recurrent states beside drafts: what this adapter does not serve right yet.

Tests of 0.23.0 that fail here are the reason for each refusal: tokens of a Mamba2 target were wrong
after drafts were rejected, and so were those of gated delta nets beside drafts that are looked up,
whose number differs by request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.drafting.recurrent_options import has_recurrent_layers
from mkv_ascend.adapters.common.early_checks.facts_of_config import OWN_DRAFTS

if TYPE_CHECKING:
    from vllm.config import VllmConfig

HITS = "its groups of blocks cannot leave prefix hits to the target's on vllm-ascend 0.30.0rc2 yet"
"""Why a recurrent draft reads no prefix hits."""
INSTEAD = "Possible: no speculation, or vllm-ascend 0.23.0 with vLLM 0.23.0"


def why_not_served(config: VllmConfig) -> str | None:
    """What is asked for beside states that this adapter cannot take back; None: nothing."""
    speculative, model = config.speculative_config, config.model_config
    if speculative is None:
        return None
    if model.is_hybrid or model.is_attention_free:
        asked = f"{speculative.method} drafts are asked for beside {model.model}, which keeps"
        if not hasattr(model.hf_text_config, "linear_num_value_heads"):
            return (
                f"{asked} recurrent states other than gated delta nets: mkv_ascend does not take "
                f"these back right on vllm-ascend 0.30.0rc2 yet. {INSTEAD}"
            )
        if speculative.method not in OWN_DRAFTS:
            return (
                f"{asked} states of gated delta nets: with other numbers of drafts by request "
                "mkv_ascend does not take these back right on vllm-ascend 0.30.0rc2 yet. "
                f"{INSTEAD}, or a draft model"
            )
    cache = config.cache_config
    by_prefix = cache.enable_prefix_caching and cache.mamba_cache_mode != "none"
    if by_prefix and has_recurrent_layers(config):
        return (
            "prefix caching is on, the target keeps states and the draft has recurrent layers: "
            f"{HITS}. Add --no-enable-prefix-caching, or choose a draft of attention layers only"
        )
    return None
