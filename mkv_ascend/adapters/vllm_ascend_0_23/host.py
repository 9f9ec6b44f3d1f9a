# SPDX-License-Identifier: Apache-2.0
"""What the plugin asks of this adapter: vllm-ascend 0.23.0 with model runner V1.

Importing this module imports neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mkv_ascend.rules.facts import MINIMAX_M2_AS_DRAFT, HostRules, UnservedFamily

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.runner_host import RunnerHost
    from mkv_ascend.adapters.patching import Patch


# Families that vLLM 0.23.0 refuses and vLLM 0.30.0 serves.
#
# Importing this module imports neither vLLM nor vllm-ascend.

FAMILIES = (
    MINIMAX_M2_AS_DRAFT,
    UnservedFamily(
        frozenset({"ExaoneMoeForCausalLM"}),
        "a K-EXAONE 2.0, whose class vLLM 0.23.0 does not have by this name",
        "K-EXAONE of the first version, or vllm-ascend 0.30.0rc2 with vLLM 0.30.0",
        "serve it there",
    ),
)


PACKAGE = "mkv_ascend.adapters.vllm_ascend_0_23"
VERSIONS = {"vllm": ("0.23.0",), "vllm-ascend": ("0.23.0", "0.23.0.post1")}
RUNNERS = ("v1",)
FINGERPRINTS = Path(__file__).with_name("fingerprints.json")
RULES = HostRules(
    vllm="0.23",
    unserved_families=FAMILIES,
    plans_compressed=True,
    compressed_in_one_process=True,
    delta_attention_drafts=False,
    loads_experts_by_map=True,
    # NPUInputBatch.__init__
    thinking_budgets=False,
    # VllmConfig.__post_init__
    in_turn_by_default=frozenset({"draft_model"}),
    # patch/worker/patch_gqa_c8.py
    int8_cache_families=frozenset(
        {"Qwen3ForCausalLM", "Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"}
    ),
)


def accept_options() -> None:
    """Nothing: vllm-ascend leaves keys alone that it does not know."""


def start_process() -> None:
    """Apply vllm-ascend's process-wide patches, and make a configuration known.

    Otherwise only its own general plugins apply them in the engine core's process, and
    ``VLLM_PLUGINS`` may leave those out.
    """
    from vllm_ascend.utils import adapt_patch

    from mkv_ascend.adapters.vllm_ascend_0_23.patches import start_up

    adapt_patch(is_global_patch=True)
    start_up.register()


def why_not_served(config: VllmConfig) -> str | None:
    """None: this adapter serves all that the checks of every host let pass."""
    return None


def patches_of_the_front() -> Iterable[Patch]:
    from mkv_ascend.adapters.vllm_ascend_0_23.patches import pipeline, recurrent, start_up

    # Only commands that serve have imported it.
    serves = "vllm.entrypoints.openai.api_server" in sys.modules
    return (
        *([start_up.refuse_shared_port] if serves else ()),
        recurrent.blocks_without_alignment,
        start_up.remember_heads,
        start_up.capture_the_largest,
        pipeline.let_predictors_pass,
        pipeline.on_one_stage,
    )


def patches_of_the_engine_core(config: VllmConfig) -> Iterable[Patch]:
    from mkv_ascend.adapters.common.judge.early_check import (
        serves_drafts_in_stages,
    )
    from mkv_ascend.adapters.common.patches import acceptance_by_count
    from mkv_ascend.adapters.common.patches.prefix_hits import tells_all
    from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache import engine_core
    from mkv_ascend.adapters.vllm_ascend_0_23.patches import (
        pipeline,
        prefix_hits,
        reasoning_grammars,
    )

    in_flight = (pipeline.hold_back, pipeline.post_step)
    return (
        engine_core.our_groups,
        acceptance_by_count.count_by_number,
        prefix_hits.name_new_blocks,
        prefix_hits.cut_to_the_hit,
        prefix_hits.block_sizes_of_others,
        *([prefix_hits.hash_blocks_of_heads] if tells_all(config) else []),
        *([reasoning_grammars.begin_behind_reasoning] if config.speculative_config else []),
        *(in_flight if serves_drafts_in_stages(config) else ()),
    )


def patch_worker() -> None:
    from mkv_ascend.adapters.vllm_ascend_0_23.patches import in_worker

    in_worker.apply()


def model_runner(_config: VllmConfig) -> tuple[ModuleType, type[Any]]:
    """There is one."""
    from vllm_ascend.worker import worker

    from mkv_ascend.adapters.common.runner import MkvModelRunner

    return worker, MkvModelRunner


def runner_host() -> RunnerHost:
    from mkv_ascend.adapters.vllm_ascend_0_23.runner_host import RUNNER_HOST

    return RUNNER_HOST
