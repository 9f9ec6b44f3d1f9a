# SPDX-License-Identifier: Apache-2.0
"""The operators of DeepSeek-V4, against float64 loops and vLLM's torch forms."""

import functools
import importlib.util
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.cache import npu_scatter_nd_update_v2
from emulated_npu.custom_operators.compressor import (
    compressor,
    compressor_metadata,
    compressor_metadata_out,
)
from emulated_npu.custom_operators.gating_hash import moe_gating_top_k_hash
from emulated_npu.custom_operators.hyper_connections import npu_hc_post, npu_hc_pre_v2
from emulated_npu.custom_operators.rotary import inplace_partial_rotary_mul
from emulated_npu.custom_operators.shared_kv_attention import (
    npu_sparse_attn_sharedkv,
    npu_sparse_attn_sharedkv_metadata,
)
from emulated_npu.operators.lightning_indexer_quant import npu_vllm_quant_lightning_indexer
from emulated_npu.operators.lightning_indexer_quant_v2 import (
    npu_quant_lightning_indexer_v2,
    npu_quant_lightning_indexer_v2_metadata,
)
from tests.support.operators.attention_reference import (
    PagedCache,
    assert_close,
    reference_attention,
)
from tests.support.operators.operator_testing import few, refused, seeds

HIDDEN, ROPE = 1024, 64


def int32(values):
    return torch.tensor(list(values), dtype=torch.int32)


