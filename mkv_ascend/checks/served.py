# SPDX-License-Identifier: Apache-2.0
"""What a command that is served will be served with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mkv_ascend.checks.about_draft import MOST_TOKENS_PER_STEP, why_hits_are_not_read
from mkv_ascend.checks.about_draft_options import host_keeps_shares
from mkv_ascend.checks.about_layers import (
    fitted_plan,
    known_blocks,
    memory_for_caches,
    share_of_memory,
)
from mkv_ascend.checks.about_shares import is_replicated
from mkv_ascend.checks.block_sizes import KERNEL_BLOCK
from mkv_ascend.checks.compressed_layers import BLOCKS, DEFAULT_BLOCK
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.scheduling import note_of_waiting
from mkv_ascend.checks.variables import NZ_MODE

__all__ = ["Served", "note_of_block_size", "served", "why_draft_is_eager"]

CAPTURED = frozenset({"fused_infer_attention", "mla", "sparse_mla", "compressed_mla"})
"""Backends of attention whose launches a draft's graphs capture."""

RECURRENT = frozenset({"gated_delta_net", "mamba_2", "short_convolution"})
"""Backends of layers with states, which a draft's graphs capture as well."""


@dataclass(frozen=True)
class Group:
    """One KV group. ``layers``: target and draft; ``block_size``: tokens."""

    target_layers: int
    draft_layers: int
    block_size: int


@dataclass(frozen=True)
class Served:
    """The answer of ``check``; its fields are those of ``--json``.

    ``backends``: name -> number of layers, by role. ``requests``: of the longest length at once, by
    ``cache_bytes`` of KV caches; ``basis`` says how these are known. ``unplanned``: why groups and
    memory are not told, empty where they are.
    """

    method: str | None
    tokens_per_proposal: int
    max_model_len: int
    target_graphs: str
    draft_graphs: str | None
    backends: dict[str, dict[str, int]]
    groups: tuple[Group, ...]
    bytes_per_block: int | None
    request_bytes: int | None
    cache_bytes: int | None
    basis: str | None
    blocks: int | None
    requests: float | None
    unplanned: str
    notes: tuple[str, ...] = ()


def served(facts: ServeFacts, unplanned: str) -> Served:
    """What the facts of a command that was not refused come to."""
    speculation, plan = facts.speculation, fitted_plan(facts)
    available = memory_for_caches(facts)
    override = facts.whole("num_gpu_blocks_override", 0)
    if plan is not None and override:
        available = override * plan.plan.bytes_per_block, "--num-gpu-blocks-override"
    known = None if plan is None else known_blocks(facts)
    blocks = None if known is None else known[0]
    admitted = None if plan is None else sum(plan.admission_blocks)
    return Served(
        method=None if speculation is None else speculation.method,
        tokens_per_proposal=0 if speculation is None else speculation.tokens,
        max_model_len=_longest_request(facts),
        target_graphs=facts.graph_mode,
        draft_graphs=_draft_graphs(facts),
        backends=_backends(facts),
        groups=_groups(facts),
        bytes_per_block=None if plan is None else plan.plan.bytes_per_block,
        request_bytes=None
        if plan is None or admitted is None
        else admitted * plan.plan.bytes_per_block,
        cache_bytes=None if available is None else available[0],
        basis=None if available is None else available[1],
        blocks=blocks,
        requests=None if plan is None or blocks is None else round(plan.max_concurrency(blocks), 2),
        unplanned=unplanned,
        notes=_notes(facts),
    )


def _notes(facts: ServeFacts) -> tuple[str, ...]:
    notes = [facts.device.source, *_note_of_graphs(facts), *note_of_block_size(facts)]
    notes.extend(_note_of_cache_dtype(facts))
    notes.extend(_note_of_length(facts))
    notes.extend(_note_of_sleep(facts))
    notes.extend(_note_of_scheduling(facts))
    draft = facts.draft
    if (
        draft is not None
        and draft.recurrent is not None
        and facts.speculation is not None
        and facts.speculation.method == "draft_model"
        # By itself vLLM looks for hits; of earlier versions not beside states of the target.
        and facts.engine.get("enable_prefix_caching", _hits_by_default(facts))
    ):
        notes.append(_note_of_hits(facts, draft))
    return tuple(notes)


