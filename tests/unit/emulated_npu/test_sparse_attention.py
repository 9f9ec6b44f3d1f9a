# SPDX-License-Identifier: Apache-2.0
"""The choice of keys and attention to them, of 8 bits too, against float64 loops."""

import math
import struct
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators.lightning_indexer import (
    npu_lightning_indexer,
    vllm_ascend_lightning_indexer,
)
from emulated_npu.operators.lightning_indexer_quant import npu_lightning_indexer_quant
from emulated_npu.operators.sparse_attention import npu_sparse_flash_attention
from emulated_npu.operators.sparse_attention_quant import (
    npu_kv_quant_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention_vllm,
)
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    checked_in_float32,
    reference_attention,
)
from tests.support.operators.operator_testing import few, refused, seeds

# Queries and keys of each request; the queries are its last tokens.
requests = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 30)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=3,
).filter(lambda pairs: sum(queries for queries, _ in pairs) > 0)


def lengths(values):
    return torch.tensor(list(values), dtype=torch.int32)


def packed(pairs, keys):
    """The arguments that say where queries and keys lie."""
    return {
        "actual_seq_lengths_query": lengths(accumulate(queries for queries, _ in pairs)),
        "block_table": keys.table,
        "layout_query": "TND",
    }


def sees(mode, position, queries, row):
    return mode == 0 or position[0] <= row + position[1] - queries


@few
@given(requests, st.integers(1, 8), st.sampled_from([1, 5, 2048]), st.sampled_from([0, 3]), seeds)
def test_the_highest_scores_are_chosen(pairs, num_heads, count, mode, seed):
    generator = torch.Generator().manual_seed(seed)
    keys = PagedCache(generator, [length for _, length in pairs], 1, 128, 16)
    total = sum(queries for queries, _ in pairs)
    query = torch.randn(total + 2, num_heads, 128, generator=generator)  # two rows of padding
    weights = torch.randn(total + 2, num_heads, generator=generator)
    chosen, _ = checked_in_float32(
        npu_lightning_indexer, query, keys.cache, weights, dtype=torch.bfloat16,
        actual_seq_lengths_key=lengths(length for _, length in pairs),
        layout_key="PA_BSND", sparse_count=count, sparse_mode=mode, **packed(pairs, keys),
    )  # fmt: skip
    assert chosen.shape == (total + 2, 1, count)
    row = 0
    for tokens, (queries, length) in zip(keys.tokens, pairs, strict=True):
        for index in range(queries):
            scores = {}
            for position in range(length):
                if not sees(mode, (position, length), queries, index):
                    continue
                scores[position] = 0.0
                for head in range(num_heads):
                    product = float(query[row, head].double() @ tokens[position, 0].double())
                    scores[position] += float(weights[row, head]) * max(product, 0.0)
            best = sorted(scores, key=lambda position: -scores[position])[:count]
            expected = best + [-1] * (count - len(best))
            # float32 and float64 may order two near scores differently.
            got = chosen[row, 0].tolist()
            assert [scores.get(p, -1) for p in got] == pytest.approx(
                [scores.get(p, -1) for p in expected], abs=1e-4
            )
            assert len(set(got[: len(best)])) == len(best)
            row += 1
    assert (chosen[row:] == -1).all()


@few
@given(requests, st.integers(1, 8), st.sampled_from([1, 5, 2048]), seeds)
def test_8_bit_keys_are_chosen_by_their_dequantised_scores(pairs, num_heads, count, seed):
    generator = torch.Generator().manual_seed(seed)
    keys = PagedCache(generator, [length for _, length in pairs], 1, 128, 16)
    scales = keys.same_places(generator, 1)
    key = (keys.cache * 30).clamp(-127, 127).round().to(torch.int8)
    key_scale = scales.cache.abs().clamp(max=9).to(torch.float16)
    total = sum(queries for queries, _ in pairs)
    query = torch.randint(-127, 128, (total, num_heads, 128), generator=generator).to(torch.int8)
    weights = torch.randn(total, num_heads, generator=generator).to(torch.float16)
    query_scale = torch.rand(total, num_heads, generator=generator).to(torch.float16)
    chosen = npu_lightning_indexer_quant.checked(
        query, key, weights, query_scale, key_scale.squeeze(-1), layout_key="PA_BSND",
        actual_seq_lengths_key=lengths(length for _, length in pairs), sparse_count=count,
        **packed(pairs, keys),
    )  # fmt: skip
    expected, _ = npu_lightning_indexer.kernel(
        query.double() * query_scale.double().unsqueeze(-1), key.double() * key_scale.double(),
        weights, layout_key="PA_BSND", sparse_count=count,
        actual_seq_lengths_key=lengths(length for _, length in pairs), **packed(pairs, keys),
    )  # fmt: skip
    # Rounding may exchange two near scores.
    assert (chosen == expected).double().mean() > 0.98


