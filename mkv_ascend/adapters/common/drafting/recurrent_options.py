# SPDX-License-Identifier: Apache-2.0
"""Which drafts have recurrent layers, and the options that they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


def has_recurrent_layers(config: VllmConfig) -> bool:
    """Whether the draft is a separate model whose architecture keeps recurrent states."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_draft_model():
        return False
    draft = speculative.draft_model_config
    return draft is not None and (draft.is_hybrid or draft.is_attention_free)


def switch_prefix_hits_off(config: VllmConfig) -> str | None:
    """Switch prefix hits off where a recurrent draft cannot read the tokens of a hit itself.

    The target finds its keys of a hit. The draft's state at its end is kept nowhere, and is rebuilt
    from the hit's tokens (``drafting/lost_states.py``).

    Returns the cost, for the log; None if nothing was changed.
    """
    cache = config.cache_config
    reason = why_hits_are_not_read(config)
    if not cache.enable_prefix_caching or cache.mamba_cache_mode != "none" or reason is None:
        return None
    cache.enable_prefix_caching = False
    return (
        f"prefix caching is off: the draft {config.speculative_config.draft_model_config.model} "
        f"has recurrent layers, whose state at the end of a cached prefix is not kept, and {reason}"
        ". Prompts that begin alike are computed anew each time. For prefix hits choose a draft of "
        "attention layers only; --no-enable-prefix-caching silences this"
    )


def why_hits_are_not_read(config: VllmConfig) -> str | None:
    """Why a recurrent draft cannot read the tokens of a prefix hit itself; None if it can."""
    target, draft = config.model_config, config.speculative_config.draft_model_config
    if target.is_multimodal_model or target.uses_mrope:
        return "it cannot read the images of that prefix again"
    if _has_windows(draft):
        return "keys before its windows, which it would need to read that prefix again, are gone"
    if config.parallel_config.data_parallel_size > 1:
        return "the passes that read that prefix again would have to be those of all ranks"
    return None


def _has_windows(draft: ModelConfig) -> bool:
    types = getattr(draft.hf_text_config, "layer_types", None)
    if types:
        return any("sliding" in kind or "chunked" in kind for kind in types)
    return draft.get_sliding_window() is not None


def refuse_options_of_recurrent_drafts(config: VllmConfig) -> None:
    """Refuse options that a draft with recurrent layers cannot be combined with.

    Raises:
        NotImplementedError: what was asked for, why it cannot be, and what to change.
    """
    speculative, parallel = config.speculative_config, config.parallel_config
    context_parallel = (
        parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size
    )
    cache, unread = config.cache_config, why_hits_are_not_read(config)
    beside_recurrent_target = cache.mamba_cache_mode != "none"
    # vLLM makes a connector of the latter after the platform was asked.
    connected = config.kv_transfer_config is not None or cache.kv_offloading_size is not None
    refusals = {
        "it has no attention layer, and a proposal is planned from the block tables of those. "
        "Choose a draft that has some": speculative.draft_model_config.is_attention_free,
        "a KV connector is asked for (--kv-transfer-config, --kv-offloading-size), which brings "
        "blocks of keys and no states of a draft. Leave it out": connected,
        f"prefix caching is on beside states of the target: after a hit {unread}. Leave out "
        "--enable-prefix-caching": beside_recurrent_target and unread is not None,
        "disable_padded_drafter_batch is set: rejected tokens are then taken out of the rows "
        "before the draft sees them. Leave it out": speculative.disable_padded_drafter_batch,
        "parallel_drafting is set: all tokens are then drafted in the pass over the accepted ones. "
        "Leave it out": speculative.parallel_drafting,
        "context parallelism keeps shares of a sequence on each rank. Leave out "
        "prefill_context_parallel_size and decode_context_parallel_size": context_parallel > 1,
    }
    for reason, refused in refusals.items():
        if refused:
            raise NotImplementedError(
                f"the draft {speculative.draft_model_config.model} has recurrent layers, and "
                f"{reason}, or choose a draft of attention layers only."
            )
