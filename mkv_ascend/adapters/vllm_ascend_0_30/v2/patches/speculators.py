# SPDX-License-Identifier: Apache-2.0
"""Our speculators in model runner V2, and what heads need of the target there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.v1.worker.gpu import model_runner

from mkv_ascend.adapters.common.attention.building import ModelBeingBuilt, building
from mkv_ascend.adapters.common.patches.auxiliary_states import hand_out, say_what_the_stage_gives
from mkv_ascend.adapters.patching import patch, record, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.speculator import MkvSpeculator
from mkv_ascend.layout.kind import Role
from mkv_ascend.rules.runner_v2 import METHODS

if TYPE_CHECKING:
    from torch import nn


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


# Hidden states of a target's layers in model runner V2, where its class gives none.

ASKED = record(
    name="hidden states of any target in model runner V2",
    target=(
        "vllm.v1.worker.gpu.model_runner:set_eagle3_aux_hidden_state_layers",
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.load_model",
    ),
    reads=(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.load_model",
        "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils:verify_supports_aux_hidden_states_over_pp",
        "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils:reserve_aux_intermediate_tensor_slots",
        "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils:aux_hidden_state_relay_keys",
        # Of either runner: 0.23.0, with which V1's record is shared, has it elsewhere.
        "vllm_ascend.models.deepseek_v4.model:DeepseekV4Model.__init__",
        "vllm_ascend.models.deepseek_v4.model:DeepseekV4Model.forward",
    ),
)


@contextlib.contextmanager
def with_auxiliary_states(vllm_config: VllmConfig) -> Iterator[None]:
    """Let a target that is loaded while the block runs return hidden states, where asked for."""
    ask = model_runner.set_eagle3_aux_hidden_state_layers

    def hand_out_then_ask(model: nn.Module, *args: Any) -> None:
        hand_out(model, vllm_config)
        ask(model, *args)
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            say_what_the_stage_gives(model)

    with replaced(model_runner, "set_eagle3_aux_hidden_state_layers", hand_out_then_ask):
        yield


# Rotations whose three axes take turns (interleaved M-RoPE), where Triton is found.


@patch(
    name="axes that take turns in a head's rotation in model runner V2",
    target="vllm_ascend.ops.rotary_embedding:AscendMRotaryEmbedding.forward_triton",
    reads=("vllm_ascend.ops.rotary_embedding:AscendMRotaryEmbedding.forward_oot",),
)
def rotate_without_the_kernel(
    original: Any,
    layer: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
) -> Any:
    """The same in torch, as vLLM has it where no kernel is found."""
    return MRotaryEmbedding.forward_native(layer, positions, query, key, offsets)
