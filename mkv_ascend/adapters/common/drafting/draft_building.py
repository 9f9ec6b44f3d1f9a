# SPDX-License-Identifier: Apache-2.0
"""What a draft is built and loaded in: experts that stay, and rows that its files lack.

Experts of a draft stay where they are while those of the target move. vllm-ascend means to move the
experts of every layer that a process makes, the draft's among them
(``VllmEplbAdaptor.register_layer``): each needs as many of them, of one size, as the target's first
layer, or the engine ends when it has started. Those of a map of experts are counted on from the
target's layers. And vLLM 0.23.0 tells a draft model of no ranks of experts
(``SpeculativeConfig.create_draft_parallel_config``): each rank has its share of every expert, and
the layers stop in their constructor.

The target's own drafting layers (method ``mtp``) are as its other ones. Their experts move.

A draft's files may have another number of rows than it is configured with. Rows that they have
beyond it are left out. Rows that they lack are zeros, and the logits of these minus infinity: none
of them is ever drafted. ``patches/draft_architecture.py`` says which drafts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.eplb.adaptor.vllm_adaptor import VllmEplbAdaptor

from mkv_ascend.adapters.common.patches.draft_architecture import ROWS
from mkv_ascend.adapters.patching import replaced

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import ModelConfig, VllmConfig


@contextlib.contextmanager
def unmoved_experts(draft: VllmConfig) -> Iterator[None]:
    """Let layers that are made in the block keep their experts, unless they move with the target's.

    Args:
        draft: the configuration that the draft is made with.
    """
    ascend, speculative = get_ascend_config(), draft.speculative_config
    asked = ascend.eplb_config
    moves = asked.dynamic_eplb or asked.expert_map_path is not None
    if not moves or speculative is None or speculative.method == "mtp":
        yield
        return
    with (
        replaced(ascend, "eplb_config", type(asked)()),
        replaced(VllmEplbAdaptor, "_registered_moe_layers", []),
    ):
        yield


def loading_padded_vocabulary(draft: ModelConfig) -> AbstractContextManager[None]:
    """Weights of the model that is built while the block runs have the rows of its files."""
    rows: int | None = getattr(draft.hf_text_config, ROWS, None)
    return contextlib.nullcontext() if rows is None else _loading(rows)


@contextlib.contextmanager
def _loading(rows: int) -> Iterator[None]:
    stock = VocabParallelEmbedding.weight_loader

    def load(self: Any, param: Any, loaded_weight: torch.Tensor) -> None:
        dim = getattr(param, "output_dim", None)
        # A file with another number of rows than its config.json says is for vLLM to refuse.
        if dim is not None and loaded_weight.dim() > dim and loaded_weight.shape[dim] == rows:
            loaded_weight = with_rows(loaded_weight, dim, self.org_vocab_size)
        stock(self, param, loaded_weight)

    with replaced(VocabParallelEmbedding, "weight_loader", load):
        yield


def with_rows(weight: torch.Tensor, dim: int, rows: int) -> torch.Tensor:
    """``weight`` with ``rows`` rows along ``dim``: cut, or with zeros behind its own."""
    missing = rows - weight.shape[dim]
    if missing <= 0:
        return weight.narrow(dim, 0, rows)
    shape = [*weight.shape]
    shape[dim] = missing
    return torch.cat([weight, weight.new_zeros(shape)], dim)


def leave_out_padding(model: nn.Module, draft: ModelConfig) -> None:
    """Let no token be drafted that the files of a loaded draft have no row for."""
    rows: int | None = getattr(draft.hf_text_config, ROWS, None)
    if rows is None or rows >= draft.get_vocab_size():
        return

    def masked(_module: nn.Module, _inputs: Any, logits: torch.Tensor | None) -> None:
        if logits is not None:
            logits[..., rows:].fill_(-math.inf)

    for module in model.modules():
        if isinstance(module, LogitsProcessor):
            module.register_forward_hook(masked)
