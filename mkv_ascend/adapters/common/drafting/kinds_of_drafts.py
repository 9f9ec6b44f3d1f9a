# SPDX-License-Identifier: Apache-2.0
"""Which drafts are planned where ranks share each sequence's keys, and how ranks share them.

Also which have recurrent layers, and what becomes of prefix hits beside them.
``mkv_ascend/rules/draft.py`` refuses the options that they cannot be combined with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.rules.draft import why_hits_are_not_read
from mkv_ascend.rules.facts import SERVED_DSPARK
from mkv_ascend.rules.parallelism import must_be_replicated

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.rules.facts import Facts


def has_recurrent_layers(config: VllmConfig) -> bool:
    """Whether the draft is a separate model whose architecture keeps recurrent states."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_draft_model():
        return False
    draft = speculative.draft_model_config
    return draft is not None and (draft.is_hybrid or draft.is_attention_free)


def switch_prefix_hits_off(config: VllmConfig, facts: Facts) -> str | None:
    """Switch prefix hits off where a recurrent draft cannot read the tokens of a hit itself.

    The target finds its keys of a hit. The draft's state at its end is kept nowhere, and is rebuilt
    from the hit's tokens (``drafting/lost_states.py``).

    Args:
        config: with such a draft; changed.
        facts: what is known of it.

    Returns the cost, for the log; None if nothing was changed.
    """
    cache = config.cache_config
    if not cache.enable_prefix_caching or cache.mamba_cache_mode != "none" or facts.draft is None:
        return None
    reason = why_hits_are_not_read(facts, facts.draft)
    if reason is None:
        return None
    cache.enable_prefix_caching = False
    return (
        f"prefix caching is off: the draft {facts.draft.name} has recurrent layers, whose state at "
        f"the end of a cached prefix is not kept, and {reason}. Prompts that begin alike are "
        "computed anew each time. For prefix hits choose a draft of attention layers only; "
        "--no-enable-prefix-caching silences this"
    )


SPARSE_OPTIONS = ("index_topk", "compress_ratios")
"""Options of models whose layers choose some of the keys, or compress them."""


def is_sparse(model: Any) -> bool:
    """Whether a model's layers choose some of the keys, by its configuration."""
    return any(getattr(model, option, None) for option in SPARSE_OPTIONS)


def keeps_all_indexer_keys(config: VllmConfig) -> bool:
    """Whether ranks share the latents of a head's sparse MLA (``mtp``), not its indexer's keys.

    Its plan has slots of whole sequences then. vllm-ascend gives the indexer of a draft room for
    all keys if the target has one, too. DeepSeek-V4's layers, which compress keys, are others.
    """
    parallel, draft = config.parallel_config, config.speculative_config.draft_model_config
    texts = draft.hf_text_config, config.model_config.hf_text_config
    return (
        parallel.decode_context_parallel_size > 1
        and config.speculative_config.method == "mtp"
        and all(getattr(text, "index_topk", None) for text in texts)
        and not any(getattr(text, "compress_ratios", None) for text in texts)
    )


def is_replicated(config: VllmConfig) -> bool:
    """Whether each rank keeps all keys of the draft, where ranks share those of the target.

    Where it is asked for, and where its attention needs it.
    """
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or speculative.draft_model_config is None:
        return False
    if parallel.decode_context_parallel_size == 1 or parallel.prefill_context_parallel_size > 1:
        return False
    if speculative.method == "dspark" and not plans_dspark(config):
        return False
    draft = speculative.draft_model_config
    if options_of(config).kv_cache.replicate_draft:
        return True
    return must_be_replicated(str(speculative.method), draft.hf_text_config.to_dict())


def plans_dspark(config: VllmConfig) -> bool:
    """Whether a proposal of ours drafts by method dspark, and not vllm-ascend's own."""
    # 0.23.0 has model runner V1 alone, and says nothing of another.
    if getattr(config, "use_v2_model_runner", False):
        return False
    architectures = config.speculative_config.draft_model_config.architectures
    return not SERVED_DSPARK.isdisjoint(architectures)


def shares_of_builder(builder: Any) -> ContextShares:
    """How ranks share the keys that this builder's metadata is about."""
    interleave = builder.vllm_config.parallel_config.cp_kv_cache_interleave_size
    return ContextShares(builder.dcp_size, builder.dcp_rank, interleave)
