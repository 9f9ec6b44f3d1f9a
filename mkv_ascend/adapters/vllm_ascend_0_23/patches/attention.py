# SPDX-License-Identifier: Apache-2.0
"""Attention: layers without keys of their own, block sizes of builders, numbers of chosen keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mkv_ascend.adapters.common.attention import backends, layers
from mkv_ascend.adapters.common.patches.attention import choosing_keys
from mkv_ascend.adapters.patching import expect, patch, record, wrap
from mkv_ascend.layout.kind import Kind

# Layers that attend to the cache of another layer and have no keys of their own.
#
# Such a layer names the cache's owner in ``kv_sharing_target_layer_name`` (Gemma 3n, Gemma 4). In
# vLLM only the owner writes the cache, and the layer attends to its contents. vllm-ascend 0.23.0
# ignores the name: the layer overwrites the owner's keys and values with its own meaningless
# ones.

WRITER = record(
    name="layers without keys of their own",
    target="vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.reshape_and_cache",
    reads=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward_impl",
        "vllm_ascend.ops.rotary_embedding:rope_forward_oot",
    ),
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
    layer.impl.reshape_and_cache = write_nothing


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


def write_nothing(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    attn_metadata: Any,
    output: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """In place of ``AscendAttentionBackendImpl.reshape_and_cache``.

    The owner ran before this layer, so the cache holds its keys and values of this step's tokens.
    In a prompt without hits, too, the operator is given the cache: such a step has the state of a
    chunk (``target_graphs.state_of``).

    Args:
        query, output: [tokens, heads, head_size]; tokens may be padded.
        key, value: [tokens, kv_heads, head_size], meaningless.
    """
    return query, key, value, output


# Builders of sparse MLA with the block size of their own KV group, as those of dense MLA.

OF_THE_GROUP = record(
    name="block size of sparse attention's builders",
    target="vllm_ascend.attention.sfa_v1:AscendSFABackend.get_builder_cls",
)


def install() -> None:
    """Leave shared caches to their owners, derive those builders, and choose keys. Idempotent."""
    import vllm_ascend.ops  # noqa: F401  (before the device's module, which imports it in a circle)
    from vllm_ascend.device.device_op import DeviceOperator

    layers.also_change(leave_the_cache_to_its_owner)
    read_it_from_the_group()
    for function in number_of_keys.functions.values():
        wrap(DeviceOperator, "indexer_select_post_process", function)


def read_it_from_the_group() -> None:
    """Derive those builders, too (``backends.builder_of_group_blocks``)."""
    backends.builders_of_one_block_size.add(Kind.SPARSE_MLA)


@patch(
    name="number of keys that a sparse layer chooses",
    target="vllm_ascend.device.device_op:BaseDeviceAdaptor.indexer_select_post_process",
    reads=("vllm_ascend.device.device_op:DeviceOperator",),
)
def number_of_keys(
    original: Callable[..., torch.Tensor], sfa_impl: Any, *arguments: Any
) -> torch.Tensor:
    """As many keys as the layer's indexer holds."""
    with choosing_keys(sfa_impl.indexer.topk_tokens, original):
        return original(sfa_impl, *arguments)