def _hits_by_default(facts: ServeFacts) -> bool:
    beside_states = facts.rules is not None and facts.rules.hits_beside_states
    return facts.target.recurrent is None or beside_states


def _note_of_graphs(facts: ServeFacts) -> Iterator[str]:
    """That graphs have no part in the figures: they are captured when the caches have theirs."""
    if facts.graph_mode == "NONE":
        return
    if facts.whole("kv_cache_memory_bytes", 0) or facts.device.memory_bytes is None:
        place = "what weights, activations and caches leave of a device"
    else:
        left = (1 - share_of_memory(facts)) * facts.device.memory_bytes / 2**20
        place = f"the {left:.0f} MiB of a device that --gpu-memory-utilization leaves"
    yield (
        "the memory of graphs is not counted: vllm-ascend captures them when the KV caches have "
        f"theirs, in {place}, and logs what they take"
    )


def note_of_block_size(facts: ServeFacts) -> Iterator[str]:
    """That vllm-ascend does not take the blocks that were asked for; it logs so itself."""
    taken = DEFAULT_BLOCK if facts.target.is_compressed else KERNEL_BLOCK
    asked = facts.whole("block_size", taken)
    if asked == taken or facts.takes_block_size:
        return
    if facts.target.is_compressed:
        sizes = ", ".join(map(str, BLOCKS))
        why = f"for {facts.target.model_type}, as it has pages of {sizes} tokens"
    else:
        why = (
            "with prefix caching or chunked prefill; layout.max_block_size lets groups have larger "
            "blocks"
        )
    yield f"--block-size {asked} has no effect: vllm-ascend takes {taken} {why}"


def _note_of_cache_dtype(facts: ServeFacts) -> Iterator[str]:
    """That vllm-ascend keeps keys and values in another dtype than was asked for."""
    asked = facts.engine.get("kv_cache_dtype") or "auto"
    if facts.caches_have_the_models_dtype and asked not in ("auto", facts.dtype):
        yield (
            f"--kv-cache-dtype {asked} has no effect: vllm-ascend keeps what {facts.target.name} "
            f"attends to in {facts.dtype}, as it chooses its keys by an indexer"
        )


def _note_of_length(facts: ServeFacts) -> Iterator[str]:
    """That vLLM shortens the longest request until memory holds it."""
    tokens = _longest_request(facts)
    if tokens < facts.max_model_len:
        yield (
            f"--max-model-len is left to memory, which holds {tokens} of {facts.max_model_len} "
            "tokens at most"
        )


def _longest_request(facts: ServeFacts) -> int:
    """Tokens of the longest request that there will be, or at most so many."""
    plan = fitted_plan(facts)
    if plan is None or not facts.fits_length_to_memory:
        return facts.max_model_len
    return plan.inputs.request.tokens


def _note_of_sleep(facts: ServeFacts) -> Iterator[str]:
    """That an engine would not wake up: vllm-ascend refuses it then, not when the engine starts."""
    if facts.engine.get("enable_sleep_mode") and facts.nz_mode:
        yield (
            f"--enable-sleep-mode: vllm-ascend refuses to wake this engine up, as {NZ_MODE} of "
            f"--additional-config is {facts.nz_mode}; write "
            f"""--additional-config '{{"{NZ_MODE}": 0}}'"""
        )


def _note_of_scheduling(facts: ServeFacts) -> list[str]:
    speculation, rules = facts.speculation, facts.rules
    if speculation is None or rules is None or "async_scheduling" in facts.engine:
        return []
    stages = facts.whole("pipeline_parallel_size", 1)
    executor = facts.engine.get("distributed_executor_backend")
    return note_of_waiting(speculation.method, speculation.options, rules, stages, executor)


def _note_of_hits(facts: ServeFacts, draft: ModelFacts) -> str:
    """What prefix hits come to beside a recurrent draft."""
    reason = why_hits_are_not_read(facts, draft)
    if reason is None:
        return "the draft has recurrent layers: it reads the tokens of each prefix hit itself"
    return f"prefix caching will be off: the draft has recurrent layers, and {reason}"


