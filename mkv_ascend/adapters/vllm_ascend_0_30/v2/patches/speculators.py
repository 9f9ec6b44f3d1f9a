# SPDX-License-Identifier: Apache-2.0
"""Our speculators in model runner V2."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig

from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt, building
from mkv_ascend.adapters.patching import patch
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.speculator import MkvSpeculator
from mkv_ascend.layout.kind import Role
from mkv_ascend.rules.runner_v2 import METHODS

OF_VLLM_ASCEND = "vllm_ascend.worker.v2.model_runner:init_speculator"


@patch(
    name="speculators of model runner V2",
    target=(
        "vllm.v1.worker.gpu.model_runner:init_speculator",
        OF_VLLM_ASCEND,
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.load_model",
    ),
    why="The speculators of vllm-ascend build metadata anew for every pass, give all layers of a "
    "draft in graphs one block table, and know no draft that is a model of its own. Nobody says "
    "that layers of drafts which are left to them (dspark) are not the target's.",
    until="vllm-ascend plans a proposal once, for drafts of any method in any number of KV groups",
    test=(
        "tests/emulated/runner_v2/test_drafts.py",
        "tests/emulated/drafting/test_markov_heads.py"
        "::test_vllm_ascends_own_proposals_on_v2_over_planned_caches",
    ),
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


@make_speculator.also(
    target="vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.load_model"
)
def _load_as_draft(original: Any, speculator: Any, *args: Any, **kwargs: Any) -> None:
    """Layers of drafts that the host proposes with are the draft's, to which its options apply.

    Our speculator says more of its draft around the same call.
    """
    with building(ModelBeingBuilt(Role.DRAFT)):
        original(speculator, *args, **kwargs)
