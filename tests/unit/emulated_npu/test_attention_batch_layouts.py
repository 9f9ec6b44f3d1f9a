# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score in layouts with a batch axis, against float64 loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators.attention_fused_infer import npu_fused_infer_attention_score
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    causal,
    checked_in_float32,
    reference_attention,
    window,
)

TRIANGLE = torch.triu(torch.ones(2048, 2048), 1).bool()
SCALE = 0.2
few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)


def shaped(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """(B, S, N, D) -> the input axes of `layout`."""
    if layout.startswith("BNSD"):
        return tensor.transpose(1, 2).contiguous()
    return tensor.flatten(2) if layout.startswith("BSH") else tensor


def to_bsnd(tensor: torch.Tensor, layout: str, num_heads: int) -> torch.Tensor:
    """The output of `layout` -> (B, S, N, D)."""
    axes = layout.split("_")[-1]
    if axes == "BNSD":
        return tensor.transpose(1, 2)
    if axes == "NBSD":
        return tensor.permute(1, 2, 0, 3)
    return tensor.unflatten(2, (num_heads, -1)) if axes == "BSH" else tensor


@few
@given(
    st.sampled_from(["BSH", "BSND", "BNSD", "BNSD_BSND", "BSND_NBSD", "BSH_NBSD"]),
    st.sampled_from([0, 1, 2, 3, 4]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=3),
    st.sampled_from([(2, 2), (4, 2)]),
    seeds,
)
def test_layouts_and_modes(layout, mode, lengths, head_counts, seed):
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = head_counts
    batch_size, width, kv_width, before, after = len(lengths), 5, 9, 3, 1
    query = torch.randn(batch_size, width, num_heads, 32, generator=generator)
    key = torch.randn(batch_size, kv_width, num_kv_heads, 32, generator=generator)
    value = torch.randn(batch_size, kv_width, num_kv_heads, 32, generator=generator)
    # A full mask for each request in the modes 0 and 1, never a whole row dropped by it.
    full = torch.rand(batch_size, 1, width, kv_width, generator=generator) < 0.4
    output, _ = checked_in_float32(
        npu_fused_infer_attention_score,
        *(shaped(tensor, layout) for tensor in (query, key, value)),
        dtype=torch.float16,
        num_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        scale=SCALE,
        input_layout=layout,
        sparse_mode=mode,
        pre_tokens=before,
        next_tokens=after,
        atten_mask=full if mode < 2 else TRIANGLE,
        actual_seq_lengths=[pair[0] for pair in lengths],
        actual_seq_lengths_kv=[pair[1] for pair in lengths],
    )
    output = to_bsnd(output, layout, num_heads)
    for index, (rows, columns) in enumerate(lengths):
        dropped = full[index, 0].tolist()
        visible = {
            0: lambda r, c, d=dropped: not d[r][c] and r - before <= c <= r + after,
            1: lambda r, c, d=dropped: not d[r][c],
            2: lambda r, c: c <= r,
            3: causal(rows, columns),
            4: window(rows, columns, before, after),
        }[mode]
        expected, _ = reference_attention(
            query[index, :rows], key[index, :columns], value[index, :columns], SCALE, visible
        )
        assert_close(output[index, :rows], expected)
        assert output[index, rows:].eq(0).all()


@few
@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.booleans(), seeds)
def test_paged_decode(kv_lengths, with_mask, seed):
    generator = torch.Generator().manual_seed(seed)
    keys = PagedCache(generator, kv_lengths, 2, 64, 16)
    values = keys.same_places(generator, 64)
    batch_size = len(kv_lengths)
    query = torch.randn(batch_size, 1, 4, 64, generator=generator)
    capacity = keys.table.shape[1] * 16
    mask = torch.rand(batch_size, capacity, generator=generator) < 0.3 if with_mask else None
    output, _ = checked_in_float32(
        npu_fused_infer_attention_score,
        query.flatten(2),
        keys.flat(),
        values.flat(),
        dtype=torch.bfloat16,
        num_heads=4,
        num_key_value_heads=2,
        scale=SCALE,
        input_layout="BSH",
        atten_mask=mask,
        block_table=keys.table,
        block_size=16,
        actual_seq_lengths_kv=kv_lengths,
    )
    for index in range(batch_size):
        dropped = mask[index].tolist() if mask is not None else [False] * capacity
        expected, _ = reference_attention(
            query[index],
            keys.tokens[index],
            values.tokens[index],
            SCALE,
            lambda _row, column, d=dropped: not d[column],
        )
        assert_close(output[index].view(1, 4, 64), expected)


@pytest.mark.parametrize("mode", [2, 3, 4])
def test_one_query_without_rope_ignores_the_sparse_mode(mode):
    """Documented: sparse_mode, pre_tokens and query lengths have no effect at Q_S = 1."""
    arguments = {
        "query": torch.zeros(1, 1, 1, 64), "key": torch.zeros(1, 1, 9, 64),
        "value": torch.arange(9.0).view(1, 1, 9, 1).expand(1, 1, 9, 64),
        "input_layout": "BNSD", "sparse_mode": mode, "pre_tokens": 1, "next_tokens": 0,
        "atten_mask": TRIANGLE, "actual_seq_lengths": [0],
    }  # fmt: skip
    output, log_sum = npu_fused_infer_attention_score.kernel(**arguments, softmax_lse_flag=True)
    assert output.flatten()[0] == pytest.approx(4.0)  # the mean of all nine values
    assert log_sum.shape == (1, 1, 1, 1)


def test_one_length_serves_every_request():
    value = torch.arange(4.0).view(1, 4, 1, 1).expand(2, 4, 1, 32)
    output, _ = npu_fused_infer_attention_score.kernel(
        torch.zeros(2, 2, 1, 32),
        torch.zeros(2, 4, 1, 32),
        value,
        input_layout="BSND",
        actual_seq_lengths_kv=[3],
    )
    assert output.eq(1.0).all()  # the mean of 0, 1, 2
