# SPDX-License-Identifier: Apache-2.0
"""Hidden states of a target's layers in model runner V2, where its class gives none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.worker.gpu import model_runner

from mkv_ascend.adapters.common.patches.auxiliary_states import (
    hand_out,
    say_what_the_stage_gives,
)
from mkv_ascend.adapters.patching import record, replaced

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig

ASKED = record(
    name="hidden states of any target in model runner V2",
    target=(
        "vllm.v1.worker.gpu.model_runner:set_eagle3_aux_hidden_state_layers",
        "vllm_ascend.worker.worker:NPUWorker.load_model",
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
