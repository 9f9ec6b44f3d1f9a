# SPDX-License-Identifier: Apache-2.0
"""What a draft cannot be, for this target and with these options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mkv_ascend import host_versions
from mkv_ascend.checks import (
    about_blocks,
    about_draft_class,
    about_draft_graphs,
    about_draft_inputs,
    about_draft_options,
    about_draft_window,
    about_expert_places,
    about_giving_up,
    about_logits_processors,
    about_pipeline,
    about_shares,
    about_weights,
    delta_attention,
)
from mkv_ascend.checks.about_draft_options import method_and_draft
from mkv_ascend.checks.facts import BLOCKS, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import DELTA_ATTENTION, ROLLED_BACK, ModelFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "MOST_TOKENS_PER_STEP"]

MOST_TOKENS_PER_STEP = 16
"""Tokens of a request that attention verifies at once, K + 1: the limit of
npu_fused_infer_attention_score in TND layout, asserted by every builder of vllm-ascend."""

NEVER_ROLLED_BACK = frozenset({"Mamba1", "linear attention"})
"""Those whose state cannot be, on any host; of Kimi delta attention see ``HostRules``."""

HEADS = ("eagle", "eagle3", *BLOCKS)


def tokens_per_step(facts: ServeFacts) -> Iterator[Refusal]:
    """More tokens to verify than attention takes."""
    speculation = facts.speculation
    if speculation is None or speculation.tokens < MOST_TOKENS_PER_STEP:
        return
    most = MOST_TOKENS_PER_STEP - 1
    yield Refusal(
        "tokens-per-step",
        f"num_speculative_tokens is {speculation.tokens}: a step verifies "
        f"{speculation.tokens + 1} tokens of a request, and attention of "
        f"{host_versions.vllm_ascend()} takes at most {MOST_TOKENS_PER_STEP}",
        f"1 to {most}",
        f"write num_speculative_tokens {most} or less",
    )


def vocabulary(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft model whose tokens are not the target's."""
    pair = method_and_draft(facts)
    if pair is None or pair[0].method != "draft_model":
        return
    sizes = [model.number("vocab_size") for model in (facts.target, pair[1])]
    if None in sizes or sizes[0] == sizes[1]:
        return
    yield Refusal(
        "vocabulary",
        f"the draft {pair[1].name} has a vocabulary of {sizes[1]} tokens, and the target "
        f"{facts.target.name} one of {sizes[0]}: a token of one is another word of the other",
        "a draft model with the target's own vocabulary and tokenizer",
        "choose a draft of the target's family, or a method without a draft model (ngram, suffix)",
    )


def hidden_size(facts: ServeFacts) -> Iterator[Refusal]:
    """A head whose input is not as wide as the target's hidden states."""
    pair = method_and_draft(facts)
    if pair is None or pair[0].method != "eagle":
        return
    draft = pair[1]
    # A head may name the width that it takes besides its own.
    taken = draft.number("target_hidden_size") or draft.number("hidden_size")
    given = facts.target.number("hidden_size")
    if taken is None or given is None or taken == given:
        return
    yield Refusal(
        "hidden-size",
        f"the {pair[0].method} head {draft.name} takes hidden states of {taken} numbers, and "
        f"{facts.target.name} has {given}",
        f"a head that was trained for this target (hidden_size {given})",
        "choose such a head, or a draft model of its own",
    )


def own_predictor(facts: ServeFacts) -> Iterator[Refusal]:
    """Method mtp over a model without a multi-token predictor."""
    pair = method_and_draft(facts)
    if pair is None or pair[0].method != "mtp" or pair[0].options.get("model") is not None:
        return
    # Of the file: `--hf-overrides` change the target's layers alone.
    if pair[1].has_predictor:
        return
    yield Refusal(
        "mtp",
        f"method mtp is asked for, and {facts.target.name} ({facts.target.model_type}) has no "
        "multi-token predictor of its own",
        "models with num_nextn_predict_layers, Qwen3-Next",
        "give a draft model, an eagle3 head, or method ngram",
    )


