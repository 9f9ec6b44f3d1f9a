# SPDX-License-Identifier: Apache-2.0
"""What a draft cannot be, for this target and with these options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mkv_ascend import host_versions
from mkv_ascend.rules import families
from mkv_ascend.rules.facts import BLOCKS, Facts, SpeculationFacts
from mkv_ascend.rules.model import DELTA_ATTENTION, GATED_DELTA_RULE, ROLLED_BACK, ModelFacts
from mkv_ascend.rules.refusal import Refusal, Rule

MOST_TOKENS_PER_STEP = 16
"""Tokens of a request that attention verifies at once, K + 1: the limit of
npu_fused_infer_attention_score in TND layout, asserted by every builder of vllm-ascend."""
HEADS = ("eagle", "eagle3", *BLOCKS)
OF_OUTPUTS = ("target_layer_ids", "dspark_target_layer_ids")
"""Lists of layers whose output a head reads; others are of what goes into a layer."""
SMALL = 4
"""Layers of a head, at most, whose configuration names the class of a whole model."""
NAMED = (
    ("eagle3", re.compile(r"Eagle3$|Eagle3\w*For|^Eagle3|^P[Ee]agle"), "an EAGLE-3 head"),
    ("eagle", re.compile(r"^Eagle(?!3)"), "an EAGLE head"),
    ("dflash", re.compile(r"^DFlash|DFlash$|^MuseGlimmerAssistant"), "a DFlash head"),
    ("dspark", re.compile(r"DSpark"), "a DSpark head"),
    ("mtp", re.compile(r"MTP|Gemma4\w*Assistant"), "multi-token prediction layers"),
    ("medusa", re.compile(r"^Medusa"), "Medusa heads"),
    ("mlp_speculator", re.compile(r"^MLPSpeculator"), "an MLP speculator"),
)
"""Method, the names of classes that are drafts of it alone, and what such a draft is."""
OF_HEADS = (
    *("eagle_config", "dflash_config", "draft_vocab_size", "target_hidden_size"),
    "eagle_aux_hidden_state_layer_ids",
)
"""Fields of configurations of heads that no whole model has."""


def tokens_per_step(facts: Facts) -> Iterator[Refusal]:
    """More tokens to verify than attention takes, or a rule of states."""
    speculation, most, what = facts.speculation, MOST_TOKENS_PER_STEP, "attention"
    limit = facts.host.most_tokens_of_gated_delta_rule
    if limit and any(model.recurrent == GATED_DELTA_RULE for model in facts.models):
        most, what = limit, f"the {GATED_DELTA_RULE}"
    if speculation is None or speculation.tokens < most:
        return
    yield Refusal(
        "tokens-per-step",
        f"num_speculative_tokens is {speculation.tokens}: a step verifies "
        f"{speculation.tokens + 1} tokens of a request, and {what} of "
        f"{host_versions.vllm_ascend()} takes at most {most}",
        f"1 to {most - 1}",
        f"write num_speculative_tokens {most - 1} or less",
    )


def method_and_class(facts: Facts) -> Iterator[Refusal]:
    """A draft of a class that is not the method's; vLLM compares them for no method.

    What it makes of a wrong pair is a late error, or a draft of which no token is accepted.
    """
    if facts.drafts is None or len(facts.models) == 1:
        return
    speculation, draft = facts.drafts
    method, given = speculation.method, facts.named_by_draft
    found = next((name for name, named, _ in NAMED if given and named.search(given[0])), None)
    if given and found is None and method in ("eagle", "eagle3", "dflash"):
        # Published EAGLE heads name the class of a whole Llama.
        is_small = (draft.number("num_hidden_layers") or 0) <= SMALL
        if not is_small and all(draft.text.get(name) is None for name in OF_HEADS):
            found = "draft_model"
    if found is None or found == method:
        return
    what = next((what for name, _, what in NAMED if name == found), "a model of its own")
    yield Refusal(
        "draft-class",
        f"method {method} is asked for, and the draft {draft.name} ({', '.join(given)}) is {what}",
        f"this draft with method {found}",
        f'write "method": "{found}", or choose a draft of method {method}',
    )


def hidden_size(facts: Facts) -> Iterator[Refusal]:
    """A head whose input is not as wide as the target's hidden states."""
    if facts.drafts is None or facts.drafts[0].method not in ("eagle", "eagle3"):
        return
    speculation, draft = facts.drafts
    # A head may name the width that it takes besides its own.
    taken = draft.number("target_hidden_size") or draft.number("hidden_size")
    given = facts.target.number("hidden_size")
    if taken is None or given is None or taken == given:
        return
    yield Refusal(
        "hidden-size",
        f"the {speculation.method} head {draft.name} takes hidden states of {taken} numbers, and "
        f"{facts.target.name} has {given}",
        f"a head that was trained for this target (hidden_size {given})",
        "choose such a head, or a draft model of its own",
    )


