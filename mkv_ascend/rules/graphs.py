# SPDX-License-Identifier: Apache-2.0
"""Graphs of the target that no verify step can be replayed in, and how the draft's passes run."""

from __future__ import annotations

from collections.abc import Mapping

from mkv_ascend.layout.kind import Kind
from mkv_ascend.rules.draft import MOST_TOKENS_PER_STEP
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.parallelism import is_replicated
from mkv_ascend.rules.refusal import Rule

CAPTURED = frozenset({"fused_infer_attention", "mla", "sparse_mla", "compressed_mla"})
"""Backends of attention whose launches a draft's graphs capture."""
RECURRENT = frozenset({"gated_delta_net", "mamba_2", "short_convolution"})
"""Backends of layers with states, which a draft's graphs capture as well."""


def _captures_uncompiled(facts: Facts) -> bool:
    """Whole steps of a model that is not compiled: only MLA does not write into their table."""
    other = facts.target.is_compressed or facts.target.kind is not Kind.MLA
    return facts.host.whole_steps_uncompiled and other


def _has_windows_alone(facts: Facts) -> bool:
    """Beside MLA and recurrent layers mode FULL becomes FULL_DECODE_ONLY."""
    target = facts.target
    dense = target.kind == Kind.FULL_ATTENTION and not target.is_compressed
    return target.has_windows and target.recurrent is None and dense


CHECKS = (
    # Model runner V1: ``NPUModelRunner._use_aclgraph`` asks for a compiled model, and nothing else
    # makes the table that captured launches are written into. On vllm-ascend 0.30.0rc2 only MLA
    # writes into it.
    Rule(
        "graph-mode",
        lambda facts: (
            facts.runner == "v1"
            and facts.has_full_graphs
            and not facts.is_compiled
            and not _captures_uncompiled(facts)
        ),
        "the mode of graphs is {facts.graph_mode}, and the model is not compiled (mode of "
        "--compilation-config, --optimization-level 0 or TORCH_COMPILE_DISABLE): {ascend} ends "
        "while it captures attention",
        "mode 3 of --compilation-config, the default, or no graphs",
        "leave what keeps it from being compiled out, or write --enforce-eager",
    ),
    # Graphs of this mode have as many rows as there may be requests. Where a step has fewer, or one
    # more for the tokens that fill it up, vllm-ascend gives captured launches the lengths of the
    # step's rows (``FIAParamProvider`` of attention/attention_v1.py), and its block table to layers
    # without windows and sinks alone. The operator then refuses as many rows as were captured.
    Rule(
        "graph-mode",
        lambda facts: facts.method and facts.graph_mode == "FULL" and _has_windows_alone(facts),
        "cudagraph_mode of --compilation-config is FULL, and layers of {facts.target.name} have "
        "sliding windows: graphs of this mode have rows for --max-num-seqs requests, and "
        "vllm-ascend tells these layers of no verify step that has another number of rows",
        "FULL_DECODE_ONLY, FULL_AND_PIECEWISE, PIECEWISE or NONE",
        "write FULL_DECODE_ONLY, or leave cudagraph_mode out",
    ),
)


def draft_graphs(facts: Facts, backends: Mapping[str, int]) -> str | None:
    """How the draft's passes run; None without a draft that has a cache.

    Args:
        backends: of the draft's layers, and how many each has.
    """
    if not facts.has_draft_cache:
        return None
    reason = why_draft_is_eager(facts, backends)
    return "captured in full graphs" if reason is None else f"eagerly: {reason}"


def why_draft_is_eager(facts: Facts, backends: Mapping[str, int]) -> str | None:
    """Why a draft's passes are not captured: what ``drafting.graphs.why_not_captured`` will say."""
    speculation = facts.speculation
    assert speculation is not None
    if not facts.has_full_graphs:
        return "the target has no full graphs"
    if speculation.options.get("enforce_eager"):
        return "speculative_config says enforce_eager"
    if facts.data_parallel > 1 and not _may_replay_beside_ranks(facts, backends):
        return "its passes are one with those of other ranks"
    if facts.host_keeps_shares:
        return "under context parallelism the proposal is vllm-ascend's own"
    shared = facts.context_parallel > 1 and not is_replicated(facts)
    if shared and not facts.host.captures_shares:
        return "ranks share the keys of a sequence, and masks of its rows are made eagerly"
    if facts.method == "extract_hidden_states":
        return "it proposes nothing"
    others = sorted(set(backends) - CAPTURED - RECURRENT)
    if others:
        return f"launches of {others[0]} are not captured yet"
    tokens = speculation.tokens + 1 + (facts.method == "draft_model")
    if tokens <= MOST_TOKENS_PER_STEP:
        return None
    if shared:
        return f"a request's {tokens} tokens are a prefill, and decodes have {MOST_TOKENS_PER_STEP}"
    if "mla" in backends:
        return (
            f"a request's {tokens} tokens are a prefill to MLA, whose decodes have "
            f"{MOST_TOKENS_PER_STEP}"
        )
    return None


def _may_replay_beside_ranks(facts: Facts, backends: Mapping[str, int]) -> bool:
    """Whether a draft's graphs may be replayed under data parallelism.

    Without experts a draft's passes are its rank's own. With them all ranks replay one graph, or
    none does; in mode FULL, model runner V1 does not tell ranks apart that verify.
    """
    speculation, draft = facts.speculation, facts.draft
    assert speculation is not None
    if draft is None or not draft.num_experts:
        return True
    told = facts.runner != "v1" or facts.graph_mode != "FULL"
    return told and not RECURRENT & set(backends) and not speculation.drafts_blocks