def _backends(facts: ServeFacts) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for layer in facts.inputs.layers if facts.inputs else ():
        found.setdefault(layer.layout.role.value, Counter())[layer.backend] += 1
    return {role: dict(counts) for role, counts in found.items()}


def _groups(facts: ServeFacts) -> tuple[Group, ...]:
    if facts.plan is None:
        return ()
    roles = {x.layout.layer: x.layout.role.value for x in facts.plan.inputs.layers}
    return tuple(
        Group(
            sum(roles[name] == "target" for name in group.layers),
            sum(roles[name] == "draft" for name in group.layers),
            group.block_size,
        )
        for group in facts.plan.grouping.groups
    )


def _draft_graphs(facts: ServeFacts) -> str | None:
    """How the draft's passes run; None without a draft that has a cache."""
    if facts.speculation is None or not facts.speculation.has_cache:
        return None
    reason = why_draft_is_eager(facts)
    return "captured in full graphs" if reason is None else f"eagerly: {reason}"


def why_draft_is_eager(facts: ServeFacts) -> str | None:
    """Why a draft's passes are not captured: what ``drafting.graphs.why_not_captured`` will say."""
    speculation = facts.speculation
    assert speculation is not None
    if not facts.has_full_graphs:
        return "the target has no full graphs"
    if speculation.options.get("enforce_eager") or _mtp_of_v32(facts):
        return "speculative_config says enforce_eager"
    if facts.whole("data_parallel_size", 1) > 1 and not _may_replay_beside_ranks(facts):
        return "its passes are one with those of other ranks"
    if host_keeps_shares(facts):
        return "under context parallelism the proposal is vllm-ascend's own"
    shared = facts.context_parallel > 1 and not is_replicated(facts)
    if shared and not (facts.rules and facts.rules.captures_shares):
        return "ranks share the keys of a sequence, and masks of its rows are made eagerly"
    if speculation.method == "extract_hidden_states":
        return "it proposes nothing"
    backends = _backends(facts).get("draft", {})
    others = sorted(set(backends) - CAPTURED - RECURRENT)
    if others:
        return f"launches of {others[0]} are not captured yet"
    return _tokens_of_first_pass(facts, backends)


def _may_replay_beside_ranks(facts: ServeFacts) -> bool:
    """Whether a draft's graphs may be replayed under data parallelism.

    Without experts a draft's passes are its rank's own. With them all ranks replay one graph, or
    none does; in mode FULL, model runner V1 does not tell ranks apart that verify.
    """
    speculation, draft = facts.speculation, facts.draft
    assert speculation is not None
    if draft is None or not draft.num_experts:
        return True
    told = facts.runner != "v1" or facts.graph_mode != "FULL"
    recurrent = RECURRENT & set(_backends(facts).get("draft", {}))
    return told and not recurrent and not speculation.drafts_blocks


def _mtp_of_v32(facts: ServeFacts) -> bool:
    """vLLM 0.23.0 runs DeepSeek-V3.2's own MTP layer eagerly (config/speculative.py)."""
    speculation = facts.speculation
    return (
        speculation is not None
        and speculation.method == "mtp"
        and speculation.options.get("model") is None
        and facts.target.model_type == "deepseek_v32"
    )


def _tokens_of_first_pass(facts: ServeFacts, backends: dict[str, int]) -> str | None:
    speculation = facts.speculation
    assert speculation is not None
    more = 1 if speculation.method == "draft_model" else 0
    tokens = speculation.tokens + 1 + more
    shared = facts.context_parallel > 1 and not is_replicated(facts)
    if shared and tokens > MOST_TOKENS_PER_STEP:
        return f"a request's {tokens} tokens are a prefill, and decodes have {MOST_TOKENS_PER_STEP}"
    if "mla" in backends and tokens > MOST_TOKENS_PER_STEP:
        return (
            f"a request's {tokens} tokens are a prefill to MLA, whose decodes have "
            f"{MOST_TOKENS_PER_STEP}"
        )
    return None