def test_of_equal_scores_the_earlier_key_is_chosen():
    ones = torch.ones(1, 4, 1, 128)
    chosen, _ = vllm_ascend_lightning_indexer.kernel(
        torch.ones(1, 4, 2, 128), ones, torch.ones(1, 4, 2), sparse_count=2
    )
    assert chosen[0, :, 0].tolist() == [[0, -1], [0, 1], [0, 1], [0, 1]]


@few
@given(requests, st.sampled_from([1, 4]), st.sampled_from([1, 4, 16]), st.sampled_from([0, 3]),
       seeds)  # fmt: skip
def test_attention_to_the_chosen_keys(pairs, num_heads, block_size, mode, seed):
    generator = torch.Generator().manual_seed(seed)
    key_lengths = [length for _, length in pairs]
    latents = PagedCache(generator, key_lengths, 1, 512, 16)
    ropes = latents.same_places(generator, 64)
    total = sum(queries for queries, _ in pairs)
    query = torch.randn(total, num_heads, 576, generator=generator)
    rows, count = [], 6
    for queries, length in pairs:
        for _ in range(queries):
            blocks = torch.randperm(-(-length // block_size), generator=generator)
            kept = blocks[: int(torch.randint(0, count + 1, (), generator=generator))].tolist()
            rows.append(kept + [-1] * (count - len(kept)))
    output, row_max, row_sum = checked_in_float32(
        npu_sparse_flash_attention, query[..., :512], latents.cache, latents.cache,
        lengths(rows).unsqueeze(1), 0.05, dtype=torch.float16,
        query_rope=query[..., 512:], key_rope=ropes.cache,
        actual_seq_lengths_kv=lengths(key_lengths), layout_kv="PA_BSND",
        sparse_block_size=block_size, sparse_mode=mode, return_softmax_lse=True,
        **packed(pairs, latents),
    )  # fmt: skip
    row = 0
    for index, (queries, length) in enumerate(pairs):
        values = latents.tokens[index]
        keys = torch.cat((values, ropes.tokens[index]), -1)
        for query_index in range(queries):

            def visible(_row, column, row=row, query_index=query_index, queries=queries,
                        length=length):  # fmt: skip
                named = column // block_size in rows[row]
                return named and sees(mode, (column, length), queries, query_index)

            expected, sums = reference_attention(query[row : row + 1], keys, values, 0.05, visible)
            assert_close(output[row : row + 1], expected)
            found = row_max[0, row] + row_sum[0, row].log()
            assert_close(found, sums[0].masked_fill(sums[0] == -math.inf, -math.inf))
            row += 1


def test_batches_without_pages_agree_with_pages():
    generator = torch.Generator().manual_seed(3)
    pages = PagedCache(generator, [9, 9], 1, 512, 16)
    ropes = pages.same_places(generator, 64)
    query = torch.randn(2, 3, 2, 576, generator=generator)
    chosen = torch.tensor([4, 1, 0, -1], dtype=torch.int32).expand(2, 3, 1, 4).contiguous()
    shared = {"query_rope": query[..., 512:], "actual_seq_lengths_kv": lengths([9, 7])}
    paged, *_ = npu_sparse_flash_attention.kernel(
        query[..., :512], pages.cache, pages.cache, chosen, 0.05, key_rope=ropes.cache,
        layout_kv="PA_BSND", block_table=pages.table, **shared,
    )  # fmt: skip
    keys, rope_keys = torch.stack(pages.tokens), torch.stack(ropes.tokens)
    plain, *_ = npu_sparse_flash_attention.kernel(
        query[..., :512], keys, keys, chosen, 0.05, key_rope=rope_keys, **shared
    )
    torch.testing.assert_close(paged, plain)


def indexer_call(**changes):
    arguments = {
        "query": torch.ones(2, 4, 128, dtype=torch.float16),
        "key": torch.ones(3, 16, 1, 128, dtype=torch.float16),
        "weights": torch.ones(2, 4, dtype=torch.float16),
        "actual_seq_lengths_query": lengths([1, 2]),
        "actual_seq_lengths_key": lengths([5, 20]),
        "block_table": lengths([0, 0, 1, 2]).view(2, 2),
        "layout_query": "TND",
        "layout_key": "PA_BSND",
    }
    return npu_lightning_indexer.checked(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse_count": 2049}, "sparse_count is 2049"),
        ({"sparse_mode": 4}, "sparse_mode is 4"),
        ({"pre_tokens": 5}, "pre_tokens is 5"),
        ({"block_table": None}, "block_table is given with PA_BSND"),
        ({"block_table": lengths([0, 1]).view(2, 1)}, "longest key length is 20"),
        ({"actual_seq_lengths_query": lengths([1, 3])}, "end past the 2 queries"),
        ({"weights": torch.ones(2, 5, dtype=torch.float16)}, "weights has shape"),
        ({"key": torch.ones(3, 24, 1, 128, dtype=torch.float16)}, "block size of key is 24"),
        ({"key": torch.ones(3, 16, 1, 128)}, "they must have one dtype"),
    ],
)
def test_what_is_not_documented_is_refused(changes, message):
    indexer_call()
    with refused(message):
        indexer_call(**changes)


def attention_call(**changes):
    arguments = {
        "query": torch.ones(2, 4, 512, dtype=torch.float16),
        "key": torch.ones(3, 16, 1, 512, dtype=torch.float16),
        "value": torch.ones(3, 16, 1, 512, dtype=torch.float16),
        "sparse_indices": lengths([0, 1, 0, -1]).view(2, 1, 2),
        "scale_value": 0.05,
        "query_rope": torch.ones(2, 4, 64, dtype=torch.float16),
        "key_rope": torch.ones(3, 16, 1, 64, dtype=torch.float16),
        "actual_seq_lengths_query": lengths([1, 2]),
        "actual_seq_lengths_kv": lengths([5, 20]),
        "block_table": lengths([0, 0, 1, 2]).view(2, 2),
        "layout_query": "TND",
        "layout_kv": "PA_BSND",
    }
    return npu_sparse_flash_attention.checked(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse_indices": lengths([0, 1, -1, 0]).view(2, 1, 2)}, "valid ones come first"),
        ({"sparse_indices": lengths([0, 1]).view(1, 1, 2)}, "sparse_indices has shape"),
        ({"query_rope": None}, "query_rope or key_rope is None"),
        ({"attention_mode": 0}, "attention_mode is 0"),
        ({"sparse_block_size": 32}, "sparse_block_size is 32"),
        ({"key": torch.ones(6, 16, 1, 512, dtype=torch.float16)[::2]}, "is not contiguous"),
    ],
)
def test_attention_refuses_what_is_not_documented(changes, message):
    attention_call()
    with refused(message):
        attention_call(**changes)


