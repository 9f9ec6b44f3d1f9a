# SPDX-License-Identifier: Apache-2.0
"""Which drafts have recurrent layers, and what becomes of prefix hits beside them.

``mkv_ascend/rules/draft.py`` refuses the options that they cannot be combined with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.rules.draft import why_hits_are_not_read

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