def states_of_target(facts: ServeFacts) -> Iterator[Refusal]:
    """A target whose states cannot be taken back where tokens are rejected."""
    kind, target, vllm = facts.target.recurrent, facts.target.name, host_versions.vllm()
    if facts.speculation is None or delta_attention.is_taken_back(facts, facts.target):
        return
    change = "leave --speculative-config out for this model"
    if kind == DELTA_ATTENTION and delta_attention.is_kept_for_drafts(facts):
        reason = (
            f"{target} has layers of {kind} with an output gate of two factors, and {vllm} loads "
            "gates of full rank alone (Kimi-K3's), with drafts or without"
        )
        change = "serve it with vllm-ascend 0.23.0, without --speculative-config"
    elif kind in NEVER_ROLLED_BACK or kind == DELTA_ATTENTION:
        reason = (
            f"{target} has layers of {kind}, whose state mkv_ascend cannot take back to the last "
            f"accepted token on {vllm}"
        )
    elif not facts.target.has_attention:
        reason = (
            f"{target} has no attention layer: {vllm} counts accepted tokens of no such model, so "
            "that accepted drafts would be left out of its states"
        )
    else:
        return
    yield Refusal(
        "target-states",
        f"drafts are asked for, and {reason}",
        f"speculation over attention layers, and beside them {', '.join(sorted(ROLLED_BACK))}",
        change,
    )


