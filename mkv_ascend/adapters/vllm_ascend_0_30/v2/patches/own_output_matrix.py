# SPDX-License-Identifier: Apache-2.0
"""The output matrix of an MTP layer's own, where its checkpoint has one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from mkv_ascend.adapters.patching import record, replaced

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import ModelConfig

OWN_MATRIX = record(
    name="output matrix of an MTP layer's own in model runner V2",
    target=(
        "vllm_ascend.models.deepseek_v4.mtp:DeepSeekV4MTP.load_weights",
        "vllm.model_executor.models.step3p5_mtp:Step3p5MTP.load_weights",
    ),
    reads=(
        "vllm.v1.worker.gpu.spec_decode.eagle.utils:load_eagle_model",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._maybe_share_lm_head",
    ),
    writes=("head",),
    why="vLLM's loader for this runner gives an MTP layer the target's output matrix, whatever its "
    "checkpoint has. Model runner V1 keeps one that differs, as DeepSeek-V4's and Step-3.5's are.",
    until="load_eagle_model compares the matrices of MTP layers, as it does those of heads",
    test=(
        "tests/emulated/models/test_deepseek_v4.py"
        "::test_tokens_are_the_references_and_drafts_its_mtp_layers",
        "tests/emulated/models/test_step3p5.py::test_tokens_and_drafts_in_bfloat16",
    ),
)
CLASSES = {
    "DeepSeekV4MTPModel": ("vllm_ascend.models.deepseek_v4.mtp", "DeepSeekV4MTP"),
    "Step3p5MTP": ("vllm.model_executor.models.step3p5_mtp", "Step3p5MTP"),
}
"""Architecture -> module and name of its class."""


@contextlib.contextmanager
def own_output_matrix(draft: ModelConfig) -> Iterator[Callable[[nn.Module], None]]:
    """Note output matrices of a draft that is loaded while the block runs.

    Gives a function that puts those back that differ from the target's.
    """
    found = [CLASSES[name] for name in draft.architectures if name in CLASSES]
    if not found:
        yield lambda _: None
        return
    ((module, name),) = found
    loaded_class = getattr(import_module(module), name)
    load, own = loaded_class.load_weights, {}

    def load_and_note(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = load(model, weights)
        for number, layer in model.model.layers.items():
            # Without one in the checkpoint, it is memory that nobody wrote.
            if f"model.layers.{number}.shared_head.head.weight" in loaded:
                own[number] = layer.shared_head.head
        return loaded

    def put_back(model: Any) -> None:
        for number, matrix in own.items():
            shared = model.model.layers[number].shared_head
            if not torch.equal(matrix.weight, shared.head.weight):
                shared.head = matrix

    with replaced(loaded_class, "load_weights", load_and_note):
        yield put_back
