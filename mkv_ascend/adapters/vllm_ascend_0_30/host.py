# SPDX-License-Identifier: Apache-2.0
"""What the plugin asks of this adapter: vllm-ascend 0.30.0rc2 with its model runners V1 and V2.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mkv_ascend.adapters.contract import WORKER
from mkv_ascend.adapters.vllm_ascend_0_30 import ascend_options
from mkv_ascend.adapters.vllm_ascend_0_30.unserved_families import FAMILIES
from mkv_ascend.rules.facts import HostRules

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.runner_host import RunnerHost
    from mkv_ascend.adapters.patching import Patch

PACKAGE = "mkv_ascend.adapters.vllm_ascend_0_30"
WORKER_V2 = "mkv_ascend.adapters.vllm_ascend_0_30.v2.worker.MkvWorkerV2"
VERSIONS = {"vllm": ("0.30.0",), "vllm-ascend": ("0.30.0rc2",)}
RUNNERS = ("v1", "v2")
FINGERPRINTS = Path(__file__).with_name("fingerprints.json")
RULES = HostRules(
    vllm="0.30",
    unserved_families=FAMILIES,
    ascend_options=ascend_options.NAMES,
    plans_compressed=False,
    compressed_in_one_process=False,
    delta_attention_drafts=True,
    # patch/platform/patch_kv_cache_dtype.py
    int8_is_an_option=True,
    # distributed/kv_transfer/kv_pool/kv_offload/native
    offloads_split_caches=True,
    offload_takes_one_group=True,
    whole_steps_uncompiled=True,
    captures_shares=True,
    has_draft_options=True,
    moves_choices_of_ranks=True,
    windows_in_blocks=True,
    refuses_states_of_all_blocks=True,
    # MAX_MTP of RecurrentGatedDeltaRule in flash-linear-attention-npu, whose kernel leaves longer
    # requests out. 16 in that of vllm-ascend 0.23.0, 8 before: https://github.com/vllm-project/
    # vllm-ascend/pull/10380, garbled output.
    most_tokens_of_gated_delta_rule=8,
    # Gated delta nets, Kimi delta attention, Mamba2 layers (two names), short convolutions.
    states_beside_drafts=frozenset(
        {
            *("linear_num_value_heads", "linear_attn_config", "mamba_chunk_size", "chunk_size"),
            "conv_L_cache",
        }
    ),
)


def accept_options() -> None:
    """Let vllm-ascend accept our options."""
    from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import own_options

    own_options.accept()


def start_process() -> None:
    """Apply vllm-ascend's process-wide patches; let it accept our options, and vLLM our methods.

    Otherwise only its own general plugins apply its patches in the engine core's process, and
    ``VLLM_PLUGINS`` may leave those out.
    """
    from vllm_ascend.utils import adapt_patch

    from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import methods_of_v2

    adapt_patch(is_global_patch=True)
    accept_options()
    methods_of_v2.serve_our_methods.apply()


def why_not_served(config: VllmConfig) -> str | None:
    """See ``HostAdapter``."""
    from mkv_ascend.adapters.vllm_ascend_0_30.common.early_checks import families

    return families.why_not_served(config)


def worker_of(config: VllmConfig) -> str:
    """See ``HostAdapter``; each model runner has a worker of its own."""
    return WORKER_V2 if config.use_v2_model_runner else WORKER


def patches_of_the_front() -> Iterable[Patch]:
    """None: those of every host suffice."""
    return ()


def patches_of_the_engine_core(config: VllmConfig) -> Iterable[Patch]:
    """See ``HostAdapter``."""
    from mkv_ascend.adapters.common.judge.early_check import (
        serves_drafts_in_stages,
    )
    from mkv_ascend.adapters.common.patches import acceptance_by_count
    from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import engine_core
    from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import (
        draft_state_blocks,
        heads_behind_hits,
        pipeline,
        placeholder_drafts,
    )

    return (
        engine_core.our_groups,
        acceptance_by_count.count_by_number,
        *heads_behind_hits.patches_for(config),
        draft_state_blocks.block_sizes_of_others,
        placeholder_drafts.schedule_no_placeholders,
        *([pipeline.hand_out_drafts] if serves_drafts_in_stages(config) else []),
    )


def patch_worker() -> None:
    """See ``HostAdapter``."""
    from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import in_worker

    in_worker.apply()


def runner_host() -> RunnerHost:
    """See ``HostAdapter``."""
    from mkv_ascend.adapters.vllm_ascend_0_30.v1.runner_host import RUNNER_HOST

    return RUNNER_HOST
