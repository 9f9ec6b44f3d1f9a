# SPDX-License-Identifier: Apache-2.0
"""What drafts cannot be served with on vLLM's model runner V2.

The engine says it of vLLM's configuration, and ``mkv-ascend check`` of the options: in one wording.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mkv_ascend.checks import about_logits_processors, about_pipeline
from mkv_ascend.checks.about_draft_inputs import has_several_positions
from mkv_ascend.checks.about_shares import is_replicated
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ROLLED_BACK, has_windows
from mkv_ascend.checks.moved_experts import copies_of, is_judged_where_experts_move
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "METHODS", "AskedOfV2", "is_judged_over_shares", "runner_of"]

METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
"""Methods of speculative decoding that our speculators serve in model runner V2."""

DENSE_OVER_SHARES = ("draft_model", "eagle", "eagle3", "mtp")
MLA_OVER_SHARES = ("draft_model", "mtp")
SPARSE_OVER_SHARES = ("mtp",)
"""Methods whose drafts of such layers are judged where ranks share keys."""
REPLICATED = ("draft_model", "eagle", "eagle3", "dflash")
"""Methods whose drafts are judged where each rank keeps all of their keys."""
WORDS = {
    "stages_in_turn": "pipeline stages without asynchronous scheduling",
    "prefill_context_parallel": "prefill context parallelism",
    "decode_context_parallel": (
        "decode context parallelism, but for drafts of dense layers (draft_model, eagle, eagle3, "
        "mtp, dflash), of MLA (draft_model, mtp) and, for targets of sparse MLA, of sparse MLA "
        "(mtp), beside targets without windows or recurrent states,"
    ),
    "eplb": (
        "--enable-eplb, but for drafts without experts and method mtp of DeepSeek-V3, GLM-4 and "
        "Qwen3-Next, without num_redundant_experts,"
    ),
    "sequence_parallel": "sequence parallelism (enable_flashcomm1)",
    "split_vocabulary": "lmhead_tensor_parallel_size",
    "adaptive_verification": "enable_adaptive_verification",
    "counts_beside_states": (
        "num_speculative_tokens_per_batch_size in full graphs of a target whose recurrent layers "
        "are neither gated delta nets nor Mamba2 nor short convolutions"
    ),
    "parallel_drafting": "parallel drafting",
    "several_axes": "a draft model with positions on several axes (M-RoPE)",
    "shared_choice_of_keys": "a head whose later passes reuse the first one's choice of keys",
    "layers_in_turn": "drafting layers that take turns (Step-3.5's, with more than one of them)",
}

ON_V1 = ("model runner V1", "set VLLM_USE_V2_MODEL_RUNNER=0")
INSTEAD = {
    # vLLM's AsyncScheduler alone lets a request wait until each stage has its tokens. The other one
    # schedules verify steps that are under way once more, and tokens are wrong.
    "stages_in_turn": (
        "stages with asynchronous scheduling, the default, or model runner V1",
        "leave --no-async-scheduling and disable_padded_drafter_batch out, or set "
        "VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    # vLLM refuses it on V1, too.
    "several_axes": (
        "drafts without mrope_section in their config.json, and heads",
        "choose a text-only model of the family as the draft, or a head",
    ),
    # vLLM 0.30.0 runs it on V2 alone, and vllm-ascend 0.30.0rc2 refuses it on V1.
    "prefill_context_parallel": (
        "prefill context parallelism on model runner V2 without a draft (vLLM's model runner V1 "
        "has none)",
        "leave prefill_context_parallel_size out, or the draft",
    ),
    # vllm-ascend refuses it on V1.
    "eplb": (
        "experts that stay where they are, or --enable-eplb without a draft",
        "leave --enable-eplb out, or num_redundant_experts, or the draft",
    ),
    # The device trims each request's drafts; a proposal is planned from numbers on the host.
    "adaptive_verification": (
        "as many draft tokens for all requests of a step (vLLM's model runner V1 has no adaptive "
        "verification)",
        "leave enable_adaptive_verification out, or set num_speculative_tokens_per_batch_size",
    ),
}
"""What is possible and what to change, where that is not model runner V1."""


def is_judged_over_shares(
    method: str,
    draft: Mapping[str, Any],
    target: Mapping[str, Any],
    *,
    replicated: bool,
    splits_rows: bool,
) -> bool:
    """Whether tests judge such a draft on V2 where ranks share the keys of each sequence.

    Args:
        draft, target: configurations of the language models, without recurrent layers.
        replicated: whether each rank keeps all keys of the draft.
        splits_rows: whether ranks split rows of sparse attention, too (``enable_dsa_cp``).
    """
    compressed = any(text.get("compress_ratios") for text in (draft, target))
    if compressed or has_windows(target):
        return False
    if draft.get("index_topk") is not None:
        # vllm-ascend gives the indexer of a draft room for all keys if the target has one, too.
        return method in SPARSE_OVER_SHARES and "index_topk" in target and not splits_rows
    latent = draft.get("kv_lora_rank") is not None
    dense = REPLICATED if replicated else DENSE_OVER_SHARES
    return method in (MLA_OVER_SHARES if latent else dense)


@dataclass(frozen=True, kw_only=True)
class AskedOfV2:
    """Whether each thing of ``WORDS`` was asked for.

    ``counts_beside_states``: builders of other states capture verify steps of the largest K alone,
    or none.
    """

    stages_in_turn: bool
    prefill_context_parallel: bool
    decode_context_parallel: bool
    eplb: bool
    sequence_parallel: bool
    split_vocabulary: bool
    adaptive_verification: bool
    counts_beside_states: bool
    parallel_drafting: bool
    several_axes: bool
    shared_choice_of_keys: bool
    layers_in_turn: bool

    def refusals(self) -> Iterator[Refusal]:
        """One for each thing that was asked for."""
        for asked in fields(self):
            if getattr(self, asked.name):
                possible, change = INSTEAD.get(asked.name, ON_V1)
                yield Refusal(
                    "runner",
                    f"{WORDS[asked.name]} with drafts of mkv_ascend on model runner V2",
                    possible,
                    change,
                )


def runner_of(environment: Mapping[str, str], runners: Collection[str]) -> str:
    """The model runner, of those of a host, that vLLM's variable asks for."""
    asked = environment.get("VLLM_USE_V2_MODEL_RUNNER", "").strip() not in ("", "0")
    return "v2" if asked and "v2" in runners else "v1"


