# SPDX-License-Identifier: Apache-2.0
"""The attention groups for which model runner V2 builds metadata in the target's pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.adapters.patching import record

TARGET_GROUPS = record(
    name="metadata of the target's pass in model runner V2",
    target="vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model",
    reads=(
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.initialize_kv_cache",
        "vllm_ascend.worker.v2.aclgraph_utils:ModelAclGraphManager.run_fullgraph",
    ),
)


def without_layers(
    groups: Sequence[Sequence[AttentionGroup]], layers: Collection[str]
) -> list[list[AttentionGroup]]:
    """``groups``, by KV group, without ``layers``; a group that has no other layer is left out."""
    limited = []
    for kv_group in groups:
        kept = []
        for group in kv_group:
            names = [name for name in group.layer_names if name not in layers]
            if names:
                kept.append(replace(group, layer_names=names))
        limited.append(kept)
    return limited
