# SPDX-License-Identifier: Apache-2.0
"""What a draft cannot be, for this target and with these options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mkv_ascend.rules import families
from mkv_ascend.rules.facts import BLOCKS, Facts, SpeculationFacts
from mkv_ascend.rules.model import DELTA_ATTENTION, GATED_DELTA_RULE, ROLLED_BACK, ModelFacts
from mkv_ascend.rules.refusal import Refusal, Rule

MOST_TOKENS_PER_STEP = 16
"""Tokens of a request that attention verifies at once, K + 1: the limit of
npu_fused_infer_attention_score in TND layout, asserted by every builder of vllm-ascend."""
HEADS = ("eagle", "eagle3", *BLOCKS)
READERS = ("eagle3", *BLOCKS)
"""Methods of heads that read several depths of the target."""
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


def _too_many_tokens(facts: Facts) -> object:
    """More tokens to verify than attention takes, or a rule of states."""
    speculation, most, what = facts.speculation, MOST_TOKENS_PER_STEP, "attention"
    limit = facts.host.most_tokens_of_gated_delta_rule
    if limit and any(model.recurrent == GATED_DELTA_RULE for model in facts.models):
        most, what = limit, f"the {GATED_DELTA_RULE}"
    if speculation is None or speculation.tokens < most:
        return False
    tokens = speculation.tokens
    return {"tokens": tokens, "step": tokens + 1, "what": what, "most": most, "fewer": most - 1}


def _class_of_another_method(facts: Facts) -> object:
    """A draft of a class that is not the method's; vLLM compares them for no method.

    What it makes of a wrong pair is a late error, or a draft of which no token is accepted.
    """
    if facts.drafts is None or len(facts.models) == 1 or not facts.named_by_draft:
        return False
    (speculation, draft), given = facts.drafts, facts.named_by_draft
    method = speculation.method
    found = next(((name, what) for name, named, what in NAMED if named.search(given[0])), None)
    if found is None and method in ("eagle", "eagle3", "dflash"):
        # Published EAGLE heads name the class of a whole Llama.
        is_small = (draft.number("num_hidden_layers") or 0) <= SMALL
        if not is_small and all(draft.text.get(name) is None for name in OF_HEADS):
            found = "draft_model", "a model of its own"
    if found is None or found[0] == method:
        return False
    return {"found": found[0], "what": found[1], "given": ", ".join(given)}


def _other_width(facts: Facts) -> object:
    """A head whose input is not as wide as the target's hidden states."""
    if facts.drafts is None or facts.method not in ("eagle", "eagle3"):
        return False
    draft = facts.drafts[1]
    # A head may name the width that it takes besides its own.
    taken = draft.number("target_hidden_size") or draft.number("hidden_size")
    given = facts.target.number("hidden_size")
    wrong = taken is not None and given is not None and taken != given
    return wrong and {"taken": taken, "given": given}


def states_of_draft(facts: Facts) -> Iterator[Refusal]:
    """A draft whose states cannot be taken back."""
    # A predictor's own layers are attention layers.
    if facts.drafts is None or facts.drafts[1].recurrent is None or facts.method == "mtp":
        return
    speculation, draft = facts.drafts
    kind = draft.recurrent
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
    found = [
        (f"{option} is set: their states could not follow", "this option", f"leave {option} out")
        for option, given in asked.items()
        if given
    ]
    unread = None if facts.target.recurrent is None else why_hits_are_not_read(facts, draft)
    if unread is not None and facts.prefix_caching:
        what = "prefix caching (--enable-prefix-caching) is on beside states of the target: "
        found.append((what + unread, "prefix caching", "write --no-enable-prefix-caching"))
    for what, without, change in found:
        yield Refusal(
            "recurrent-draft-option",
            f"the draft {draft.name} has recurrent layers, and {what}",
            f"the same draft without {without}, or a draft of attention layers",
            change,
        )


def _wrong_depths(facts: Facts) -> list[dict[str, Any]]:
    """Depths that a head reads and that are not there, or stand twice."""
    if facts.drafts is None or facts.method not in READERS:
        return []
    draft, last = facts.drafts[1], facts.target.number("num_hidden_layers")
    wrong = []
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
            numbers = {"last": last, "first": first, "most": most}
            wrong.append({"name": name, "found": found, **numbers})
    return wrong


def _depths(draft: ModelFacts) -> Iterator[tuple[str, list[object]]]:
    """Lists of what a head reads of its target, by the names that vLLM reads."""
    parts = [draft.text, *(draft.text.get(f"{name}_config") for name in ("eagle", "dflash"))]
    for part in parts:
        for name in ("eagle_aux_hidden_state_layer_ids", *OF_OUTPUTS):
            depths = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(depths, list | tuple):
                yield name, list(depths)


def _drafts_blocks_of_ours(facts: Facts) -> bool:
    return facts.drafts is not None and facts.method in BLOCKS and not facts.has_own_proposer


def _options_of_blocks(facts: Facts) -> list[dict[str, Any]]:
    """What methods dflash and dspark cannot be combined with."""
    asked = {
        "prefill_context_parallel_size": facts.prefill_context_parallel > 1,
        "enable_flashcomm1": facts.sequence_parallel,
        "enable_reduce_sample": facts.ascend.get("enable_reduce_sample"),
        "lmhead_tensor_parallel_size": facts.splits_vocabulary,
    }
    return [
        {"option": option}
        for option, given in asked.items()
        if given and _drafts_blocks_of_ours(facts)
    ]


