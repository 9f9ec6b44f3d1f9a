# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend 0.30.0rc2 does in its own way in model runner V1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.runner_host import RunnerHost
from mkv_ascend.adapters.vllm_ascend_0_30.common import draft_weights
from mkv_ascend.adapters.vllm_ascend_0_30.common.draft_weights import graphs_sleep
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import why_not_planned_groups
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.planned_specs import planned_specs

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.runner import MkvModelRunner


def _limit_the_targets_pass(runner: MkvModelRunner) -> None:
    """vllm-ascend computes the slots of all groups in one launch itself."""
    runner.limit_the_targets_pass(runner.use_dcp)


def _planned_specs(runner: MkvModelRunner, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return planned_specs(runner.vllm_config, ask, runner.draft_layers())


RUNNER_HOST = RunnerHost(
    drafts=HOST,
    why_not_planned=why_not_planned_groups,
    planned_specs=_planned_specs,
    limit_the_targets_pass=_limit_the_targets_pass,
    graphs_sleep=graphs_sleep,
    draft_weights=draft_weights,
    least_drafts=1,  # The builder sees no verification where all rows have 0 drafts.
)
