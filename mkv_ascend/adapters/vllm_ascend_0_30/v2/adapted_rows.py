# SPDX-License-Identifier: Apache-2.0
"""Which adapter (LoRA) each row of logits has, where requests have several such rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.worker.gpu.lora_utils import LoraState

from mkv_ascend.adapters.patching import override, record

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

ADAPTED = record(
    name="adapters of verify steps in model runner V2",
    target=(
        "vllm.v1.worker.gpu.lora_utils:LoraState.__init__",
        "vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs",
    ),
    reads=(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.gather_batch_req_state",
        "vllm_ascend.lora.punica_npu:PunicaWrapperNPU.add_lora_logits",
    ),
)


class AdaptersOfRows(LoraState):
    """Names an adapter for each row of logits.

    Args:
        requests: the runner's table of requests.
    """

    @override(ADAPTED)
    def __init__(self, requests: Any) -> None:
        super().__init__(requests.max_num_reqs)
        self._requests = requests

    @override(ADAPTED)
    def make_lora_inputs(
        self, req_ids: list[str], idx_mapping: np.ndarray, num_scheduled_tokens: np.ndarray
    ) -> tuple[tuple[int, ...], tuple[int, ...], set[LoRARequest]]:
        """Adapters of rows of logits, of tokens, and those of all.

        A request that decodes has a row for each of its tokens, a chunk of a prompt has one.
        """
        requests = self._requests
        computed = requests.num_computed_prefill_tokens[idx_mapping]
        decodes = computed >= requests.prefill_len.np[idx_mapping]
        rows = np.where(decodes, num_scheduled_tokens, 1)
        _, tokens, adapters = super().make_lora_inputs(req_ids, idx_mapping, num_scheduled_tokens)
        return tuple(self.lora_ids[idx_mapping].repeat(rows)), tokens, adapters
