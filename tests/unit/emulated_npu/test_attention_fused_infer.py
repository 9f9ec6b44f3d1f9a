# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score in each layout, against float64 loops, and what it refuses."""

import dataclasses
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators import requirements
from emulated_npu.operators.attention_fused_infer import (
    fused_infer_workspace,
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_out,
    npu_fused_infer_attention_score_v2,
    npu_fused_infer_attention_score_v2_out,
)
from emulated_npu.operators.registry import OperatorArgumentError
from emulated_npu.settings import EmulatorSettings
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    causal,
    checked_in_float32,
    everything,
    reference_attention,
    window,
)
from tests.support.operators.operator_testing import few, seeds

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


HIDDEN = torch.triu(torch.ones(2048, 2048), 1).bool()
BATCH_SCALE = 0.2


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


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@settings(max_examples=10, deadline=None)
@given(
    layout=st.sampled_from(["BSH", "BSND", "BNSD", "BNSD_BSND", "BSND_NBSD", "BSH_NBSD"]),
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=3),
    head_counts=st.sampled_from([(2, 2), (4, 2)]),
    seed=seeds,
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
        scale=BATCH_SCALE,
        input_layout=layout,
        sparse_mode=mode,
        pre_tokens=before,
        next_tokens=after,
        atten_mask=full if mode < 2 else HIDDEN,
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
            query[index, :rows], key[index, :columns], value[index, :columns], BATCH_SCALE, visible
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
        scale=BATCH_SCALE,
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
            BATCH_SCALE,
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
        "atten_mask": HIDDEN, "actual_seq_lengths": [0],
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


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float16)


def paged_call() -> dict[str, Any]:
    """A legal paged call: two requests, 4 query heads, 2 kv heads, head size 64."""
    return {
        "query": half(3, 4, 64), "key": half(5, 128, 128), "value": half(5, 128, 128),
        "num_heads": 4, "num_key_value_heads": 2, "scale": 0.125, "input_layout": "TND",
        "sparse_mode": 3, "atten_mask": TRIANGLE,
        "block_table": torch.zeros(2, 2, dtype=torch.int32), "block_size": 128,
        "actual_seq_lengths": [2, 3], "actual_seq_lengths_kv": [130, 7],
    }  # fmt: skip


def plain_call() -> dict[str, Any]:
    """A legal call of BNSD: two requests of three queries and five keys."""
    return {
        "query": half(2, 4, 3, 64), "key": half(2, 2, 5, 64), "value": half(2, 2, 5, 64),
        "num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD",
    }  # fmt: skip


def sink_call() -> dict[str, Any]:
    """A legal call of the second version with a sink."""
    call = {name: value for name, value in paged_call().items() if "actual" not in name}
    call.update(query=half(3, 4, 64).bfloat16(), key=half(5, 128, 128).bfloat16())
    call.update(value=call["key"], num_query_heads=call.pop("num_heads"))
    call.update(softmax_scale=call.pop("scale"), actual_seq_qlen=[2, 3], actual_seq_kvlen=[9, 7])
    call["learnable_sink"] = torch.zeros(4, dtype=torch.bfloat16)
    return call


def flipped_triangle() -> torch.Tensor:
    return TRIANGLE.T.contiguous()


