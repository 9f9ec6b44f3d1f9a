# SPDX-License-Identifier: Apache-2.0
"""Which layers keep their caches page by page, because their operators take strides.

vllm-ascend 0.30.0rc2 gives pages of one size to the attention layers and the states of a hybrid
model; both advance by the page (its design page on non-contiguous KV caches). vLLM makes the block
of attention so long that its page holds a state, and pads the state: their components have unequal
sizes then, and contiguous ones would share no byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from mkv_ascend.adapters.common.kv_cache.layer_facts import tie, tied_facts

STRIDED_ATTENTION = (FullAttentionSpec, SlidingWindowSpec)
"""Classes of specs whose operators take strides between blocks; their subclasses' may not."""


def let_strides_be_taken(specs: Mapping[str, Any]) -> None:
    """Tie to each planned spec whether its layer takes strides: all of a hybrid model, or none.

    A stage of a pipeline may have states alone, or keys alone: ``specs`` are those of all stages.
    """
    taken = _are_strided(specs.values())
    for spec in specs.values():
        if (facts := tied_facts(spec)) is not None:
            tie(spec, replace(facts, takes_strides=taken))


def _are_strided(specs: Collection[Any]) -> bool:
    """Whether there are states, and beside them attention that takes strides."""
    others = [spec for spec in specs if not isinstance(spec, MambaSpec)]
    return 0 < len(others) < len(specs) and all(type(spec) in STRIDED_ATTENTION for spec in others)
