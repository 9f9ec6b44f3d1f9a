# SPDX-License-Identifier: Apache-2.0
"""Records of the methods of vllm-ascend's model runner that ``runner.py`` replaces on all hosts."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

TARGET_METADATA = record(
    name="the target's pass without the draft",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attention_metadata",
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner._pad_query_start_loc_for_fia",),
)

PLANNED_CACHES = record(
    name="caches from a plan",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._reshape_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._init_kv_zero_meta",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
        "maybe_add_kv_sharing_layers_to_kv_cache_groups",
    ),
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",),
)
