# SPDX-License-Identifier: Apache-2.0
"""What a process that judges a command replaces of the host; no engine does."""

from mkv_ascend.adapters.patching import record

PRETENDED = record(
    name="models and servers that are not started, for check",
    target=(
        "vllm.model_executor.model_loader:get_model",
        "vllm.model_executor.layers.rotary_embedding:get_rope",
        "vllm.model_executor.layers.fused_moe.expert_map_manager:determine_expert_map",
        "vllm_ascend.eplb.core.eplb_utils:init_eplb_config",
        "vllm_ascend.ops.rope_dsv4:current_platform",
        "vllm.model_executor.models.registry:_run_in_subprocess",
        "vllm.entrypoints.cli.serve:run_headless",
        "vllm.entrypoints.cli.serve:run_multi_api_server",
        "vllm.entrypoints.cli.serve:run_dp_supervisor",
    ),
)
