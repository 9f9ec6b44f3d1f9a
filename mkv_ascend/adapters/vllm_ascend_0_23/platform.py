# SPDX-License-Identifier: Apache-2.0
"""MkvPlatform: the platform of vllm-ascend 0.23.0, with our worker and our patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.platform import HostPlatform
from mkv_ascend.adapters.patching import Patch, override
from mkv_ascend.adapters.platform_slot import OURS
from mkv_ascend.adapters.vllm_ascend_0_23 import host
from mkv_ascend.adapters.vllm_ascend_0_23.patches import recurrent_blocks

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class MkvPlatform(HostPlatform):
    """The platform that vLLM runs on when this package and vllm-ascend 0.23.0 are installed."""

    RULES = host.RULES
    RUNNERS = host.RUNNERS
    WORKER = host.WORKER

    @classmethod
    @override(OURS)
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """See the base."""
        super().pre_register_and_update(parser)
        recurrent_blocks.blocks_without_alignment.apply()

    @classmethod
    def patches_of_the_engine_core(cls, config: VllmConfig) -> Iterable[Patch]:
        """See the base."""
        # Not with this module: the front process needs none of it.
        from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache import engine_core
        from mkv_ascend.adapters.vllm_ascend_0_23.patches import (
            draft_state_blocks,
            new_blocks,
            prefix_hits,
        )

        return (
            engine_core.our_groups,
            new_blocks.name_new_blocks,
            prefix_hits.cut_to_the_hit,
            draft_state_blocks.block_sizes_of_others,
        )
