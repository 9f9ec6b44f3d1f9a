# SPDX-License-Identifier: Apache-2.0
"""The stand-in for flash_attn_npu_v3, against float64 loops."""

import importlib.util
import sys
from itertools import accumulate
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import emulated_npu
from emulated_npu.operators.fa3 import flash_attn_with_kvcache
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    causal,
    checked_in_float32,
    everything,
    reference_attention,
)
from tests.support.operators.operator_testing import few, refused, seeds

OPTIONAL_FOLDER = Path(emulated_npu.__file__).parent / "site" / "optional_fa3"


@few
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 30)).map(lambda p: (p[0], sum(p))),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([(1, 1), (4, 2), (4, 1)]),
    st.booleans(),
    st.sampled_from([None, 0.3]),
    seeds,
)
def test_paged(pairs, head_counts, is_causal, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = head_counts
    lengths, kv_lengths = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    keys = PagedCache(generator, kv_lengths, num_kv_heads, 64, 16)
    values = keys.same_places(generator, 64)
    query = torch.randn(sum(lengths), num_heads, 64, generator=generator)
    output, log_sum = checked_in_float32(
        flash_attn_with_kvcache, query, keys.cache, values.cache, dtype=torch.bfloat16,
        cache_seqlens=torch.tensor(kv_lengths, dtype=torch.int32), page_table=keys.table,
        cu_seqlens_q=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        max_seqlen_q=torch.tensor(max(lengths)), softmax_scale=scale, causal=is_causal,
        window_size=[-1, -1], num_splits=1, return_softmax_lse=True,
    )  # fmt: skip
    start = 0
    for index, (length, kv_length) in enumerate(pairs):
        rows = slice(start, start + length)
        rule = causal(length, kv_length) if is_causal else everything
        expected, sums = reference_attention(
            query[rows], keys.tokens[index], values.tokens[index], scale or 64**-0.5, rule
        )
        assert_close(output[rows], expected)
        # The library leaves plus infinity where a row sees no key.
        assert_close(log_sum[rows], sums.masked_fill(sums.isinf(), float("inf")))
        start = rows.stop


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.booleans(), seeds)
def test_batch_without_pages(kv_lengths, is_causal, seed):
    generator = torch.Generator().manual_seed(seed)
    batch_size = len(kv_lengths)
    query = torch.randn(batch_size, 3, 4, 32, generator=generator)
    keys, values = (torch.randn(batch_size, 9, 2, 32, generator=generator) for _ in range(2))
    output = checked_in_float32(
        flash_attn_with_kvcache, query, keys, values, dtype=torch.float16, causal=is_causal,
        cache_seqlens=torch.tensor(kv_lengths, dtype=torch.int32),
    )  # fmt: skip
    for index, length in enumerate(kv_lengths):
        rule = causal(3, length) if is_causal else everything
        expected, _ = reference_attention(
            query[index], keys[index, :length], values[index, :length], 32**-0.5, rule
        )
        assert_close(output[index], expected)


def legal_call():
    cache = torch.zeros(3, 16, 2, 64).half()
    return {
        "q": torch.zeros(3, 4, 64).half(), "k_cache": cache, "v_cache": cache,
        "cache_seqlens": torch.tensor([5, 6], dtype=torch.int32),
        "page_table": torch.zeros(2, 1, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 1, 3], dtype=torch.int32), "max_seqlen_q": 2,
    }  # fmt: skip


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(3, 4, 64)}, "q is float32; documented: float16, bfloat16"),
        ({"k_cache": torch.zeros(3, 16, 2, 64).bfloat16()}, "k_cache is bfloat16"),
        ({"q": torch.zeros(1, 3, 4, 64).half()}, "q has 4 dimensions"),
        ({"k_cache": torch.zeros(3, 16, 2, 32).half()}, "k_cache has shape"),
        ({"v_cache": torch.zeros(3, 16, 1, 64).half()}, "v_cache has shape"),
        ({"q": torch.zeros(3, 3, 64).half()}, "q has 3 heads, not a multiple of the 2"),
        ({"q": torch.zeros(3, 4, 128).half()[..., ::2]}, "last dimension must be contiguous"),
        ({"k_cache": torch.zeros(16, 3, 2, 64).half().transpose(0, 1)}, "k_cache .* contiguous"),
        ({"cache_seqlens": torch.tensor([5, 6])}, "cache_seqlens is int64"),
        ({"cache_seqlens": int32(5)}, r"cache_seqlens has shape \(1,\)"),
        ({"page_table": torch.zeros(2, 1).long()}, "page_table is int64"),
        ({"page_table": torch.zeros(1, 1, dtype=torch.int32)}, "page_table has 1 rows for 2"),
        ({"cu_seqlens_q": torch.tensor([0, 1, 3])}, "cu_seqlens_q is int64"),
        ({"cu_seqlens_q": int32(1, 2, 3)}, "must start at 0; subtract its first element"),
        ({"cu_seqlens_q": int32(0, 1, 2)}, "cu_seqlens_q ends at 2; the tensor has 3"),
        ({"cu_seqlens_q": int32(0, 2, 1)}, "must be cumulative"),
        ({"max_seqlen_q": None}, "max_seqlen_q is None"),
    ],
)
def test_refusals(change, message):
    flash_attn_with_kvcache.run_check(**legal_call())
    with refused(message):
        flash_attn_with_kvcache.run_check(**{**legal_call(), **change})


def test_what_the_library_does_not_have_fails_by_name():
    for name, value in (("softcap", 1.0), ("num_splits", 2), ("k", torch.ones(1))):
        with pytest.raises(NotImplementedError, match=f"with {name} is not emulated"):
            flash_attn_with_kvcache.kernel(**legal_call(), **{name: value})
    with pytest.raises(NotImplementedError, match=r"window_size \(4, 0\)"):
        flash_attn_with_kvcache.kernel(**legal_call(), window_size=(4, 0))
    with pytest.raises(TypeError, match="no argument 'windows'"):
        flash_attn_with_kvcache.kernel(**legal_call(), windows=1)


def test_what_may_be_appended_can_be_left_out_by_position():
    call = legal_call()
    caches = [call.pop(name) for name in ("q", "k_cache", "v_cache")]
    flash_attn_with_kvcache.checked(*caches, None, None, None, **call)
    with pytest.raises(NotImplementedError, match="with v is not emulated"):
        flash_attn_with_kvcache.checked(*caches, None, torch.ones(1), None, **call)


def test_the_module_is_importable_only_from_its_own_folder(monkeypatch):
    """Its folder is put on the path when the emulator is asked for it, and only then."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "optional_fa3" not in entry])
    assert importlib.util.find_spec("flash_attn_npu_v3") is None
    monkeypatch.syspath_prepend(str(OPTIONAL_FOLDER))
    with mock.patch.dict(sys.modules):  # Tests after this one find no such module.
        module = importlib.import_module("flash_attn_npu_v3")
    assert module.flash_attn_with_kvcache is flash_attn_with_kvcache