def drafts_on_v2(facts: ServeFacts) -> Iterator[Refusal]:
    """What of a command the drafts of model runner V2 do not serve."""
    speculation, draft, target = facts.speculation, facts.draft, facts.target
    if facts.runner != "v2" or speculation is None or draft is None:
        return
    if speculation.method not in METHODS:
        return
    options = speculation.options
    counts_in_graphs = (
        bool(options.get("num_speculative_tokens_per_batch_size")) and facts.has_full_graphs
    )
    in_turn = facts.engine.get("async_scheduling") is False
    yield from AskedOfV2(
        stages_in_turn=facts.whole("pipeline_parallel_size", 1) > 1
        and (in_turn or bool(options.get("disable_padded_drafter_batch"))),
        prefill_context_parallel=facts.whole("prefill_context_parallel_size", 1) > 1,
        decode_context_parallel=facts.whole("decode_context_parallel_size", 1) > 1
        and not (
            target.recurrent is None
            and draft.recurrent is None
            and is_judged_over_shares(
                speculation.method,
                draft.text,
                target.text,
                replicated=is_replicated(facts),
                splits_rows=bool(facts.ascend("enable_dsa_cp")),
            )
        ),
        eplb=bool(facts.engine.get("enable_eplb"))
        and not is_judged_where_experts_move(
            speculation.method, draft.text, target.text, copies_of(facts.engine.get("eplb_config"))
        ),
        # vllm-ascend 0.30.0rc2 shares tokens out beside experts on ranks of their own alone.
        sequence_parallel=bool(facts.ascend("enable_flashcomm1"))
        and bool(facts.engine.get("enable_expert_parallel"))
        and facts.tensor_parallel > 1,
        split_vocabulary=facts.splits_vocabulary,
        adaptive_verification=bool(options.get("enable_adaptive_verification")),
        counts_beside_states=counts_in_graphs
        and target.recurrent is not None
        and target.recurrent not in ROLLED_BACK,
        parallel_drafting=bool(options.get("parallel_drafting")) and speculation.method != "dflash",
        several_axes=speculation.method == "draft_model" and has_several_positions(draft),
        shared_choice_of_keys=bool(draft.values.get("index_share_for_mtp_iteration")),
        layers_in_turn=about_pipeline.layers_in_turn(facts) > 1,
    ).refusals()


CHECKS = (drafts_on_v2, about_logits_processors.on_v2)
