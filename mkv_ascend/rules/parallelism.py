# SPDX-License-Identifier: Apache-2.0
"""Ranks: devices, pipeline stages, and ranks that share the keys of each sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.options import NAMESPACE
from mkv_ascend.attention.selection import ChosenBy, SelectionError, asked_for, select_backend
from mkv_ascend.layout.kind import Kind
from mkv_ascend.rules.backends import requests_of_kinds, without_patterns
from mkv_ascend.rules.facts import BLOCKS, Facts
from mkv_ascend.rules.model import ROLLED_BACK, has_windows
from mkv_ascend.rules.refusal import Refusal, Rule

TAKES_THE_TARGETS_KEYS = "Gemma4MTPModel"
"""vLLM's class of drafts that attend to the target's own caches."""
INSTEAD = "spread the target by --tensor-parallel-size instead"
WHOLE_ON_EACH_STAGE = "granitemoehybrid"
"""Model type whose class in vLLM, 0.23.0's and 0.30.0's, says that it is made for stages: it looks
for weights of all layers on each stage, with a draft or without, and runs layers of the others."""
MOST_RANKS = 8
"""Of a replicated draft: blocks of 128 tokens for each rank, and 1024 at most in one block
(npu_fused_infer_attention_score with packed queries)."""
ON_EACH_RANK = "fused_infer_attention"
"""Backend of a draft that can be replicated."""


def _ranks_of_draft(facts: Facts) -> object:
    """A draft on one rank where its target has several; vLLM refuses all other numbers itself.

    A head with experts cannot be: on model runner V1 vllm-ascend builds it for one rank and runs it
    among all of the target's, which add up what experts give. On V2 it builds the head for all
    ranks anyway. A configuration with experts does not always say whether the layers that draft
    have them, too.
    """
    draft, ranks = facts.draft, facts.tensor_parallel
    asked = facts.option_of_draft("draft_tensor_parallel_size")
    if asked != 1 or ranks == 1 or draft is None:
        return False
    if facts.method == "draft_model":
        why = f" and --tensor-parallel-size {ranks}: {host_versions.vllm()} runs a draft model on "
        return {"why": why + "all ranks of its target", "possible": ranks}
    if not draft.num_experts or facts.runner == "v2":
        return False
    why = f", and {draft.name} has {draft.num_experts} experts: where layers that draft have them, "
    why += f"each of {ranks} ranks adds what all experts give"
    return {"why": why, "possible": f"{ranks}, the ranks of the target"}


def stages(facts: Facts) -> Iterator[Refusal]:
    """A draft over several pipeline stages.

    The draft is whole, on the last stage. So it can read what the last stage has or is sent: hidden
    states of layers, but no keys.
    """
    if facts.method is None or facts.pipeline_parallel < 2 or facts.kv_role == "kv_producer":
        return
    for why, change in _reasons(facts):
        yield Refusal(
            "pipeline",
            f"--pipeline-parallel-size is {facts.pipeline_parallel} and there is a draft "
            f"({facts.method}): {why}",
            "draft models, heads on hidden states of the target (eagle, eagle3, mtp, dflash), and "
            "tokens that are looked up, for text on targets of attention layers, of gated delta "
            "nets, of Mamba2 layers (but Granite 4) and of short convolutions",
            change,
        )


def _reasons(facts: Facts) -> Iterator[tuple[str, str]]:
    """Why such a draft is not served over stages, and what to change."""
    target, draft = facts.target, facts.draft
    if target.recurrent is not None and target.model_type == WHOLE_ON_EACH_STAGE:
        yield "vLLM's class of Granite 4 looks for the weights of all stages on each one", INSTEAD
    elif target.recurrent is not None and target.recurrent not in ROLLED_BACK:
        yield f"no test judges states of {target.recurrent} there", INSTEAD
    if not facts.has_draft_cache:
        return
    if draft is not None and TAKES_THE_TARGETS_KEYS in draft.architectures:
        yield "it reads keys of the target, which lie on several stages", INSTEAD
    if facts.method == "eagle3" and facts.sequence_parallel:
        yield (
            "with enable_flashcomm1 a rank has the hidden states of a share of the tokens",
            "leave enable_flashcomm1 out",
        )
    states = draft.recurrent if draft is not None and facts.method != "mtp" else None
    if states is not None and states not in ROLLED_BACK:
        yield "the draft's states are not taken back there", "choose a draft of attention layers"
    if facts.layers_in_turn > 1:
        yield "its layers draft in turn, by a proposal of vllm-ascend's own", INSTEAD
    if target.is_compressed:
        yield "compressed caches are not planned by stage", INSTEAD
    if facts.takes_images:
        yield (
            "the last stage is not given the images of a prompt",
            "set --language-model-only, or " + INSTEAD,
        )
    if facts.context_parallel > 1:
        yield (
            "context parallelism beside it is not served",
            "leave prefill_context_parallel_size and decode_context_parallel_size out",
        )
    if facts.executor == "external_launcher":
        yield (
            "with external_launcher all stages sample",
            "leave distributed_executor_backend out",
        )


def must_be_replicated(method: str, text: Mapping[str, Any]) -> bool:
    """Whether a draft's attention is one that vllm-ascend lacks over shares of a sequence.

    It has no windows there, and no tokens that see those behind them.

    Args:
        text: configuration of the draft's language model.
    """
    return method in BLOCKS or has_windows(text)


def is_replicated(facts: Facts) -> bool:
    """Whether each rank keeps all keys of the draft, where ranks share those of the target's."""
    if facts.drafts is None or not _ranks_share(facts):
        return False
    speculation, draft = facts.drafts
    asked = facts.options.kv_cache.replicate_draft
    return asked or must_be_replicated(speculation.method, draft.text)