def _unbuilt_windows(facts: Facts) -> object:
    """Windows that the layers of a draft of method dflash or dspark cannot have.

    vLLM 0.23.0's class leaves them out. 0.30.0's reads them, and refuses them beside layers that
    attend to all tokens on model runner V1, behind the loading of the target.
    """
    if facts.draft is None or not _drafts_blocks_of_ours(facts):
        return False
    windows = _which_have_windows(facts.draft.text)
    are_built = facts.host.windows_in_blocks and (facts.runner == "v2" or all(windows))
    return any(windows) and not are_built and {"runner": facts.runner.upper()}


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
    parallel = bool(facts.option_of_draft("parallel_drafting"))
    return facts.has_draft_cache and (facts.method == "draft_model" or parallel)


def _shares_choice(facts: Facts) -> bool:
    """Whether later passes attend to the keys that the draft's first pass chose (GLM-5.2)."""
    draft = facts.draft
    if draft is None or facts.runner != "v1" or not draft.has_indexer:
        return False
    return bool(draft.values.get("index_share_for_mtp_iteration"))


CHECKS = (
    Rule(
        "tokens-per-step",
        _too_many_tokens,
        "num_speculative_tokens is {tokens}: a step verifies {step} tokens of a request, and "
        "{what} of {ascend} takes at most {most}",
        "1 to {fewer}",
        "write num_speculative_tokens {fewer} or less",
    ),
    Rule(
        "draft-class",
        _class_of_another_method,
        "method {facts.method} is asked for, and the draft {facts.draft.name} ({given}) is {what}",
        "this draft with method {found}",
        'write "method": "{found}", or choose a draft of method {facts.method}',
    ),
    Rule(
        "hidden-size",
        _other_width,
        "the {facts.method} head {facts.draft.name} takes hidden states of {taken} numbers, and "
        "{facts.target.name} has {given}",
        "a head that was trained for this target (hidden_size {given})",
        "choose such a head, or a draft model of its own",
    ),
    states_of_draft,
    Rule(
        "head-states",
        lambda facts: (
            facts.drafts is not None and facts.method in READERS and facts.target.is_compressed
        ),
        "method {facts.method} over {facts.target.name} (DeepSeek-V4), whose layers hand on "
        "several states per token where a head takes one",
        "its own MTP layer (method mtp), or a draft model",
        "choose one of these",
    ),
    Rule(
        "head-depths",
        _wrong_depths,
        "{name} of {facts.draft.name} has {found} {facts.target.name} has {last} layers",
        "numbers from {first} to {most}, each once",
        "set them to the depths that the head was trained with, for this target",
    ),
    Rule(
        "dflash",
        _options_of_blocks,
        "method {facts.method} with {option}: it attends without a causal mask, over all tokens of "
        "a request, on each rank",
        "{facts.method} without it, or another method",
        "leave {option} out",
    ),
    Rule(
        "dflash",
        _unbuilt_windows,
        "method {facts.method}, and layers of the draft {facts.draft.name} have sliding windows, "
        "which {vllm} leaves out or does not build beside others on model runner {runner}",
        "a draft whose layers attend to all tokens; model runner V2 of vLLM 0.30.0",
        "choose such a draft, or set VLLM_USE_V2_MODEL_RUNNER=1 with vLLM 0.30.0",
    ),
    # The target's rows are not the draft's.
    Rule(
        "draft-rope",
        lambda facts: (
            _has_more_rows(facts) and facts.draft is not None and facts.draft.has_several_positions
        ),
        "the draft {facts.draft.name} has M-RoPE, three positions for each token, of which {vllm} "
        "gives a draft one",
        "drafts without mrope_section in their config.json, heads, the target's own predictor "
        "(method mtp), ngram",
        "choose a text-only model of the family as the draft, or one of these methods",
    ),
    # Rows are made on the device. The rule of recurrent drafts says it of those.
    Rule(
        "draft-batch",
        lambda facts: (
            _has_more_rows(facts)
            and facts.draft is not None
            and facts.draft.recurrent is None
            and facts.option_of_draft("disable_padded_drafter_batch")
        ),
        "disable_padded_drafter_batch is set, and the draft {facts.draft.name} takes rejected "
        "tokens as padding: {vllm} has no other way for draft models",
        "the option for heads (eagle, eagle3, mtp)",
        "leave disable_padded_drafter_batch out",
    ),
    # vllm-ascend's attention asks the target's configuration, also for layers of the draft.
    Rule(
        "draft-option",
        lambda facts: _shares_choice(facts) and not facts.target.keeps_choices,
        "index_share_for_mtp_iteration is set, and what a draft's first pass chooses is kept only "
        "beside layers of {facts.target.name} that share choices, too",
        "a target with shared layers among its indexer_types, or with use_index_cache",
        """add --hf-overrides '{{"use_index_cache": true}}'""",
    ),
    Rule(
        "draft-option",
        lambda facts: (
            _shares_choice(facts)
            and facts.ascend.get("enable_dsa_cp")
            and not facts.host.moves_choices_of_ranks
        ),
        "index_share_for_mtp_iteration and enable_dsa_cp are set: rows of a choice lie on other "
        "ranks than those of later passes",
        "one of the two",
        "leave enable_dsa_cp out",
    ),
)
