# SPDX-License-Identifier: Apache-2.0
"""MkvPlatform: the platform of vllm-ascend 0.30.0rc2, with our worker and our patches."""

from __future__ import annotations

from collections.abc import Iterable

from mkv_ascend.adapters.common.platform import HostPlatform
from mkv_ascend.adapters.patching import Patch


class MkvPlatform(HostPlatform):
    """The platform that vLLM runs on when this package and vllm-ascend 0.30.0rc2 are installed."""

    WORKER = "mkv_ascend.adapters.vllm_ascend_0_30.v1.worker.MkvWorker"

    @classmethod
    def patches_of_the_engine_core(cls) -> Iterable[Patch]:
        """See the base."""
        # Not with this module: the front process needs none of it.
        from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache import engine_core

        return (engine_core.our_groups,)