@pytest.mark.parametrize("call", [paged_call, plain_call])
def test_the_legal_calls_pass(call):
    npu_fused_infer_attention_score.run_check(**call())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_layout": "SBH"}, "input_layout is 'SBH'; it must be one of BSH"),
        ({"query": torch.zeros(3, 4, 64)}, "query is float32; documented: float16, bfloat16"),
        ({"key": half(5, 128, 128).bfloat16()}, "key is bfloat16, value is float16; they must"),
        ({"query": half(3, 256)}, "query has 2 dimensions"),
        ({"key": half(5, 128)}, "key has 2 dimensions .* 3 or 4"),
        ({"num_heads": 257}, "number of query heads is 257; it must be from 1 to 256"),
        ({"num_key_value_heads": -1}, "num_key_value_heads is -1; it must be from 1 to 256"),
        ({"input_layout": "TND_NTD"}, "TND_NTD without query_rope and key_rope"),
        ({"num_heads": 3}, "3 query heads are not a multiple of num_key_value_heads 2"),
        ({"num_heads": 130, "num_key_value_heads": 2}, "65 query heads for each kv head"),
        ({"query": half(3, 4, 192), "key": half(5, 128, 384), "value": half(5, 128, 384)},
         "value head size 192 needs layout TND, as many kv heads as query heads and no block"),
        ({"num_heads": 256, "num_key_value_heads": 256, "query": half(3, 256, 256),
          "key": half(1, 128, 65536), "value": half(1, 128, 65536)},
         "key has heads x head size 65536; .* allows 65535"),
        ({"value": half(5, 256, 64).transpose(1, 2)[:, :, :128]}, "value .* is not contiguous"),
        ({"actual_seq_lengths": [], "actual_seq_lengths_kv": []}, "number of query lengths is 0"),
        ({"actual_seq_lengths": [3] * 4097, "actual_seq_lengths_kv": [1] * 4097,
          "block_table": torch.zeros(4097, 2, dtype=torch.int32)},
         "number of query lengths is 4097; it must be from 1 to 4096"),
        ({"num_heads": 2}, "query .* has 4 heads in layout TND; the call says 2"),
        ({"key": half(5, 4, 128, 64)}, "key .* has 4 heads; num_key_value_heads is 2"),
        ({"query": half(3, 3, 64), "num_heads": 3, "num_key_value_heads": 3},
         "last dimension of key is 128; .* of 3"),
        ({"key": half(5, 256, 64).transpose(1, 2)[:, :, :128]}, "key .* is not contiguous"),
        ({"atten_mask": flipped_triangle().T}, "atten_mask .* is not contiguous"),
        ({"query": half(3, 4, 32), "key": half(5, 128, 64), "value": half(5, 128, 64)},
         "are 32/32; layout TND allows 64/64, 128/128"),
        ({"query": half(3, 4, 512), "key": half(5, 128, 1024), "value": half(5, 128, 1024)},
         "are 512/512; layout TND allows"),
        ({"key": half(5, 128, 256)}, "head size of query is 64, that of key 128"),
        ({"sparse_mode": 7}, "sparse_mode is 7; it must be 0, 1, 2, 3 or 4"),
        ({"inner_precise": 2}, "inner_precise is 2; TND with this dtype allows 0 and 1"),
        ({"inner_precise": 4}, "inner_precise is 4; it must be from 0 to 3"),
        ({"actual_seq_lengths": None}, "needs the query lengths and the kv lengths"),
        ({"actual_seq_lengths": [2, 3, 3]}, "2 kv lengths for 3 query lengths"),
        ({"actual_seq_lengths": [4, 3]}, r"\[4, 3\] must be cumulative"),
        ({"actual_seq_lengths": [1, 2]}, "query lengths ends at 2; the tensor has 3 tokens"),
        ({"actual_seq_lengths_kv": [1, -1]}, r"kv lengths \[1, -1\] must not be negative"),
        ({"actual_seq_lengths_kv": [300, 1]}, "longest kv length is 300; block_table holds 2"),
        ({"block_table": torch.zeros(2, 2, dtype=torch.int64)}, "block_table is int64"),
        ({"block_table": torch.zeros(4, dtype=torch.int32)}, "block_table has 1 dimensions"),
        ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "block_table has 3 rows; .* 2"),
        ({"block_table": torch.zeros(2, 4, dtype=torch.int32)[:, ::2]}, "block_table .* contig"),
        ({"block_size": 24}, "block_size is 24; it must be a multiple of 16"),
        ({"block_size": 64}, "block_size is 64; key .* has blocks of 128"),
        ({"value": half(6, 128, 128)}, "value has 6 blocks; key has 5"),
        ({"atten_mask": None}, "sparse_mode 3 needs atten_mask"),
        ({"atten_mask": half(2048, 2048)}, "atten_mask is float16"),
        ({"atten_mask": TRIANGLE[:512, :512].contiguous()}, r"shape \(512, 512\); sparse_mode 3"),
        ({"atten_mask": flipped_triangle()}, "is not the triangular mask of sparse_mode 3"),
        ({"sparse_mode": 0}, "atten_mask with sparse_mode 0 in layout TND"),
        ({"sparse_mode": 1, "atten_mask": None}, "sparse_mode 1 needs an atten_mask"),
        ({"sparse_mode": 4, "pre_tokens": -1}, "pre_tokens is -1"),
    ],
)  # fmt: skip
def test_refusals_of_a_paged_call(change, message):
    with pytest.raises(OperatorArgumentError, match=message):
        npu_fused_infer_attention_score.run_check(**{**paged_call(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": half(2, 4, 3, 24), "key": half(2, 2, 5, 24), "value": half(2, 2, 5, 24)},
         "head size of query and key is 24; it must be a multiple of 16"),
        ({"query": half(2, 4, 3, 528), "key": half(2, 2, 5, 528), "value": half(2, 2, 5, 528)},
         "head size of query and key is 528; it must be from 16 to 512"),
        ({"query": half(65537, 4, 1, 16), "key": half(65537, 2, 1, 16),
          "value": half(65537, 2, 1, 16)}, "batch size is 65537; it must be from 0 to 65536"),
        ({"value": half(2, 2, 5, 32)}, "head size of value is 32, that of key 64"),
        ({"key": half(3, 2, 5, 64)}, "key .* has batch 3; query has 2"),
        ({"actual_seq_lengths": [4, 1]}, r"query lengths \[4, 1\] must be from 0 to 3"),
        ({"actual_seq_lengths_kv": [1, 6]}, r"kv lengths \[1, 6\] must be from 0 to 5"),
        ({"query": half(3, 4, 3, 64), "key": half(3, 2, 5, 64), "value": half(3, 2, 5, 64),
          "actual_seq_lengths_kv": [1, 2]}, "2 kv lengths for a batch of 3"),
        ({"atten_mask": torch.zeros(3, 3, 5).bool()}, r"atten_mask has shape \(3, 3, 5\)"),
        ({"atten_mask": torch.zeros(2, 2, 3, 5).bool()}, r"mask has shape \(2, 2, 3, 5\)"),
        ({"atten_mask": half(1, 3, 5)}, "atten_mask is float16; documented: bool, int8, uint8"),
        ({"atten_mask": torch.zeros(5).bool()}, "atten_mask has 1 dimensions"),
        ({"atten_mask": torch.zeros(1, 3, 4).bool()}, r"atten_mask has shape \(1, 3, 4\)"),
        ({"input_layout": "BNSD_BSND", "query": half(2, 4, 1, 64)}, "BNSD_BSND takes more than"),
        ({"input_layout": "BNSD_NBSD", "query": half(2, 4, 17, 64)}, "BNSD_NBSD is 17"),
        ({"query": half(2, 4, 1, 64), "inner_precise": 2}, r"inner_precise \(one query\) is 2"),
        ({"key": half(4, 2, 64, 64), "value": half(4, 2, 64, 64), "block_size": 64,
          "block_table": torch.zeros(2, 1, dtype=torch.int32), "actual_seq_lengths_kv": [1, 2]},
         "block_size is 64; it must be from 128 to 512"),
        ({"key": half(4, 128, 128), "value": half(4, 128, 128), "block_size": 128,
          "block_table": torch.zeros(2, 1, dtype=torch.int32)}, "a block_table needs them"),
    ],
)  # fmt: skip
def test_refusals_of_a_batch_call(change, message):
    with pytest.raises(OperatorArgumentError, match=message):
        npu_fused_infer_attention_score.run_check(**{**plain_call(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learnable_sink": torch.zeros(4)}, "learnable_sink is float32; documented: bfloat16"),
        ({"learnable_sink": torch.zeros(3).bfloat16()}, r"learnable_sink has shape \(3,\)"),
        ({"query": half(3, 4, 256).bfloat16(), "key": half(5, 128, 512).bfloat16(),
          "value": half(5, 128, 512).bfloat16()}, "learnable_sink with value head size 256"),
        ({"inner_precise": 1}, "inner_precise is 1; TND with this dtype allows 0"),
    ],
)  # fmt: skip
def test_refusals_of_a_sink(change, message):
    npu_fused_infer_attention_score_v2.run_check(**sink_call())
    with pytest.raises(OperatorArgumentError, match=message):
        npu_fused_infer_attention_score_v2.run_check(**{**sink_call(), **change})


def test_a_sink_needs_a_packed_layout():
    call = {name: tensor.bfloat16() for name, tensor in plain_call().items() if "num" not in name
            and name != "input_layout"}  # fmt: skip
    call.update(num_query_heads=4, num_key_value_heads=2, input_layout="BNSD")
    with pytest.raises(OperatorArgumentError, match="learnable_sink with input_layout BNSD"):
        npu_fused_infer_attention_score_v2.run_check(
            **call, learnable_sink=torch.zeros(4).bfloat16()
        )


@pytest.mark.parametrize(
    ("width", "block_size", "message"),
    [
        (1, 8, "block_size is 8; it must be from 16 to 512"),
        (1, 528, "block_size is 528; it must be from 16 to 512"),
        (1, 24, "block_size is 24; it must be a multiple of 16"),
        (3, 192, "block_size is 192; it must be a multiple of 128"),
    ],
)
def test_block_sizes_of_batch_layouts(width, block_size, message):
    cache = half(2, block_size, 128)
    with pytest.raises(OperatorArgumentError, match=message):
        npu_fused_infer_attention_score.run_check(
            half(2, 4, width, 64), cache, cache, num_heads=4, num_key_value_heads=2,
            input_layout="BNSD", block_size=block_size, actual_seq_lengths_kv=[1, 2],
            block_table=torch.zeros(2, 1, dtype=torch.int32),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kv_lengths", "message"),
    [
        ([3, 4], "kv lengths ends at 4; the tensor has 5 tokens"),
        ([6, 5], r"kv lengths \[6, 5\] must be cumulative"),
    ],
)
def test_kv_lengths_without_pages_are_cumulative(kv_lengths, message):
    call = {**paged_call(), "key": half(5, 2, 64), "value": half(5, 2, 64), "block_table": None}
    npu_fused_infer_attention_score.run_check(**{**call, "actual_seq_lengths_kv": [3, 5]})
    with pytest.raises(OperatorArgumentError, match=message):
        npu_fused_infer_attention_score.run_check(**{**call, "actual_seq_lengths_kv": kv_lengths})


def test_one_query_takes_at_most_262144_keys():
    cache = half(1, 1, 262145, 16)
    with pytest.raises(OperatorArgumentError, match=r"kv length \(one query\) is 262145"):
        npu_fused_infer_attention_score.run_check(
            half(1, 1, 1, 16), cache, cache, input_layout="BNSD"
        )


def test_an_empty_query_gives_an_empty_output():
    """Documented: an empty query is returned as it is."""
    call = {**plain_call(), "query": half(0, 4, 3, 64)}
    call.update(key=half(0, 2, 5, 64), value=half(0, 2, 5, 64))
    assert npu_fused_infer_attention_score.checked(**call)[0].shape == (0, 4, 3, 64)
    call = paged_call()
    call.update(query=half(0, 4, 64), actual_seq_lengths=[0, 0])
    assert npu_fused_infer_attention_score.checked(**call)[0].shape == (0, 4, 64)


@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_head_sizes_that_packed_layouts_take(head_size):
    call = paged_call()
    cache = half(5, 128, 2 * head_size)
    call.update(query=half(3, 4, head_size), key=cache, value=cache)
    npu_fused_infer_attention_score.run_check(**call)


def test_float32_passes_only_where_the_settings_ask_for_it(monkeypatch):
    call = {
        name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value for name, value in paged_call().items()
    }  # fmt: skip
    with pytest.raises(OperatorArgumentError, match="EMULATED_NPU_FLOAT32_COMPUTE"):
        npu_fused_infer_attention_score.run_check(**call)
    relaxed = dataclasses.replace(EmulatorSettings.from_environment({}), float32_compute=True)
    monkeypatch.setattr(requirements, "settings", lambda: relaxed)
    npu_fused_infer_attention_score.run_check(**call)
    # The relaxation is of the dtype, not of the rule that there is one.
    call["query"] = call["query"].half()
    with pytest.raises(OperatorArgumentError, match="query is float16, key is float32"):
        npu_fused_infer_attention_score.run_check(**call)


def test_messages_name_the_operator():
    with pytest.raises(OperatorArgumentError, match=r"^npu_fused_infer_attention_score: block_s"):
        npu_fused_infer_attention_score.run_check(**{**paged_call(), "block_size": 24})