def states_of_draft(facts: Facts) -> Iterator[Refusal]:
    """A draft whose states cannot be taken back."""
    if facts.drafts is None or facts.drafts[1].recurrent is None:
        return
    speculation, draft = facts.drafts
    kind = draft.recurrent
    if speculation.method == "mtp":
        # The predictor's own layers are attention layers.
        return
    possible = f"draft models of attention layers, {', '.join(sorted(ROLLED_BACK))}"
    delta = kind == DELTA_ATTENTION and not families.is_taken_back(facts, draft)
    never = kind in families.NEVER_ROLLED_BACK or delta
    if never or speculation.method in HEADS:
        yield Refusal(
            "draft-states",
            f"the draft {draft.name} ({speculation.method}) has layers of {kind}, whose state "
            "cannot be taken back where tokens are rejected",
            possible,
            "choose such a draft",
        )
    elif draft.attention_free:
        yield Refusal(
            "draft-states",
            f"the draft {draft.name} has no attention layer, and a proposal is planned from the "
            "block tables of those",
            possible,
            "choose a draft with some attention layers",
        )
    else:
        yield from _options_of_recurrent(facts, speculation, draft)


def why_hits_are_not_read(facts: Facts, draft: ModelFacts) -> str | None:
    """Why a recurrent draft cannot read the tokens of a prefix hit itself; None: it does."""
    if facts.takes_images:
        return "it cannot read the images of a prefix again"
    if draft.has_windows:
        return "keys before its windows, which it would need to read a prefix again, are gone"
    if facts.data_parallel > 1:
        return "the passes that read a prefix again would have to be those of all ranks"
    return None


def _options_of_recurrent(
    facts: Facts, speculation: SpeculationFacts, draft: ModelFacts
) -> Iterator[Refusal]:
    """Options that a draft with recurrent layers cannot be combined with.

    A KV connector brings blocks of keys and no states of a draft. Without padding, or with parallel
    drafting, rejected tokens are not in the rows of the pass over the accepted ones.
    """
    asked = {
        "disable_padded_drafter_batch": speculation.options.get("disable_padded_drafter_batch"),
        "parallel_drafting": speculation.options.get("parallel_drafting"),
        "prefill_context_parallel_size or decode_context_parallel_size": facts.context_parallel > 1,
        "enable_reduce_sample": facts.ascend.get("enable_reduce_sample"),
        "lmhead_tensor_parallel_size": facts.splits_vocabulary,
        "--kv-transfer-config": facts.has_transfer,
        "--kv-offloading-size": facts.has_offloading,
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
    if unread is not None and facts.prefix_caching:
        yield Refusal(
            "recurrent-draft-option",
            f"the draft {draft.name} has recurrent layers, and prefix caching "
            f"(--enable-prefix-caching) is on beside states of the target: {unread}",
            "the same draft without prefix caching, or a draft of attention layers",
            "write --no-enable-prefix-caching",
        )


def states_for_heads(facts: Facts) -> Iterator[Refusal]:
    """Heads over layers that hand on several states per token, or depths that are not there."""
    if facts.drafts is None or facts.drafts[0].method not in ("eagle3", *BLOCKS):
        return
    speculation, draft = facts.drafts
    if facts.target.is_compressed:
        yield Refusal(
            "head-states",
            f"method {speculation.method} over {facts.target.name} (DeepSeek-V4), whose layers "
            "hand on several states per token where a head takes one",
            "its own MTP layer (method mtp), or a draft model",
            "choose one of these",
        )
    last = facts.target.number("num_hidden_layers")
    for name, depths in _depths(draft):
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
                f"{name} of {draft.name} has {found} {facts.target.name} has {last} layers",
                f"numbers from {first} to {most}, each once",
                "set them to the depths that the head was trained with, for this target",
            )


def _depths(draft: ModelFacts) -> Iterator[tuple[str, list[object]]]:
    """Lists of what a head reads of its target, by the names that vLLM reads."""
    parts = [draft.text, *(draft.text.get(f"{name}_config") for name in ("eagle", "dflash"))]
    for part in parts:
        for name in ("eagle_aux_hidden_state_layer_ids", *OF_OUTPUTS):
            depths = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(depths, list | tuple):
                yield name, list(depths)


def blocks_of_masks(facts: Facts) -> Iterator[Refusal]:
    """What methods dflash and dspark cannot be combined with."""
    if facts.drafts is None or not facts.drafts[0].drafts_blocks or facts.has_own_proposer:
        return
    method = facts.drafts[0].method
    asked = {
        "prefill_context_parallel_size": facts.prefill_context_parallel > 1,
        "enable_flashcomm1": facts.sequence_parallel,
        "enable_reduce_sample": facts.ascend.get("enable_reduce_sample"),
        "lmhead_tensor_parallel_size": facts.splits_vocabulary,
    }
    for what, given in asked.items():
        if given:
            yield Refusal(
                "dflash",
                f"method {method} with {what}: it attends without a causal mask, over all tokens "
                "of a request, on each rank",
                f"{method} without it, or another method",
                f"leave {what} out",
            )


