# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score with rope parts, as MLA calls it, against float64 loops."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators.attention_fused_infer import (
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_v2,
)
from emulated_npu.operators.attention_paging import gather_request
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    causal,
    checked_in_float32,
    everything,
    reference_attention,
)
from tests.support.operators.operator_testing import seeds

TRIANGLE = torch.triu(torch.ones(2048, 2048), 1).to(torch.int8)
SCALE = 0.05
few = settings(max_examples=10, deadline=None)


def latent_caches(generator, kv_lengths, block_size=16):
    latents = PagedCache(generator, kv_lengths, 1, 512, block_size)
    return latents, latents.same_places(generator, 64)


def expected_rows(query, rope, latents, ropes, index, visible):
    keys = torch.cat((latents.tokens[index], ropes.tokens[index]), -1)
    rows = torch.cat((query, rope), -1)
    return reference_attention(rows, keys, latents.tokens[index], SCALE, visible)[0]


@few
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "BNSD", "BSND"]),
    st.sampled_from(["heads_first", "fractal", "flat"]),
    seeds,
)
def test_decode_one_query_for_each_request(kv_lengths, num_heads, layout, form, seed):
    generator = torch.Generator().manual_seed(seed)
    latents, ropes = latent_caches(generator, kv_lengths)
    batch_size = len(kv_lengths)
    query = torch.randn(batch_size, num_heads, 512, generator=generator)
    rope = torch.randn(batch_size, num_heads, 64, generator=generator)

    def shaped(tensor):
        if layout.startswith("BSH"):
            return tensor.reshape(batch_size, 1, -1)
        return tensor.unsqueeze(2 if layout.startswith("BNSD") else 1)

    cache, rope_cache = getattr(latents, form)(), getattr(ropes, form)()
    output, _ = checked_in_float32(
        npu_fused_infer_attention_score_v2,
        shaped(query),
        cache,
        cache,
        dtype=torch.bfloat16,
        query_rope=shaped(rope),
        key_rope=rope_cache,
        num_query_heads=num_heads,
        num_key_value_heads=1,
        input_layout=layout,
        softmax_scale=SCALE,
        block_table=latents.table,
        block_size=16,
        actual_seq_kvlen=kv_lengths,
    )
    # Bring the output to (B, N, D).
    to_bnd = {"NBSD": (1, 0, 2, 3), "BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}
    output = output.permute(to_bnd[layout.split("_")[-1]]).squeeze(2)
    for index in range(batch_size):
        expected = expected_rows(
            query[index : index + 1], rope[index : index + 1], latents, ropes, index, everything
        )
        assert_close(output[index : index + 1], expected)


@few
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 30)).map(lambda p: (p[0], sum(p))),
        min_size=1,
        max_size=3,
    ).filter(lambda pairs: sum(p[0] for p in pairs) > 0),
    st.sampled_from(["TND", "TND_NTD"]),
    seeds,
)
def test_decode_several_queries(pairs, layout, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths, kv_lengths = [p[0] for p in pairs], [p[1] for p in pairs]
    latents, ropes = latent_caches(generator, kv_lengths)
    query = torch.randn(sum(lengths), 4, 512, generator=generator)
    rope = torch.randn(sum(lengths), 4, 64, generator=generator)
    cache = latents.heads_first()
    with_sums = layout == "TND"  # which vllm-ascend 0.30.0 merges over ranks
    output, log_sum = checked_in_float32(
        npu_fused_infer_attention_score_v2,
        query,
        cache,
        cache,
        dtype=torch.bfloat16,
        query_rope=rope,
        key_rope=ropes.heads_first(),
        atten_mask=TRIANGLE,
        sparse_mode=3,
        num_query_heads=4,
        num_key_value_heads=1,
        input_layout=layout,
        softmax_scale=SCALE,
        block_table=latents.table,
        block_size=16,
        actual_seq_qlen=list(accumulate(lengths)),
        actual_seq_kvlen=kv_lengths,
        return_softmax_lse=with_sums,
    )
    assert output.is_contiguous()
    if layout == "TND_NTD":
        output = output.transpose(0, 1)
    start = 0
    for index, length in enumerate(lengths):
        rows = slice(start, start + length)
        rule = causal(length, kv_lengths[index])
        keys = torch.cat((latents.tokens[index], ropes.tokens[index]), -1)
        queries = torch.cat((query[rows], rope[rows]), -1)
        expected, sums = reference_attention(queries, keys, latents.tokens[index], SCALE, rule)
        assert_close(output[rows], expected)
        if with_sums:
            assert_close(log_sum[rows, :, 0], sums)
        start = rows.stop


@few
@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), st.integers(1, 4), seeds)
def test_decode_with_a_mask_of_each_request(kv_lengths, width, seed):
    """As under context parallelism, where a request's rows see keys that lie apart."""
    generator = torch.Generator().manual_seed(seed)
    latents, ropes = latent_caches(generator, kv_lengths)
    batch_size = len(kv_lengths)
    query = torch.randn(batch_size, width, 2, 512, generator=generator)
    rope = torch.randn(batch_size, width, 2, 64, generator=generator)
    hidden = torch.rand(batch_size, width, latents.table.shape[1] * 16, generator=generator) < 0.4
    output, log_sum = checked_in_float32(
        npu_fused_infer_attention_score,
        query,
        latents.heads_first(),
        latents.heads_first(),
        dtype=torch.bfloat16,
        query_rope=rope,
        key_rope=ropes.heads_first(),
        atten_mask=hidden,
        sparse_mode=0,
        num_heads=2,
        num_key_value_heads=1,
        input_layout="BSND",
        scale=SCALE,
        block_table=latents.table,
        block_size=16,
        actual_seq_lengths=[width] * batch_size,
        actual_seq_lengths_kv=kv_lengths,
        softmax_lse_flag=True,
    )
    assert log_sum.shape == (batch_size, 2, width, 1)
    for index in range(batch_size):
        keys = torch.cat((latents.tokens[index], ropes.tokens[index]), -1)
        rows = torch.cat((query[index], rope[index]), -1)
        expected, sums = reference_attention(
            rows,
            keys,
            latents.tokens[index],
            SCALE,
            lambda row, key, own=hidden[index]: not own[row, key],
        )
        assert_close(output[index], expected)
        assert_close(log_sum[index, :, :, 0].transpose(0, 1), sums)


