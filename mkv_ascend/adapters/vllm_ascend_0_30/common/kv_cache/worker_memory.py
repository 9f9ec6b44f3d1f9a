# SPDX-License-Identifier: Apache-2.0
"""The memory that a worker offers where its caches come from a plan."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import Patch
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.engine_core import our_groups
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import why_not_planned

offer_all = Patch(our_groups.record)
"""The part of that record that workers apply, not the engine core."""


@offer_all.also(target="vllm_ascend.worker.worker:NPUWorker._scale_kv_cache_memory_for_multi_group")
def all_of_the_memory(original: Any, worker: Any, available_memory: int) -> int:
    """All of it, in bytes, for planned caches: the plan counts every byte itself."""
    if why_not_planned(worker.vllm_config, worker.get_kv_cache_spec().values()) is None:
        return available_memory
    return int(original(worker, available_memory))
