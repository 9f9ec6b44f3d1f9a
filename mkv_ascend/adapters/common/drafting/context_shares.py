# SPDX-License-Identifier: Apache-2.0
"""Which drafts are planned where ranks share each sequence's keys, and how ranks share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend.drafting.context_shares import ContextShares

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SPARSE_OPTIONS = ("index_topk", "compress_ratios")
"""Options of models whose layers choose some of the keys, or compress them."""


def is_sparse(model: Any) -> bool:
    """Whether a model's layers choose some of the keys, by its configuration."""
    return any(getattr(model, option, None) for option in SPARSE_OPTIONS)


def plans_shares(config: VllmConfig) -> bool:
    """See ``DraftHost``; sparse MLA lays out keys and chosen keys in its own way."""
    draft = config.speculative_config.draft_model_config
    alone = config.parallel_config.prefill_context_parallel_size == 1
    return alone and not is_sparse(draft.hf_text_config)


def shares_of(runner: Any) -> ContextShares | None:
    """See ``DraftHost``."""
    parallel = runner.vllm_config.parallel_config
    if parallel.decode_context_parallel_size == 1:
        return None
    interleave = parallel.cp_kv_cache_interleave_size
    return ContextShares(runner.dcp_size, runner.dcp_rank, interleave)


def shares_of_builder(builder: Any) -> ContextShares:
    """How ranks share the keys that this builder's metadata is about."""
    interleave = builder.vllm_config.parallel_config.cp_kv_cache_interleave_size
    return ContextShares(builder.dcp_size, builder.dcp_rank, interleave)
