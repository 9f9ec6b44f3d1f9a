# SPDX-License-Identifier: Apache-2.0
"""Attention to chosen keys of 8 bits, against float64 loops over what the bytes say."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.operators.sparse_attention_quant import (
    npu_kv_quant_sparse_flash_attention,
    npu_kv_quant_sparse_flash_attention_vllm,
)
from tests.support.operators.attention_reference import assert_close, reference_attention
from tests.support.operators.operator_testing import few, refused, seeds

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


def call(**changes):
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
def test_what_is_not_documented_is_refused(changes, message):
    call()
    with refused(message):
        call(**changes)