def rope_rows(positions, size=ROPE):
    """cos and sin of each position, every angle twice: (positions, size)."""
    angles = positions.double().unsqueeze(1) / 100 ** torch.linspace(0, 1, size // 2)
    return (part.repeat_interleave(2, -1).float() for part in (angles.cos(), angles.sin()))


def compressed_keys(x, weights, ape, norm, ratio, coff):
    """All keys of one whole sequence in float64, token by token from the README's formulas."""
    size = norm.shape[0]
    keys, scores = (x.double() @ weight.double().T for weight in weights)
    result = []
    for group in range(x.shape[0] // ratio):
        rows = [(position, coff - 1) for position in range(group * ratio, (group + 1) * ratio)]
        if coff == 2 and group > 0:
            rows += [(position - ratio, 0) for position, _ in rows]
        key = torch.zeros(size, dtype=torch.float64)
        for feature in range(size):
            exponents = [
                float(scores[row, half * size + feature])
                + float(ape[row % ratio, half * size + feature])
                for row, half in rows
            ]
            chances = torch.tensor(exponents, dtype=torch.float64).softmax(0)
            for chance, (row, half) in zip(chances, rows, strict=True):
                key[feature] += chance * keys[row, half * size + feature]
        key = key / (key.square().mean() + 1e-6).sqrt() * norm.double()
        cos, sin = (next_row[0].double() for next_row in rope_rows(torch.tensor([group * ratio])))
        pairs = key[-ROPE:].clone()
        for even in range(0, ROPE, 2):
            first, second = pairs[even], pairs[even + 1]
            key[size - ROPE + even] = first * cos[even] - second * sin[even]
            key[size - ROPE + even + 1] = second * cos[even + 1] + first * sin[even + 1]
        result.append(key)
    return torch.stack(result) if result else torch.zeros(0, size, dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "coff", "size", "chunks"),
    [(4, 2, 128, [[9, 1, 1, 1, 4, 3], [1, 2, 1, 7, 1, 1]]), (128, 1, 512, [[127, 1, 130]])],
)
def test_keys_are_those_of_the_whole_sequence_however_it_is_cut(ratio, coff, size, chunks):
    generator = torch.Generator().manual_seed(1)
    width = coff * size

    def normal(*shape, spread=1.0):
        return torch.randn(*shape, generator=generator) * spread

    weights = [normal(width, HIDDEN, spread=HIDDEN**-0.5) for _ in range(2)]
    ape, norm = normal(ratio, width), normal(size)
    texts = [normal(sum(chunk), HIDDEN) for chunk in chunks]
    block_size = 8
    columns = -(-max(map(len, texts)) // block_size)
    order = torch.randperm(columns * len(texts), generator=generator) + 1  # block 0 is none
    table = order.view(len(texts), columns).to(torch.int32)
    cache = torch.full((columns * len(texts) + 1, block_size, 2 * width), 1e4)
    made = [[] for _ in texts]
    starts = [0] * len(texts)
    for step in range(len(chunks[0])):
        counts = [chunk[step] for chunk in chunks]
        x = torch.cat([t[s : s + n] for t, s, n in zip(texts, starts, counts, strict=True)])
        bounds = [0, *accumulate(counts)]
        new = [range(s // ratio, (s + n) // ratio) for s, n in zip(starts, counts, strict=True)]
        positions = torch.tensor([key * ratio for keys in new for key in keys])
        rows = min(len(x), len(x) // ratio + len(texts))
        cos, sin = rope_rows(torch.cat((positions, torch.zeros(rows - len(positions)))))
        output = compressor.kernel(
            x, *weights, cache, ape, norm, sin, cos, table, int32(bounds), None, int32(starts),
            ROPE, ratio, coff, 1e-6, 2, 1,
        )  # fmt: skip
        assert output.shape == (rows, size)
        row = 0
        for keys, own in zip(made, new, strict=True):
            keys.extend(output[row : row + len(own)])
            row += len(own)
        assert not output[row:].any()
        starts = [s + n for s, n in zip(starts, counts, strict=True)]
    for text, keys in zip(texts, made, strict=True):
        expected = compressed_keys(text, weights, ape, norm, ratio, coff)
        torch.testing.assert_close(torch.stack(keys).double(), expected, rtol=1e-4, atol=1e-4)
    assert (cache[0] == 1e4).all()


@few
@given(
    st.lists(st.tuples(st.integers(1, 140), st.integers(0, 300)), min_size=1, max_size=4),
    st.sampled_from([4, 128]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
)
def test_rows_and_slots_of_the_keys_to_come(requests, ratio, form, padding):
    counts, starts = zip(*requests, strict=True)
    table = torch.arange(7 * len(requests), dtype=torch.int32).view(len(requests), 7) + 3
    cos = torch.arange(1024.0).view(-1, 1, 1, 1).expand(-1, 1, 1, ROPE).contiguous()
    expected = [
        (request, key)
        for request, (count, start) in enumerate(requests)
        for key in range(4096)
        if start < (key + 1) * ratio <= start + count
    ]
    rows = len(expected) + padding
    bounds = int32([0, *accumulate(counts)])
    arguments = (cos, -cos, bounds, int32(starts), table, 128, form, ratio)
    got_cos, got_sin, slots = compressor_metadata.checked(*arguments, rows, len(requests))
    into = [torch.empty_like(tensor) for tensor in (got_cos, got_sin, slots)]
    compressor_metadata_out.kernel(*arguments, len(requests), *into)
    assert all(torch.equal(a, b) for a, b in zip(into, (got_cos, got_sin, slots), strict=True))
    for row, (request, key) in enumerate(expected):
        block, offset = int(table[request, key // 128]), key % 128
        assert (got_cos[row] == key * ratio).all()
        assert (got_sin[row] == -key * ratio).all()
        assert slots[row].tolist() == ([block, offset] if form == 2 else block * 128 + offset)
    for row in range(len(expected), rows):
        assert (got_cos[row] == 1).all()
        assert (got_sin[row] == 0).all()
        assert slots[row].tolist() == ([-1, 127] if form == 2 else -1)


@pytest.mark.parametrize(("ratio", "choose"), [(0, False), (4, False), (4, True), (128, False)])
def test_attention_to_window_and_compressed_keys(ratio, choose):
    generator = torch.Generator().manual_seed(2)
    queries, key_lengths = [3, 1, 0, 140], [280, 130, 9, 140]
    heads = 4
    window = PagedCache(generator, key_lengths, 1, 512, 32)
    compressed = PagedCache(
        generator, [length // max(ratio, 1) for length in key_lengths], 1, 512, 16
    )
    bounds = [0, *accumulate(queries)]
    query = torch.randn(bounds[-1], heads, 512, generator=generator)
    sinks = torch.randn(heads, generator=generator)
    chosen = torch.full((bounds[-1], 1, 512), -1, dtype=torch.int32)
    chosen[:, 0, :3] = int32([5, 0, 2])
    extra = {"cmp_kv": compressed.cache, "cmp_block_table": compressed.table} if ratio else {}
    if ratio and choose:
        extra["cmp_sparse_indices"] = chosen
    # Blocks that the window has left are free for others.
    table = window.table.clone()
    table[0, : (280 - 3 - 127) // 32] = 0
    output, _ = npu_sparse_attn_sharedkv.kernel(
        query, ori_kv=window.cache, ori_block_table=table, cu_seqlens_q=int32(bounds),
        seqused_kv=int32(key_lengths), sinks=sinks, softmax_scale=0.05, cmp_ratio=max(ratio, 1),
        ori_win_left=127, layout_q="TND",
        metadata=npu_sparse_attn_sharedkv_metadata.checked(
            64, 1, 512, cu_seqlens_q=int32(bounds), seqused_kv=int32(key_lengths)
        ), **extra,
    )  # fmt: skip
    for index, (first, last) in enumerate(pairwise(bounds)):
        length = key_lengths[index]
        keys = window.tokens[index]
        if ratio:
            keys = torch.cat((keys, compressed.tokens[index]))
        for row in {first, (first + last) // 2, last - 1} if last > first else ():
            position = length - (last - row)

            def visible(_row, column, position=position, length=length):
                if column < length:
                    return position - 127 <= column <= position
                key = column - length
                return (key + 1) * ratio <= position + 1 and (not choose or key in (5, 0, 2))

            expected, _ = reference_attention(
                query[row : row + 1], keys, keys, 0.05, visible, sinks
            )
            assert_close(output[row : row + 1], expected)


def choose_as_0_23(tensors, starts, tokens, table, count):
    chosen, _ = npu_vllm_quant_lightning_indexer.checked(
        *tensors, actual_seq_lengths_query=int32(starts[1:]), actual_seq_lengths_key=int32(tokens),
        block_table=table, cmp_ratio=4, metadata=torch.zeros(1024, dtype=torch.int32),
        layout_query="TND", layout_key="PA_BSND", sparse_count=count,
    )  # fmt: skip
    return chosen


def choose_as_0_30(tensors, starts, tokens, table, count):
    lengths = {
        "cu_seqlens_q": int32(starts),
        "seqused_k": int32([length // 4 for length in tokens]),
        "cmp_residual_k": int32([length % 4 for length in tokens]),
        "cmp_ratio": 4,
    }
    metadata = npu_quant_lightning_indexer_v2_metadata.checked(64, 1, 128, count, 2, **lengths)
    chosen, values = npu_quant_lightning_indexer_v2.checked(
        *tensors, count, 2, block_table=table, metadata=metadata, **lengths
    )
    assert values.shape == (0,)
    return chosen


def test_the_indexer_of_0_30_refuses_what_it_does_not_do():
    def call(starts=(0, 1), **changed):
        named = {"seqused_k": int32([4]), "cmp_residual_k": int32([3]), **changed}
        key = torch.zeros(1, 16, 1, 128, dtype=torch.int8)
        half = torch.zeros(1, 64, dtype=torch.float16)
        npu_quant_lightning_indexer_v2.checked(
            torch.zeros(1, named.pop("heads", 64), 128, dtype=torch.int8), key, half, half,
            torch.zeros(1, 16, 1, dtype=torch.float16), 6, named.pop("quant_mode", 2),
            cu_seqlens_q=int32(starts), block_table=int32([[0]]),
            metadata=torch.zeros(1024, dtype=torch.int32), **named,
        )  # fmt: skip

    call()
    with refused("quant_mode is 1"):
        call(quant_mode=1)
    with refused("not from 0 to 3"):
        call(cmp_residual_k=int32([4]))
    with refused("cu_seqlens_q begins with 1"):
        call(starts=(1, 1))
    with refused("query has 32 heads"):
        call(heads=32)
    with pytest.raises(NotImplementedError, match="return_value"):
        call(return_value=1)


@pytest.mark.parametrize("choose", [choose_as_0_23, choose_as_0_30])
def test_compressed_8_bit_keys_are_chosen_once_complete(choose):
    generator = torch.Generator().manual_seed(4)
    keys = PagedCache(generator, [9, 5], 1, 128, 16)
    key = (keys.cache * 30).clamp(-127, 127).round().to(torch.int8)
    key_scale = torch.rand(key.shape[:-1], generator=generator).to(torch.float16)
    query = torch.randint(-127, 128, (4, 64, 128), generator=generator).to(torch.int8)
    weights, scale = (torch.rand(4, 64, generator=generator).to(torch.float16) for _ in range(2))
    tokens, queries = [38, 23], [3, 1]
    tensors = (query, key, weights, scale, key_scale)
    chosen = choose(tensors, [0, 3, 4], tokens, keys.table, 6)
    row = 0
    for index, (count, length) in enumerate(zip(queries, tokens, strict=True)):
        for position in range(length - count, length):
            scores = {}
            for column in range((position + 1) // 4):
                block = int(keys.table[index, column // 16])
                own = key[block, column % 16, 0].double() * float(key_scale[block, column % 16, 0])
                products = query[row].double() @ own * scale[row].double()
                scores[column] = float((products.clamp(min=0) * weights[row].double()).sum())
            best = sorted(scores, key=lambda column: -scores[column])[:6]
            assert chosen[row, 0].tolist() == best + [-1] * (6 - len(best))
            row += 1


@functools.cache
def torch_form_of_vllm():
    """The one file: importing it as a part of vLLM looks for a platform."""
    folder = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])
    path = folder / "model_executor/kernels/mhc/torch.py"
    spec = importlib.util.spec_from_file_location("hyper_connections_of_vllm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@few
@given(st.integers(1, 5), seeds)
def test_hyper_connections_are_vllms(num_tokens, seed):
    theirs = torch_form_of_vllm()
    generator = torch.Generator().manual_seed(seed)
    streams = torch.randn(num_tokens, 4, 32, generator=generator).bfloat16()
    mixing = torch.randn(24, 128, generator=generator)
    scale, base = torch.randn(3, generator=generator), torch.randn(24, generator=generator)
    x, post, comb = npu_hc_pre_v2.checked(streams, mixing, scale, base, 4, 20, 1e-6, 1e-5)
    wanted_post, wanted_comb, wanted = theirs.mhc_pre_torch(
        streams, mixing, scale, base, 1e-6, 1e-5, 1e-5, 2.0, 20
    )
    torch.testing.assert_close(x, wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(post, wanted_post.squeeze(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(comb, wanted_comb, rtol=1e-4, atol=1e-5)
    joined = npu_hc_post.checked(x[None], streams[None], post[None], comb[None])[0]
    expected = theirs.mhc_post_torch(x, streams, wanted_post, wanted_comb)
    torch.testing.assert_close(joined, expected, rtol=3e-2, atol=3e-2)


@few
@given(st.booleans(), st.booleans(), seeds)
def test_experts_by_score_or_by_token(by_token, with_bias, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 8, generator=generator)
    bias = torch.randn(8, generator=generator) if with_bias else None
    tokens = torch.randint(0, 9, (5,), generator=generator)
    of_token = torch.stack([torch.randperm(8, generator=generator)[:3] for _ in range(9)]).int()
    hashed = {"input_ids": tokens, "tid2eid": of_token} if by_token else {}
    weights, experts, _ = moe_gating_top_k_hash.checked(
        logits, 3, bias, routed_scaling_factor=1.5, norm_type=2, **hashed
    )
    for row in range(5):
        scores = [float((1 + logits[row, e].double().exp()).log().sqrt()) for e in range(8)]
        shifted = [s + (float(bias[e]) if with_bias else 0) for e, s in enumerate(scores)]
        wanted = sorted(range(8), key=lambda e: -shifted[e])[:3]
        if by_token:
            wanted = of_token[tokens[row]].tolist()
        assert experts[row].tolist() == wanted
        total = sum(scores[e] for e in wanted)
        expected = [1.5 * scores[e] / total for e in wanted]
        assert weights[row].tolist() == pytest.approx(expected, rel=1e-4)


def test_rotation_of_a_slice_is_a_complex_product():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 1, 2, 12, generator=generator)
    cos, sin = (part.view(3, 1, 1, 8) for part in rope_rows(torch.tensor([0, 5, 9]), 8))
    before = x.clone()
    assert inplace_partial_rotary_mul.checked(x, cos, sin, "interleave", [4, 12]) is None
    pairs = torch.view_as_complex(before[..., 4:].double().unflatten(-1, (4, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.complex(cos[..., ::2], sin[..., ::2]).to(pairs.dtype))
    torch.testing.assert_close(x[..., 4:].double(), turned.flatten(-2), rtol=1e-5, atol=1e-5)
    assert torch.equal(x[..., :4], before[..., :4])
    with refused("rotary_mode is 'half'"):
        inplace_partial_rotary_mul.checked(x, cos, sin, "half", [4, 12])


def test_scatter_skips_what_is_before_the_first_element():
    cache = torch.zeros(2, 4, 3)
    update = torch.ones(3, 3)
    npu_scatter_nd_update_v2.checked(cache, int32([1, 2, -1, 3, 0, 1]).view(3, 2), update)
    assert cache.sum(-1).tolist() == [[0, 3, 0, 0], [0, 0, 3, 0]]
    with refused("reach outside"):
        npu_scatter_nd_update_v2.checked(cache, int32([1, -1]).view(1, 2), update[:1])
