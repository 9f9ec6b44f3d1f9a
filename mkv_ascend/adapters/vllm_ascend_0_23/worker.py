# SPDX-License-Identifier: Apache-2.0
"""MkvWorker: vllm-ascend's worker with MkvModelRunner."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vllm_ascend.worker import worker as ascend_worker

from mkv_ascend.adapters.guards import replaced
from mkv_ascend.adapters.vllm_ascend_0_23.patches import expert_groups
from mkv_ascend.adapters.vllm_ascend_0_23.patches import inventory_replaced as patches
from mkv_ascend.adapters.vllm_ascend_0_23.runner import MkvModelRunner

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


class MkvWorker(ascend_worker.NPUWorker):
    """One NPU's worker process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before any layer of a model exists; vLLM builds the worker right after its process
        # has started and loaded the general plugins.
        patches.apply_in_worker()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        """Set the device up and create the model runner.

        vllm-ascend's method names the runner's class by a global of its module and does much
        else besides. Replacing the global for the length of the call keeps all of it.
        """
        with replaced(ascend_worker, "NPUModelRunner", MkvModelRunner):
            super().init_device()

    def _init_worker_distributed_environment(self) -> None:
        super()._init_worker_distributed_environment()
        expert_groups.make_for_draft(self.vllm_config)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches; have new blocks zeroed if a draft reads them behind states."""
        super().initialize_from_config(kv_cache_config)
        self.model_runner.zero_new_blocks()

    def attention_layers(self) -> list[dict[str, Any]]:
        """Which backend serves which layer; for ``collective_rpc("attention_layers")``."""
        return [asdict(row) for row in self.model_runner.layer_rows()]

    def draft_replays(self) -> dict[str, Any]:
        """Of how many requests the draft's passes were captured, and how often they were replayed.

        For ``collective_rpc("draft_replays")``.
        """
        graphs = getattr(self.model_runner.drafter, "graphs", None)
        if graphs is None:
            return {"captured": [], "replays": 0}
        return {"captured": sorted(graphs.captured), "replays": graphs.replays}
