# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score on int8 caches with a scale per channel, against loops."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_npu.operators import requirements
from emulated_npu.operators.attention_fused_infer import (
    npu_fused_infer_attention_score,
    npu_fused_infer_attention_score_v2,
)
from emulated_npu.operators.registry import OperatorArgumentError
from emulated_npu.settings import EmulatorSettings
from tests.support.operators.attention_reference import assert_close, causal, reference_attention

TRIANGLE = torch.triu(torch.ones(2048, 2048), 1).to(torch.int8)
SCALE = 0.125
BLOCK, HEADS, SIZE = 128, 2, 128
SHAPES = {"BSND": (HEADS, SIZE), "BNSD": (HEADS, 1, SIZE), "BSH": (HEADS * SIZE,)}


def written(tokens, table, num_blocks):
    """An NZ cache with the tokens of each request, one number after the other."""
    cache = torch.full((num_blocks, HEADS, SIZE // 32, BLOCK, 32), 127, dtype=torch.int8)
    for row, rows in zip(table.tolist(), tokens, strict=True):
        for position, numbers in enumerate(rows):
            block, offset = row[position // BLOCK], position % BLOCK
            for column in range(0, SIZE, 32):
                cache[block, :, column // 32, offset] = numbers[:, column : column + 32]
    return cache


def call(generator, layout, width, kv_lengths, query_heads=4):
    """Arguments of a paged call, and what each request attends to in whole numbers and scales."""
    count = len(kv_lengths)
    columns = max(1, -(-max(kv_lengths) // BLOCK))
    order = torch.randperm(count * columns + 1, generator=generator)[: count * columns]
    table = order.view(count, columns).int()
    query = torch.randn(count, width, query_heads, SIZE, generator=generator).bfloat16()
    sides = {}
    for name in ("key", "value"):
        tokens = [
            torch.randint(-127, 128, (length, HEADS, SIZE), dtype=torch.int8, generator=generator)
            for length in kv_lengths
        ]
        scale = (torch.rand(HEADS, SIZE, generator=generator) / 64 + 1 / 128).bfloat16()
        sides[name] = tokens, scale, written(tokens, table, count * columns + 1)
    shown = {"BSND": query, "BNSD": query.transpose(1, 2).contiguous(), "BSH": query.flatten(2)}
    arguments = {
        "query": shown[layout], "key": sides["key"][2], "value": sides["value"][2],
        "key_antiquant_scale": sides["key"][1].reshape(SHAPES[layout]),
        "value_antiquant_scale": sides["value"][1].reshape(SHAPES[layout]),
        "num_heads": query_heads, "num_key_value_heads": HEADS, "scale": SCALE,
        "input_layout": layout, "inner_precise": 1, "block_table": table, "block_size": BLOCK,
        "actual_seq_lengths_kv": list(kv_lengths), "key_antiquant_mode": 0,
        "value_antiquant_mode": 0, "sparse_mode": 0,
    }  # fmt: skip
    if width > 1:
        arguments |= {"sparse_mode": 3, "atten_mask": TRIANGLE}
    return query, sides, arguments


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 150)), min_size=1, max_size=3),
    st.integers(0, 2**31),
)
def test_whole_numbers_times_their_channels_scale(layout, requests, seed):
    """Requests with as many queries as the widest, or fewer."""
    generator = torch.Generator().manual_seed(seed)
    widths = [width for width, _ in requests]
    kv_lengths = [width + before for width, before in requests]
    query, sides, arguments = call(generator, layout, max(widths), kv_lengths)
    arguments["actual_seq_lengths"] = widths
    npu_fused_infer_attention_score.run_check(**arguments)
    arguments["query"] = arguments["query"].float()
    output, _ = npu_fused_infer_attention_score.kernel(**arguments)
    output = output.transpose(1, 2) if layout == "BNSD" else output.view(query.shape)
    for index, (width, kv_length) in enumerate(zip(widths, kv_lengths, strict=True)):
        key, value = (
            sides[name][0][index].double() * sides[name][1].double() for name in ("key", "value")
        )
        rule = causal(width, kv_length)
        expected, _ = reference_attention(query[index, :width], key, value, SCALE, rule)
        assert_close(output[index, :width], expected)
        assert not output[index, width:].any()


def legal(width=2):
    return call(torch.Generator().manual_seed(0), "BSND", width, [3, 130])[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 2, 4, SIZE).half()}, "query is float16; documented: bfloat16"),
        ({"key": torch.zeros(3, BLOCK, HEADS * SIZE, dtype=torch.int8)}, "must be in NZ format"),
        ({"value": torch.zeros(5, HEADS, 8, BLOCK, 16).bfloat16()}, "value is bfloat16"),
        ({"input_layout": "TND"}, "input_layout TND with an int8 cache; allowed: BSH, BSND, BNSD"),
        ({"inner_precise": 0}, r"inner_precise is 0; an int8 cache needs 1"),
        ({"sparse_mode": 0, "atten_mask": None}, "2 queries on an int8 cache; one query takes"),
        ({"query": torch.zeros(2, 17, 4, SIZE).bfloat16()}, "must be from 1 to 16"),
        ({"query": torch.zeros(2, 2, 4, 64).bfloat16()}, "head size of query is 64"),
        ({"value_antiquant_scale": None}, "value_antiquant_scale is None"),
        ({"key_antiquant_scale": torch.ones(HEADS, 1, SIZE).bfloat16()}, r"needs \(2, 128\)"),
        ({"key_antiquant_scale": torch.ones(HEADS, SIZE)}, "key_antiquant_scale is float32"),
        ({"query_rope": torch.zeros(2, 2, 4, 64).bfloat16()}, "query_rope and key_rope with an"),
    ],
)
def test_refusals(monkeypatch, change, message):
    strict = dataclasses.replace(EmulatorSettings.from_environment({}), float32_compute=False)
    monkeypatch.setattr(requirements, "settings", lambda: strict)
    npu_fused_infer_attention_score.run_check(**legal())
    with pytest.raises(OperatorArgumentError, match=message):
        npu_fused_infer_attention_score.run_check(**{**legal(), **change})


def test_one_query_takes_no_mask():
    npu_fused_infer_attention_score.run_check(**legal(width=1))
    with pytest.raises(OperatorArgumentError, match="sparse_mode 3 with a mask and 1 queries"):
        npu_fused_infer_attention_score.run_check(
            **{**legal(width=1), "sparse_mode": 3, "atten_mask": TRIANGLE}
        )


def test_offsets_and_the_second_version_fail_by_name():
    with pytest.raises(NotImplementedError, match="key_antiquant_offset is not emulated"):
        npu_fused_infer_attention_score.kernel(**legal(), key_antiquant_offset=torch.zeros(1))
    with pytest.raises(TypeError, match="no argument 'key_antiquant_scale'"):
        npu_fused_infer_attention_score_v2.kernel(
            torch.zeros(1), torch.zeros(1), torch.zeros(1), key_antiquant_scale=torch.zeros(1)
        )
