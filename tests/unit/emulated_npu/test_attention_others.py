# SPDX-License-Identifier: Apache-2.0
"""Paged, flash and fusion attention and the merging of parts, against float64 loops."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators.attention_fusion import npu_fusion_attention
from emulated_npu.operators.attention_paged import npu_flash_attention_unpad, npu_paged_attention
from emulated_npu.operators.attention_update import npu_attention_update
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    causal,
    checked_in_float32,
    everything,
    reference_attention,
    window,
)
from tests.support.operators.operator_testing import refused, seeds

few = settings(max_examples=20, deadline=None)
heads = st.sampled_from([(1, 1), (4, 2), (4, 1)])
TRIANGLE = torch.triu(torch.ones(2048, 2048), 1).bool()
SCALE = 0.2


@few
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), heads, seeds)
def test_paged_attention(kv_lengths, head_counts, seed):
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = head_counts
    keys = PagedCache(generator, kv_lengths, num_kv_heads, 48, 16)
    values = keys.same_places(generator, 40)
    query = torch.randn(len(kv_lengths), num_heads, 48, generator=generator)
    out = torch.zeros(len(kv_lengths), num_heads, 40)
    returned = checked_in_float32(
        npu_paged_attention, query, keys.cache, values.cache, num_kv_heads, num_heads, SCALE,
        keys.table, torch.tensor(kv_lengths, dtype=torch.int32), out, dtype=torch.bfloat16,
    )  # fmt: skip
    assert returned is out
    for index in range(len(kv_lengths)):
        expected, _ = reference_attention(
            query[index : index + 1], keys.tokens[index], values.tokens[index], SCALE
        )
        assert_close(out[index : index + 1], expected)


def test_paged_attention_refuses():
    half = torch.zeros(2, 4, 32).half()
    cache = torch.zeros(3, 16, 2, 32).half()
    table = torch.zeros(2, 1, dtype=torch.int32)
    lengths = torch.ones(2, dtype=torch.int32)
    legal = [half, cache, cache, 2, 4, SCALE, table, lengths, half]
    npu_paged_attention.run_check(*legal)
    for place, value, message in (
        (0, half.float(), "query is float32"),
        (1, cache.bfloat16(), "key_cache is bfloat16"),
        (2, cache[:2], r"value_cache has shape \(2, 16, 2, 32\)"),
        (3, 3, "num_heads 4 is not a multiple of num_kv_heads 3"),
        (6, table.long(), "block_table is int64"),
        (7, lengths.long(), "context_lens is int64"),
        (7, torch.ones(3, dtype=torch.int32), "3 context_lens for 2 queries"),
    ):
        changed = [*legal[:place], value, *legal[place + 1 :]]
        with refused(message):
            npu_paged_attention.run_check(*changed)
    strided = torch.zeros(3, 16, 2, 64).half()[..., ::2]
    with refused("key_cache .* is not contiguous"):
        npu_paged_attention.run_check(half, strided, cache, *legal[3:])
    small = torch.zeros(3, 8, 2, 32).half()
    with refused("block size is 8; it must be a multiple of 16"):
        npu_paged_attention.run_check(half, small, small, *legal[3:])
    with refused("context length 17 is longer than the 1 blocks of 16"):
        npu_paged_attention.kernel(*legal[:7], torch.tensor([17]), half)


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), heads, seeds)
def test_flash_attention_unpad(lengths, head_counts, seed):
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = head_counts
    total = sum(lengths)
    query = torch.randn(total, num_heads, 32, generator=generator)
    key, value = (torch.randn(total, num_kv_heads, 32, generator=generator) for _ in range(2))
    out = torch.zeros_like(query)
    checked_in_float32(
        npu_flash_attention_unpad, query, key, value, torch.tensor(lengths, dtype=torch.int32),
        SCALE, num_heads, num_kv_heads, out, dtype=torch.float16,
    )  # fmt: skip
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        expected, _ = reference_attention(query[rows], key[rows], value[rows], SCALE)
        assert_close(out[rows], expected)
        start = rows.stop


def test_flash_attention_unpad_refuses():
    half = torch.zeros(4, 2, 32).half()
    lengths = torch.tensor([2, 3], dtype=torch.int32)
    with refused("query has 4 tokens; seq_len sums to 5"):
        npu_flash_attention_unpad.run_check(half, half, half, lengths, 1.0, 2, 2, half)
    with refused("query is float32"):
        wide = half.float()
        npu_flash_attention_unpad.run_check(wide, wide, wide, lengths, 1.0, 2, 2, wide)
    with refused("seq_len is int64"):
        npu_flash_attention_unpad.run_check(half, half, half, lengths.long(), 1.0, 2, 2, half)


@few
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=3),
    st.sampled_from(["none", "causal", "band"]),
    st.integers(0, 2),
    st.booleans(),
    seeds,
)
def test_fusion_attention_packed(pairs, kind, absent, with_sink, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths, kv_lengths = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    query = torch.randn(sum(lengths) + 2, 4, 24, generator=generator)
    key = torch.randn(sum(kv_lengths), 2, 24, generator=generator)
    value = torch.randn(sum(kv_lengths), 2, 20, generator=generator)
    sink = torch.randn(4, generator=generator) if with_sink else None
    mode = {"none": 0, "causal": 3, "band": 4}[kind]
    output, row_max, row_sum, _, *seeds_back = npu_fusion_attention.checked(
        query, key, value, 4, "TND",
        atten_mask=None if kind == "none" else TRIANGLE,
        scale=SCALE, pre_tockens=3, next_tockens=1, sparse_mode=mode,
        # Trailing zeros: requests that take no part.
        actual_seq_qlen=list(accumulate(lengths)) + [0] * absent,
        actual_seq_kvlen=list(accumulate(kv_lengths)) + [0] * absent,
        softmax_layout="TND", sink=sink,
    )  # fmt: skip
    assert seeds_back == [0, 0, 0]
    assert row_max.shape == row_sum.shape == (query.shape[0], 4, 8)
    assert output[sum(lengths) :].eq(0).all()
    log_sum = (row_max + row_sum.log())[..., 0]
    start = kv_start = 0
    for rows_length, kv_length in pairs:
        rows, columns = slice(start, start + rows_length), slice(kv_start, kv_start + kv_length)
        rule = {
            "none": everything,
            "causal": causal(rows_length, kv_length),
            "band": window(rows_length, kv_length, 3, 1),
        }[kind]
        expected, sums = reference_attention(
            query[rows], key[columns], value[columns], SCALE, rule, sink
        )
        assert_close(output[rows], expected)
        assert_close(log_sum[rows], sums)
        start, kv_start = rows.stop, columns.stop


@few
@given(st.sampled_from(["BSH", "SBH", "BSND", "BNSD"]), st.booleans(), seeds)
def test_fusion_attention_batch(layout, with_mask, seed):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 3, 4, 16, generator=generator)
    key, value = (torch.randn(2, 5, 2, 16, generator=generator) for _ in range(2))
    mask = torch.rand(2, 1, 3, 5, generator=generator) < 0.4 if with_mask else None

    def shaped(tensor):
        return {
            "BSND": tensor,
            "BNSD": tensor.transpose(1, 2),
            "BSH": tensor.flatten(2),
            "SBH": tensor.flatten(2).transpose(0, 1),
        }[layout].contiguous()

    output, row_max, row_sum, *_ = npu_fusion_attention.checked(
        shaped(query), shaped(key), shaped(value), 4, layout, atten_mask=mask, scale=SCALE
    )
    assert row_max.shape == (2, 4, 3, 8)
    log_sum = (row_max + row_sum.log())[..., 0].transpose(1, 2)
    for index in range(2):
        dropped = mask[index, 0].tolist() if mask is not None else None
        expected, sums = reference_attention(
            query[index], key[index], value[index], SCALE,
            lambda row, column, d=dropped: d is None or not d[row][column],
        )  # fmt: skip
        got = {
            "BSND": lambda i: output[i],
            "BNSD": lambda i: output[i].transpose(0, 1),
            "BSH": lambda i: output[i].view(3, 4, 16),
            "SBH": lambda i: output[:, i].reshape(3, 4, 16),
        }[layout](index)
        assert_close(got, expected)
        assert_close(log_sum[index], sums)


def test_fusion_attention_refuses():
    query = torch.zeros(4, 4, 16)
    legal = {
        "query": query, "key": query, "value": query, "head_num": 4, "input_layout": "TND",
        "actual_seq_qlen": [2, 4], "actual_seq_kvlen": [2, 4],
    }  # fmt: skip
    npu_fusion_attention.run_check(**legal)
    for change, message in (
        ({"input_layout": "NTD"}, "input_layout is 'NTD'"),
        ({"query": query.double()}, "query is float64"),
        ({"key": query.half()}, "key is float16"),
        ({"head_num": 2}, "query has 4 heads; head_num is 2"),
        ({"key": torch.zeros(4, 3, 16)}, "head_num 4 is not a multiple of the 3 heads"),
        ({"value": torch.zeros(4, 4, 32)}, "head sizes of query, key, value are 16, 16, 32"),
        ({"actual_seq_kvlen": [4]}, "there are 2 and 1"),
        ({"actual_seq_qlen": [3, 2]}, "must be cumulative"),
        ({"actual_seq_qlen": [3, 5]}, "ends at 5 of 4 tokens"),
        ({"sparse_mode": 3}, "sparse_mode 3 needs an atten_mask"),
        ({"sparse_mode": 3, "atten_mask": torch.ones(4, 4).bool()}, r"takes \(2048, 2048\)"),
        ({"sparse_mode": 3, "atten_mask": TRIANGLE.to(torch.int8)}, "atten_mask is int8"),
        ({"sink": torch.zeros(4).half()}, "sink is float16"),
        ({"softmax_layout": "NTD"}, "softmax_layout is 'NTD'"),
    ):
        with refused(message):
            npu_fusion_attention.run_check(**{**legal, **change})
    with pytest.raises(NotImplementedError, match="keep_prob below 1"):
        npu_fusion_attention.kernel(**legal, keep_prob=0.5)


@few
@given(st.integers(1, 4), st.integers(1, 12), st.booleans(), seeds)
def test_update_merges_parts_of_the_keys(parts, rows, with_lse, seed):
    """Attention over parts of the keys, merged, is attention over all keys."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, 2, 8, generator=generator)
    # A part without keys comes with a log-sum-exp of minus infinity.
    sizes = torch.randint(0, 4, (parts,), generator=generator).tolist()
    sizes[0] += 1
    keys = [torch.randn(size, 2, 8, generator=generator) for size in sizes]
    values = [torch.randn(size, 2, 8, generator=generator) for size in sizes]
    results = [
        reference_attention(query, key, value, SCALE)
        for key, value in zip(keys, values, strict=True)
    ]
    output, log_sum = npu_attention_update.checked(
        [sums.float().reshape(-1) for _, sums in results],
        [out.float().reshape(-1, 8) for out, _ in results],
        int(with_lse),
    )
    expected, sums = reference_attention(query, torch.cat(keys), torch.cat(values), SCALE)
    assert_close(output, expected.reshape(-1, 8))
    assert_close(log_sum, sums.reshape(-1) * with_lse)


def test_update_of_rows_without_keys_is_zero():
    nothing = torch.full((3,), float("-inf"))
    output, log_sum = npu_attention_update.checked([nothing] * 2, [torch.zeros(3, 8)] * 2, 1)
    assert output.eq(0).all()
    assert log_sum.eq(float("-inf")).all()


def test_update_refuses():
    lse, out = torch.zeros(3), torch.zeros(3, 8)
    for arguments, message in (
        (([lse] * 17, [out] * 17, 0), "number of parts is 17"),
        (([lse], [out] * 2, 0), "1 lse and 2 local_out"),
        (([lse], [out], 2), "update_type is 2"),
        (([lse], [torch.zeros(3, 12)], 0), "head size is 12; it must be a multiple of 8"),
        (([lse.half()], [out], 0), r"lse\[0\] is float16"),
        (([torch.zeros(4)], [out], 0), r"lse\[0\] has shape \(4,\)"),
    ):
        with refused(message):
            npu_attention_update.run_check(*arguments)