def windows_in_blocks(facts: Facts) -> Iterator[Refusal]:
    """Windows that the layers of a draft of method dflash or dspark cannot have.

    vLLM 0.23.0's class leaves them out. 0.30.0's reads them, and refuses them beside layers that
    attend to all tokens on model runner V1, behind the loading of the target.
    """
    if facts.drafts is None or not facts.drafts[0].drafts_blocks or facts.has_own_proposer:
        return
    speculation, draft = facts.drafts
    windows = _which_have_windows(draft.text)
    if not any(windows) or (
        facts.host.windows_in_blocks and (facts.runner == "v2" or all(windows))
    ):
        return
    yield Refusal(
        "dflash",
        f"method {speculation.method}, and layers of the draft {draft.name} have sliding windows, "
        f"which {host_versions.vllm()} leaves out or does not build beside others on model runner "
        f"{facts.runner.upper()}",
        "a draft whose layers attend to all tokens; model runner V2 of vLLM 0.30.0",
        "choose such a draft, or set VLLM_USE_V2_MODEL_RUNNER=1 with vLLM 0.30.0",
    )


def _which_have_windows(text: Mapping[str, object]) -> frozenset[bool]:
    """Whether layers of such a draft have windows, each answer once.

    As vLLM 0.30.0 reads it (``qwen3_dflash``): ``layer_types`` names layers with a window, or
    ``use_swa`` gives all layers one.
    """
    kinds, blocks = text.get("layer_types"), text.get("dflash_config")
    slides = [kind == "sliding_attention" for kind in kinds] if isinstance(kinds, list) else []
    in_all = isinstance(blocks, Mapping) and bool(blocks.get("use_swa")) and not any(slides)
    return frozenset(one or in_all for one in slides or [False])


def _has_more_rows(facts: Facts) -> bool:
    """Whether a draft needs more rows than the target has tokens (``llm_base_proposer.py``)."""
    speculation = facts.speculation
    if speculation is None or not speculation.has_cache:
        return False
    return speculation.method == "draft_model" or bool(facts.option_of_draft("parallel_drafting"))


POSITIONS = Rule(
    "draft-rope",
    lambda facts: (
        _has_more_rows(facts) and facts.draft is not None and facts.draft.has_several_positions
    ),
    lambda facts: (
        f"the draft {facts.name_of_draft} has M-RoPE, three positions for each token, of which "
        f"{host_versions.vllm()} gives a draft one"
    ),
    "drafts without mrope_section in their config.json, heads, the target's own predictor (method "
    "mtp), ngram",
    "choose a text-only model of the family as the draft, or one of these methods",
)
"""The target's rows are not the draft's."""

PADDED_BATCH = Rule(
    "draft-batch",
    # The rule of recurrent drafts says it of those.
    lambda facts: (
        _has_more_rows(facts)
        and facts.draft is not None
        and facts.draft.recurrent is None
        and facts.option_of_draft("disable_padded_drafter_batch")
    ),
    lambda facts: (
        f"disable_padded_drafter_batch is set, and the draft {facts.name_of_draft} takes rejected "
        f"tokens as padding: {host_versions.vllm()} has no other way for draft models"
    ),
    "the option for heads (eagle, eagle3, mtp)",
    "leave disable_padded_drafter_batch out",
)
"""Rows are made on the device."""


def _shares_choice(facts: Facts) -> bool:
    """Whether later passes attend to the keys that the draft's first pass chose (GLM-5.2)."""
    draft = facts.draft
    asked = draft is not None and draft.values.get("index_share_for_mtp_iteration")
    return bool(asked) and facts.runner == "v1" and draft is not None and draft.has_indexer


# vllm-ascend's attention asks the target's configuration, also for layers of the draft.
KEPT_CHOICE = Rule(
    "draft-option",
    lambda facts: _shares_choice(facts) and not facts.target.keeps_choices,
    lambda facts: (
        "index_share_for_mtp_iteration is set, and what a draft's first pass chooses is kept only "
        f"beside layers of {facts.target.name} that share choices, too"
    ),
    "a target with shared layers among its indexer_types, or with use_index_cache",
    """add --hf-overrides '{"use_index_cache": true}'""",
)

CHOICE_OF_RANKS = Rule(
    "draft-option",
    lambda facts: (
        _shares_choice(facts)
        and facts.ascend.get("enable_dsa_cp")
        and not facts.host.moves_choices_of_ranks
    ),
    "index_share_for_mtp_iteration and enable_dsa_cp are set: rows of a choice lie on other ranks "
    "than those of later passes",
    "one of the two",
    "leave enable_dsa_cp out",
)

CHECKS = (
    *(tokens_per_step, method_and_class, hidden_size, states_of_draft, states_for_heads),
    *(blocks_of_masks, windows_in_blocks, POSITIONS, PADDED_BATCH),
    *(KEPT_CHOICE, CHOICE_OF_RANKS),
)
