# SPDX-License-Identifier: Apache-2.0
"""What cannot be served with model runner V2 of vllm-ascend 0.30.0rc2, said before the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.drafting.context_shares import is_replicated
from mkv_ascend.checks.about_runner import METHODS, AskedOfV2, is_judged_over_shares
from mkv_ascend.checks.facts import split_vocabulary
from mkv_ascend.checks.model import RECURRENT_TYPES, ROLLED_BACK
from mkv_ascend.checks.moved_experts import is_judged_where_experts_move
from mkv_ascend.checks.refusal import text_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def why_not_served(config: VllmConfig) -> str | None:
    """What of a configuration our drafts in model runner V2 cannot serve; None if all of it."""
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or speculative.method not in METHODS:
        return None
    target, draft = config.model_config, speculative.draft_model_config
    mode = config.compilation_config.cudagraph_mode
    counts_in_graphs = (
        speculative.uses_dynamic_speculative_decoding()
        and not target.enforce_eager
        and (mode is None or mode.has_full_cudagraphs())
    )
    asked = AskedOfV2(
        stages_in_turn=parallel.pipeline_parallel_size > 1
        and not config.scheduler_config.async_scheduling,
        prefill_context_parallel=parallel.prefill_context_parallel_size > 1,
        decode_context_parallel=parallel.decode_context_parallel_size > 1
        and not (
            not (target.is_hybrid or draft.is_hybrid)
            and is_judged_over_shares(
                speculative.method,
                draft.hf_text_config.to_dict(),
                target.hf_text_config.to_dict(),
                replicated=is_replicated(config),
                splits_rows=bool((config.additional_config or {}).get("enable_dsa_cp")),
            )
        ),
        # The draft's own configuration is checked as well: there it stands in the target's place.
        eplb=parallel.enable_eplb
        and target is not draft
        and not is_judged_where_experts_move(
            speculative.method,
            draft.hf_text_config.to_dict(),
            target.hf_text_config.to_dict(),
            parallel.eplb_config.num_redundant_experts,
        ),
        # As ``vllm_ascend.utils.enable_sp`` asks.
        sequence_parallel=parallel.use_sequence_parallel_moe,
        split_vocabulary=split_vocabulary(config.additional_config),
        adaptive_verification=bool(speculative.enable_adaptive_verification),
        counts_beside_states=counts_in_graphs
        and target is not draft
        and target.is_hybrid
        and not hasattr(target.hf_text_config, "linear_num_value_heads")
        and RECURRENT_TYPES.get(target.hf_text_config.model_type) not in ROLLED_BACK,
        parallel_drafting=speculative.parallel_drafting and speculative.method != "dflash",
        several_axes=speculative.method == "draft_model" and draft.uses_mrope,
        shared_choice_of_keys=bool(
            getattr(draft.hf_config, "index_share_for_mtp_iteration", False)
        ),
        # The first one would run in each pass. V1 keeps vllm-ascend's own proposal.
        layers_in_turn=speculative.use_step3p5_mtp()
        and draft.hf_config.num_nextn_predict_layers > 1,
    )
    refusals = tuple(asked.refusals())
    return text_of(refusals) if refusals else None
