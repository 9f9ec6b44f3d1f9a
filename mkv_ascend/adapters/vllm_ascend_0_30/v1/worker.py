# SPDX-License-Identifier: Apache-2.0
"""MkvWorker: the worker of vllm-ascend 0.30.0rc2, with our model runner and our patches."""

from __future__ import annotations

from mkv_ascend.adapters.common.worker import HostWorker
from mkv_ascend.adapters.patching import override, record
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.left_alone import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_30.v1.patches import in_worker
from mkv_ascend.adapters.vllm_ascend_0_30.v1.runner import MkvModelRunner


class MkvWorker(HostWorker):
    """One NPU's worker process."""

    def apply_patches(self) -> None:
        """See the base."""
        in_worker.apply()

    def runner_class(self) -> type[MkvModelRunner]:
        """See the base."""
        return MkvModelRunner

    @override(
        record(
            name="budget of KV caches",
            target="vllm_ascend.worker.worker:NPUWorker._scale_kv_cache_memory_for_multi_group",
            reads=("vllm_ascend.worker.worker:NPUWorker.determine_available_memory",),
            why="Because layers of all groups have buffers of their own, the memory is scaled down "
            "to that of the largest group: with two equal groups, half of it stays free beside a "
            "plan whose groups share bytes.",
            until="vllm-ascend lets layers of all groups share bytes",
            test="tests/emulated/layout/test_requests_at_once.py",
        )
    )
    def _scale_kv_cache_memory_for_multi_group(self, available_memory: int) -> int:
        """All of the memory where caches come from a plan, which counts every byte itself."""
        if why_not_planned(self.vllm_config, self.get_kv_cache_spec().values()) is None:
            return available_memory
        return int(super()._scale_kv_cache_memory_for_multi_group(available_memory))
