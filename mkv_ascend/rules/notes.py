# SPDX-License-Identifier: Apache-2.0
"""What is served all the same, and a user should know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mkv_ascend.rules.draft import MOST_TOKENS_PER_STEP, why_hits_are_not_read
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.host import HostRules
from mkv_ascend.rules.parallelism import is_replicated

CAPTURED = frozenset({"fused_infer_attention", "mla", "sparse_mla", "compressed_mla"})
"""Backends of attention whose launches a draft's graphs capture."""
RECURRENT = frozenset({"gated_delta_net", "mamba_2", "short_convolution"})
"""Backends of layers with states, which a draft's graphs capture as well."""


def notes(facts: Facts, length: int) -> Iterator[str]:
    """Sentences for the answer; ``length``: tokens of the longest request that there will be."""
    if facts.graph_mode != "NONE":
        yield (
            "the memory of graphs is not counted: vllm-ascend captures them when the KV caches "
            "have theirs, in what they leave of a device, and logs what they take"
        )
    if length < facts.max_model_len:
        yield (
            f"--max-model-len is left to memory, which holds {length} of {facts.max_model_len} "
            "tokens at most"
        )
    yield from of_waiting(
        facts.host,
        None if facts.speculation is None else facts.speculation.method,
        waits=not facts.async_scheduling,
        stages=facts.pipeline_parallel,
        executor=facts.executor,
    )
    draft, speculation = facts.draft, facts.speculation
    if draft is None or draft.recurrent is None or speculation is None:
        return
    if speculation.method == "draft_model" and facts.prefix_caching:
        reason = why_hits_are_not_read(facts, draft)
        if reason is None:
            yield "the draft has recurrent layers: it reads the tokens of each prefix hit itself"
        else:
            yield f"prefix caching will be off: the draft has recurrent layers, and {reason}"


def of_waiting(
    host: HostRules,
    method: str | None,
    *,
    waits: bool,
    stages: int = 1,
    executor: str | None = None,
    padded: bool = True,
) -> Iterator[str]:
    """That ``--async-scheduling`` would let steps be scheduled ahead that are not by default.

    ``stages``: of a pipeline, over which drafts are scheduled one after the other. ``executor``:
    ``--distributed-executor-backend``; not all take it. ``padded``: without
    ``disable_padded_drafter_batch``.
    """
    takes_it = stages == 1 and executor in (None, "mp", "uni") and padded
    if waits and takes_it and method in host.in_turn_by_default:
        yield (
            f"vLLM {host.vllm} schedules steps of method {method} one after the other by default; "
            "--async-scheduling schedules each while the one before it runs"
        )


def draft_graphs(facts: Facts, backends: Mapping[str, int]) -> str | None:
    """How the draft's passes run; None without a draft that has a cache.

    Args:
        backends: of the draft's layers, and how many each has.
    """
    if facts.speculation is None or not facts.speculation.has_cache:
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
    if speculation.method == "extract_hidden_states":
        return "it proposes nothing"
    others = sorted(set(backends) - CAPTURED - RECURRENT)
    if others:
        return f"launches of {others[0]} are not captured yet"
    tokens = speculation.tokens + 1 + (speculation.method == "draft_model")
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