@few
@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), seeds)
def test_prefill(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    total, ends = sum(lengths), list(accumulate(lengths))
    query, key, value = (torch.randn(total, 2, 128, generator=generator) for _ in range(3))
    query_rope, key_rope = (torch.randn(total, 2, 64, generator=generator) for _ in range(2))
    output, log_sum = checked_in_float32(
        npu_fused_infer_attention_score,
        query,
        key,
        value,
        dtype=torch.bfloat16,
        query_rope=query_rope,
        key_rope=key_rope,
        atten_mask=TRIANGLE,
        sparse_mode=3,
        num_heads=2,
        num_key_value_heads=2,
        input_layout="TND",
        scale=SCALE,
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=ends,
        softmax_lse_flag=True,
    )
    rows, keys = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    for start, end in zip([0, *ends], ends, strict=False):
        part = slice(start, end)
        length = end - start
        expected, sums = reference_attention(
            rows[part], keys[part], value[part], SCALE, causal(length, length)
        )
        assert_close(output[part], expected)
        assert_close(log_sum[part, :, 0], sums)


def test_the_forms_of_a_cache_hold_the_same_tokens():
    generator = torch.Generator().manual_seed(0)
    cache = PagedCache(generator, [37, 20], 3, 32, 16)
    for form in (cache.flat(), cache.heads_first(), cache.fractal()):
        for row, tokens in zip(cache.table, cache.tokens, strict=True):
            assert gather_request(form, row, len(tokens), 3).equal(tokens)


def latent_call():
    """A legal call with the latent of MLA, one query for each of two requests."""
    cache = torch.zeros(3, 1, 128, 512, dtype=torch.bfloat16)
    return {
        "query": torch.zeros(2, 4, 1, 512, dtype=torch.bfloat16), "key": cache, "value": cache,
        "query_rope": torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16),
        "key_rope": torch.zeros(3, 1, 128, 64, dtype=torch.bfloat16),
        "num_query_heads": 4, "num_key_value_heads": 1, "input_layout": "BNSD_NBSD",
        "block_table": torch.zeros(2, 1, dtype=torch.int32), "block_size": 128,
        "actual_seq_kvlen": [5, 6],
    }  # fmt: skip


