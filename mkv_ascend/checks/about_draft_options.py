# SPDX-License-Identifier: Apache-2.0
"""Options of drafts that a host's own proposals serve, and those of mkv_ascend do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mkv_ascend.checks.about_pipeline import layers_in_turn
from mkv_ascend.checks.facts import SERVED_DSPARK, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS", "has_own_proposer", "host_drafts", "host_keeps_shares", "method_and_draft"]

OF_THE_HOST = frozenset({"DFlash2DraftModel", "Glm5NextMTPModel", "Glm5NextForCausalLM"})
"""Classes of drafts that vllm-ascend 0.30.0rc2 has proposers of their own for."""


def has_own_proposer(facts: ServeFacts) -> bool:
    """Whether the host alone has a proposer for the draft's class, on this model runner."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None:
        return False
    if speculation.method == "dspark":
        return facts.runner == "v2" or not _is_served_dspark(draft)
    return not OF_THE_HOST.isdisjoint(draft.architectures)


def method_and_draft(facts: ServeFacts) -> tuple[SpeculationFacts, ModelFacts] | None:
    """None without a draft, and for heads of dspark that the host drafts with."""
    if facts.speculation is None or facts.draft is None:
        return None
    if facts.speculation.method == "dspark" and has_own_proposer(facts):
        return None
    return facts.speculation, facts.draft


def _is_served_dspark(draft: ModelFacts) -> bool:
    # vLLM takes DSparkDraftModel of this type for the first of them.
    of_qwen3 = "DSparkDraftModel" in draft.architectures and draft.model_type == "qwen3"
    return of_qwen3 or not SERVED_DSPARK.isdisjoint(draft.architectures)


def host_drafts(facts: ServeFacts) -> bool:
    """Whether vllm-ascend's own proposal drafts, though the draft has a cache."""
    return has_own_proposer(facts) or host_keeps_shares(facts) or layers_in_turn(facts) > 1


def host_keeps_shares(facts: ServeFacts) -> bool:
    """Whether ranks share sequences in a way that vllm-ascend's own proposal alone lays out."""
    if facts.context_parallel == 1:
        return False
    prompts, draft = facts.whole("prefill_context_parallel_size", 1) > 1, facts.draft
    if prompts or draft is None:
        return prompts
    return draft.is_compressed or (draft.has_indexer and not _plans_indexer(facts))


def _plans_indexer(facts: ServeFacts) -> bool:
    """Whether our proposal lays out keys of a draft's indexer, of which each rank keeps all."""
    planned = facts.rules is not None and facts.rules.captures_shares
    split = bool(facts.ascend("enable_dsa_cp"))
    heads = facts.speculation is not None and facts.speculation.method == "mtp"
    sparse = facts.target.has_indexer and not facts.target.is_compressed
    return planned and heads and sparse and not split


def options_of_the_host(facts: ServeFacts) -> Iterator[Refusal]:
    """What vLLM 0.30.0 or vllm-ascend 0.30.0rc2 let a draft be asked for."""
    speculation, rules = facts.speculation, facts.rules
    if speculation is None or facts.draft is None or not speculation.has_cache:
        return
    if rules is None or not rules.has_draft_options or host_drafts(facts):
        return
    options = speculation.options
    if facts.runner == "v1" and options.get("draft_sample_method") == "probabilistic":
        yield Refusal(
            "draft-option",
            "draft_sample_method is probabilistic, and on model runner V1 a draft's tokens are its "
            "most likely ones",
            "greedy; on model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1) both",
            "leave draft_sample_method out",
        )
    if options.get("use_heterogeneous_vocab"):
        yield Refusal(
            "draft-option",
            "use_heterogeneous_vocab is set, and draft tokens are handed over as they are",
            "a draft with the target's vocabulary",
            "leave use_heterogeneous_vocab out, and choose such a draft",
        )
    if facts.ascend("draft_window_size") is not None:
        yield Refusal(
            "draft-option",
            "draft_window_size of --additional-config is set, and each layer of a draft has the "
            "window of its own configuration",
            "drafting.window of mkv_ascend, for drafts whose layers attend to all tokens",
            'write {"mkv_ascend": {"drafting": {"window": TOKENS}}} in its place',
        )
    dynamic = facts.ascend("dynamic_spec_config")
    if isinstance(dynamic, Mapping) and dynamic.get("method"):
        yield Refusal(
            "draft-option",
            "dynamic_spec_config of --additional-config is set, and proposals of mkv_ascend do not "
            "say how sure the draft is of its tokens: every one of them would be verified",
            "as many draft tokens for each request, by the number of requests",
            "leave dynamic_spec_config out, or give num_speculative_tokens_per_batch_size",
        )


def method_of_newer_hosts(facts: ServeFacts) -> Iterator[Refusal]:
    """Method dspark, which older releases of vLLM do not know."""
    speculation, rules = facts.speculation, facts.rules
    if speculation is None or rules is None or rules.has_draft_options:
        return
    if speculation.method == "dspark":
        yield Refusal(
            "speculation-method",
            "method of --speculative-config is 'dspark', which the installed vLLM does not know",
            "draft_model, eagle, eagle3, mtp, dflash, or a newer vllm-ascend",
            "choose a draft of one of these methods",
        )


def cache_of_no_draft(facts: ServeFacts) -> Iterator[Refusal]:
    """``kv_cache.draft_dtype`` where no draft has a cache."""
    asked, speculation = facts.options.kv_cache.draft_dtype, facts.speculation
    if asked is None or (speculation is not None and speculation.has_cache):
        return
    yield Refusal(
        "draft-dtype",
        f"kv_cache.draft_dtype is {asked!r}, but there is no draft with a KV cache",
        "the option beside a draft model or a head",
        "give --speculative-config a draft, or leave kv_cache.draft_dtype out",
    )


def two_cache_dtypes(facts: ServeFacts) -> Iterator[Refusal]:
    """Another dtype in vLLM's own option for the draft's cache than in ours."""
    if facts.speculation is None:
        return
    theirs = facts.speculation.options.get("kv_cache_dtype")
    ours = facts.options.kv_cache.draft_dtype
    if ours is not None and theirs not in (None, "auto", ours):
        yield Refusal(
            "draft-dtype",
            f"kv_cache.draft_dtype asks for a draft's cache of {ours}, and kv_cache_dtype of "
            f"--speculative-config for {theirs}",
            "one of the two",
            "leave one out",
        )


CHECKS = (method_of_newer_hosts, options_of_the_host, cache_of_no_draft, two_cache_dtypes)
