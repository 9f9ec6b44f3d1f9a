# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score in packed layouts, against float64 loops."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators.attention_fused_infer import (
    fused_infer_workspace,
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_out,
    npu_fused_infer_attention_score_v2,
    npu_fused_infer_attention_score_v2_out,
)
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    causal,
    checked_in_float32,
    everything,
    reference_attention,
    window,
)

TRIANGLE = torch.triu(torch.ones(2048, 2048), 1).to(torch.int8)
SCALE = 0.125

requests = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 40)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    min_size=1,
    max_size=4,
).filter(lambda pairs: sum(length for length, _ in pairs) > 0)
heads = st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (8, 1)])
quick = settings(max_examples=20, deadline=None)


def split(tensor: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, ...]:
    return tensor.split(lengths)


@quick
@given(requests, heads, st.sampled_from([16, 128]), st.booleans(), st.integers(0, 2**31))
def test_paged_causal(pairs, head_counts, block_size, heads_first, seed):
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = head_counts
    lengths, kv_lengths = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    keys = PagedCache(generator, kv_lengths, num_kv_heads, 64, block_size)
    values = keys.same_places(generator, 64)
    query = torch.randn(sum(lengths), num_heads, 64, generator=generator)
    form = PagedCache.heads_first if heads_first else PagedCache.flat
    output, _ = checked_in_float32(
        npu_fused_infer_attention_score,
        query,
        form(keys),
        form(values),
        dtype=torch.float16,
        num_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        scale=SCALE,
        input_layout="TND",
        sparse_mode=3,
        atten_mask=TRIANGLE,
        block_table=keys.table,
        block_size=block_size,
        actual_seq_lengths=list(accumulate(lengths)),
        actual_seq_lengths_kv=kv_lengths,
    )
    for index, (rows, got) in enumerate(
        zip(split(query, lengths), split(output, lengths), strict=True)
    ):
        rule = causal(lengths[index], kv_lengths[index])
        expected, _ = reference_attention(
            rows, keys.tokens[index], values.tokens[index], SCALE, rule
        )
        assert_close(got, expected)


