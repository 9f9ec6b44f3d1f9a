# SPDX-License-Identifier: Apache-2.0
"""What the plugin asks of this adapter: vllm-ascend 0.30.0rc2 with its model runners V1 and V2.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.vllm_ascend_0_30 import ascend_options
from mkv_ascend.rules.facts import MINIMAX_M2_AS_DRAFT, HostRules, UnservedFamily

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.runner_host import RunnerHost
    from mkv_ascend.adapters.patching import Patch


# Families that vLLM 0.30.0 or vllm-ascend 0.30.0rc2 refuses, or serves wrongly.
#
# Importing this module imports neither vLLM nor vllm-ascend.

OTHER_HOST = "vllm-ascend 0.23.0 with vLLM 0.23.0"
FAMILIES = (
    MINIMAX_M2_AS_DRAFT,
    UnservedFamily(
        frozenset({"LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"}),
        "a LongCat-Flash: its layers have two attentions each, whose names vllm-ascend 0.30.0rc2 "
        "does not read, and experts without matrices, which its router takes for others",
        OTHER_HOST,
        "serve it there",
    ),
    UnservedFamily(
        # worker/patch_step3p5.py puts a fused kernel in the place of vLLM's attention.
        frozenset({"Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}),
        "a Step-3.5 in {dtype}: the fused kernel that vllm-ascend 0.30.0rc2 calls for its queries "
        "and keys holds them in bfloat16, and takes no other dtype",
        f"--dtype bfloat16, or {OTHER_HOST}",
        "write --dtype bfloat16",
        dtypes=frozenset({"bfloat16"}),
    ),
    UnservedFamily(
        frozenset({"ExaoneMoEForCausalLM"}),
        "a K-EXAONE of the first version, whose class vLLM 0.30.0 does not have by this name",
        f"K-EXAONE 2.0, or {OTHER_HOST}",
        "serve it there",
    ),
    UnservedFamily(
        # Its attention asks each builder for causal=False, and vLLM's engine core then turns chunks
        # of prompts off, when its scheduler has been given a budget for chunks.
        frozenset({"HrmTextForCausalLM"}),
        "an HRM-Text, whose prompt tokens see those behind them: vllm-ascend 0.30.0rc2 computes "
        "them as if they did not, and vLLM 0.30.0 never schedules a prompt longer than a step",
        "models whose tokens see those before them",
        "choose another model",
    ),
)


PACKAGE = "mkv_ascend.adapters.vllm_ascend_0_30"
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
    ascend_options.accept()


def start_process() -> None:
    """Apply vllm-ascend's process-wide patches; let it accept our options, and vLLM our methods.

    Otherwise only its own general plugins apply its patches in the engine core's process, and
    ``VLLM_PLUGINS`` may leave those out.
    """
    from vllm_ascend.utils import adapt_patch

    from mkv_ascend.adapters.vllm_ascend_0_30.v2 import methods

    adapt_patch(is_global_patch=True)
    accept_options()
    methods.serve_our_methods.apply()


def why_not_served(config: VllmConfig) -> str | None:
    from mkv_ascend.adapters.vllm_ascend_0_30.common import start_checks

    return start_checks.why_not_served(config)


def patches_of_the_front() -> Iterable[Patch]:
    """None: those of every host suffice."""
    return ()


def patches_of_the_engine_core(config: VllmConfig) -> Iterable[Patch]:
    from mkv_ascend.adapters.common.judge.early_check import (
        serves_drafts_in_stages,
    )
    from mkv_ascend.adapters.common.patches import acceptance_by_count
    from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache import engine_core
    from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import prefix_hits, scheduling

    return (
        engine_core.our_groups,
        acceptance_by_count.count_by_number,
        *prefix_hits.patches_for(config),
        prefix_hits.block_sizes_of_others,
        scheduling.schedule_no_placeholders,
        *([scheduling.hand_out_drafts] if serves_drafts_in_stages(config) else []),
    )


def patch_worker() -> None:
    from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import in_worker

    in_worker.apply()


def model_runner(config: VllmConfig) -> tuple[ModuleType, type[Any]]:
    if config.use_v2_model_runner:
        from vllm_ascend.worker.v2 import model_runner as of_v2

        from mkv_ascend.adapters.vllm_ascend_0_30.v2 import runner

        runner.apply_patches()
        return of_v2, runner.MkvModelRunnerV2
    from vllm_ascend.worker import worker

    from mkv_ascend.adapters.common.runner import MkvModelRunner

    return worker, MkvModelRunner


def runner_host() -> RunnerHost:
    from mkv_ascend.adapters.vllm_ascend_0_30.runner_host import RUNNER_HOST

    return RUNNER_HOST