LENGTH = 40
PAGE = 16


def packed_token(latent, rope, scales):
    """The bytes of one token: 512 int8, 64 float16, 4 float32."""
    data = struct.pack("<512b64e4f", *latent, *rope, *scales)
    return list(struct.unpack("<656b", data))


def read_token(row):
    """Latent and rotary key of one token as floats, from its bytes."""
    values = struct.unpack("<512b64e4f", struct.pack("<656b", *row))
    latent, rope, scales = values[:512], values[512:576], values[576:]
    return [scales[place // 128] * value for place, value in enumerate(latent)], list(rope)


def random_tokens(generator):
    latent = torch.randint(-127, 128, (LENGTH, 512), generator=generator).tolist()
    rope = torch.randn(LENGTH, 64, generator=generator).tolist()
    scales = (torch.rand(LENGTH, 4, generator=generator) * 0.02).tolist()
    return [packed_token(*parts) for parts in zip(latent, rope, scales, strict=True)]


@few
@given(
    st.sampled_from(
        [npu_kv_quant_sparse_flash_attention, npu_kv_quant_sparse_flash_attention_vllm]
    ),
    seeds,
    st.sampled_from([1, 4]),
    st.sampled_from([1, 4]),
    st.sampled_from([0, 3]),
)
def test_values_are_those_that_the_bytes_say(attend, seed, num_heads, block_size, mode):
    generator = torch.Generator().manual_seed(seed)
    tokens = random_tokens(generator)
    pages = torch.zeros(5, PAGE, 1, 656, dtype=torch.int8)
    table = [3, 0, 4]
    for position, row in enumerate(tokens):
        pages[table[position // PAGE], position % PAGE, 0] = torch.tensor(row)
    queries = 3
    query = torch.randn(queries, num_heads, 576, generator=generator).half()
    chosen = torch.randperm(-(-LENGTH // block_size), generator=generator)[:7].int()
    output, row_max, row_sum = attend.checked(
        query, pages, pages, torch.stack([chosen] * queries).unsqueeze(1).contiguous(), 0.05,
        key_quant_mode=2, value_quant_mode=2,
        block_table=torch.tensor([table], dtype=torch.int32),
        actual_seq_lengths_query=torch.tensor([queries], dtype=torch.int32),
        actual_seq_lengths_kv=torch.tensor([LENGTH], dtype=torch.int32),
        sparse_block_size=block_size, layout_query="TND", layout_kv="PA_BSND",
        sparse_mode=mode, return_softmax_lse=True,
    )  # fmt: skip
    assert output.shape == (queries, num_heads, 512)
    read = [read_token(row) for row in tokens]
    # Dequantised keys are in the query's dtype.
    latents = torch.tensor([latent for latent, _ in read]).half().double().unsqueeze(1)
    ropes = torch.tensor([rope for _, rope in read]).double().unsqueeze(1)

    def visible(row, column):
        past = mode == 0 or column <= row + LENGTH - queries
        return past and column // block_size in chosen.tolist()

    expected, sums = reference_attention(
        query.double(), torch.cat((latents, ropes), -1), latents, 0.05, visible
    )
    torch.testing.assert_close(output.double(), expected.double(), rtol=2e-3, atol=2e-3)
    assert_close((row_max + row_sum.log())[0], sums)


def packed_call(**changes):
    arguments = {
        "query": torch.ones(2, 4, 576, dtype=torch.float16),
        "key": torch.zeros(3, 16, 1, 656, dtype=torch.int8),
        "value": torch.zeros(3, 16, 1, 656, dtype=torch.int8),
        "sparse_indices": torch.zeros(2, 1, 2, dtype=torch.int32),
        "scale_value": 0.05,
        "key_quant_mode": 2,
        "value_quant_mode": 2,
        "actual_seq_lengths_query": torch.tensor([1, 2], dtype=torch.int32),
        "actual_seq_lengths_kv": torch.tensor([5, 20], dtype=torch.int32),
        "block_table": torch.tensor([[0, 0], [1, 2]], dtype=torch.int32),
        "layout_query": "TND",
        "layout_kv": "PA_BSND",
    }
    return npu_kv_quant_sparse_flash_attention.checked(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_quant_mode": 1}, "key_quant_mode is 1; it must be 2"),
        ({"value_quant_mode": 0}, "value_quant_mode is 0"),
        ({"quant_scale_repo_mode": 0}, "quant_scale_repo_mode is 0"),
        ({"tile_size": 64}, "tile_size is 64"),
        ({"rope_head_dim": 32}, "rope_head_dim is 32"),
        ({"key_dequant_scale": torch.ones(4)}, "key_dequant_scale is reserved"),
        ({"sparse_block_size": 32}, "a power of two up to 16"),
        ({"attention_mode": 0}, "attention_mode is 0"),
        ({"query": torch.ones(2, 4, 576)}, "query is float32"),
        ({"query": torch.ones(2, 3, 576).half()}, "query has 3 heads"),
        ({"key": torch.zeros(3, 16, 1, 640, dtype=torch.int8)}, "key has shape"),
        ({"value": torch.zeros(3, 16, 1, 656)}, "value is float32"),
    ],
)
def test_what_is_not_documented_of_8_bits_is_refused(changes, message):
    packed_call()
    with refused(message):
        packed_call(**changes)