@quick
@given(
    requests,
    heads,
    st.integers(0, 12),
    st.sampled_from([0, 1, 2, 12]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_paged_window_and_sink(pairs, head_counts, before, after, with_sink, seed):
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = head_counts
    lengths, kv_lengths = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    keys = PagedCache(generator, kv_lengths, num_kv_heads, 64, 16)
    values = keys.same_places(generator, 64)
    query = torch.randn(sum(lengths), num_heads, 64, generator=generator)
    sink = torch.randn(num_heads, generator=generator) if with_sink else None
    output, log_sum = checked_in_float32(
        npu_fused_infer_attention_score_v2,
        query,
        keys.flat(),
        values.flat(),
        dtype=torch.bfloat16,
        num_query_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        softmax_scale=SCALE,
        input_layout="TND",
        sparse_mode=4,
        pre_tokens=before,
        next_tokens=after,
        atten_mask=TRIANGLE,
        block_table=keys.table,
        block_size=16,
        actual_seq_qlen=torch.tensor(list(accumulate(lengths))),
        actual_seq_kvlen=kv_lengths,
        learnable_sink=sink,
        return_softmax_lse=True,
    )
    parts = zip(split(query, lengths), split(output, lengths), split(log_sum, lengths), strict=True)
    for index, (rows, got, sums) in enumerate(parts):
        rule = window(lengths[index], kv_lengths[index], before, after)
        expected, expected_sums = reference_attention(
            rows, keys.tokens[index], values.tokens[index], SCALE, rule, sink
        )
        assert_close(got, expected)
        assert_close(sums[..., 0], expected_sums)


@pytest.mark.parametrize("before", [0, 1, 5, 30])
def test_a_band_keeps_pre_tokens_plus_one_keys(before):
    """One query over 20 equal scores: the output is the mean over the kept keys, which say their
    position, so that the kept keys can be counted."""
    length = 20
    values = torch.zeros(2, 16, 64)
    positions = torch.zeros(32, 64)
    positions[:, :32] = torch.eye(32)
    values[:] = positions.view(2, 16, 64)
    output, _ = npu_fused_infer_attention_score.kernel(
        torch.zeros(1, 1, 64),
        torch.zeros(2, 16, 64),
        values,
        num_heads=1,
        scale=1.0,
        input_layout="TND",
        sparse_mode=4,
        pre_tokens=before,
        next_tokens=0,
        atten_mask=TRIANGLE,
        block_table=torch.tensor([[0, 1]], dtype=torch.int32),
        block_size=16,
        actual_seq_lengths=[1],
        actual_seq_lengths_kv=[length],
    )
    kept = output.flatten().nonzero().flatten().tolist()
    assert kept == list(range(max(0, length - before - 1), length))


@quick
@given(requests, st.sampled_from(["TND", "NTD", "NTD_TND"]), st.integers(0, 2**31))
def test_contiguous_with_log_sum(pairs, layout, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths, kv_lengths = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    query = torch.randn(sum(lengths), 2, 128, generator=generator)
    key = torch.randn(sum(kv_lengths), 2, 128, generator=generator)
    value = torch.randn(sum(kv_lengths), 2, 128, generator=generator)
    shown = [query, key, value]
    if layout.startswith("NTD"):
        shown = [tensor.transpose(0, 1).contiguous() for tensor in shown]
    output, log_sum = checked_in_float32(
        npu_fused_infer_attention_score,
        *shown,
        dtype=torch.bfloat16,
        num_heads=2,
        scale=SCALE,
        input_layout=layout,
        actual_seq_lengths=list(accumulate(lengths)),
        actual_seq_lengths_kv=list(accumulate(kv_lengths)),
        softmax_lse_flag=True,
    )
    if layout == "NTD":
        output = output.transpose(0, 1)
    parts = zip(
        split(query, lengths),
        split(key, kv_lengths),
        split(value, kv_lengths),
        split(output, lengths),
        split(log_sum, lengths),
        strict=True,
    )
    for rows, keys, values, got, sums in parts:
        expected, expected_sums = reference_attention(rows, keys, values, SCALE, everything)
        assert_close(got, expected)
        assert_close(sums[..., 0], expected_sums)


def test_no_keys_gives_zeros_and_minus_infinity():
    output, log_sum = npu_fused_infer_attention_score.checked(
        torch.ones(3, 2, 64, dtype=torch.bfloat16),
        torch.ones(2, 2, 64, dtype=torch.bfloat16),
        torch.ones(2, 2, 64, dtype=torch.bfloat16),
        num_heads=2,
        scale=SCALE,
        input_layout="TND",
        actual_seq_lengths=[2, 3],
        actual_seq_lengths_kv=[0, 2],
        softmax_lse_flag=True,
    )
    assert output[:2].eq(0).all()
    assert log_sum[:2].eq(float("-inf")).all()
    assert output[2].eq(1).all()


def test_rows_that_belong_to_no_request_are_zero():
    output, _ = npu_fused_infer_attention_score.kernel(
        torch.ones(4, 1, 64),
        torch.ones(2, 1, 64),
        torch.ones(2, 1, 64),
        num_heads=1,
        input_layout="TND",
        actual_seq_lengths=[1, 2],
        actual_seq_lengths_kv=[1, 2],
    )
    assert output[:2].eq(1).all()
    assert output[2:].eq(0).all()


def packed_call(dtype=torch.float16):
    cache = torch.zeros(3, 16, 128, dtype=dtype)
    arguments = {
        "query": torch.ones(2, 2, 64, dtype=dtype), "key": cache, "value": cache + 1,
        "input_layout": "TND", "block_size": 16,
        "block_table": torch.tensor([[1], [2]], dtype=torch.int32),
    }  # fmt: skip
    names = {"v1": dict(arguments), "v2": dict(arguments)}
    names["v1"].update(num_heads=2, actual_seq_lengths=[1, 2], actual_seq_lengths_kv=[3, 4])
    names["v2"].update(num_query_heads=2, actual_seq_qlen=[1, 2], actual_seq_kvlen=[3, 4])
    return names


def test_out_is_written_in_place_and_returned():
    for version, operator, wanted in (
        ("v1", npu_fused_infer_attention_score_out, "softmax_lse_flag"),
        ("v2", npu_fused_infer_attention_score_v2_out, "return_softmax_lse"),
    ):
        out = [torch.zeros(2, 2, 64, dtype=torch.float16), torch.zeros(2, 2, 1)]
        workspace = fused_infer_workspace.kernel(**packed_call()["v1"])
        returned = operator.checked(
            **packed_call()[version], **{wanted: True}, workspace=workspace, out=out
        )
        assert returned[0] is out[0]
        assert out[0].eq(1).all()
        # Scores are zero, so the log-sum-exp is the logarithm of the kv length.
        torch.testing.assert_close(out[1][:, 0, 0], torch.tensor([3.0, 4.0]).log())


def test_out_is_reached_from_its_operator():
    assert npu_fused_infer_attention_score.out is npu_fused_infer_attention_score_out
    assert npu_fused_infer_attention_score_v2.out is npu_fused_infer_attention_score_v2_out


def test_a_block_outside_the_cache_is_an_error():
    arguments = packed_call()["v1"]
    arguments["block_table"] = torch.tensor([[1], [3]], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"block ids \[3\] reach outside the cache of 3 blocks"):
        npu_fused_infer_attention_score.kernel(**arguments)
    arguments["block_table"] = torch.tensor([[-1], [1]], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"block ids \[-1\] reach outside"):
        npu_fused_infer_attention_score.kernel(**arguments)


def test_what_is_not_emulated_fails_by_name():
    with pytest.raises(NotImplementedError, match="quant_scale2 is not emulated"):
        npu_fused_infer_attention_score.kernel(**packed_call()["v1"], quant_scale2=torch.ones(1))
    with pytest.raises(NotImplementedError, match="sparse_mode 9"):
        npu_fused_infer_attention_score_v2.kernel(**packed_call()["v2"], sparse_mode=9)
    with pytest.raises(TypeError, match="no argument 'learnable_sink'"):
        npu_fused_infer_attention_score.kernel(**packed_call()["v1"], learnable_sink=torch.ones(2))
