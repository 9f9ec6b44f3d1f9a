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
        "vllm.entrypoints.cli.serve:run_server",
    ),
    writes=(
        "get_hccl_comm_name",
        "new_group",
        "create_from_process_group",
        "broadcast_object_list",
        "all_gather_object",
        "_draft_attn_layer_names",
        "model",
        "current_platform",
        "npu",
        "nnodes",
        "data_parallel_rank",
        "rank",
        "language_model_only",
        "_run_in_subprocess",
        "run_headless",
        "run_multi_api_server",
        "run_dp_supervisor",
        "run_server",
        "uvloop",
    ),
    why="check asks what vllm serve would look at and what an engine would allocate, without its "
    "devices and its memory. Only the process that answers is changed, and it ends then.",
    until="vLLM checks a command, and plans caches, without running it",
    test=(
        "tests/emulated/layout/test_planner.py",
        "tests/emulated/platform/test_judged_commands.py",
    ),
)