def _ranks_share(facts: Facts) -> bool:
    return facts.decode_context_parallel > 1 and facts.prefill_context_parallel == 1


def _why_no_shares(facts: Facts) -> object:
    """What a draft cannot be of which each rank keeps all keys, or the option without one."""
    asked = facts.options.kv_cache.replicate_draft
    if not (asked or is_replicated(facts)):
        return False
    reason = (_why_not_asked(facts) if asked else None) or _why_not_replicated(facts)
    name = "kv_cache.replicate_draft is true"
    if not asked and facts.draft is not None:
        name = f"each rank keeps all keys of the draft {facts.draft.name}"
    return reason and {"name": name, "why": reason[0], "change": reason[1]}


def _why_not_asked(facts: Facts) -> tuple[str, str] | None:
    """Why the option has no sense, and what to change."""
    out = "leave kv_cache.replicate_draft out"
    draft = facts.draft
    if draft is None or not facts.has_draft_cache:
        return "there is no draft with a KV cache", out
    if not _ranks_share(facts):
        return "ranks do not share keys (decode_context_parallel_size alone lets them)", out
    if draft.recurrent is not None and facts.method != "mtp":
        return f"the draft {draft.name} has recurrent layers, which keep no keys", out
    if facts.method == "dspark" and facts.has_own_proposer:
        return f"vllm-ascend's own proposals draft with {draft.name}", out
    return None


def _why_not_replicated(facts: Facts) -> tuple[str, str] | None:
    """Why each rank cannot keep all of the draft's keys, and what to change."""
    draft, ranks = facts.draft, facts.decode_context_parallel
    if draft is not None and (draft.kind is not Kind.FULL_ATTENTION or draft.is_compressed):
        return (
            f"layers of the draft {draft.name} are of MLA, or compress keys",
            "leave kv_cache.replicate_draft out, or decode_context_parallel_size",
        )
    if (other := _other_backend(facts)) is not None:
        return other
    if ranks > MOST_RANKS:
        return (
            f"decode_context_parallel_size is {ranks}: a block of the draft would have "
            f"{128 * ranks} tokens, and the operator takes 1024",
            f"lower it to {MOST_RANKS} or less",
        )
    if facts.transfer_option is not None:
        name = facts.transfer_option.strip("-").replace("-", "_")
        return f"{name} is set: connectors know blocks of one size", f"leave {name} out"
    return None


def _other_backend(facts: Facts) -> tuple[str, str] | None:
    """What asks for another backend of the draft's layers, and what to change.

    What ``attention.layers`` asks for is judged when the layers have names.
    """
    options = without_patterns(facts)
    for request in requests_of_kinds(facts, facts.draft) if facts.draft is not None else ():
        try:
            found = asked_for(request, options)
            if found is None:
                chosen = select_backend(request, options, facts.environment)
                found = chosen.backend, chosen.chosen_by, chosen.detail
        except SelectionError:
            # No backend can serve this layer, which is told of its own.
            continue
        backend, chosen_by, detail = found
        if backend.name == ON_EACH_RANK:
            continue
        option = detail.removeprefix(f"{NAMESPACE}.")
        if chosen_by is ChosenBy.VLLM_OPTION:
            option = option.rpartition(" ")[0]
        return f"{option} asks for {backend.name}", f"leave {option} out"
    return None


CHECKS = (
    Rule(
        "devices",
        lambda facts: (
            facts.device.count is not None
            and facts.devices_needed is not None
            and facts.devices_needed > facts.device.count
        ),
        "the command takes {facts.devices_needed} devices (tensor, pipeline and context "
        "parallelism, and copies of --data-parallel-size), and there are {facts.device.count} "
        "({facts.device.source})",
        "{facts.device.count} ranks in all",
        "write --tensor-parallel-size {facts.device.count} or less, or make more devices visible "
        "(ASCEND_RT_VISIBLE_DEVICES; mkv-ascend emulate --devices)",
    ),
    Rule(
        "draft-ranks",
        _ranks_of_draft,
        "draft_tensor_parallel_size is 1{why}",
        "{possible}",
        "leave draft_tensor_parallel_size out",
    ),
    stages,
    # Where vllm-ascend's own proposal drafts: it sees all keys of a rank. Drafts of mask tokens are
    # refused with either.
    Rule(
        "draft-shares",
        lambda facts: (
            facts.prefill_context_parallel > 1
            and facts.draft is not None
            and facts.draft.has_windows
            and facts.has_draft_cache
            and facts.method not in BLOCKS
        ),
        "layers of the draft {facts.draft.name} have sliding windows, and prefill context "
        "parallelism is on, where each rank attends to all keys that it has",
        "a draft whose layers attend to all tokens, or decode context parallelism alone",
        "choose such a draft, or leave prefill_context_parallel_size out",
    ),
    Rule(
        "draft-shares",
        _why_no_shares,
        "{name}, and {why}",
        "a draft of dense layers on fused_infer_attention, over 2 to 8 such ranks",
        "{change}",
    ),
)
