# SPDX-License-Identifier: Apache-2.0
"""Bytes of the weights of models that were built without memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

READ_THE_TARGET = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods whose drafts take embeddings and head of the target where they are alike."""
SHARED = ("embed_tokens", "lm_head", "shared_head.head")


def weight_bytes(target: Any, draft: Any, method: str | None) -> tuple[int, int]:
    """Bytes of the target and of the draft on one rank; 0 for no draft.

    A head's embeddings and logits are counted where they are unlike those of the target, which
    vLLM has it share else.
    """
    own = {id(tensor): (name, tensor) for name, tensor in _tensors(target)}
    found = sum(_size(tensor) for _, tensor in own.values())
    if draft is None:
        return found, 0
    alike = {(tensor.shape, tensor.dtype) for name, tensor in own.values() if _is_shared(name)}
    more = {
        id(tensor): tensor
        for name, tensor in _tensors(draft)
        if id(tensor) not in own
        and not (
            method in READ_THE_TARGET and _is_shared(name) and (tensor.shape, tensor.dtype) in alike
        )
    }
    return found, sum(map(_size, more.values()))


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _is_shared(name: str) -> bool:
    return any(part in name for part in SHARED)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def activation_bytes(config: VllmConfig) -> int:
    """An estimate of what the largest step takes beside weights and caches.

    A layer's input, its residual, queries, keys and values, and the wider of two matrices of an
    MLP, in 16 bits; logits of each request in 32 bits and once more in 16.
    """
    text: Any = config.model_config.hf_text_config
    ranks = config.parallel_config.tensor_parallel_size
    hidden = int(getattr(text, "hidden_size", 0) or 0)
    wide = int(getattr(text, "intermediate_size", 0) or 4 * hidden)
    tokens = config.scheduler_config.max_num_batched_tokens
    rows = min(tokens, config.scheduler_config.max_num_seqs * _tokens_of_step(config))
    return 2 * tokens * (8 * hidden + 3 * wide // ranks) + 6 * rows * int(
        config.model_config.get_vocab_size()
    )


def _tokens_of_step(config: VllmConfig) -> int:
    speculative = config.speculative_config
    return 1 + (0 if speculative is None else speculative.num_speculative_tokens or 0)
