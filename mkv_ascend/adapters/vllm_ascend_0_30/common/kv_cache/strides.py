# SPDX-License-Identifier: Apache-2.0
"""Which layers keep their caches page by page, because their operators take strides.

vllm-ascend 0.30.0rc2 gives pages of one size to the attention layers and the states of a hybrid
model; both advance by the page (its design page on non-contiguous KV caches). vLLM makes the block
of attention so long that its page holds a state, and pads the state: their components have unequal
sizes then, and contiguous ones would share no byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

STRIDED_ATTENTION = (FullAttentionSpec, SlidingWindowSpec)
"""Classes of specs whose operators take strides between blocks; their subclasses' may not."""


def layers_with_strides(specs: Mapping[str, Any]) -> frozenset[str]:
    """Names of the layers whose caches lie page by page: all of a hybrid model, or none."""
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    others = [spec for spec in specs.values() if not isinstance(spec, MambaSpec)]
    if not states or not others or any(type(spec) not in STRIDED_ATTENTION for spec in others):
        return frozenset()
    return frozenset(specs)