def bf16(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


def test_the_legal_call_passes():
    npu_fused_infer_attention_score_v2.run_check(**latent_call())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_rope": None}, "must be given together"),
        ({"query_rope": bf16(2, 4, 1, 32)}, r"query_rope has shape .* must be \(2, 4, 1, 64\)"),
        ({"key_rope": bf16(3, 1, 128, 32)}, r"key_rope has shape .* must be \(3, 1, 128, 64\)"),
        ({"query_rope": torch.zeros(2, 4, 1, 64).half()}, "query_rope is float16, .* one dtype"),
        (
            {"query": bf16(2, 4, 1, 256), "key": bf16(3, 1, 128, 256),
             "value": bf16(3, 1, 128, 256)},
            "are 256, 256, 256; they must all be 128 or all be 512",
        ),
        (
            {"query": bf16(2, 3, 1, 512), "query_rope": bf16(2, 3, 1, 64), "num_query_heads": 3},
            "3 query heads with head size 512; allowed: 1, 2, 4, 8",
        ),
        (
            {"query": bf16(2, 4, 1, 128), "key": bf16(3, 1, 128, 128),
             "value": bf16(3, 1, 128, 128)},
            "input_layout BNSD_NBSD with query_rope and head size 128; allowed: BSH",
        ),
        (
            {"key": bf16(3, 1, 32, 128, 16), "value": bf16(3, 1, 32, 128, 16)},
            r"key_rope has shape .* must be \(3, 1, 4, 128, 16\)",
        ),
        ({"atten_mask": torch.zeros(2, 128).bool()}, "two dimensions with query_rope"),
        ({"sparse_mode": 2, "atten_mask": TRIANGLE}, "sparse_mode is 2; head size 512"),
        ({"return_softmax_lse": True}, "softmax_lse is not available with head size 512"),
        ({"input_layout": "BNSD_BSND"}, "input_layout BNSD_BSND with head size 512"),
        ({"block_size": 2048}, "block_size is 2048; it must be from 16 to 1024"),
        (
            {"query": bf16(2, 4, 17, 512), "query_rope": bf16(2, 4, 17, 64)},
            "query length in BNSD_NBSD is 17; it must be from 1 to 16",
        ),
        (
            {"query": bf16(17, 4, 512), "query_rope": bf16(17, 4, 64), "input_layout": "TND",
             "actual_seq_qlen": [17, 17]},
            r"a request has 17 queries; head size 512 \(MLA\) allows 16",
        ),
    ],
)  # fmt: skip
def test_refusals_with_the_latent(change, message):
    with pytest.raises(ValueError, match=message):
        npu_fused_infer_attention_score_v2.run_check(**{**latent_call(), **change})


def test_two_latent_heads_are_refused():
    call = latent_call()
    call.update(
        key=bf16(3, 2, 128, 512),
        value=bf16(3, 2, 128, 512),
        key_rope=bf16(3, 2, 128, 64),
        num_key_value_heads=2,
    )
    with pytest.raises(ValueError, match="num_key_value_heads is 2; head size 512"):
        npu_fused_infer_attention_score_v2.run_check(**call)
