# SPDX-License-Identifier: Apache-2.0
"""Groups of the target's recurrent states among those of a draft.

With prefix caching the target's states move from block to block, so that those at the ends of
blocks stay. vLLM 0.23.0's code for that takes all groups of states, and asserts that they have one
spec. A draft's states stay where they are (``draft_state_blocks.py``), and are left out here.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker import mamba_utils

from mkv_ascend.adapters.guards import expect

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

PATCH = "groups of the target's states"


def install() -> None:
    """Wrap ``get_mamba_groups``. Idempotent."""
    original = mamba_utils.get_mamba_groups
    if hasattr(original, "mkv_ascend_original"):
        return
    parameters = tuple(inspect.signature(original).parameters)
    expect(parameters == ("kv_cache_config",), PATCH, f"get_mamba_groups takes {parameters}")

    @functools.wraps(original)
    def get_mamba_groups(kv_cache_config: KVCacheConfig) -> tuple[list[int], MambaSpec]:
        moving = {
            index: group.kv_cache_spec
            for index, group in enumerate(kv_cache_config.kv_cache_groups)
            if _moves(group.kv_cache_spec)
        }
        if not moving:
            found: tuple[list[int], MambaSpec] = original(kv_cache_config)
            return found
        first = next(iter(moving.values()))
        expect(all(spec == first for spec in moving.values()), PATCH, "specs of groups differ")
        return list(moving), first

    get_mamba_groups.mkv_ascend_original = original  # type: ignore[attr-defined]
    mamba_utils.get_mamba_groups = get_mamba_groups


def _moves(spec: Any) -> bool:
    return isinstance(spec, MambaSpec) and spec.mamba_cache_mode != "none"
