# SPDX-License-Identifier: Apache-2.0
"""MkvPlatform: the platform of vllm-ascend 0.30.0rc2, with our workers and our patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.platform import HostPlatform
from mkv_ascend.adapters.patching import Patch
from mkv_ascend.adapters.vllm_ascend_0_30 import host
from mkv_ascend.adapters.vllm_ascend_0_30.common.early_checks import states
from mkv_ascend.adapters.vllm_ascend_0_30.v2 import early_check

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class MkvPlatform(HostPlatform):
    """The platform that vLLM runs on when this package and vllm-ascend 0.30.0rc2 are installed."""

    RULES = host.RULES
    RUNNERS = host.RUNNERS
    WORKER = host.WORKER
    WORKER_V2 = "mkv_ascend.adapters.vllm_ascend_0_30.v2.worker.MkvWorkerV2"

    @classmethod
    def worker_of(cls, config: VllmConfig) -> str:
        """See the base; each model runner has a worker of its own."""
        return cls.WORKER_V2 if config.use_v2_model_runner else cls.WORKER

    @classmethod
    def why_not_served(cls, config: VllmConfig) -> str | None:
        """See the base: drafts beside states, and what model runner V2 has not."""
        if config.use_v2_model_runner and (reason := early_check.why_not_served(config)):
            return reason
        return states.why_not_served(config)

    @classmethod
    def patches_of_the_engine_core(cls, config: VllmConfig) -> Iterable[Patch]:
        """See the base."""
        # Not with this module: the front process needs none of it.
        from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import engine_core
        from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import (
            draft_state_blocks,
            heads_behind_hits,
            placeholder_drafts,
        )

        both = engine_core.our_groups, heads_behind_hits.end_hits_a_block_earlier
        if config.use_v2_model_runner:
            return both
        return (
            *both,
            placeholder_drafts.schedule_no_placeholders,
            draft_state_blocks.block_sizes_of_others,
        )
