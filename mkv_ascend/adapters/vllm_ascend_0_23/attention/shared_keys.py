# SPDX-License-Identifier: Apache-2.0
"""Layers that attend to the cache of another layer and have no keys of their own.

Such a layer names the cache's owner in ``kv_sharing_target_layer_name`` (Gemma 3n, Gemma 4). In
vLLM only the owner writes the cache, and the layer attends to its contents. vllm-ascend 0.23.0
ignores the name: the layer overwrites the owner's keys and values with its own meaningless ones,
and a prefill without context attends to these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.patching import expect, record

WRITER = record(
    name="layers without keys of their own",
    target="vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.reshape_and_cache",
    reads=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward_impl",
        "vllm_ascend.ops.rotary_embedding:rope_forward_oot",
    ),
    writes=("reshape_and_cache", "rotary_emb"),
    why="Layers that read another layer's cache (Gemma 3n, Gemma 4) have no keys. vllm-ascend "
    "writes what they pass over the owner's, and attends to it in a prefill. Where Gemma 4's head "
    "rotates queries alone, it stops: its operator takes keys in any case.",
    until="vllm-ascend looks at kv_sharing_target_layer_name before it writes, and rotates queries "
    "without keys",
    test="tests/emulated/models/test_shared_caches.py::test_stock_writes_over_the_keys_of_the_owner",
)


def leave_the_cache_to_its_owner(layer: Any) -> None:
    """Let a layer that shares another's cache write nothing to it."""
    if getattr(layer, "kv_sharing_target_layer_name", None) is None:
        return
    expect(
        callable(getattr(layer.impl, "reshape_and_cache", None)),
        WRITER.name,
        f"{type(layer.impl).__name__} has no method reshape_and_cache that writes the cache",
    )
    layer.impl.reshape_and_cache = read_the_owners


class QueriesAlone(nn.Module):
    """A rotary module that also takes no keys."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate [tokens, heads * head_size]; without keys, one head of meaningless ones."""
        if key is not None:
            rotated: tuple[torch.Tensor, torch.Tensor] = self.rotary(positions, query, key)
            return rotated
        head = torch.zeros_like(query[:, : self.rotary.head_size])
        return self.rotary(positions, query, head)[0], None


def rotate_queries_alone(model: nn.Module) -> None:
    """Let all layers of a draft rotate queries without keys."""
    for module in list(model.modules()):
        rotary = getattr(module, "rotary_emb", None)
        if isinstance(rotary, nn.Module):
            module.rotary_emb = QueriesAlone(rotary)


def read_the_owners(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    attn_metadata: Any,
    output: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Replace ``AscendAttentionBackendImpl.reshape_and_cache`` without writing anything.

    The owner ran before this layer, so the cache holds its keys and values of this step's tokens.
    They are returned only if the operator does not take the cache.

    Args:
        query, output: [tokens, heads, head_size]; tokens may be padded.
        key, value: [tokens, kv_heads, head_size], meaningless.
        kv_cache: keys and values, [blocks, block_size, kv_heads, head_size] each.
    """
    if attn_metadata.attn_state == AscendAttentionState.PrefillNoCache:
        slots = attn_metadata.slot_mapping[: attn_metadata.num_actual_tokens].long()
        key, value = (_rows(cache, slots, key.shape[0]) for cache in kv_cache)
    return query, key, value, output


def _rows(cache: torch.Tensor, slots: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Rows of ``cache`` at ``slots``; zeros for padding tokens."""
    rows = cache.new_zeros(num_tokens, *cache.shape[2:])
    rows[: slots.shape[0]] = cache.flatten(0, 1)[slots]
    return rows
