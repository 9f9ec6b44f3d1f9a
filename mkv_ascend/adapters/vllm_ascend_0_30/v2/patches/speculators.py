# SPDX-License-Identifier: Apache-2.0
"""Our speculators in model runner V2."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig

from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.speculator import MkvSpeculator
from mkv_ascend.checks.about_runner import METHODS

OF_VLLM_ASCEND = "vllm_ascend.worker.v2.model_runner:init_speculator"


@patch(
    name="speculators of model runner V2",
    target=("vllm.v1.worker.gpu.model_runner:init_speculator", OF_VLLM_ASCEND),
    why="The speculators of vllm-ascend build metadata anew for every pass, give all layers of a "
    "draft in graphs one block table, and know no draft that is a model of its own.",
    until="vllm-ascend plans a proposal once, for drafts of any method in any number of KV groups",
    test="tests/emulated/runner_v2/test_drafts.py",
)
def make_speculator(original: Any, vllm_config: VllmConfig, device: torch.device) -> Any:
    """Our speculator for methods that we serve, else the host's."""
    if vllm_config.speculative_config.method in METHODS:
        return MkvSpeculator(vllm_config, device)
    return original(vllm_config, device)


@make_speculator.also(target=OF_VLLM_ASCEND)
def _make_for_vllm_ascend(original: Any, vllm_config: VllmConfig, device: torch.device) -> Any:
    (serve, *_) = make_speculator.functions.values()
    return serve(original, vllm_config, device)
