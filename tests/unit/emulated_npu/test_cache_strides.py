# SPDX-License-Identifier: Apache-2.0
"""Caches whose blocks are apart: read and written like contiguous ones, where they are allowed."""

from __future__ import annotations

import pytest
import torch

from emulated_npu.custom_operators.cache_blocks import transpose_kv_cache_by_block
from emulated_npu.operators import cache_strides
from emulated_npu.operators.attention_fused_infer import npu_fused_infer_attention_score
from emulated_npu.operators.attention_paged import npu_paged_attention
from emulated_npu.operators.cache import npu_reshape_and_cache, npu_scatter_pa_kv_cache
from emulated_npu.operators.registry import OperatorArgumentError

BLOCKS, BLOCK_SIZE, HEADS, SIZE = 5, 128, 2, 64


@pytest.fixture
def documented(monkeypatch):
    """As with a vllm-ascend that documents such caches."""
    monkeypatch.setattr(cache_strides, "_documented", False)
    cache_strides.learn({cache_strides.TOLD_BY, "other"})


@pytest.fixture
def undocumented(monkeypatch):
    monkeypatch.setattr(cache_strides, "_documented", True)
    cache_strides.learn({"other"})


def interleaved() -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of each block side by side in one allocation: (blocks, block size, heads, size)."""
    both = torch.randn(BLOCKS, 2, BLOCK_SIZE, HEADS, SIZE).half()
    return both[:, 0], both[:, 1]


def fused_infer_arguments(key: torch.Tensor, value: torch.Tensor) -> dict:
    return {
        "query": torch.randn(2, 4, SIZE).half(),
        "key": key.view(BLOCKS, BLOCK_SIZE, HEADS * SIZE),
        "value": value.view(BLOCKS, BLOCK_SIZE, HEADS * SIZE),
        "block_table": torch.tensor([[3, 1], [4, 0]], dtype=torch.int32),
        "atten_mask": torch.triu(torch.ones(2048, 2048), diagonal=1).to(torch.int8),
        "input_layout": "TND",
        "block_size": BLOCK_SIZE,
        "actual_seq_lengths": [1, 2],
        "actual_seq_lengths_kv": [150, 7],
        "num_key_value_heads": HEADS,
        "num_heads": 4,
        "scale": 0.125,
        "sparse_mode": 3,
    }


def test_fused_attention_reads_them(documented):
    key, value = interleaved()
    assert not key.is_contiguous()
    arguments = fused_infer_arguments(key, value)
    output, _ = npu_fused_infer_attention_score.checked(**arguments)
    arguments["key"] = arguments["key"].contiguous()
    arguments["value"] = arguments["value"].contiguous()
    expected, _ = npu_fused_infer_attention_score.checked(**arguments)
    assert output.equal(expected)


def test_scatter_writes_them_and_nothing_between(documented):
    key, value = torch.randn(3, HEADS, SIZE).half(), torch.randn(3, HEADS, SIZE).half()
    room = torch.full((BLOCKS, 3, BLOCK_SIZE, HEADS, SIZE), 7.0).half()
    slots = [130, -1, 5]
    npu_scatter_pa_kv_cache.checked(
        key, value, room[:, 0], room[:, 2], torch.tensor(slots), cache_mode="Norm"
    )
    expected = torch.full_like(room, 7.0)
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // BLOCK_SIZE, 0, slot % BLOCK_SIZE] = key[token]
            expected[slot // BLOCK_SIZE, 2, slot % BLOCK_SIZE] = value[token]
    assert room.equal(expected)


def test_they_are_refused_where_nothing_documents_them(undocumented):
    key, value = interleaved()
    rows = torch.randn(1, HEADS, SIZE).half()
    with pytest.raises(OperatorArgumentError, match=r"key .* is not contiguous"):
        npu_fused_infer_attention_score.run_check(**fused_infer_arguments(key, value))
    with pytest.raises(OperatorArgumentError, match=r"key_cache .* is not contiguous"):
        npu_scatter_pa_kv_cache.run_check(
            rows, rows, key, value, torch.tensor([0]), cache_mode="Norm"
        )


def test_other_operators_refuse_them(documented):
    key, value = interleaved()
    rows, slots = torch.randn(1, HEADS, SIZE).half(), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(OperatorArgumentError, match=r"key_cache .* is not contiguous"):
        npu_reshape_and_cache.run_check(rows, rows, key, value, slots)
    with pytest.raises(OperatorArgumentError, match=r"key_cache .* is not contiguous"):
        npu_paged_attention.run_check(
            query=torch.randn(1, 4, SIZE).half(),
            key_cache=key,
            value_cache=value,
            num_kv_heads=HEADS,
            num_heads=4,
            scale_value=0.125,
            block_table=torch.zeros(1, 1, dtype=torch.int32),
            context_lens=torch.ones(1, dtype=torch.int32),
            out=torch.empty(1, 4, SIZE).half(),
        )


def test_only_the_distance_of_blocks_is_free(documented):
    cache_strides.require_blocks("cache", interleaved()[0][:1])
    storage = torch.zeros(10_000)
    for strides in ((32, 8, 1), (0, 8, 1), (31, 8, 1), (64, 1, 4), (64, 16, 1), (64, 8, 2)):
        cache = storage.as_strided((3, 4, 8), strides)
        if strides == (32, 8, 1):
            cache_strides.require_blocks("cache", cache)
            continue
        with pytest.raises(OperatorArgumentError, match=r"cache \(shape \(3, 4, 8\), strides"):
            cache_strides.require_blocks("cache", cache)


def test_blocks_that_came_in_parts_may_lie_apart(documented):
    key, value = interleaved()
    before = key.clone(), value.clone()
    chosen = torch.tensor([4, 0])
    sizes = (BLOCK_SIZE, HEADS, SIZE, HEADS, 1)
    transpose_kv_cache_by_block.checked([key], [value], torch.tensor([], dtype=torch.int64), *sizes)
    assert torch.equal(key, before[0])
    transpose_kv_cache_by_block.checked([key], [value], chosen, *sizes)
    for cache, old in zip((key, value), before, strict=True):
        for block in range(BLOCKS):
            flat = old[block].flatten()
            for token in (0, 1, BLOCK_SIZE - 1) if block in (0, 4) else ():
                for head in range(HEADS):
                    start = (head * BLOCK_SIZE + token) * SIZE
                    assert torch.equal(cache[block, token, head], flat[start : start + SIZE])
            assert block in (0, 4) or torch.equal(cache[block], old[block])


def test_blocks_that_came_in_parts_were_contiguous_before(undocumented):
    sizes = (BLOCK_SIZE, HEADS, SIZE, HEADS, 1)
    key, value = interleaved()
    with pytest.raises(OperatorArgumentError, match=r"kCache\[0\] .*is not contiguous"):
        transpose_kv_cache_by_block.checked([key], [value], torch.tensor([1]), *sizes)
