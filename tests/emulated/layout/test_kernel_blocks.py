# SPDX-License-Identifier: Apache-2.0
"""A draft's layers have blocks of their own kernels; a target's stay as they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from mkv_ascend.adapters.common.kv_cache.kernel_blocks import with_kernel_blocks

pytestmark = pytest.mark.core

BYTES = 2 * 2 * 64 * 2
"""Of a token: key and value, two heads of 64, two bytes each."""


def attention(block: int, padded: int | None = None) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block,
        num_kv_heads=2,
        head_size=64,
        dtype=torch.bfloat16,
        page_size_padded=padded,
    )


def layer(*kernel_blocks: Any) -> SimpleNamespace:
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: list(kernel_blocks))
    return SimpleNamespace(get_attn_backend=lambda: backend)


@pytest.mark.parametrize(
    ("block", "kernels", "found"),
    [(32, (128,), 128), (128, (128,), 128), (384, (128,), 384), (64, (128, 64), 64)],
)
def test_a_drafts_blocks_are_those_of_its_kernels(
    block: int, kernels: tuple[int, ...], found: int
) -> None:
    specs = {"target": attention(32), "draft": attention(block)}
    layers = {"target": layer(128), "draft": layer(*kernels)}
    made = with_kernel_blocks(specs, layers, {"draft"})
    assert made == {"target": attention(32), "draft": attention(found)}


def test_pages_of_larger_blocks_are_not_padded_to_smaller_ones() -> None:
    """Beside states of 20 KiB hosts pad pages of 32 tokens to as many bytes."""
    specs = {"draft": attention(32, 20 << 10), "other": attention(128, 80 << 10)}
    made = with_kernel_blocks(specs, {name: layer(128) for name in specs}, set(specs))
    assert made["draft"].page_size_bytes == 128 * BYTES
    assert made["other"] is specs["other"]


def test_states_have_no_kernel_blocks() -> None:
    spec = MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,))
    assert with_kernel_blocks({"draft": spec}, {"draft": layer()}, {"draft"}) == {"draft": spec}
