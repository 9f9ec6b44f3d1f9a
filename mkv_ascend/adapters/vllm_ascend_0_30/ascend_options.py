# SPDX-License-Identifier: Apache-2.0
"""Names that vllm-ascend 0.30.0rc2 knows in ``--additional-config``; it refuses all others.

Fields of its ``AscendConfig``, and what ``init_ascend_config`` takes out before they are read.
"""

from __future__ import annotations

__all__ = ["NAMES"]

NAMES = frozenset(
    {
        "ascend_compilation_config",
        "ascend_fusion_config",
        "ascend_log_path",
        "ascend_warmup_config",
        "batch_job_sched_config",
        "c8_enable_reshape_optim",
        "combine_quant_mode",
        "draft_window_size",
        "dump_config",
        "dump_config_path",
        "dynamic_spec_config",
        "enable_balance_scheduling",
        "enable_cpu_binding",
        "enable_dsa_cp",
        "enable_flashcomm1",
        "enable_force_eplb",
        "enable_fused_mc2",
        "enable_kv_nz",
        "enable_kvpp",
        "enable_mc2_hierarchy_comm",
        "enable_pcp_embedding_lmhead_weight_sharding",
        "enable_pcp_o_proj_weight_sharding",
        "enable_mlapo",
        "enable_prefill_mc2",
        "enable_shared_expert_dp",
        "enable_sp_by_pass",
        "enable_sparse_li_c4",
        "enable_sparse_li_c8",
        "enable_sparse_sfa_c8",
        "enable_sparse_sfa_turboquant",
        "enable_transpose_kv_cache_by_block",
        "eplb_config",
        "finegrained_tp_config",
        "gdn_prefill_backend",
        "kda_prefill_backend",
        "kvpp_config",
        "mc2_comm_alg",
        "mega_moe_max_tokens",
        "mix_placement",
        "mlapo_keep_prefill_weights",
        "msmonitor_use_daemon",
        "multistream_dsv4_dsa_overlap",
        "multistream_engram_overlap",
        "multistream_overlap_shared_expert",
        "num_head_replica",
        "pa_shape_list",
        "pd_head_ratio",
        "pd_tp_ratio",
        "profiling_chunk_config",
        "recompute_scheduler_enable",
        "refresh",
        "rejection_sampler_config",
        "rl_config",
        "scheduler_config",
        "sfa_dcp_force_tmajor_restore",
        "short_request_first_config",
        "sparse_kv_offload_config",
        "weight_nz_mode",
        "xlite_graph_config",
    }
)
