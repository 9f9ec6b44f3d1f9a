# SPDX-License-Identifier: Apache-2.0
"""Which drafts have recurrent layers, and with what options those cannot run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def has_recurrent_layers(config: VllmConfig) -> bool:
    """Whether the draft is a model of its own whose architecture keeps recurrent states."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_draft_model():
        return False
    draft = speculative.draft_model_config
    return draft is not None and (draft.is_hybrid or draft.is_attention_free)


def switch_prefix_hits_off(config: VllmConfig) -> str | None:
    """Take no prefix hits where a recurrent draft would be left without a state by one.

    vLLM takes hits by itself for targets of attention layers alone. Of a hit the target finds its
    keys; the draft would need its state at the end of the hit, which nothing keeps.

    Returns what that costs, for the log; None where nothing was changed.
    """
    cache = config.cache_config
    if not cache.enable_prefix_caching or cache.mamba_cache_mode != "none":
        return None
    cache.enable_prefix_caching = False
    return (
        f"prefix caching is off: the draft {config.speculative_config.draft_model_config.model} "
        "has recurrent layers, whose state at the end of a cached prefix is not kept. Prompts that "
        "begin alike are computed anew each time. For prefix hits choose a draft of attention "
        "layers only; --no-enable-prefix-caching silences this"
    )


def refuse_options_of_recurrent_drafts(config: VllmConfig) -> None:
    """Refuse what a draft with recurrent layers cannot be combined with.

    Raises:
        NotImplementedError: what was asked for, why it cannot be, and what to change.
    """
    speculative, parallel = config.speculative_config, config.parallel_config
    context_parallel = (
        parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size
    )
    cache = config.cache_config
    refusals = {
        "it has no attention layer, and a proposal is planned from the block tables of those. "
        "Choose a draft that has some": speculative.draft_model_config.is_attention_free,
        "prefix caching is on beside states of the target: after a hit the draft would need its "
        "state at the end of the hit, which this release does not keep. Leave out "
        "--enable-prefix-caching": cache.enable_prefix_caching,
        f"mamba_cache_mode is {cache.mamba_cache_mode}: the target's states move from block to "
        "block, and the draft's would have to follow. Leave out the KV connector, or what else "
        "asks for it": cache.mamba_cache_mode != "none",
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