def states_of_draft(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft whose states cannot be taken back."""
    pair = method_and_draft(facts)
    kind = None if pair is None else pair[1].recurrent
    if pair is None or kind is None:
        return
    speculation, draft = pair
    if speculation.method == "mtp":
        # The predictor's own layers are attention layers.
        return
    possible = f"draft models of attention layers, {', '.join(sorted(ROLLED_BACK))}"
    delta = kind == DELTA_ATTENTION and not delta_attention.is_taken_back(facts, draft)
    never = kind in NEVER_ROLLED_BACK or delta
    if never or speculation.method in HEADS:
        yield Refusal(
            "draft-states",
            f"the draft {draft.name} ({speculation.method}) has layers of {kind}, whose state "
            "cannot be taken back where tokens are rejected",
            possible,
            "choose such a draft",
        )
    elif not draft.has_attention:
        yield Refusal(
            "draft-states",
            f"the draft {draft.name} has no attention layer, and a proposal is planned from the "
            "block tables of those",
            possible,
            "choose a draft with some attention layers",
        )
    else:
        yield from _options_of_recurrent(facts, speculation, draft)


def why_hits_are_not_read(facts: ServeFacts, draft: ModelFacts) -> str | None:
    """Why a recurrent draft cannot read the tokens of a prefix hit itself; None: it does."""
    reasons = {
        "it cannot read the images of a prefix again": about_draft_inputs.takes_images(facts),
        "keys before its windows, which it would need to read a prefix again, are gone": (
            draft.has_windows
        ),
        "the passes that read a prefix again would have to be those of all ranks": (
            facts.whole("data_parallel_size", 1) > 1
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _options_of_recurrent(
    facts: ServeFacts, speculation: SpeculationFacts, draft: ModelFacts
) -> Iterator[Refusal]:
    """Options that a draft with recurrent layers cannot be combined with.

    A KV connector brings blocks of keys and no states of a draft. Without padding, or with parallel
    drafting, rejected tokens are not in the rows of the pass over the accepted ones.
    """
    asked = {
        "disable_padded_drafter_batch": speculation.options.get("disable_padded_drafter_batch"),
        "parallel_drafting": speculation.options.get("parallel_drafting"),
        "prefill_context_parallel_size or decode_context_parallel_size": facts.context_parallel > 1,
        "enable_reduce_sample": facts.ascend("enable_reduce_sample"),
        "lmhead_tensor_parallel_size": facts.splits_vocabulary,
        "--kv-transfer-config": facts.engine.get("kv_transfer_config"),
        "--kv-offloading-size": facts.engine.get("kv_offloading_size"),
    }
    why = "their states could not follow"
    for option, given in asked.items():
        if given:
            yield Refusal(
                "recurrent-draft-option",
                f"the draft {draft.name} has recurrent layers, and {option} is set: {why}",
                "the same draft without this option, or a draft of attention layers",
                f"leave {option} out",
            )
    unread = None if facts.target.recurrent is None else why_hits_are_not_read(facts, draft)
    if unread is not None and _has_hits_beside_states(facts):
        yield Refusal(
            "recurrent-draft-option",
            f"the draft {draft.name} has recurrent layers, and prefix caching "
            f"(--enable-prefix-caching) is on beside states of the target: {unread}",
            "the same draft without prefix caching, or a draft of attention layers",
            "write --no-enable-prefix-caching",
        )


def _has_hits_beside_states(facts: ServeFacts) -> bool:
    """Whether vLLM looks for prefix hits beside states of the target, asked or by itself."""
    given = facts.engine.get("enable_prefix_caching")
    by_itself = facts.rules is not None and facts.rules.hits_beside_states
    return by_itself if given is None else given is True


def ranks_of_draft(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft on other ranks than its target."""
    speculation = facts.speculation
    asked = None if speculation is None else speculation.options.get("draft_tensor_parallel_size")
    if speculation is None or asked is None or asked == facts.tensor_parallel:
        return
    if asked == 1 and speculation.method != "draft_model":
        yield from _whole_experts(facts)
        return
    possible = f"{facts.tensor_parallel}" + (
        "" if speculation.method == "draft_model" else ", or 1: the head whole on every rank"
    )
    yield Refusal(
        "draft-ranks",
        f"draft_tensor_parallel_size is {asked!r} and --tensor-parallel-size "
        f"{facts.tensor_parallel}: {host_versions.vllm()} runs a draft model on all ranks of its "
        "target",
        possible,
        "leave draft_tensor_parallel_size out",
    )


def length_of_draft(facts: ServeFacts) -> Iterator[Refusal]:
    """A length for the draft that it, or its target, does not have."""
    pair = method_and_draft(facts)
    asked = None if pair is None else pair[0].options.get("max_model_len")
    if pair is None or asked is None:
        return
    limits = [facts.max_model_len or None, pair[1].number("max_position_embeddings")]
    most = min((limit for limit in limits if limit is not None), default=None)
    if type(asked) is int and asked > 0 and (most is None or asked <= most):
        return
    yield Refusal(
        "draft-length",
        f"max_model_len of --speculative-config is {asked!r}",
        "a whole number" + (f" from 1 to {most}, which both models have" if most else " from 1 on"),
        "correct it, or leave it out",
    )


def _whole_experts(facts: ServeFacts) -> Iterator[Refusal]:
    """A head with experts, whole on each rank.

    On model runner V1 vllm-ascend builds the head for one rank and runs it among all of the
    target's, which add up what experts give. On V2 it builds the head for all ranks anyway. A
    configuration with experts does not always say whether the layers that draft have them, too.
    """
    draft = facts.draft
    if draft is None or not draft.num_experts or facts.runner == "v2":
        return
    yield Refusal(
        "draft-ranks",
        f"draft_tensor_parallel_size is 1, and {draft.name} has {draft.num_experts} experts: where "
        f"layers that draft have them, each of {facts.tensor_parallel} ranks adds what all experts "
        "give",
        f"{facts.tensor_parallel}, the ranks of the target",
        "leave draft_tensor_parallel_size out",
    )


def experts(facts: ServeFacts) -> Iterator[Refusal]:
    """Sequence parallelism where only the draft has experts."""
    pair = method_and_draft(facts)
    if pair is None or not facts.ascend("enable_flashcomm1") or facts.tensor_parallel < 2:
        return
    if pair[1].num_experts and not facts.target.num_experts:
        yield Refusal(
            "experts",
            "sequence parallelism (enable_flashcomm1) is on, and the draft "
            f"{pair[1].name} has {pair[1].num_experts} experts where the target has none",
            "a draft without experts, or no sequence parallelism",
            "leave enable_flashcomm1 out",
        )


def states_for_heads(facts: ServeFacts) -> Iterator[Refusal]:
    """Heads over layers that hand on several states per token, or depths that are not there."""
    pair = method_and_draft(facts)
    if pair is None or pair[0].method not in ("eagle3", *BLOCKS):
        return
    if facts.target.is_compressed:
        yield Refusal(
            "head-states",
            f"method {pair[0].method} over {facts.target.name} (DeepSeek-V4), whose layers hand on "
            "several states per token where a head takes one",
            "its own MTP layer (method mtp), or a draft model",
            "choose one of these",
        )
    last = facts.target.number("num_hidden_layers")
    for name, depths in _depths(pair[1]):
        first = -1 if name in OF_OUTPUTS else 0
        most = None if last is None else last + first
        beyond = [
            depth
            for depth in depths
            if type(depth) is not int or depth < first or (most is not None and depth > most)
        ]
        twice = [depth for index, depth in enumerate(depths) if depth in depths[:index]]
        if beyond or twice:
            found = f"{beyond}, and" if beyond else f"{twice} twice, and a depth is handed on once;"
            yield Refusal(
                "head-depths",
                f"{name} of {pair[1].name} has {found} {facts.target.name} has {last} layers",
                f"numbers from {first} to {most}, each once",
                "set them to the depths that the head was trained with, for this target",
            )


OF_OUTPUTS = ("target_layer_ids", "dspark_target_layer_ids")
"""Lists of layers whose output a head reads; others are of what goes into a layer."""


def _depths(draft: ModelFacts) -> Iterator[tuple[str, list[object]]]:
    """Lists of what a head reads of its target, by the names that vLLM reads."""
    parts = [draft.text, *(draft.text.get(f"{name}_config") for name in ("eagle", "dflash"))]
    for part in parts:
        for name in ("eagle_aux_hidden_state_layer_ids", *OF_OUTPUTS):
            depths = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(depths, list):
                yield name, depths


def room_for_drafts(facts: ServeFacts) -> Iterator[Refusal]:
    """Steps of which a draft model's own tokens leave nothing.

    vLLM keeps some of a step for each request (``VllmConfig._set_max_num_scheduled_tokens``).
    """
    speculation = facts.speculation
    if speculation is None or speculation.method != "draft_model":
        return
    tokens, requests = (facts.whole(n, 0) for n in ("max_num_batched_tokens", "max_num_seqs"))
    each = speculation.kept_of_each_request
    if not tokens or tokens > each * requests or tokens < requests:
        return
    yield Refusal(
        "step-size",
        f"--max-num-batched-tokens is {tokens}, of which the draft's own tokens of {requests} "
        "requests (--max-num-seqs) leave none to schedule",
        f"more than {each * requests} tokens",
        "raise --max-num-batched-tokens, or lower --max-num-seqs",
    )


CHECKS = (
    *(*about_draft_class.CHECKS, *about_weights.CHECKS),
    *(tokens_per_step, *about_pipeline.CHECKS, ranks_of_draft, experts),
    *(vocabulary, hidden_size, own_predictor, states_of_target, states_of_draft, length_of_draft),
    *(*about_blocks.CHECKS, states_for_heads, room_for_drafts, *about_draft_inputs.CHECKS),
    *(*about_draft_options.CHECKS, *about_draft_window.CHECKS, *about_draft_graphs.CHECKS),
    *(*about_giving_up.CHECKS, *about_shares.CHECKS, about_logits_processors.beside_drafts),
    *about_expert_places.CHECKS,
)
