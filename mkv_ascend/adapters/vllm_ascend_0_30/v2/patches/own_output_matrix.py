# SPDX-License-Identifier: Apache-2.0
"""Output matrices of a head's own, where its checkpoint has one that differs from the target's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.utils import get_model_architecture

from mkv_ascend.adapters.patching import record, replaced

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import ModelConfig

OWN_MATRIX = record(
    name="output matrix of an MTP layer's own in model runner V2",
    target="vllm.v1.worker.gpu.spec_decode.eagle.utils:load_eagle_model",
    reads=(
        "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.load_weights",
        "vllm.model_executor.model_loader.utils:initialize_model",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._maybe_share_lm_head",
    ),
)


@contextlib.contextmanager
def own_output_matrices(draft: ModelConfig) -> Iterator[Callable[[nn.Module], None]]:
    """Note output matrices of a draft that is loaded while the block runs.

    They are in its layers or beside them. Gives a function that puts those back that differ from
    what the draft has in their place.
    """
    loaded_class, _ = get_model_architecture(draft)
    load, own = loaded_class.load_weights, {}

    def load_and_note(
        model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> set[str] | None:
        loaded: set[str] | None = load(model, weights)
        # Heads of eagle and eagle3 say nothing: vLLM compares their matrices itself.
        told = loaded or set()
        for name, module in model.named_modules():
            # Without one in the checkpoint, it is memory that nobody wrote.
            if isinstance(module, ParallelLMHead) and f"{name}.weight" in told:
                own[name] = module
        return loaded

    def put_back(model: nn.Module) -> None:
        for name, matrix in own.items():
            if not are_equal(matrix, model.get_submodule(name)):
                model.set_submodule(name, matrix)

    with replaced(loaded_class, "load_weights", load_and_note):
        yield put_back


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules compute the same: they are one, or all of their parameters are equal."""
    if one is other:
        return True
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name])
        for name in mine
    )
