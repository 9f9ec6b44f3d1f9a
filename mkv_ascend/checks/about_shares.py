# SPDX-License-Identifier: Apache-2.0
"""Drafts where ranks share the keys of each sequence (context parallelism), and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mkv_ascend.attention.options import NAMESPACE
from mkv_ascend.attention.request import LayerRequest
from mkv_ascend.attention.selection import (
    ChosenBy,
    SelectionError,
    SelectionOptions,
    asked_for,
    select_backend,
)
from mkv_ascend.checks.about_draft_options import has_own_proposer
from mkv_ascend.checks.facts import BLOCKS, ServeFacts
from mkv_ascend.checks.layer_requests import (
    environment_of,
    options_of,
    requests_of_kinds,
    requests_of_layers,
)
from mkv_ascend.checks.model import has_windows
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.layout.kind import Kind, Role

__all__ = ["CHECKS", "is_replicated", "must_be_replicated"]

MOST_RANKS = 8
"""Of a replicated draft: blocks of 128 tokens for each rank, and 1024 at most in one block
(npu_fused_infer_attention_score with packed queries)."""

ON_EACH_RANK = frozenset({None, "fused_infer_attention"})
"""Backends of a draft that can be replicated; None where none is asked for."""


def must_be_replicated(method: str, text: Mapping[str, Any]) -> bool:
    """Whether a draft's attention is one that vllm-ascend lacks over shares of a sequence.

    It has no windows there, and no tokens that see those behind them.

    Args:
        text: configuration of the draft's language model.
    """
    return method in BLOCKS or has_windows(text)


def is_replicated(facts: ServeFacts) -> bool:
    """Whether each rank keeps all keys of the draft, where ranks share those of the target's."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or not _ranks_share(facts):
        return False
    if speculation.method == "dspark" and has_own_proposer(facts):
        return False
    asked = facts.options.kv_cache.replicate_draft
    return asked or must_be_replicated(speculation.method, draft.text)


def _ranks_share(facts: ServeFacts) -> bool:
    prompts = facts.whole("prefill_context_parallel_size", 1) > 1
    return facts.whole("decode_context_parallel_size", 1) > 1 and not prompts


def windows_in_shares(facts: ServeFacts) -> Iterator[Refusal]:
    """Layers with windows, where vllm-ascend's own proposal drafts: it sees all keys of a rank."""
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or not speculation.has_cache:
        return
    # Drafts of mask tokens are refused with either.
    prompts = facts.whole("prefill_context_parallel_size", 1) > 1
    if prompts and draft.has_windows and not speculation.drafts_blocks:
        yield Refusal(
            "draft-shares",
            f"layers of the draft {draft.name} have sliding windows, and prefill context "
            "parallelism is on, where each rank attends to all keys that it has",
            "a draft whose layers attend to all tokens, or decode context parallelism alone",
            "choose such a draft, or leave prefill_context_parallel_size out",
        )


def replicated_drafts(facts: ServeFacts) -> Iterator[Refusal]:
    """What a draft cannot be of which each rank keeps all keys, or the option without one."""
    asked = facts.options.kv_cache.replicate_draft
    if not asked and not is_replicated(facts):
        return
    reason = _why_not_asked(facts) if asked else None
    reason = reason or _why_not_replicated(facts)
    if reason is None:
        return
    what, change = reason
    possible = "a draft of dense layers on fused_infer_attention, over 2 to 8 such ranks"
    name = "kv_cache.replicate_draft is true"
    if not asked and facts.draft is not None:
        name = f"each rank keeps all keys of the draft {facts.draft.name}"
    yield Refusal("draft-shares", f"{name}, and {what}", possible, change)


def _why_not_asked(facts: ServeFacts) -> tuple[str, str] | None:
    """Why the option has no sense, and what to change."""
    out = "leave kv_cache.replicate_draft out"
    speculation, draft = facts.speculation, facts.draft
    if speculation is None or draft is None or not speculation.has_cache:
        return "there is no draft with a KV cache", out
    if not _ranks_share(facts):
        return "ranks do not share keys (decode_context_parallel_size alone lets them)", out
    if draft.recurrent is not None and speculation.method != "mtp":
        return f"the draft {draft.name} has recurrent layers, which keep no keys", out
    if speculation.method == "dspark" and has_own_proposer(facts):
        return f"vllm-ascend's own proposals draft with {draft.name}", out
    return None


def _why_not_replicated(facts: ServeFacts) -> tuple[str, str] | None:
    """Why each rank cannot keep all of the draft's keys, and what to change."""
    draft = facts.draft
    if draft is not None and (draft.kind is not Kind.FULL_ATTENTION or draft.is_compressed):
        return (
            f"layers of the draft {draft.name} are of MLA, or compress keys",
            "leave kv_cache.replicate_draft out, or decode_context_parallel_size",
        )
    role = facts.options.attention.draft
    chosen = {role.every_kind, *(name for _, name in role.by_kind)} - ON_EACH_RANK
    ranks = facts.whole("decode_context_parallel_size", 1)
    if chosen:
        return f"attention.draft asks for {min(map(str, chosen))}", "leave attention.draft out"
    if (other := _other_backend(facts)) is not None:
        return other
    if ranks > MOST_RANKS:
        return (
            f"decode_context_parallel_size is {ranks}: a block of the draft would have "
            f"{128 * ranks} tokens, and the operator takes 1024",
            f"lower it to {MOST_RANKS} or less",
        )
    for name in ("kv_transfer_config", "kv_offloading_size"):
        if facts.engine.get(name):
            return f"{name} is set: connectors know blocks of one size", f"leave {name} out"
    return None


def _other_backend(facts: ServeFacts) -> tuple[str, str] | None:
    """What asks for another backend of a layer of the draft, and what to change."""
    for request in _requests_of_draft(facts):
        try:
            found = asked_for(request, _options(facts))
            if found is None:
                chosen = select_backend(request, _options(facts), environment_of(facts))
                found = chosen.backend, chosen.chosen_by, chosen.detail
        except SelectionError:
            # No backend can serve this layer, which is told of its own.
            continue
        backend, chosen_by, detail = found
        if backend.name in ON_EACH_RANK:
            continue
        option = detail.removeprefix(f"{NAMESPACE}.")
        if chosen_by is ChosenBy.VLLM_OPTION:
            option = option.rpartition(" ")[0]
        return f"{option} asks for {backend.name}", f"leave {option} out"
    return None


def _requests_of_draft(facts: ServeFacts) -> Iterator[LayerRequest]:
    """Of each of its attention layers, or of all where their names are not known."""
    if facts.layers:
        of_layers = requests_of_layers(facts)
        yield from (x for x in of_layers if x.role is Role.DRAFT and x.layer_backend is None)
    elif facts.draft is not None:
        yield from requests_of_kinds(facts, facts.draft)


def _options(facts: ServeFacts) -> SelectionOptions:
    options = options_of(facts)
    if facts.layers:
        return options
    # Patterns need the names of layers.
    return replace(options, attention=replace(options.attention, layers=()))


CHECKS = (windows_in_shares, replicated_drafts)
