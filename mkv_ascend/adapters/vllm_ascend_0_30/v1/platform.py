# SPDX-License-Identifier: Apache-2.0
"""MkvPlatform: the platform of vllm-ascend 0.30.0rc2, with our worker and our patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.platform import HostPlatform
from mkv_ascend.adapters.patching import Patch
from mkv_ascend.adapters.vllm_ascend_0_30 import host
from mkv_ascend.adapters.vllm_ascend_0_30.v1.early_checks import states

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class MkvPlatform(HostPlatform):
    """The platform that vLLM runs on when this package and vllm-ascend 0.30.0rc2 are installed."""

    RULES = host.RULES
    WORKER = "mkv_ascend.adapters.vllm_ascend_0_30.v1.worker.MkvWorker"
    WHY_RECURRENT_DRAFTS_READ_NO_HITS = states.HITS

    @classmethod
    def why_not_served(cls, config: VllmConfig) -> str | None:
        """See the base: model runner V2, and drafts beside states."""
        if not config.use_v2_model_runner:
            return states.why_not_served(config)
        return (
            "model runner V2 is asked for (VLLM_USE_V2_MODEL_RUNNER=1, or what needs it): "
            "mkv_ascend serves model runner V1 of vllm-ascend 0.30.0rc2 only. Set "
            "VLLM_USE_V2_MODEL_RUNNER=0, or uninstall mkv_ascend to run V2 without it"
        )

    @classmethod
    def patches_of_the_engine_core(cls) -> Iterable[Patch]:
        """See the base."""
        # Not with this module: the front process needs none of it.
        from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache import engine_core
        from mkv_ascend.adapters.vllm_ascend_0_30.v1.patches import placeholder_drafts

        return (engine_core.our_groups, placeholder_drafts.schedule_no_placeholders)
