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
