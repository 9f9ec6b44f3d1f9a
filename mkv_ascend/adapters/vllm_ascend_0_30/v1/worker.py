# SPDX-License-Identifier: Apache-2.0
"""MkvWorker: the worker of vllm-ascend 0.30.0rc2, with our model runner and our patches."""

from __future__ import annotations

from mkv_ascend.adapters.common.worker import HostWorker
from mkv_ascend.adapters.patching import override
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.engine_core import our_groups
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import in_worker
from mkv_ascend.adapters.vllm_ascend_0_30.v1.runner import MkvModelRunner


class MkvWorker(HostWorker):
    """One NPU's worker process."""

    def apply_patches(self) -> None:
        """See the base."""
        in_worker.apply()

    def runner_class(self) -> type[MkvModelRunner]:
        """See the base."""
        return MkvModelRunner

    @override(our_groups.record)
    def _scale_kv_cache_memory_for_multi_group(self, available_memory: int) -> int:
        """All of the memory where caches come from a plan, which counts every byte itself."""
        if why_not_planned(self.vllm_config, self.get_kv_cache_spec().values()) is None:
            return available_memory
        return int(super()._scale_kv_cache_memory_for_multi_group(available_memory))
