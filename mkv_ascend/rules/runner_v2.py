# SPDX-License-Identifier: Apache-2.0
"""What drafts of mkv_ascend cannot be served with on vLLM's model runner V2."""

from __future__ import annotations

from collections.abc import Callable

from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.model import ROLLED_BACK, ModelFacts
from mkv_ascend.rules.parallelism import is_replicated
from mkv_ascend.rules.refusal import Rule

METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
"""Methods of speculative decoding that our speculators serve in model runner V2."""
DENSE_OVER_SHARES = ("draft_model", "eagle", "eagle3", "mtp")
MLA_OVER_SHARES = ("draft_model", "mtp")
SPARSE_OVER_SHARES = ("mtp",)
"""Methods whose drafts of such layers are judged where ranks share keys."""
REPLICATED = ("draft_model", "eagle", "eagle3", "dflash")
"""Methods whose drafts are judged where each rank keeps all of their keys."""
MOVE_WITH_MTP = frozenset({"deepseek_v3", "glm4_moe", "qwen3_next"})
"""Model types whose drafting layers are judged while their experts move with the target's."""


def _is_judged_over_shares(facts: Facts, draft: ModelFacts) -> bool:
    """Whether tests judge such a draft where ranks share the keys of each sequence."""
    target = facts.target
    if target.recurrent is not None or draft.recurrent is not None:
        return False
    if target.is_compressed or draft.is_compressed or target.has_windows:
        return False
    if draft.has_indexer:
        # vllm-ascend gives the indexer of a draft room for all keys if the target has one, too.
        splits_rows = bool(facts.ascend.get("enable_dsa_cp"))
        return facts.method in SPARSE_OVER_SHARES and target.has_indexer and not splits_rows
    latent = draft.number("kv_lora_rank") is not None
    dense = REPLICATED if is_replicated(facts) else DENSE_OVER_SHARES
    return facts.method in (MLA_OVER_SHARES if latent else dense)


def _is_judged_where_experts_move(facts: Facts, draft: ModelFacts) -> bool:
    """Whether tests judge such a draft beside experts that move.

    With copies vllm-ascend 0.30.0rc2 gives wrong tokens of some targets without a draft, too, and
    vLLM 0.30.0 fills no copies of drafting layers.
    """
    moves_with = facts.method == "mtp" and facts.target.model_type in MOVE_WITH_MTP
    return not facts.eplb_copies and (not draft.num_experts or moves_with)


def _rule(
    words: str,
    asked: Callable[[Facts, ModelFacts], object],
    possible: str = "model runner V1",
    change: str = "set VLLM_USE_V2_MODEL_RUNNER=0",
) -> Rule:
    """What is asked for, when it is, what is possible and what to change, where drafts are ours."""

    def is_asked(facts: Facts) -> object:
        ours = facts.runner == "v2" and facts.method in METHODS
        return ours and facts.draft is not None and asked(facts, facts.draft)

    what = f"{words} with drafts of mkv_ascend on model runner V2"
    return Rule("runner", is_asked, what, possible, change)


CHECKS = (
    # vLLM's AsyncScheduler alone lets a request wait until each stage has its tokens. The other one
    # schedules verify steps that are under way once more, and tokens are wrong.
    _rule(
        "pipeline stages without asynchronous scheduling",
        lambda facts, _: facts.pipeline_parallel > 1 and not facts.async_scheduling,
        "stages with asynchronous scheduling, the default, or model runner V1",
        "leave --no-async-scheduling and disable_padded_drafter_batch out, or set "
        "VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    # vLLM 0.30.0 runs it on V2 alone, and vllm-ascend 0.30.0rc2 refuses it on V1.
    _rule(
        "prefill context parallelism",
        lambda facts, _: facts.prefill_context_parallel > 1,
        "prefill context parallelism on model runner V2 without a draft (vLLM's model runner V1 "
        "has none)",
        "leave prefill_context_parallel_size out, or the draft",
    ),
    _rule(
        "decode context parallelism, but for drafts of dense layers (draft_model, eagle, eagle3, "
        "mtp, dflash), of MLA (draft_model, mtp) and, for targets of sparse MLA, of sparse MLA "
        "(mtp), beside targets without windows or recurrent states,",
        lambda facts, draft: (
            facts.decode_context_parallel > 1 and not _is_judged_over_shares(facts, draft)
        ),
    ),
    # vllm-ascend refuses it on V1.
    _rule(
        "--enable-eplb, but for drafts without experts and method mtp of DeepSeek-V3, GLM-4 and "
        "Qwen3-Next, without num_redundant_experts,",
        lambda facts, draft: facts.enable_eplb and not _is_judged_where_experts_move(facts, draft),
        "experts that stay where they are, or --enable-eplb without a draft",
        "leave --enable-eplb out, or num_redundant_experts, or the draft",
    ),
    # vllm-ascend 0.30.0rc2 shares tokens out beside experts on ranks of their own alone.
    _rule(
        "sequence parallelism (enable_flashcomm1)",
        lambda facts, _: facts.sequence_parallel and facts.expert_parallel,
    ),
    _rule("lmhead_tensor_parallel_size", lambda facts, _: facts.splits_vocabulary),
    # The device trims each request's drafts; a proposal is planned from numbers on the host.
    _rule(
        "enable_adaptive_verification",
        lambda facts, _: facts.option_of_draft("enable_adaptive_verification"),
        "as many draft tokens for all requests of a step (vLLM's model runner V1 has no adaptive "
        "verification)",
        "leave enable_adaptive_verification out, or set num_speculative_tokens_per_batch_size",
    ),
    # Builders of other states capture verify steps of the largest K alone, or none.
    _rule(
        "num_speculative_tokens_per_batch_size in full graphs of a target whose recurrent layers "
        "are neither gated delta nets nor Mamba2 nor short convolutions",
        lambda facts, _: (
            facts.dynamic_speculation
            and facts.has_full_graphs
            and facts.target.recurrent not in (None, *ROLLED_BACK)
            and "linear_num_value_heads" not in facts.target.text
        ),
    ),
    _rule(
        "a head whose later passes reuse the first one's choice of keys",
        lambda _, draft: draft.values.get("index_share_for_mtp_iteration"),
    ),
    _rule(
        "drafting layers that take turns (Step-3.5's, with more than one of them)",
        lambda facts, _: facts.layers_in_turn > 1,
    ),
)
