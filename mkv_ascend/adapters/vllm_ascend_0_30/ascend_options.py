# SPDX-License-Identifier: Apache-2.0
"""Which options vllm-ascend 0.30.0rc2 accepts, and ours among them.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.patching import wrap

# Names that vllm-ascend 0.30.0rc2 knows in ``--additional-config``; it refuses all others.
#
# Fields of its ``AscendConfig``, and what ``init_ascend_config`` takes out before they are read.

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


# Our options in ``additional_config``, where vllm-ascend 0.30.0 allows only its own.
#
# The record of what is replaced for it is that of our platform (``platform_slot.py``).

OURS = "mkv_ascend"
"""The key of our options; ``mkv_ascend.config`` checks what it holds."""


def accept() -> None:
    """Let vllm-ascend's configuration be made beside our key. Idempotent."""
    from pydantic.dataclasses import rebuild_dataclass
    from vllm_ascend.ascend_config import AscendConfig

    # Its __init__ is generated, so there is no source to name as a target; and once more at the
    # first use, if the class is not complete by then.
    rebuild_dataclass(AscendConfig, raise_errors=False)
    wrap(AscendConfig, "__init__", _without_ours)


def _without_ours(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    kwargs.pop(OURS, None)
    original(self, *args, **kwargs)
